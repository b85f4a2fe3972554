/* The administrator's actions: list, clear, export and import, with a disk and without one, and archives that are
 * damaged or no archives at all. A clear on a pool that is quicker than the loop. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "compile/archive.h"
#include "compile/service_internal.h"
#include "support.h"

struct answer {
    unsigned answers;
    enum error_code code;
    char key[64]; /* of the fault */
    struct code_result result;
    struct code_listed listed[8];
    char first_names[8][64];
};

static void close_fd(void *fd)
{
    close((int)(intptr_t)fd);
}

static void keep(void *context, struct code_result *result, const struct error *e)
{
    struct answer *a = context;

    a->answers++;
    if (!result) {
        a->code = e->code;
        if (e->n_details && e->details[0].is_text)
            snprintf(a->key, sizeof(a->key), "%s", e->details[0].text);
        return;
    }
    a->result = *result;
    for (unsigned i = 0; i < result->n_listed && i < 8; i++) {
        a->listed[i] = result->listed[i];
        assert_int_equal(result->listed[i].n_names, 1);
        snprintf(a->first_names[i], sizeof(a->first_names[i]), "%s", result->listed[i].names[0]);
    }
    if (result->fd > 0)
        opened((void *)(intptr_t)result->fd, close_fd);
    result->fd = -1; /* the test's now */
}

static struct answer wait_for(struct answer *a)
{
    while (!a->answers)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(a->answers, 1);
    return *a;
}

static struct answer list(struct code_service *s)
{
    struct answer a = {0};

    MUST(code_cache_list(s, keep, &a, &e));
    return wait_for(&a);
}

/* Of code_cache_export or code_cache_clear, of that key or of all. */
static struct answer ask_for(__typeof__(code_cache_export) *action, struct code_service *s, const char *key)
{
    struct answer a = {0};

    MUST(action(s, key, keep, &a, &e));
    return wait_for(&a);
}

/* Leaves `fd` open. */
static struct answer import(struct code_service *s, int fd)
{
    struct answer a = {0};

    MUST(code_cache_import(s, dup(fd), keep, &a, &e));
    return wait_for(&a);
}

static struct code_service *with_three(const char *directory)
{
    struct code_service *s = service_open(directory);

    fetch(s, "a", 1);
    fetch(s, "b", 2);
    fetch(s, "c", 3);
    fetch(s, "a", 1); /* used last */
    until_idle();
    return s;
}

OPENING_TEST(lists_what_is_kept)
{
    const char *directory = folder_new();
    struct code_service *s = with_three(directory);
    struct answer a = list(s);
    const uint64_t bytes = a.result.bytes;

    assert_int_equal(a.result.n_listed, 3);
    assert_texts(a.first_names[0], "kernel1<float>", a.listed[0].arch, "sm_90a", a.listed[0].compiler, "NVRTC 13.0");
    assert_true(a.listed[0].loaded && a.listed[0].on_disk);
    assert_true(a.listed[0].age_s >= 0 && a.listed[0].age_s <= a.listed[2].age_s);
    assert_int_equal(bytes, a.listed[0].bytes + a.listed[1].bytes + a.listed[2].bytes);
    assert_int_equal(a.result.limit, 1 << 20);
    close_now(s);

    s = service_open(directory); /* from the files alone: whichever was used last comes first */
    for (unsigned i = 0; i < 3; i++)
        file_used(folder_path(directory, a.listed[i].key), 500 - 100 * (long)i);
    for (unsigned i = 0; i < 2; i++) { /* looking is no use */
        a = list(s);
        assert_int_equal(a.result.n_listed, 3);
        assert_int_equal(a.result.bytes, bytes);
        assert_string_equal(a.first_names[2], "kernel1<float>");
        assert_true(a.listed[0].age_s > 299 && a.listed[1].age_s > 399 && a.listed[2].age_s > 499);
        assert_false(a.listed[2].loaded);
        assert_true(a.listed[2].on_disk && a.listed[2].age_s < 4000);
    }
    close_now(s);

    s = with_three(NULL);
    a = list(s);
    assert_int_equal(a.result.n_listed, 3);
    assert_true(a.listed[1].loaded);
    assert_false(a.listed[1].on_disk);
    assert_in_range(a.result.bytes, 3000, 10000);
    assert_int_equal(a.result.limit, 1 << 20);
}

