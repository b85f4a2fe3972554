#include "mapping_support.h"

atomic_uint n_open, n_opened;
atomic_bool refuse_open;
uv_loop_t loop;
struct mapping_registry registry;

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
struct backend_device fake_device = {.backend = &fake};
static struct device_set devices = {.all = {&fake_device}, .count = 1, .fallback = &fake_device};

int set_up(void **state)
{
    uv_loop_init(&loop);
    mapping_registry_init(&registry, &loop, &devices, 0);
    atomic_store(&n_opened, 0);
    atomic_store(&refuse_open, false);
    return 0;
}

void settle(void)
{
    while (registry.changing)
        uv_run(&loop, UV_RUN_ONCE);
}

int tear_down(void **state)
{
    settle();
    assert_int_equal(registry.count, 0);
    assert_int_equal(atomic_load(&n_open), 0);
    mapping_registry_stop(&registry);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    return 0;
}

struct backend_import handle(char name)
{
    struct backend_import import = {.kind = MEMORY_CUDA_IPC, .size = 1000};

    memset(import.handle, name, sizeof(import.handle));
    return import;
}

const struct mapping_owner ann = {.uid = 1, .pid = 10}, ann_too = {.uid = 1, .pid = 11}, bob = {.uid = 2, .pid = 20};

int get(char name, uint64_t id, struct mapping_owner owner, struct mapping **ret, struct error *e)
{
    struct backend_import import = handle(name);

    return mapping_get_ipc(&registry, &fake_device, &import, id ? &id : NULL, owner, ret, e);
}

void on_ready(struct mapping_waiter *w, bool ok)
{
    *(int *)w->context = ok ? 1 : -1;
}
