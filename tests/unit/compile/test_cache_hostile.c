/* A cache directory that is damaged, poisoned, full, read-only or somebody else's: nothing in it becomes code that the
 * daemon did not write, and nothing of it stops the daemon. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache_support.h"
#include "compile/cache_disk.h"
#include "util/error.h"

enum { SOMEBODY = 65534, SIZE = 64 };

static void refuses(const char *directory, const char *why)
{
    struct cache_disk *d = NULL;
    struct error e = {0};

    assert_int_equal(cache_disk_open(directory, 1 << 20, &d, &e), -1);
    assert_null(d);
    assert_non_null(strstr(e.message, why));
}

static int try_store(struct cache_disk *d, unsigned seed, struct error *e)
{
    struct compiled *c = module_new(seed, SIZE);
    int r = cache_disk_write(d, c, e);

    compiled_unref(c);
    return r;
}

/* The file of module 1 is absent for a reader, who says so in one line and removes it; a new one takes its place. */
static void counts_as_absent(struct cache_disk *d, const char *directory)
{
    uint64_t rejected = cache_disk_counters(d).rejected;
    struct stat st;

    log_begin();
    assert_false(disk_has(d, 1, SIZE));
    assert_int_equal(log_end("event=cache_file_rejected"), 1);
    assert_int_equal(cache_disk_counters(d).rejected, rejected + 1);
    assert_int_equal(lstat(path_of_module(directory, 1), &st), -1);
    log_begin();
    assert_false(disk_has(d, 1, SIZE));
    assert_int_equal(log_end("event="), 0);
    disk_store(d, 1, SIZE);
    assert_true(disk_has(d, 1, SIZE));
}

/* ---- damage ---- */

OPENING_TEST(every_byte_and_every_length)
{
    const char *directory = folder_new();
    struct cache_disk *d = disk_opened(directory, 1 << 20);
    const char *path;
    unsigned char *good;
    size_t size;

    disk_store(d, 1, SIZE);
    good = file_read(path_of_module(directory, 1), &size);
    path = strdup(path_of_module(directory, 1));
    assert_in_range(size, 200, 2000);
    log_begin();
    for (size_t i = 0; i < size; i++) {
        good[i] ^= (unsigned char)(1U << i % 8);
        file_write(path, good, size);
        good[i] ^= (unsigned char)(1U << i % 8);
        if (disk_has(d, 1, SIZE))
            fail_msg("a change of byte %zu of %zu was not seen", i, size);
        file_write(path, good, i);
        if (disk_has(d, 1, SIZE))
            fail_msg("a file of %zu bytes in place of %zu was taken", i, size);
    }
    good[size] = 0; /* file_read() has room for one more */
    file_write(path, good, size + 1);
    assert_false(disk_has(d, 1, SIZE));
    assert_int_equal(log_end("event=cache_file_rejected"), 2 * size + 1);
    file_write(path, good, size);
    assert_true(disk_has(d, 1, SIZE)); /* that was all right all along */
    assert_int_equal(cache_disk_counters(d).rejected, 2 * size + 1);
    free((char *)path);
    free(good);
}

/* A right file, but of another key, of another daemon, or from before the secret was made anew. */
OPENING_TEST(files_that_were_moved)
{
    const char *directory = folder_new(), *other = folder_new();
    struct cache_disk *d = disk_opened(directory, 1 << 20);

    disk_store(d, 2, SIZE);
    assert_int_equal(rename(path_of_module(directory, 2), path_of_module(directory, 1)), 0);
    counts_as_absent(d, directory);
    disk_store(disk_opened(other, 1 << 20), 1, SIZE);
    assert_int_equal(rename(path_of_module(other, 1), path_of_module(directory, 1)), 0);
    counts_as_absent(d, directory);
    close_now(d);
    assert_int_equal(unlink(folder_path(directory, "secret")), 0);
    counts_as_absent(disk_opened(directory, 1 << 20), directory);
}

/* ---- poison ---- */

