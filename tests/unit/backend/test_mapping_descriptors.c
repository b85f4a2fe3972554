/* Memory in the registry that is known by descriptors: the driver's, pools, shared memory, what alloc made. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/memfd.h"
#include "mapping_support.h"

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

MAPPING_TEST(descriptors_that_fail_are_not_tried_again)
{
    struct backend_import import = descriptors();
    struct mapping_waiter w = {.ready = on_ready};
    struct mapping *m;
    int ready = 0;

    atomic_store(&refuse_open, true);
    MUST(mapping_get_vmm(&registry, &fake_device, &import, ann, &m, &e));
    mapping_use(m);
    settle();
    atomic_store(&refuse_open, false);
    w.context = &ready;
    mapping_wait(m, &w);
    assert_int_equal(ready, -1);
    assert_int_equal(m->error.code, ERROR_INVALID_HANDLE);
    mapping_unuse(m);
    mapping_unref(m);
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

MAPPING_TEST(extension_that_fails_changes_nothing)
{
    struct backend_import import = descriptors();
    struct mapping_extension x = {.import = descriptors(), .done = count_extended};
    struct mapping *m;

    MUST(mapping_get_vmm(&registry, &fake_device, &import, ann, &m, &e));
    mapping_use(m);
    settle();
    atomic_store(&refuse_open, true);
    MUST(mapping_extend(m, &x, &e));
    settle();
    assert_false(x.ok);
    assert_int_equal(m->memory->size, 1000);
    assert_int_equal(registry.areas, 1);
    mapping_unuse(m);
    mapping_unref(m);
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
    assert_int_equal(mapping_trim(a), 1000); /* the pool's descriptor opens it again */
    settle();
    mapping_use(a);
    settle();
    assert_int_equal(a->state, MAPPING_OPEN);
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

/* Memory that alloc made is recognised until it is given back. */
MAPPING_TEST(own_memory_is_found_by_its_descriptor)
{
    struct backend_import import = handle('o');
    struct backend_memory *memory;
    struct mapping *m, *found;
    struct error e;
    int fd = memfd_create("own", MFD_CLOEXEC), other = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    assert_int_equal(fake_device.backend->memory_import(&fake_device, &import, &memory, &e), 0);
    memory->kind = MEMORY_CUDA_VMM;
    assert_int_equal(mapping_adopt(&registry, memory, &fake_device, 1, fd, ann, &m, &e), 0);
    found = mapping_find_own(&registry, &fake_device, other);
    assert_ptr_equal(found, m);
    mapping_unref(found);
    mapping_unref(m);
    assert_null(mapping_find_own(&registry, &fake_device, other)); /* also while it is being closed */
    settle();
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    close(other);
}
