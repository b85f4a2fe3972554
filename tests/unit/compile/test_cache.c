/* Compiled code in memory and on disk: what was kept is found, what was used least goes first. */
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compile/cache.h"
#include "support.h"

/* ---- memory ---- */

static void put(struct cache_memory *m, unsigned seed)
{
    struct compiled *c = module_new(seed, 10000);

    cache_memory_put(m, c, seed);
    compiled_unref(c);
}

static bool has(struct cache_memory *m, unsigned seed)
{
    unsigned char key[KEY_BYTES];
    struct cache_item *item;

    module_key(seed, key);
    item = cache_memory_get(m, key, 1);
    return item && item->compiled->image[1] == (unsigned char)(31 + seed);
}

OPENING_TEST(memory_keeps_what_was_used)
{
    struct cache_memory *m = cache_memory_new(35000); /* three of them */
    unsigned char key[KEY_BYTES];
    struct compiled *big;

    put(m, 1);
    put(m, 2);
    put(m, 3);
    assert_true(has(m, 1)); /* now 2 is the oldest */
    put(m, 4);
    assert_true(has(m, 1) && has(m, 3) && has(m, 4));
    assert_false(has(m, 2));
    assert_int_equal(cache_memory_count(m), 3);
    assert_in_range(cache_memory_bytes(m), 30000, 35000);
    put(m, 3); /* again: no second copy, nothing else has to go */
    assert_int_equal(cache_memory_count(m), 3);
    big = module_new(9, 36000);
    cache_memory_put(m, big, 1);
    assert_int_equal(big->refs, 1);
    compiled_unref(big);
    assert_int_equal(cache_memory_count(m), 3);
    module_key(1, key);
    assert_true(cache_memory_remove(m, key));
    assert_false(cache_memory_remove(m, key));
    assert_false(has(m, 1));
    m = cache_memory_free(m);
    assert_null(m);
}

OPENING_TEST(memory_with_many)
{
    struct cache_memory *m = cache_memory_new(1 << 25);
    unsigned seen = 0;

    for (unsigned i = 0; i < 3000; i++) /* more than there are buckets */
        put(m, i);
    for (unsigned i = 0; i < 3000; i += 7)
        assert_true(has(m, i));
    for (struct cache_item *i = cache_memory_next(m, NULL); i; i = cache_memory_next(m, i))
        seen++;
    assert_int_equal(seen, 3000);
    cache_memory_free(m);
}

/* ---- disk ---- */

