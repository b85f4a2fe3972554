/* The registry over a backend that counts what is open. What clients see of it: functional_cuda,
 * functional_memory_kinds. */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/mapping.h"
#include "backend/memory.h"
#include "tests/support/unit.h"

static atomic_uint n_open, n_opened;
static atomic_bool refuse_open; /* the backend opens nothing */
static uv_loop_t loop;
static struct mapping_registry registry;

static int fake_import(struct backend_device *of, const struct backend_import *import,
                       struct backend_memory **ret_memory, struct error *e)
{
    if (atomic_load(&refuse_open))
        return error_set(e, ERROR_INVALID_HANDLE, "refused");
    *ret_memory = calloc(1, sizeof(**ret_memory));
    (*ret_memory)->kind = MEMORY_CUDA_IPC;
    (*ret_memory)->device = of;
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
    *ret_size = memory->size + more->fd_bytes[0];
    return 0;
}

static const struct backend fake = {.abi = BACKEND_ABI,
                                    .name = "fake",
                                    .memory_import = fake_import,
                                    .memory_close = fake_close,
                                    .memory_extend = fake_extend};
static struct backend_device fake_device = {.backend = &fake};
static struct device_set devices = {.all = {&fake_device}, .count = 1, .fallback = &fake_device};

static int set_up(void **state)
{
    uv_loop_init(&loop);
    mapping_registry_init(&registry, &loop, &devices, 0);
    atomic_store(&n_opened, 0);
    atomic_store(&refuse_open, false);
    return 0;
}

/* Until nothing is being opened or closed. */
static void settle(void)
{
    while (registry.changing)
        uv_run(&loop, UV_RUN_ONCE);
}

static int tear_down(void **state)
{
    settle();
    assert_int_equal(registry.count, 0);
    assert_int_equal(atomic_load(&n_open), 0);
    mapping_registry_stop(&registry);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    return 0;
}

#define MAPPING_TEST(name) TEST_WITH(name, set_up, tear_down)

/* 64 bytes of that letter. Those of 'u' may be open more than once. */
static struct backend_import handle(char name)
{
    struct backend_import import = {.kind = MEMORY_CUDA_IPC, .size = 1000};

    memset(import.handle, name, sizeof(import.handle));
    return import;
}

/* ann_too: another process of ann's. */
static const struct mapping_owner ann = {.uid = 1, .pid = 10}, ann_too = {.uid = 1, .pid = 11},
                                  bob = {.uid = 2, .pid = 20};

static int get(char name, uint64_t id, struct mapping_owner owner, struct mapping **ret, struct error *e)
{
    struct backend_import import = handle(name);

    return mapping_get_ipc(&registry, &fake_device, &import, id ? &id : NULL, owner, ret, e);
}

/* The context is an int: 1, or -1 where it failed. */
static void on_ready(struct mapping_waiter *w, bool ok)
{
    *(int *)w->context = ok ? 1 : -1;
}

/* The handle's bytes come back with another id: the old mapping ends first, and only then the new one opens. */
MAPPING_TEST(newer_id_replaces_the_older)
{
    struct mapping *old, *new, *again;
    struct mapping_waiter w = {.ready = on_ready};
    int ready = 0;

    MUST(get('a', 5, ann, &old, &e));
    mapping_use(old);
    settle();
    MUST(get('a', 6, ann, &new, &e));
    assert_true(old->stale);
    mapping_use(new);
    w.context = &ready;
    mapping_wait(new, &w);
    for (int i = 0; i < 10; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    assert_int_equal(ready, 0); /* a job still uses the old memory */
    MUST_FAIL(get('a', 5, ann, &again, &e), ERROR_STALE_BUFFER, "");
    mapping_unuse(old);
    while (!ready)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(ready, 1);
    mapping_unref(old);
    mapping_unuse(new);
    mapping_unref(new);
}

MAPPING_TEST(older_id_is_refused)
{
    struct mapping *m, *other;

    MUST(get('a', 6, ann, &m, &e));
    MUST_FAIL(get('a', 5, ann, &other, &e), ERROR_STALE_BUFFER, "");
    MUST_FAIL(get('a', 7, bob, &other, &e), ERROR_PERMISSION_DENIED, "");
    assert_false(m->stale);
    MUST(get('a', 5, ann_too, &other, &e)); /* another process's ids say nothing about ours */
    assert_true(m->stale);
    mapping_unref(m);
    mapping_unref(other);
}

static void count_done(struct mapping_flush *flush)
{
    assert_int_equal(atomic_load(&n_open), 0);
    flush->before = UINT64_MAX;
}

/* Whoever waits for closes is told when the memory is unpinned, not before. */
MAPPING_TEST(flush_waits_for_closes)
{
    struct mapping_flush flush = {.done = count_done};
    struct mapping *m;

    mapping_flush(&registry, &flush);
    assert_true(flush.before == UINT64_MAX); /* nothing to wait for */
    MUST(get('a', 5, ann, &m, &e));
    mapping_use(m);
    settle();
    mapping_unuse(m);
    mapping_unref(m);
    mapping_flush(&registry, &flush);
    assert_true(flush.before != UINT64_MAX);
    while (flush.before != UINT64_MAX)
        uv_run(&loop, UV_RUN_ONCE);
}

/* Who comes with a newer id while the older is being opened is told as well when that fails. */
MAPPING_TEST(failed_open_lets_the_next_one_try)
{
    struct mapping_waiter w[3];
    struct mapping *m[3];
    int ready[3] = {0};

    atomic_store(&refuse_open, true);
    for (unsigned i = 0; i < 3; i++) {
        MUST(get('a', 5 + i, ann, &m[i], &e));
        mapping_use(m[i]);
        w[i] = (struct mapping_waiter){.ready = on_ready, .context = &ready[i]};
        mapping_wait(m[i], &w[i]);
    }
    settle();
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(ready[i], -1);
        assert_int_equal(m[i]->error.code, i == 1 ? ERROR_STALE_BUFFER : ERROR_INVALID_HANDLE);
        mapping_unuse(m[i]);
        mapping_unref(m[i]);
    }
}