OPENING_TEST(exports_one)
{
    const char *directory = folder_new();
    struct code_service *s = with_three(directory);
    struct answer a = list(s), b;
    unsigned i = 0;

    close_now(s); /* so that only the disk has it */
    s = service_open(directory);
    while (strcmp(a.first_names[i], "kernel2<float>") != 0)
        i++;
    b = ask_for(code_cache_export, s, a.listed[i].key);
    ask_for(code_cache_clear, s, NULL);
    assert_int_equal(import(s, b.result.fd).result.imported, 1);
    assert_int_equal(fetch(s, "b", 2), CODE_DISK);
    b = ask_for(code_cache_export, s, "0000000000000000000000000000000000000000000000000000000000000000");
    assert_int_equal(b.code, ERROR_INVALID_ARGUMENT);
    assert_string_equal(b.key, "key");
}

/* From a daemon with or without a disk to one with or without. */
OPENING_TEST(from_one_daemon_to_another)
{
    for (unsigned i = 0; i < 4; i++) {
        const char *from = folder_new(), *to = folder_new();
        struct code_service *s = with_three(i & 1 ? from : NULL);
        struct answer a = ask_for(code_cache_export, s, NULL), b;
        int fd = a.result.fd;

        assert_int_equal(lseek(fd, 0, SEEK_END), a.result.bytes);
        assert_true(fcntl(fd, F_GET_SEALS) & F_SEAL_WRITE);
        close_now(s);
        s = service_open(i & 2 ? to : NULL);
        assert_int_equal(fetch(s, "b", 2), CODE_COMPILED);
        until_idle();
        b = import(s, fd);
        assert_true(b.code == ERROR_NONE && b.result.imported == 2 && b.result.skipped == 1);
        assert_int_equal(fetch(s, "a", 1), i & 2 ? CODE_DISK : CODE_MEMORY);
        assert_int_equal(fetch(s, "c", 3), i & 2 ? CODE_DISK : CODE_MEMORY);
        assert_int_equal(import(s, fd).result.skipped, 3);
        close_now(s);
        if (i & 2) { /* they are this daemon's own now */
            s = service_open(to);
            assert_int_equal(fetch(s, "a", 1), CODE_DISK);
            close_now(s);
        }
    }
}

static void refused(struct code_service *s, const void *bytes, size_t size, const char *what, size_t i)
{
    int fd = memfd_create("archive", MFD_CLOEXEC);
    struct answer a;

    assert_int_equal(write(fd, bytes, size), size);
    a = import(s, fd);
    if (a.code != ERROR_INVALID_ARGUMENT || strncmp(a.key, "fd", 2) != 0)
        fail_msg("%s %zu: code %d, key %s", what, i, (int)a.code, a.key);
    close(fd);
}

/* Nothing of a bad archive is taken over, also not what comes before the damage. */
OPENING_TEST(damaged_archives)
{
    const char *directory = folder_new();
    struct code_service *s = with_three(NULL);
    const struct answer a = ask_for(code_cache_export, s, NULL);
    const size_t size = (size_t)a.result.bytes;
    unsigned char *good = opened(calloc(1, size + 1), free);

    close_now(s);
    assert_int_equal(pread(a.result.fd, good, size, 0), size);
    s = service_open(directory);
    for (size_t i = 0; i < size; i++) {
        good[i] ^= (unsigned char)(1U << i % 8);
        refused(s, good, size, "changed byte", i);
        good[i] ^= (unsigned char)(1U << i % 8);
        refused(s, good, i, "length", i);
    }
    refused(s, good, size + 1, "longer by", 1);
    for (unsigned i = 0; i < 2; i++) { /* with a right checksum, as somebody makes it who knows how */
        struct compiled *bad = module_new(1, 100), *right = module_new(2, 100);
        int fd = memfd_create("archive", MFD_CLOEXEC);
        struct archive_writer w;

        if (i == 0)
            memcpy(bad->image, "bad", 3); /* its image has no such kernel */
        else
            memset(bad->key, 0, sizeof(bad->key));
        MUST(archive_begin(&w, fd, &e));
        MUST(archive_add(&w, right, &e));
        MUST(archive_add(&w, bad, &e));
        MUST(archive_end(&w, &e));
        archive_writer_free(&w);
        assert_int_equal(import(s, fd).code, ERROR_INVALID_ARGUMENT);
        close(fd);
        compiled_unref(bad);
        compiled_unref(right);
    }
    assert_int_equal(directory_count(directory), 0);
}

