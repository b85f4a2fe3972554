/* Whose hands a path is in. Only root can make files of others, so the test needs root. */
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/folder.h"
#include "tests/support/unit.h"
#include "util/path_trust.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { OTHER = 54321, DAEMON = 54322 };

/* A tree of root's in the test's own folder. */
static const char *const folders[] = {"ours", "ours/below", "theirs", "theirs/ours", "shared"};
static const char *const files[] = {"ours/file", "ours/below/file", "theirs/file", "theirs/ours/file", "shared/file"};
static const char *const links[][2] = {{"link", "ours/file"},
                                       {"shared/link", "../ours"},
                                       {"shared/theirs", "../ours/file"},
                                       {"dangling", "/nowhere"},
                                       {"loop", "loop"}};

static const struct row {
    struct {
        const char *of; /* NULL: nothing is changed */
        uid_t owner;
        gid_t group;
        mode_t mode; /* 0: as it is */
    } change;
    const char *path, *why; /* NULL: trusted */
    bool closed;
    mode_t above; /* of ours/, 0: as it is */
} rows[] = {
    {.path = "ours/file"},
    {.path = "ours/below/../file"},
    {.path = "./ours//below/./file"},
    {.path = "link"},
    {.path = "shared/file"},
    {.path = "shared/link/file"},
    {.path = "ours/below"},
    {{"ours/file", .owner = OTHER}, "ours/file", "belongs to user 54321"},
    {{"ours/file", .owner = OTHER}, "link", "belongs to user 54321"},
    {{"ours/file", .mode = 0666}, "ours/file", "everybody may write"},
    {{"ours/file", .group = OTHER, .mode = 0664}, "ours/file", "its group may write to it (group 54321)"},
    {{"ours/file", .mode = 0664}, "ours/file"}, /* root's group */
    {{"theirs", .owner = OTHER}, "theirs/file", "as the owner of"},
    {{"theirs", .owner = OTHER}, "theirs/ours/file", "as the owner of"},
    {{"theirs", .owner = OTHER}, "theirs/missing", "as the owner of"},
    {{"theirs", .owner = DAEMON}, "theirs/ours/file"},
    {{"ours", .mode = 0777}, "ours/file", "everybody may put another file in its place"},
    {{"ours", .mode = 0777}, "link", "everybody may put another file in its place"},
    {{"ours", .group = OTHER, .mode = 0775}, "ours/below/file", "a group may put another file in its place"},
    {{"shared/file", .owner = OTHER}, "shared/file", "belongs to user 54321"},
    {{"shared/theirs", .owner = OTHER}, "shared/theirs", "chown -h root"},
    {{"shared/link", .owner = OTHER}, "shared/link/file", "chown -h root"},
    {{"ours/below/file", .mode = 0666}, "ours/below/file", "everybody may write", .closed = true, .above = 0700},
    {.path = "dangling", .why = "No such file"},
    {.path = "loop", .why = "symbolic links"},
};

static void make_tree(void)
{
    for (size_t i = 0; i < COUNT(folders); i++)
        assert_int_equal(mkdir(folders[i], 0755), 0);
    for (size_t i = 0; i < COUNT(files); i++)
        assert_int_equal(mknod(files[i], S_IFREG | 0644, 0), 0);
    for (size_t i = 0; i < COUNT(links); i++)
        assert_int_equal(symlink(links[i][1], links[i][0]), 0);
    assert_int_equal(chmod("shared", 01777), 0);
}

static void change(const struct row *row)
{
    if (row->change.of)
        assert_int_equal(lchown(row->change.of, row->change.owner, row->change.group), 0);
    if (row->change.mode)
        assert_int_equal(chmod(row->change.of, row->change.mode), 0);
    if (row->above)
        assert_int_equal(chmod("ours", row->above), 0);
}

static void judge(const struct row *row)
{
    const bool there = access(row->path, F_OK) == 0;
    struct stat st = {0};
    bool closed = false;
    struct error e = {0};
    int r;

    if (there)
        assert_int_equal(stat(row->path, &st), 0);
    r = path_trust(row->path, &st, DAEMON, PATH_WRITERS, &closed, &e);
    if (row->why && (r == 0 || !strstr(e.message, row->why)))
        fail_msg("row %td, %s: %s", row - rows, row->path, r == 0 ? "trusted" : e.message);
    if (!row->why && r < 0)
        fail_msg("row %td, %s: %s", row - rows, row->path, e.message);
    assert_int_equal(closed, row->closed);
    /* Who may write, apart. */
    r = path_trust(row->path, &st, DAEMON, PATH_OWNERS, NULL, &e);
    assert_int_equal(r, row->why && !strstr(row->why, "everybody") && !strstr(row->why, "group") ? -1 : 0);
}

OPENING_TEST(who_can_change_a_file)
{
    if (geteuid() != 0)
        skip();
    umask(022);
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *folder = folder_new();

        assert_int_equal(chmod(folder, 0755), 0);
        assert_int_equal(chdir(folder), 0);
        make_tree();
        change(&rows[i]);
        judge(&rows[i]);
        assert_int_equal(chdir("/"), 0);
        close_opened(NULL);
    }
}

TEST(a_file_that_is_not_there_yet)
{
    struct error e = {0};
    struct stat other;

    assert_int_equal(path_trust("/no-such-folder/file", NULL, 0, PATH_WRITERS, NULL, &e), 0);
    assert_int_equal(path_trust("", NULL, 0, PATH_WRITERS, NULL, &e), 0);
    assert_int_equal(stat("/", &other), 0);
    assert_int_equal(path_trust("/usr", &other, 0, PATH_WRITERS, NULL, &e), -1);
    assert_non_null(strstr(e.message, "another file is in its place"));
    assert_int_equal(path_trust("/", &other, 0, PATH_WRITERS, NULL, &e), 0);
}
