/* A cache directory that is damaged, poisoned, full, read-only or somebody else's: nothing in it becomes code that the
 * daemon did not write, and nothing of it stops the daemon. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support.h"
#include "util/error.h"

enum { SOMEBODY = 65534, SIZE = 64 };

static unsigned char *file_read(const char *path, size_t *ret_size)
{
    unsigned char *bytes;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    bytes = malloc((size_t)st.st_size + 1);
    assert_int_equal(read(fd, bytes, (size_t)st.st_size), st.st_size);
    close(fd);
    *ret_size = (size_t)st.st_size;
    return bytes;
}

static void refuses(const char *directory, const char *why)
{
    struct cache_disk *d = NULL;
    struct error e = {0};

    assert_int_equal(cache_disk_open(directory, 1 << 20, &d, &e), -1);
    assert_null(d);
    assert_non_null(strstr(e.message, why));
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

/* The path of module 1, until the test ends. */
static const char *path_of_first(const char *directory)
{
    return opened(strdup(path_of_module(directory, 1)), free);
}

OPENING_TEST(every_byte_and_every_length)
{
    const char *directory = folder_new(), *path = path_of_first(directory);
    struct cache_disk *d = disk_opened(directory, 1 << 20);
    unsigned char *good;
    size_t size;

    disk_store(d, 1, SIZE);
    good = opened(file_read(path, &size), free);
    good[size] = 0; /* file_read() has room for one more */
    assert_in_range(size, 200, 2000);
    log_begin();
    for (size_t i = 0; i < size; i++) {
        good[i] ^= (unsigned char)(1U << i % 8);
        file_write(path, good, size);
        good[i] ^= (unsigned char)(1U << i % 8);
        if (disk_has(d, 1, SIZE))
            fail_msg("a change of byte %zu of %zu was not seen", i, size);
        file_write(path, good, i ? i : size + 1);
        if (disk_has(d, 1, SIZE))
            fail_msg("a file of %zu bytes in place of %zu was taken", i ? i : size + 1, size);
    }
    assert_int_equal(log_end("event=cache_file_rejected"), 2 * size);
    file_write(path, good, size);
    assert_true(disk_has(d, 1, SIZE)); /* that was all right all along */
    assert_int_equal(cache_disk_counters(d).rejected, 2 * size);
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
    enum { READABLE, SHORT, LONG, LINKED, SOMEBODYS, KINDS };
    static const unsigned char known[33] = "an attacker has chosen these 32.";
    const char *directory = folder_new(), *path = opened(strdup(folder_path(directory, "secret")), free);
    const char *planted = opened(strdup(folder_path(folder_new(), "planted")), free);

    for (unsigned i = 0; i < (geteuid() ? SOMEBODYS : KINDS); i++) {
        unsigned char *now;
        struct cache_disk *d;
        struct stat st;
        size_t size;

        unlink(path);
        file_write(i == LINKED ? planted : path, known, i == SHORT ? 31 : i == LONG ? 33 : 32);
        if (i == LINKED)
            assert_int_equal(symlink(planted, path), 0);
        if (i == READABLE)
            assert_int_equal(chmod(path, 0640), 0);
        if (i == SOMEBODYS)
            assert_int_equal(chown(path, SOMEBODY, SOMEBODY), 0);
        log_begin();
        d = disk_opened(directory, 1 << 20);
        assert_int_equal(log_end("event=cache_secret_replaced"), 1);
        assert_int_equal(lstat(path, &st), 0);
        assert_true(S_ISREG(st.st_mode) && st.st_uid == geteuid());
        now = file_read(path, &size);
        assert_int_equal(size, 32);
        assert_memory_not_equal(now, known, 32);
        free(now);
        disk_store(d, 1, SIZE);
        assert_true(disk_has(d, 1, SIZE));
        close_now(d);
    }
}

