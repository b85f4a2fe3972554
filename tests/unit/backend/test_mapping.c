/* Lifetimes in the registry, over a backend that counts: what is open when, and which memory a reference means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/mapping.h"
#include "backend/memfd.h"

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

static int fake_extend(struct backend_memory *memory, const struct backend_import *more, uint64_t *ret_size,
                       struct error *e)
{
    if (atomic_load(&refuse_open))
        return error_set(e, ERROR_INVALID_HANDLE, "refused");
    *ret_size = memory->size + more->fd_bytes[0];
    return 0;
}

static const struct backend fake = {.abi = BACKEND_ABI,
                                    .name = "fake",
                                    .memory_import = fake_import,
                                    .memory_close = fake_close,
                                    .memory_extend = fake_extend};
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

/* Who comes with a newer id while the older is being opened is told as well when that fails. */
static void failed_open_lets_the_next_one_try(void **state)
{
    struct fixture *f = *state;
    struct mapping_waiter w[3];
    struct mapping *m[3];
    struct error e;
    int ready[3] = {0};

    atomic_store(&refuse_open, true);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(get(f, 'a', 5 + i, ann, &m[i], &e), 0);
        mapping_use(m[i]);
        w[i] = (struct mapping_waiter){.ready = on_ready, .context = &ready[i]};
        mapping_wait(m[i], &w[i]);
    }
    settle(f);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(ready[i], -1);
        assert_int_equal(m[i]->error.code, i == 1 ? ERROR_STALE_BUFFER : ERROR_INVALID_HANDLE);
        mapping_unuse(m[i]);
        mapping_unref(m[i]);
    }
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

/* ---- memory known by descriptors ---- */

static struct backend_import descriptors(void)
{
    struct backend_import import = {.kind = MEMORY_CUDA_VMM, .size = 1000, .n_fds = 1};

