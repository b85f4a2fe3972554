/* The executor's devices: described at the start, made ready when the daemon first needs them. */
#include <string.h>

#include "executor/privilege.h"
#include "executor/serve.h"
#include "util/log.h"

static void describe(struct serving *p, unsigned index)
{
    static const enum dtype dtypes[] = {
#define X(NAME, name, value, size) DTYPE_##NAME,
        KOPS_DTYPES(X)
#undef X
    };
    struct executor_device *facts = &p->region->devices[index];
    struct backend_device *d = p->devices[index];
    const struct backend *backend = p->backend;

    facts->info = d->info;
    facts->signals = d->signals;
    facts->counts = d->counts;
    facts->memory_kinds = backend->memory_kinds ? backend->memory_kinds(d) : 0;
    if (backend->kernel_limits)
        backend->kernel_limits(d, &facts->limits);
    for (unsigned i = 0; backend->can_access && i < p->n_devices; i++)
        facts->peers |= (uint32_t)backend->can_access(d, p->devices[i]) << i;
    for (unsigned op = 0; op < OP_COUNT; op++)
        for (unsigned t = 0; t < sizeof(dtypes) / sizeof(dtypes[0]); t++) {
            const char *const *names = backend->variants(d, op_get((enum op_id)op), dtypes[t]);

            for (unsigned i = 0; names && names[i] && i < BACKEND_MAX_VARIANTS; i++)
                step_copy_variant(facts->variants[op][dtypes[t]][i], names[i]);
        }
}

int devices_describe(struct serving *p, const struct backend_config *config, struct error *e)
{
    const struct backend_host host = {.wake = serve_wake, .context = p, .timed = jobs_on_timed};

    if (p->backend->open(config, &host, p->devices, BACKEND_MAX_DEVICES, &p->n_devices, e) < 0)
        return -1;
    for (unsigned i = 0; i < p->n_devices; i++) {
        p->devices[i]->index = i;
        pthread_mutex_init(&p->activating[i], NULL);
    }
    for (unsigned i = 0; i < p->n_devices; i++)
        describe(p, i);
    p->region->n_devices = p->n_devices;
    return 0;
}

int device_activate(struct serving *p, unsigned index, struct error *e)
{
    int r = 0;

    pthread_mutex_lock(&p->activating[index]);
    if (!atomic_load(&p->active[index])) {
        r = p->gpus->activate(p->devices[index], e);
        atomic_store(&p->active[index], r == 0);
    }
    pthread_mutex_unlock(&p->activating[index]);
    return r;
}

static int take(void *context, struct error *e)
{
    const struct serving *p = context;

    return p->gpus->counters_take(p->devices[p->counts], e);
}

int devices_take_counters(struct serving *p, struct error *e)
{
    struct error why;
    int result = -1;

    if (p->counts < 0)
        return 0;
    if (p->counts >= (int)p->n_devices)
        return error_set(e, ERROR_INTERNAL, "there is no device %d that counts", p->counts);
    if (device_activate(p, (unsigned)p->counts, e) < 0)
        return -1;
    if (p->gpus->counters_load(p->devices[p->counts], &why) < 0 ? privilege_drop(e) < 0
                                                                : privilege_use(take, p, &result, &why, e) < 0)
        return -1;
    if (result < 0)
        log_warning("counters_privilege", "state=refused why=\"%s\"", why.message);
    else
        log_info("counters_privilege", "state=used");
    return 0;
}

void devices_connect(struct serving *p)
{
    struct error e;

    for (unsigned i = 0; i < p->n_devices; i++)
        if (p->devices[i]->info.shared && device_activate(p, i, &e) < 0)
            log_warning("device_unusable", "number=%u why=\"%s\"", i, e.message);
}