/* References dropped while the open is under way. */
MAPPING_TEST(dropping_while_opening_closes)
{
    struct mapping *m;

    MUST(get('a', 5, ann, &m, &e));
    mapping_use(m);
    mapping_unuse(m);
    mapping_unref(m);
    settle();
    assert_int_equal(atomic_load(&n_opened), 1);
}

/* ---- descriptors ---- */

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
MAPPING_TEST(descriptors_stay_open_until_released)
{
    struct backend_import import = descriptors();
    struct mapping *m;

    MUST(mapping_get_vmm(&registry, &fake_device, &import, ann, &m, &e));
    mapping_use(m);
    settle();
    assert_int_equal(m->state, MAPPING_OPEN);
    assert_true(is_closed(import.fds[0]));
    mapping_unuse(m);
    assert_int_equal(mapping_trim(m), 0);
    settle();
    assert_int_equal(atomic_load(&n_open), 1);
    mapping_unref(m);
    settle();
    assert_int_equal(atomic_load(&n_open), 0);
}

MAPPING_TEST(descriptors_never_opened_are_closed)
{
    struct backend_import import = descriptors();
    struct mapping *m;

    MUST(mapping_get_vmm(&registry, &fake_device, &import, ann, &m, &e));
    mapping_unref(m);
    while (!is_closed(import.fds[0]))
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(registry.areas, 0);
}

static unsigned n_extended;

static void count_extended(struct mapping_extension *x)
{
    n_extended += x->ok;
}

MAPPING_TEST(extension_grows_one_at_a_time)
{
    struct backend_import import = descriptors();
    struct mapping_extension x = {.import = descriptors(), .done = count_extended}, other = x;
    const int fd = x.import.fds[0];
    struct mapping *m;
    struct error e;

    x.import.fd_bytes[0] = 500;
    n_extended = 0;
    assert_int_equal(mapping_get_vmm(&registry, &fake_device, &import, ann, &m, &e), 0);
    assert_int_equal(mapping_extend(m, &other, &e), -1); /* not open */
    mapping_use(m);
    settle();
    assert_int_equal(mapping_extend(m, &x, &e), 0);
    assert_int_equal(mapping_extend(m, &other, &e), -1); /* one is under way */
    assert_int_equal(e.code, ERROR_INVALID_ARGUMENT);
    mapping_unuse(m);
    mapping_unref(m); /* the extension holds it */
    assert_int_equal(registry.areas, 2);
    while (!n_extended)
        uv_run(&loop, UV_RUN_ONCE);
    assert_true(is_closed(fd));
    settle();
}

/* A pool's pointers are the same memory only where the pool is. */
MAPPING_TEST(pools_tell_equal_pointers_apart)
{
    struct backend_import one = handle('u'), two = handle('u');
    const uint64_t id = 5;
    struct mapping *a, *b, *c;

    one.kind = two.kind = MEMORY_CUDA_POOL;
    one.n_fds = two.n_fds = 1;
    one.fds[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    two.fds[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    MUST(mapping_get_ipc(&registry, &fake_device, &one, &id, ann, &a, &e));
    MUST(mapping_get_ipc(&registry, &fake_device, &two, &id, ann, &b, &e));
    assert_ptr_not_equal(a, b);
    assert_false(mapping_same_memory(a, b));
    MUST(mapping_get_ipc(&registry, &fake_device, &one, &id, ann, &c, &e));
    assert_ptr_equal(a, c);
    mapping_use(a);
    settle();
    assert_false(is_closed(one.fds[0]));
    mapping_unuse(a);
    mapping_unref(a);
    mapping_unref(b);
    mapping_unref(c);
    while (!is_closed(one.fds[0]) || !is_closed(two.fds[0]))
        uv_run(&loop, UV_RUN_ONCE);
}

/* A look-up by a handle passes few entries that have none, however many there are. */
MAPPING_TEST(memfds_are_in_nobody_s_way)
{
    enum { MANY = 2 * MAPPING_BUCKETS };
    struct mapping **mappings = calloc(MANY, sizeof(struct mapping *));
    assert_non_null(mappings);
    for (unsigned i = 0; i < MANY; i++) {
        struct backend_memory *memory;
        int fd;

        MUST(memfd_new(4096, &memory, &fd, &e));
        close(fd);
        MUST(mapping_adopt(&registry, memory, NULL, i, -1, ann, &mappings[i], &e));
    }
    for (unsigned i = 0; i < MAPPING_BUCKETS; i++) {
        unsigned length = 0;

        list_for_each_safe (node, after, &registry.buckets[i])
            length++;
        assert_int_equal(length, 2);
    }
    for (unsigned i = 0; i < MANY; i++)
        mapping_unref(mappings[i]);
    settle();
    free(mappings);
}
