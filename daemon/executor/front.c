/* The backend's table on the daemon's side, and its devices. */
#include "executor/front.h"

#include <stdlib.h>
#include <string.h>

#include "backend/memfd.h"
#include "util/log.h"

static struct backend front;

/* A bool of another process may have any value. */
static void accept_bool(bool *b)
{
    const unsigned char value = *(const unsigned char *)b;

    *b = value != 0;
}

/* Copies the facts, and makes their texts end. */
static void take_facts(struct front_device *d, const struct executor_device *from)
{
    struct executor_device *facts = &d->facts;
    struct backend_device_info *info = &d->base.info;

    memcpy(facts, from, sizeof(*facts));
    accept_bool(&facts->info.shared);
    accept_bool(&facts->info.clusters);
    accept_bool(&facts->signals);
    *info = facts->info;
    info->name[sizeof(info->name) - 1] = info->uuid[sizeof(info->uuid) - 1] = info->arch[sizeof(info->arch) - 1] = '\0';
    d->base.signals = facts->signals;
    for (unsigned op = 0; op < OP_COUNT; op++)
        for (unsigned t = 0; t < EXECUTOR_DTYPES; t++)
            for (unsigned i = 0; i < BACKEND_MAX_VARIANTS; i++) {
                char *name = facts->variants[op][t][i];

                name[STEP_VARIANT_BYTES - 1] = '\0';
                d->variants[op][t][i] = *name ? name : NULL;
            }
}

static struct front_device *device_new(struct executor *x, uint32_t number, struct error *e)
{
    struct front_device *d = calloc(1, sizeof(*d));

    if (!d) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a device");
        return NULL;
    }
    d->base.backend = &front;
    d->executor = x;
    d->number = number;
    take_facts(d, &x->region->devices[number]);
    x->n_open++;
    return d;
}

static int front_open(const struct backend_config *config, const struct backend_host *host,
                      struct backend_device **ret_devices, unsigned max, unsigned *ret_count, struct error *e)
{
    struct executor *x = calloc(1, sizeof(*x));
    unsigned n = 0, wanted;

    if (!x)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for an executor");
    if (front_start(x, config, host, e) < 0) {
        free(x);
        return -1;
    }
    wanted = x->n_described < max ? x->n_described : max;
    if (wanted)
        memfd_keep_fds();
    for (; n < wanted; n++) {
        struct front_device *d = device_new(x, n, e);

        if (!d)
            goto close_devices;
        ret_devices[n] = &d->base;
    }
    if (!n) {
        front_stop(x);
        free(x);
    }
    *ret_count = n;
    return 0;

close_devices:
    for (unsigned i = 0; i < n; i++)
        free(front_device(ret_devices[i]));
    front_stop(x);
    free(x);
    return -1;
}

static void front_close(struct backend_device *base)
{
    struct front_device *d = front_device(base);
    struct executor *x = d->executor;

    free(d);
    if (--x->n_open)
        return;
    front_stop(x);
    free(x);
}

static const char *const *front_variants(struct backend_device *base, const struct op *op, enum dtype dtype)
{
    const struct front_device *d = front_device(base);

    return d->variants[op->id][dtype][0] ? d->variants[op->id][dtype] : NULL;
}

static unsigned front_memory_kinds(struct backend_device *base)
{
    return front_device(base)->facts.memory_kinds;
}

static bool front_can_access(struct backend_device *base, struct backend_device *owner)
{
    const struct front_device *d = front_device(base), *other = front_device(owner);

    return d == other || (d->executor == other->executor && d->facts.peers >> other->number & 1);
}

static void front_kernel_limits(struct backend_device *base, struct kernel_limits *ret_limits)
{
    *ret_limits = front_device(base)->facts.limits;
}

static void front_abandon(struct backend_device *base, const struct error *why)
{
    front_kill(front_device(base)->executor, why);
}

static int front_wake_fd(struct backend_device *base)
{
    return front_device(base)->executor->watch;
}

static struct backend front = {
    .abi = BACKEND_ABI,
    .open = front_open,
    .close = front_close,
    .variants = front_variants,
    .memory_import = front_memory_import,
    .memory_alloc = front_memory_alloc,
    .memory_close = front_memory_close,
    .memory_detach = front_memory_detach,
    .memory_attach = front_memory_attach,
    .memory_extend = front_memory_extend,
    .memory_kinds = front_memory_kinds,
    .memory_free = front_memory_free,
    .can_access = front_can_access,
    .stream_new = front_stream_new,
    .stream_free = front_stream_free,
    .needs_prepare = front_needs_prepare,
    .prepare = front_prepare,
    .submit = front_submit,
    .cancel = front_cancel,
    .program_free = front_program_free,
    .poll = front_poll,
    .arm = front_arm,
    .wake_fd = front_wake_fd,
    .code_load = front_code_load,
    .code_unload = front_code_unload,
    .code_function = front_code_function,
    .kernel_limits = front_kernel_limits,
    .abandon = front_abandon,
};

const struct backend *executor_backend(const struct backend *local)
{
    front.name = local->name;
    front.execution_key = local->execution_key;
    front.times_always = local->times_always;
    front.host_memory = local->host_memory;
    front.spin = local->spin;
    front.check = local->check;
    return &front;
}