OPENING_TEST(no_archives)
{
    struct code_service *s = service_open(NULL);
    int pipes[2];

    assert_int_equal(pipe(pipes), 0);
    for (unsigned i = 0; i < 4; i++) {
        const int fd = i < 2 ? pipes[i] : open(i == 2 ? "/dev/zero" : "/", O_RDONLY | O_CLOEXEC);

        assert_int_equal(import(s, fd).code, ERROR_INVALID_FD);
        close(fd);
    }
    refused(s, "", 0, "empty", 0);
    refused(s, "KOPS archive 2\0\0                                ", 48, "version", 2);
}

OPENING_TEST(import_beyond_what_fits)
{
    const char *directory = folder_new();
    struct code_service *s = with_three(NULL);
    struct answer a = ask_for(code_cache_export, s, NULL), b;

    close_now(s);
    s = service_open_with(NULL, 0, 4000);
    b = import(s, a.result.fd);
    assert_int_equal(b.result.imported + b.result.skipped, 3);
    assert_in_range(b.result.imported, 1, 2);
    assert_int_equal(list(s).result.n_listed, b.result.imported);
    close_now(s);
    s = service_open_with(directory, 3000, 0); /* the disk keeps what came last */
    assert_int_equal(import(s, a.result.fd).result.imported, 3);
    assert_in_range(directory_count(directory), 1, 2);
    close_now(s);
}

OPENING_TEST(nobody_waits)
{
    struct code_service *s = with_three(folder_new());
    struct answer a = {0}, archive = ask_for(code_cache_export, s, NULL);
    int fd = dup(archive.result.fd);

    /* The service ends: descriptors are closed in every case. */
    MUST(code_cache_list(s, keep, &a, &e));
    MUST(code_cache_export(s, NULL, keep, &a, &e));
    MUST(code_cache_import(s, fd, keep, &a, &e));
    close_now(s);
    assert_int_equal(a.answers, 0);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static struct submitted {
    struct work *work;
    void (*run)(struct work *), (*done)(struct work *);
} held; /* the first one while `hold` is set */
static bool hold;

void __real_work_submit(uv_loop_t *l, struct work *work, void (*run)(struct work *), void (*done)(struct work *));
void __wrap_work_submit(uv_loop_t *l, struct work *work, void (*run)(struct work *), void (*done)(struct work *));

static void has_run(struct work *work)
{
}

/* While one is held, the next one runs at once, and the first behind it: as on the pool's threads while the loop's is
 * held up. */
void __wrap_work_submit(uv_loop_t *l, struct work *work, void (*run)(struct work *), void (*done)(struct work *))
{
    struct submitted first = held;

    if (hold && !first.work) {
        held = (struct submitted){work, run, done};
        return;
    }
    if (first.work) {
        held = (struct submitted){0};
        hold = false;
        run(work);
        first.run(first.work);
        __real_work_submit(l, first.work, has_run, first.done);
        run = has_run;
    }
    __real_work_submit(l, work, run, done);
}

OPENING_TEST(what_is_cleared_is_not_written)
{
    const char *directory = folder_new();
    struct code_service *s = service_open(directory);
    struct compiled *compiled = module_new(1, 100);

    hold = true;
    service_store(s, compiled);
    assert_int_equal(ask_for(code_cache_clear, s, NULL).code, ERROR_NONE);
    until_idle();
    assert_null(held.work);
    assert_int_equal(directory_count(directory), 0);
    compiled_unref(compiled);
}

ALL_TESTS_WITH(loop_open, loop_close)
