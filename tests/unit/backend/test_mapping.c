/* Lifetimes in the registry, over a backend that counts: what is open when, and which memory a reference means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/mapping.h"

static atomic_uint n_open, n_opened;
static atomic_bool refuse_open;

static int fake_import(struct backend_device *device, const struct backend_import *import,
                       struct backend_memory **ret_memory, struct error *e)
{
    if (atomic_load(&refuse_open))
        return error_set(e, ERROR_INVALID_HANDLE, "refused");
    *ret_memory = calloc(1, sizeof(**ret_memory));
    (*ret_memory)->kind = MEMORY_CUDA_IPC;
    (*ret_memory)->device = device;
    (*ret_memory)->size = import->size;
    /* As with a real driver, equal handles must not be open twice. */
    if (import->handle[0] != 'u')
        assert_int_equal(atomic_load(&n_open), 0);
    atomic_fetch_add(&n_open, 1);
    atomic_fetch_add(&n_opened, 1);
    return 0;
}

static void fake_close(struct backend_memory *memory)
{
    atomic_fetch_sub(&n_open, 1);
    free(memory);
}

static const struct backend fake = {
    .abi = BACKEND_ABI, .name = "fake", .memory_import = fake_import, .memory_close = fake_close};
static struct backend_device device = {.backend = &fake};
static struct device_set devices = {.all = {&device}, .count = 1, .fallback = &device};

struct fixture {
    uv_loop_t loop;
    struct mapping_registry registry;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    uv_loop_init(&f->loop);
    mapping_registry_init(&f->registry, &f->loop, &devices, 0);
    atomic_store(&n_opened, 0);
    atomic_store(&refuse_open, false);
    *state = f;
    return 0;
}

static void settle(struct fixture *f)
{
    while (f->registry.changing)
        uv_run(&f->loop, UV_RUN_ONCE);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    settle(f);
    assert_int_equal(f->registry.count, 0);
    assert_int_equal(atomic_load(&n_open), 0);
    mapping_registry_stop(&f->registry);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    free(f);
    return 0;
}

static struct backend_import handle(char name)
{
    struct backend_import import = {.kind = MEMORY_CUDA_IPC, .size = 1000};

    memset(import.handle, name, sizeof(import.handle));
    return import;
}

static const struct mapping_owner ann = {.uid = 1, .pid = 10}, ann_too = {.uid = 1, .pid = 11},
                                  bob = {.uid = 2, .pid = 20};

static int get(struct fixture *f, char name, uint64_t id, struct mapping_owner owner, struct mapping **ret,
               struct error *e)
{
    struct backend_import import = handle(name);

    return mapping_get_ipc(&f->registry, &device, &import, id ? &id : NULL, owner, ret, e);
}

static void same_reference_is_opened_once(void **state)
{
    struct fixture *f = *state;
    struct mapping *a, *b;
    struct error e;

    assert_int_equal(get(f, 'a', 5, ann, &a, &e), 0);
    assert_int_equal(get(f, 'a', 5, bob, &b, &e), 0);
    assert_ptr_equal(a, b);
    mapping_use(a);
    mapping_use(b);
    settle(f);
    assert_true(mapping_is_open(a));
    mapping_unref(a);
    mapping_unref(b);
    mapping_unuse(a);
    settle(f);
    assert_int_equal(atomic_load(&n_open), 1); /* b's use keeps it */
    mapping_unuse(b);
    settle(f);
    assert_int_equal(atomic_load(&n_opened), 1);
}

static void on_ready(struct mapping_waiter *w, bool ok)
{
    *(int *)w->context = ok ? 1 : -1;
}

/* The handle's bytes come back with another id: the old mapping ends first, and only then the new one opens. */
static void newer_id_replaces_the_older(void **state)
{
    struct fixture *f = *state;
    struct mapping *old, *new, *again;
    struct mapping_waiter w = {.ready = on_ready};
    struct error e;
    int ready = 0;

    assert_int_equal(get(f, 'a', 5, ann, &old, &e), 0);
    mapping_use(old);
    settle(f);
    assert_int_equal(get(f, 'a', 6, ann, &new, &e), 0);
    assert_true(old->stale);
    mapping_use(new);
    w.context = &ready;
    mapping_wait(new, &w);
    for (int i = 0; i < 10; i++)
        uv_run(&f->loop, UV_RUN_NOWAIT);
    assert_int_equal(ready, 0); /* a job still uses the old memory */
    assert_int_equal(get(f, 'a', 5, ann, &again, &e), -1);
    assert_int_equal(e.code, ERROR_STALE_BUFFER);
    mapping_unuse(old);
    while (!ready)
        uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(ready, 1);
    mapping_unref(old);
    mapping_unuse(new);
    mapping_unref(new);
}