    import.fds[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(import.fds[0] >= 0);
    return import;
}

static bool is_closed(int fd)
{
    return fcntl(fd, F_GETFD) < 0;
}

/* Nothing could open it again, so it stays open, unused and asked to be trimmed, until the last reference is gone. */
static void descriptors_stay_open_until_released(void **state)
{
    struct fixture *f = *state;
    struct backend_import import = descriptors();
    struct mapping *m;
    struct error e;

    assert_int_equal(mapping_get_vmm(&f->registry, &device, &import, ann, &m, &e), 0);
    mapping_use(m);
    settle(f);
    assert_true(mapping_is_open(m));
    assert_true(is_closed(import.fds[0]));
    mapping_unuse(m);
    assert_int_equal(mapping_trim(m), 0);
    settle(f);
    assert_int_equal(atomic_load(&n_open), 1);
    mapping_unref(m);
    settle(f);
    assert_int_equal(atomic_load(&n_open), 0);
}

static void descriptors_that_fail_are_not_tried_again(void **state)
{
    struct fixture *f = *state;
    struct backend_import import = descriptors();
    struct mapping_waiter w = {.ready = on_ready};
    struct mapping *m;
    struct error e;
    int ready = 0;

    atomic_store(&refuse_open, true);
    assert_int_equal(mapping_get_vmm(&f->registry, &device, &import, ann, &m, &e), 0);
    mapping_use(m);
    settle(f);
    atomic_store(&refuse_open, false);
    w.context = &ready;
    mapping_wait(m, &w);
    assert_int_equal(ready, -1);
    assert_int_equal(m->error.code, ERROR_INVALID_HANDLE);
    mapping_unuse(m);
    mapping_unref(m);
}

static void descriptors_never_opened_are_closed(void **state)
{
    struct fixture *f = *state;
    struct backend_import import = descriptors();
    struct mapping *m;
    struct error e;

    assert_int_equal(mapping_get_vmm(&f->registry, &device, &import, ann, &m, &e), 0);
    mapping_unref(m);
    while (!is_closed(import.fds[0]))
        uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(f->registry.areas, 0);
}

static unsigned n_extended;

static void count_extended(struct mapping_extension *x)
{
    n_extended += x->ok;
}

static void extension_grows_one_at_a_time(void **state)
{
    struct fixture *f = *state;
    struct backend_import import = descriptors();
    struct mapping_extension x = {.import = descriptors(), .done = count_extended}, other = x;
    const int fd = x.import.fds[0];
    struct mapping *m;
    struct error e;

    x.import.fd_bytes[0] = 500;
    n_extended = 0;
    assert_int_equal(mapping_get_vmm(&f->registry, &device, &import, ann, &m, &e), 0);
    assert_int_equal(mapping_extend(m, &other, &e), -1); /* not open */
    mapping_use(m);
    settle(f);
    assert_int_equal(mapping_extend(m, &x, &e), 0);
    assert_int_equal(mapping_extend(m, &other, &e), -1); /* one is under way */
    assert_int_equal(e.code, ERROR_INVALID_ARGUMENT);
    mapping_unuse(m);
    mapping_unref(m); /* the extension holds it */
    assert_int_equal(f->registry.areas, 2);
    while (!n_extended)
        uv_run(&f->loop, UV_RUN_ONCE);
    assert_true(is_closed(fd));
    settle(f);
}

static void extension_that_fails_changes_nothing(void **state)
{
    struct fixture *f = *state;
    struct backend_import import = descriptors();
    struct mapping_extension x = {.import = descriptors(), .done = count_extended};
    struct mapping *m;
    struct error e;

    assert_int_equal(mapping_get_vmm(&f->registry, &device, &import, ann, &m, &e), 0);
    mapping_use(m);
    settle(f);
    atomic_store(&refuse_open, true);
    assert_int_equal(mapping_extend(m, &x, &e), 0);
    settle(f);
    assert_false(x.ok);
    assert_int_equal(m->memory->size, 1000);
    assert_int_equal(f->registry.areas, 1);
    mapping_unuse(m);
    mapping_unref(m);
}

/* A pool's pointers are the same memory only where the pool is. */
static void pools_tell_equal_pointers_apart(void **state)
{
    struct fixture *f = *state;
    struct backend_import one = handle('u'), two = handle('u');
    const uint64_t id = 5;
    struct mapping *a, *b, *c;
    struct error e;

    one.kind = two.kind = MEMORY_CUDA_POOL;
    one.n_fds = two.n_fds = 1;
    one.fds[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    two.fds[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(mapping_get_ipc(&f->registry, &device, &one, &id, ann, &a, &e), 0);
    assert_int_equal(mapping_get_ipc(&f->registry, &device, &two, &id, ann, &b, &e), 0);
    assert_ptr_not_equal(a, b);
    assert_false(mapping_same_memory(a, b));
    assert_int_equal(mapping_get_ipc(&f->registry, &device, &one, &id, ann, &c, &e), 0);
    assert_ptr_equal(a, c);
    mapping_use(a);
    settle(f);
    assert_false(is_closed(one.fds[0]));
    mapping_unuse(a);
    assert_int_equal(mapping_trim(a), 1000); /* the pool's descriptor opens it again */
    settle(f);
    mapping_use(a);
    settle(f);
    assert_true(mapping_is_open(a));
    mapping_unuse(a);
    mapping_unref(a);
    mapping_unref(b);
    mapping_unref(c);
    while (!is_closed(one.fds[0]) || !is_closed(two.fds[0]))
        uv_run(&f->loop, UV_RUN_ONCE);
}

/* A look-up by a handle passes few entries that have none, however many there are. */
static void memfds_are_in_nobody_s_way(void **state)
{
    enum { MANY = 2 * MAPPING_BUCKETS };
    struct mapping **mappings = calloc(MANY, sizeof(struct mapping *));
    struct fixture *f = *state;
    struct error e;

    assert_non_null(mappings);
    for (unsigned i = 0; i < MANY; i++) {
        struct backend_memory *memory;
        int fd;

        assert_int_equal(memfd_new(4096, &memory, &fd, &e), 0);
        close(fd);
        assert_int_equal(mapping_adopt(&f->registry, memory, NULL, i, -1, ann, &mappings[i], &e), 0);
    }
    for (unsigned i = 0; i < MAPPING_BUCKETS; i++) {
        unsigned length = 0;

        list_for_each_safe (node, after, &f->registry.buckets[i])
            length++;
        assert_int_equal(length, 2);
    }
    for (unsigned i = 0; i < MANY; i++)
        mapping_unref(mappings[i]);
    settle(f);
    free(mappings);
}

/* Memory that alloc made is recognised until it is given back. */
static void own_memory_is_found_by_its_descriptor(void **state)
{
    struct fixture *f = *state;
    struct backend_import import = handle('o');
    struct backend_memory *memory;
    struct mapping *m, *found;
    struct error e;
    int fd = memfd_create("own", MFD_CLOEXEC), other = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    assert_int_equal(device.backend->memory_import(&device, &import, &memory, &e), 0);
    memory->kind = MEMORY_CUDA_VMM;
    assert_int_equal(mapping_adopt(&f->registry, memory, &device, 1, fd, ann, &m, &e), 0);
    found = mapping_find_own(&f->registry, &device, other);
    assert_ptr_equal(found, m);
    mapping_unref(found);
    mapping_unref(m);
    assert_null(mapping_find_own(&f->registry, &device, other)); /* also while it is being closed */
    settle(f);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    close(other);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(failed_open_lets_the_next_one_try),
        TEST(memfds_are_in_nobody_s_way),
        TEST(own_memory_is_found_by_its_descriptor),
        TEST(same_reference_is_opened_once),
        TEST(newer_id_replaces_the_older),
        TEST(older_id_is_refused),
        TEST(trim_closes_and_use_reopens),
        TEST(flush_waits_for_closes),
        TEST(failed_open_tells_and_may_be_tried_again),
        TEST(without_id_it_is_neither_shared_nor_kept),
        TEST(dropping_while_opening_closes),
        TEST(descriptors_stay_open_until_released),
        TEST(descriptors_that_fail_are_not_tried_again),
        TEST(descriptors_never_opened_are_closed),
        TEST(extension_grows_one_at_a_time),
        TEST(extension_that_fails_changes_nothing),
        TEST(pools_tell_equal_pointers_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