OPENING_TEST(a_secret_that_others_know)
{
    static const unsigned char known[33] = "an attacker has chosen these 32.";
    const char *directory = folder_new(), *other = folder_new();

    for (unsigned i = 0; i < 5; i++) {
        const char *path = strdup(folder_path(directory, "secret"));
        unsigned char *now;
        struct cache_disk *d;
        struct stat st;
        size_t size;

        unlink(path);
        if (i == 3) {
            file_write(folder_path(other, "planted"), known, 32);
            assert_int_equal(symlink(folder_path(other, "planted"), path), 0);
        } else {
            file_write(path, known, i == 1 ? 31 : i == 2 ? 33 : 32);
        }
        if (i == 0)
            assert_int_equal(chmod(path, 0640), 0);
        if (i == 4 && (geteuid() != 0 || chown(path, SOMEBODY, SOMEBODY) < 0)) {
            free((char *)path);
            continue;
        }
        log_begin();
        d = disk_opened(directory, 1 << 20);
        assert_int_equal(log_end("event=cache_secret_replaced"), 1);
        assert_int_equal(lstat(path, &st), 0);
        assert_true(S_ISREG(st.st_mode));
        assert_int_equal(st.st_uid, geteuid());
        now = file_read(path, &size);
        assert_int_equal(size, 32);
        assert_memory_not_equal(now, known, 32);
        free(now);
        disk_store(d, 1, SIZE);
        counts_as_absent((file_write(path_of_module(directory, 1), "x", 1), d), directory);
        close_now(d);
        free((char *)path);
    }
}

OPENING_TEST(something_else_in_its_place)
{
    const char *directory = folder_new(), *other = folder_new();
    struct cache_disk *d = disk_opened(directory, 1 << 20);
    char *path = strdup(path_of_module(directory, 1)), *away = strdup(folder_path(other, "away"));
    struct stat st;

    disk_store(d, 1, SIZE);
    assert_int_equal(rename(path, away), 0);
    assert_int_equal(symlink(away, path), 0); /* to a file that would be right */
    counts_as_absent(d, directory);
    assert_int_equal(stat(away, &st), 0); /* what it led to stays */

    unlink(path);
    assert_int_equal(symlink("/dev/zero", path), 0);
    counts_as_absent(d, directory);

    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    counts_as_absent(d, directory);

    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    counts_as_absent(d, directory);

    assert_int_equal(chmod(path, 0620), 0);
    counts_as_absent(d, directory);
    if (geteuid() == 0) {
        assert_int_equal(chown(path, SOMEBODY, SOMEBODY), 0);
        counts_as_absent(d, directory);
    }
    free(away);
    free(path);
}

/* A writer follows no link either: what it leads to is not written. */
OPENING_TEST(writes_beside_a_planted_link)
{
    const char *directory = folder_new(), *other = folder_new();
    struct cache_disk *d = disk_opened(directory, 1 << 20);
    unsigned char *bytes;
    struct stat st;
    size_t size;

    file_write(folder_path(other, "victim"), "precious", 8);
    assert_int_equal(symlink(folder_path(other, "victim"), path_of_module(directory, 1)), 0);
    disk_store(d, 1, SIZE);
    bytes = file_read(folder_path(other, "victim"), &size);
    assert_int_equal(size, 8);
    assert_memory_equal(bytes, "precious", 8);
    free(bytes);
    assert_int_equal(lstat(path_of_module(directory, 1), &st), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_true(disk_has(d, 1, SIZE));
}

/* ---- directories ---- */

OPENING_TEST(directories_of_others)
{
    const char *directory = folder_new();

    assert_int_equal(chmod(directory, 0770), 0);
    refuses(directory, "others can write");
    assert_int_equal(chmod(directory, 0702), 0);
    refuses(directory, "others can write");
    assert_int_equal(chmod(directory, 0700), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(directory, SOMEBODY, SOMEBODY), 0);
        refuses(directory, "belongs to user");
        assert_int_equal(chown(directory, 0, 0), 0);
    }
    file_write(folder_path(directory, "file"), "", 0);
    refuses(folder_path(directory, "file"), "cannot be opened");
    refuses(folder_path(directory, "file/below"), "cannot be opened");
    refuses("", "cannot be opened");
}