static void older_id_is_refused(void **state)
{
    struct fixture *f = *state;
    struct mapping *m, *other;
    struct error e;

    assert_int_equal(get(f, 'a', 6, ann, &m, &e), 0);
    assert_int_equal(get(f, 'a', 5, ann, &other, &e), -1);
    assert_int_equal(e.code, ERROR_STALE_BUFFER);
    assert_int_equal(get(f, 'a', 7, bob, &other, &e), -1);
    assert_int_equal(e.code, ERROR_PERMISSION_DENIED);
    assert_false(m->stale);
    assert_int_equal(get(f, 'a', 5, ann_too, &other, &e), 0); /* another process's ids say nothing about ours */
    assert_true(m->stale);
    mapping_unref(m);
    mapping_unref(other);
}

static void trim_closes_and_use_reopens(void **state)
{
    struct fixture *f = *state;
    struct mapping *m;
    struct error e;

    assert_int_equal(get(f, 'a', 5, ann, &m, &e), 0);
    mapping_use(m);
    settle(f);
    assert_int_equal(mapping_trim(m), 0); /* in use */
    mapping_unuse(m);
    assert_int_equal(mapping_trim(m), 1000);
    settle(f);
    assert_int_equal(atomic_load(&n_open), 0);
    mapping_use(m);
    settle(f);
    assert_true(mapping_is_open(m));
    assert_int_equal(atomic_load(&n_opened), 2);
    mapping_unuse(m);
    mapping_unref(m);
}

static void count_done(struct mapping_flush *flush)
{
    assert_int_equal(atomic_load(&n_open), 0);
    flush->before = UINT64_MAX;
}

/* Whoever waits for closes is told when the memory is unpinned, not before. */
static void flush_waits_for_closes(void **state)
{
    struct fixture *f = *state;
    struct mapping_flush flush = {.done = count_done};
    struct mapping *m;
    struct error e;

    mapping_flush(&f->registry, &flush);
    assert_true(flush.before == UINT64_MAX); /* nothing to wait for */
    assert_int_equal(get(f, 'a', 5, ann, &m, &e), 0);
    mapping_use(m);
    settle(f);
    mapping_unuse(m);
    mapping_unref(m);
    mapping_flush(&f->registry, &flush);
    assert_true(flush.before != UINT64_MAX);
    while (flush.before != UINT64_MAX)
        uv_run(&f->loop, UV_RUN_ONCE);
}

static void failed_open_tells_and_may_be_tried_again(void **state)
{
    struct fixture *f = *state;
    struct mapping_waiter w = {.ready = on_ready};
    struct mapping *m;
    struct error e;
    int ready = 0;

    atomic_store(&refuse_open, true);
    assert_int_equal(get(f, 'a', 5, ann, &m, &e), 0);
    mapping_use(m);
    w.context = &ready;
    mapping_wait(m, &w);
    while (!ready)
        uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(ready, -1);
    assert_int_equal(m->error.code, ERROR_INVALID_HANDLE);
    mapping_unuse(m);
    atomic_store(&refuse_open, false);
    mapping_use(m);
    settle(f);
    assert_true(mapping_is_open(m));
    mapping_unuse(m);
    mapping_unref(m);
}

static void without_id_it_is_neither_shared_nor_kept(void **state)
{
    struct fixture *f = *state;
    struct mapping *a, *b;
    struct error e;

    assert_int_equal(get(f, 'u', 0, ann, &a, &e), 0);
    assert_int_equal(get(f, 'u', 0, ann, &b, &e), 0);
    assert_ptr_not_equal(a, b);
    mapping_use(a);
    settle(f);
    mapping_unuse(a);
    settle(f);
    assert_int_equal(atomic_load(&n_open), 0);
    mapping_unref(a);
    mapping_unref(b);
}

/* References dropped while the open is under way. */
static void dropping_while_opening_closes(void **state)
{
    struct fixture *f = *state;
    struct mapping *m;
    struct error e;

    assert_int_equal(get(f, 'a', 5, ann, &m, &e), 0);
    mapping_use(m);
    mapping_unuse(m);
    mapping_unref(m);
    settle(f);
    assert_int_equal(atomic_load(&n_opened), 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(same_reference_is_opened_once),
        TEST(newer_id_replaces_the_older),
        TEST(older_id_is_refused),
        TEST(trim_closes_and_use_reopens),
        TEST(flush_waits_for_closes),
        TEST(failed_open_tells_and_may_be_tried_again),
        TEST(without_id_it_is_neither_shared_nor_kept),
        TEST(dropping_while_opening_closes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