/* In a folder that it makes; systemd gives services without a user of their own a link as their cache directory. */
OPENING_TEST(disk_outlives_the_daemon)
{
    const char *top = folder_new(), *directory = opened(strdup(folder_path(top, "a/b/")), free);
    mode_t mask = umask(0);
    struct cache_disk *d = disk_opened(directory, 1 << 20);
    struct stat st;

    umask(mask);
    assert_false(disk_has(d, 1, 5000));
    disk_store(d, 1, 5000);
    disk_store(d, 2, 1);
    assert_true(disk_has(d, 1, 5000));
    close_now(d);
    assert_int_equal(symlink("a/b", folder_path(top, "link")), 0);
    d = disk_opened(folder_path(top, "link"), 1 << 20);
    assert_true(disk_has(d, 1, 5000));
    assert_true(disk_has(d, 2, 1));
    assert_int_equal(cache_disk_counters(d).rejected, 0);
    assert_int_equal(directory_count(directory), 2); /* nothing temporary is left */
    assert_int_equal(stat(directory, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(stat(path_of_module(directory, 1), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(stat(folder_path(directory, "secret"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(st.st_size, 32);
}

OPENING_TEST(disk_keeps_what_was_used)
{
    const char *directory = folder_new();
    struct cache_disk *d = disk_opened(directory, 45000); /* four of 10 kB */
    unsigned char key[KEY_BYTES];

    for (unsigned i = 1; i <= 4; i++) {
        disk_store(d, i, 10000);
        file_used(path_of_module(directory, i), 1000 - i);
    }
    assert_int_equal(directory_count(directory), 4);
    assert_true(disk_has(d, 1, 10000)); /* a use: now 2 is the oldest */
    module_key(2, key);
    cache_disk_touch(d, key); /* and now 3 */
    disk_store(d, 5, 10000);
    assert_true(disk_has(d, 1, 10000) && disk_has(d, 2, 10000) && disk_has(d, 5, 10000));
    assert_false(disk_has(d, 3, 10000) || disk_has(d, 4, 10000)); /* some room is made at once */
    assert_int_equal(cache_disk_counters(d).evictions, 2);
    /* Looking without using changes nothing. */
    file_used(path_of_module(directory, 1), 900);
    module_key(1, key);
    compiled_unref(cache_disk_read(d, key, false));
    disk_store(d, 6, 10000);
    disk_store(d, 7, 10000);
    assert_false(disk_has(d, 1, 10000));
    assert_true(disk_has(d, 7, 10000));
    close_now(d);
    /* What an earlier daemon has left counts, also where there may be less now. */
    d = disk_opened(directory, 25000);
    disk_store(d, 8, 10000);
    assert_int_equal(directory_count(directory), 2);
    assert_true(disk_has(d, 7, 10000) && disk_has(d, 8, 10000));
}

OPENING_TEST(disk_replaces_and_removes)
{
    const char *directory = folder_new();
    struct cache_disk *d = disk_opened(directory, 25000);
    struct cache_disk_file *files;
    unsigned char key[KEY_BYTES];
    unsigned n;

    for (unsigned i = 0; i < 20; i++) /* the same one counts once */
        disk_store(d, 1, 10000);
    disk_store(d, 2, 10000);
    assert_true(disk_has(d, 1, 10000));
    MUST(cache_disk_list(d, &files, &n, &e));
    assert_int_equal(n, 2);
    assert_in_range(files[0].bytes, 10000, 11000);
    free(files);
    module_key(1, key);
    assert_true(cache_disk_remove(d, key));
    assert_false(cache_disk_remove(d, key));
    assert_false(disk_has(d, 1, 10000));
    disk_store(d, 3, 10000); /* there is room for it now */
    assert_true(disk_has(d, 2, 10000));
    disk_store(d, 4, 26000); /* larger than the cache: it is not stored, and no other module is removed for it */
    assert_false(disk_has(d, 4, 26000));
    assert_int_equal(cache_disk_counters(d).evictions, 0);
    assert_int_equal(cache_disk_counters(d).failures, 0);
}

OPENING_TEST(disk_leaves_what_is_not_its_own)
{
    const char *directory = folder_new();
    struct cache_disk *d = disk_opened(directory, 25000);

    file_write(folder_path(directory, "notes"), "mine", 4);
    file_write(folder_path(directory, ".new-0123456789abcdef"), "half", 4);
    file_write(folder_path(directory, ".new-fedcba9876543210"), "half", 4);
    file_used(folder_path(directory, ".new-0123456789abcdef"), 7200);
    disk_store(d, 1, 10000);
    assert_int_equal(access(folder_path(directory, "notes"), F_OK), 0);
    assert_int_equal(access(folder_path(directory, ".new-fedcba9876543210"), F_OK), 0); /* somebody may be writing it */
    assert_int_not_equal(access(folder_path(directory, ".new-0123456789abcdef"), F_OK), 0);
}

enum { THREADS = 4, ROUNDS = 200, MODULES = 8 };

static void *use_it(void *context)
{
    struct cache_disk *d = context;
    struct cache_disk_file *files;
    unsigned char key[KEY_BYTES];
    struct error e;
    unsigned n;

    for (unsigned i = 0; i < ROUNDS; i++) {
        const unsigned seed = i * 5 % MODULES;

        disk_store(d, seed, 2000);
        disk_has(d, seed, 2000); /* whole, if at all */
        module_key(seed, key);
        if (i % 16 == 0)
            cache_disk_remove(d, key);
        if (i % 32 == 0 && cache_disk_list(d, &files, &n, &e) == 0)
            free(files);
    }
    return NULL;
}

/* As the pool's threads do; half of the modules fit. */
OPENING_TEST(disk_for_several_threads)
{
    const char *directory = folder_new();
    struct cache_disk *d = disk_opened(directory, MODULES / 2 * 2300);
    pthread_t threads[THREADS];

    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_it, d), 0);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_in_range(directory_count(directory), 1, MODULES / 2);
    assert_int_equal(cache_disk_counters(d).rejected, 0); /* nobody ever saw half a file */
    assert_int_equal(cache_disk_counters(d).failures, 0);
}