/* A writer follows no link either: what it leads to is not written. */
OPENING_TEST(something_else_in_its_place)
{
    enum { LINK, LINK_TO_DEVICE, FIFO, FOLDER, WRITABLE, SOMEBODYS, KINDS };
    const char *directory = folder_new(), *path = path_of_first(directory);
    const char *away = opened(strdup(folder_path(folder_new(), "away")), free);
    struct cache_disk *d = disk_opened(directory, 1 << 20);
    struct stat st;

    file_write(away, "precious", 8);
    assert_int_equal(symlink(away, path), 0);
    disk_store(d, 1, SIZE);
    assert_int_equal(stat(away, &st), 0);
    assert_int_equal(st.st_size, 8);
    assert_true(disk_has(d, 1, SIZE));
    assert_int_equal(rename(path, away), 0);
    for (unsigned i = 0; i < (geteuid() ? SOMEBODYS : KINDS); i++) {
        int r = 0;

        if (i < WRITABLE)
            unlink(path);
        if (i == LINK || i == LINK_TO_DEVICE)
            r = symlink(i == LINK ? away : "/dev/zero", path); /* the first to a file that would be right */
        else if (i == FIFO)
            r = mkfifo(path, 0600);
        else if (i == FOLDER)
            r = mkdir(path, 0700);
        else
            r = i == WRITABLE ? chmod(path, 0620) : chown(path, SOMEBODY, SOMEBODY);
        assert_int_equal(r, 0);
        counts_as_absent(d, directory);
    }
    assert_int_equal(stat(away, &st), 0); /* what it led to stays */
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
    refuses(folder_put(directory, "file", ""), "cannot be opened");
    refuses(folder_path(directory, "file/below"), "cannot be opened");
    refuses("", "cannot be opened");
}

OPENING_TEST(read_only_directory)
{
    const char *directory = folder_new();
    struct compiled *c = module_new(2, SIZE);
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
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(cache_disk_write(d, c, &e), -1);
    assert_int_equal(log_end("event=cache_write_failed"), 1); /* one line, not eight */
    assert_int_equal(cache_disk_counters(d).failures, 8);
    assert_true(disk_has(d, 1, SIZE)); /* a module that was stored before is still read */
    close_now(d);
    d = disk_opened(directory, 1 << 20); /* also by the next daemon */
    assert_true(disk_has(d, 1, SIZE));
    file_write(path_of_module(directory, 1), "damaged", 7); /* and cannot be removed */
    log_begin();
    for (unsigned i = 0; i < 8; i++)
        assert_false(disk_has(d, 1, SIZE));
    assert_int_equal(log_end("event=cache_file_rejected"), 1);
    close_now(d);
    assert_int_equal(chmod(directory, 0700), 0);
    assert_int_equal(unlink(folder_path(directory, "secret")), 0);
    assert_int_equal(chmod(directory, 0500), 0);
    refuses(directory, "cannot be made"); /* without a secret nothing can */
    assert_int_equal(chmod(directory, 0700), 0);
    if (root)
        assert_int_equal(seteuid(0), 0);
    compiled_unref(c);
}

/* As on a full disk; nothing may stay behind. */
OPENING_TEST(a_file_that_may_not_grow)
{
    const char *directory = folder_new();
    struct cache_disk *d = disk_opened(directory, 1 << 20);
    struct compiled *c = module_new(5, 50000);
    struct rlimit before, limit;
    struct error e;

    disk_store(d, 1, SIZE);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    limit = (struct rlimit){10000, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    log_begin();
    assert_int_equal(cache_disk_write(d, c, &e), -1);
    assert_int_equal(cache_disk_write(d, c, &e), -1);
    assert_int_equal(log_end("event=cache_write_failed"), 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(cache_disk_counters(d).failures, 2);
    assert_null(cache_disk_read(d, c->key, true));
    assert_int_equal(directory_count(directory), 1);
    assert_true(disk_has(d, 1, SIZE));
    compiled_unref(c);
}