OPENING_TEST(read_only_directory)
{
    const char *directory = folder_new();
    bool root = geteuid() == 0;
    struct cache_disk *d;
    struct error e;

    if (root) { /* whom permissions do not stop */
        assert_int_equal(chown(directory, SOMEBODY, SOMEBODY), 0);
        assert_int_equal(seteuid(SOMEBODY), 0);
    }
    d = disk_opened(directory, 1 << 20);
    disk_store(d, 1, SIZE);
    assert_int_equal(chmod(directory, 0500), 0);
    log_begin();
    for (unsigned i = 2; i < 10; i++)
        assert_int_equal(try_store(d, i, &e), -1);
    assert_int_equal(log_end("event=cache_write_failed"), 1); /* one line, not eight */
    assert_int_equal(cache_disk_counters(d).failures, 8);
    assert_true(disk_has(d, 1, SIZE)); /* a module that was stored before is still read */
    close_now(d);

    file_write(path_of_module(directory, 1), "damaged", 7); /* and cannot be removed */
    d = disk_opened(directory, 1 << 20);
    log_begin();
    for (unsigned i = 0; i < 8; i++)
        assert_false(disk_has(d, 1, SIZE));
    assert_int_equal(log_end("event=cache_file_rejected"), 1);
    close_now(d);

    assert_int_equal(chmod(directory, 0700), 0);
    d = disk_opened(directory, 1 << 20);
    disk_store(d, 1, SIZE);
    close_now(d);
    assert_int_equal(chmod(directory, 0500), 0);
    d = disk_opened(directory, 1 << 20); /* also by the next daemon */
    assert_true(disk_has(d, 1, SIZE));
    close_now(d);
    assert_int_equal(chmod(directory, 0700), 0);
    assert_int_equal(unlink(folder_path(directory, "secret")), 0);
    assert_int_equal(chmod(directory, 0500), 0);
    refuses(directory, "cannot be made"); /* without a secret nothing can */
    assert_int_equal(chmod(directory, 0700), 0);
    if (root)
        assert_int_equal(seteuid(0), 0);
}

/* Fills what is left, then writes; nothing may stay behind. */
static void stores_nothing(struct cache_disk *d, const char *directory)
{
    struct compiled *c = module_new(5, 50000);
    struct error e;

    log_begin();
    assert_int_equal(cache_disk_write(d, c, &e), -1);
    assert_int_equal(cache_disk_write(d, c, &e), -1);
    assert_int_equal(log_end("event=cache_write_failed"), 1);
    assert_int_equal(cache_disk_counters(d).failures, 2);
    assert_null(cache_disk_read(d, c->key, true));
    assert_int_equal(directory_count(directory), 1);
    assert_true(disk_has(d, 1, SIZE));
    compiled_unref(c);
}

OPENING_TEST(a_file_that_may_not_grow)
{
    const char *directory = folder_new();
    struct cache_disk *d = disk_opened(directory, 1 << 20);
    struct rlimit before, limit;

    disk_store(d, 1, SIZE);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    limit = (struct rlimit){10000, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    stores_nothing(d, directory);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
}

/* On a real file system without room, where this process may make one. */
OPENING_TEST(full_disk)
{
    const char *directory = folder_new();
    struct cache_disk *d;

    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", directory, "tmpfs", 0, "size=32k,mode=0700") < 0) {
        skip();
    }
    d = disk_opened(directory, 1 << 20);
    disk_store(d, 1, SIZE);
    stores_nothing(d, directory);
    close_now(d);

    assert_int_equal(mount("none", directory, "tmpfs", MS_REMOUNT | MS_RDONLY, "size=32k"), 0);
    d = disk_opened(directory, 1 << 20); /* read-only: a module that was stored before is still read */
    assert_true(disk_has(d, 1, SIZE));
    close_now(d);
    assert_int_equal(umount(directory), 0);
}
