/* The backend's table on the daemon's side, and its devices. */
#include "executor/front.h"
#include "executor/executor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "backend/conditions.h"
#include "backend/memory.h"
#include "util/clock.h"
#include "util/log.h"

static struct backend table;

/* A bool of another process may have any value. */
static void accept_bool(bool *b)
{
    *b = *(const unsigned char *)b != 0;
}

static void take_facts(struct front_device *d, const struct executor_device *from)
{
    struct executor_device *facts = &d->facts;
    struct backend_device_info *info = &d->base.info;

    memcpy(facts, from, sizeof(*facts));
    accept_bool(&facts->info.shared);
    accept_bool(&facts->info.clusters);
    accept_bool(&facts->info.exclusive);
    accept_bool(&facts->signals);
    accept_bool(&facts->counts);
    *info = facts->info;
    info->name[sizeof(info->name) - 1] = info->uuid[sizeof(info->uuid) - 1] = info->arch[sizeof(info->arch) - 1] = '\0';
    d->base.signals = facts->signals;
    d->base.counts = facts->counts;
    d->base.ends = true;
    for (unsigned op = 0; op < OP_COUNT; op++)
        for (unsigned t = 0; t < EXECUTOR_DTYPES; t++)
            for (unsigned i = 0; i < BACKEND_MAX_VARIANTS; i++) {
                char *name = facts->variants[op][t][i];

                name[STEP_VARIANT_BYTES - 1] = '\0';
                d->variants[op][t][i] = *name ? name : NULL;
            }
}

static struct front_device *device_new(struct front *f, struct executor *x, uint32_t number, struct error *e)
{
    struct front_device *d = calloc(1, sizeof(*d));

    if (!d) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a device");
        return NULL;
    }
    d->base.backend = &table;
    d->front = f;
    d->number = number;
    front_hold_init(&d->hold);
    take_facts(d, &x->region->devices[number]);
    return d;
}

void front_free(struct front *f)
{
    struct list *node;

    pthread_mutex_lock(&f->lock);
    f->closing = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    front_executors_end(f);
    front_domains_take(f);
    while ((node = list_pop(&f->domains)))
        free(list_entry(node, struct front_domain, link));
    for (unsigned i = 0; i < f->n_devices; i++)
        free(f->devices[i]);
    ids_free(&f->handles);
    ids_free(&f->codes);
    ids_free(&f->functions);
    ids_free(&f->stream_ids);
    ids_free(&f->program_ids);
    if (f->watch >= 0)
        close(f->watch);
    if (f->timer >= 0)
        close(f->timer);
    tuner_free(f->tuner);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->changed);
    free(f);
}

struct front *front_new(const struct backend_config *config, const struct backend_host *host, struct error *e)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    struct front *f = calloc(1, sizeof(*f));
    pthread_condattr_t clock;

    if (!f) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for executors");
        return NULL;
    }
    f->config = *config;
    f->host = *host;
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&f->changed, &clock);
    pthread_condattr_destroy(&clock);
    list_init(&f->executors);
    list_init(&f->domains);
    list_init(&f->new_domains);
    list_init(&f->objects);
    list_init(&f->opened);
    list_init(&f->worked);
    list_init(&f->programs);
    list_init(&f->busy);
    list_init(&f->failed);
    ids_init(&f->handles, EXECUTOR_HANDLES_MAX);
    ids_init(&f->codes, EXECUTOR_CODES_MAX);
    ids_init(&f->functions, EXECUTOR_FUNCTIONS_MAX);
    ids_init(&f->stream_ids, EXECUTOR_STREAMS_MAX);
    ids_init(&f->program_ids, EXECUTOR_PROGRAMS_MAX);
    f->timer_ns = f->next_end_ns = UINT64_MAX;
    f->tuner = tuner_new(&f->config);
    f->common = front_domain_get(f, DOMAIN_COMMON);
    f->watch = epoll_create1(EPOLL_CLOEXEC);
    f->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (f->common && f->tuner && f->watch >= 0 && f->timer >= 0 &&
        epoll_ctl(f->watch, EPOLL_CTL_ADD, f->timer, &event) == 0)
        return f;
    error_set(e, ERROR_OUT_OF_MEMORY, "the descriptors of executors: %s", strerror(errno));
    front_free(f);
    return NULL;
}

/* Starts the common executor and waits until it has described its devices; tries again where it ended without a word.
 */
static int start_common(struct front *f, struct executor **ret_executor, struct error *e)
{
    bool failed = true, silent = true;

    for (unsigned i = 0; failed && silent && i < FRONT_TRIES; i++) {
        struct executor *x = *ret_executor = front_executor_start(f, true, -1, e);

        if (!x)
            return -1;
        pthread_mutex_lock(&f->lock);
        while (x->state == PROCESS_STARTING)
            pthread_cond_wait(&f->changed, &f->lock);
        failed = x->start_error.code != ERROR_NONE;
        silent = x->silent;
        pthread_mutex_unlock(&f->lock);
        if (!failed)
            break;
        *e = x->start_error;
        front_executor_join(x);
        front_executor_free(x);
    }
    if (!failed)
        front_domain_give(f->common, *ret_executor);
    f->last_start_ns = clock_now_ns();
    return failed ? -1 : 0;
}

static int front_open(const struct backend_config *config, const struct backend_host *host,
                      struct backend_device **ret_devices, unsigned max, unsigned *ret_count, struct error *e)
{
    struct front *f = front_new(config, host, e);
    struct executor *x = NULL;
    unsigned wanted;

    if (!f)
        return -1;
    if (start_common(f, &x, e) < 0)
        goto free_front;
    wanted = x->n_described < max ? x->n_described : max;
    if (wanted)
        memfd_keep_fds();
    for (; f->n_devices < wanted; f->n_devices++) {
        struct front_device *d = device_new(f, x, f->n_devices, e);

        if (!d)
            goto free_front;
        f->devices[f->n_devices] = d;
        ret_devices[f->n_devices] = &d->base;
    }
    f->n_open = *ret_count = f->n_devices;
    if (!f->n_devices)
        front_free(f);
    else
        front_tell(f);
    return 0;

free_front:
    front_free(f);
    return -1;
}

static void front_close(struct backend_device *base)
{
    struct front *f = front_device(base)->front;

    if (--f->n_open == 0)
        front_free(f);
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

    return d == other || (d->front == other->front && d->facts.peers >> other->number & 1);
}

static void front_kernel_limits(struct backend_device *base, struct kernel_limits *ret_limits)
{
    *ret_limits = front_device(base)->facts.limits;
}

/* A job of the common executor does not end: kills the executor. */
static void front_abandon(struct backend_device *base, const struct error *why)
{
    struct front *f = front_device(base)->front;

    if (!f->common->executor)
        return;
    f->common->executor->abandoned = true;
    front_kill(f->common->executor, why);
}

static void front_end_processes(struct backend_device *base, bool all)
{
    struct front *f = front_device(base)->front;

    pthread_mutex_lock(&f->lock);
    f->ending = true;
    f->closing = f->closing || all;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    list_each (struct executor, x, link, &f->executors) {
        if ((x->common && !all) || atomic_load(&x->gone))
            continue;
        error_set(&x->why, ERROR_DEVICE_LOST, "the daemon ends");
        front_abort(x);
    }
}

static unsigned front_processes(struct backend_device *base, struct backend_process *ret, unsigned max,
                                struct backend_process_counts *ret_counts)
{
    struct front *f = front_device(base)->front;
    unsigned n = 0;

    *ret_counts = f->counts;
    pthread_mutex_lock(&f->lock);
    list_each (struct executor, x, link, &f->executors) {
        if (n == max)
            break;
        ret[n++] = (struct backend_process){.pid = x->ready ? x->pid : 0,
                                            .domain = x->key,
                                            .state = x->state,
                                            .jobs = x->unfinished,
                                            .started_ns = x->started_ns,
                                            .device_ns = x->device_ns};
    }
    pthread_mutex_unlock(&f->lock);
    return n;
}

static int front_wake_fd(struct backend_device *base)
{
    return front_device(base)->front->watch;
}

static int front_tune(struct backend_device *base, const struct tuning_request *request, struct tuning_pace *pace,
                      struct tuning_result *ret, struct error *e)
{
    return tuner_tune(front_device(base)->front->tuner, base->info.uuid, request, pace, ret, e);
}

static bool front_tune_rest(struct backend_device *base, bool rest)
{
    struct tuner *t = front_device(base)->front->tuner;

    if (rest && tuner_has_context(t))
        tuner_rest(t);
    return tuner_has_context(t);
}

static int front_tune_prepare(struct backend_device *base, struct error *e)
{
    return tuner_prepare(front_device(base)->front->tuner, e);
}

static void front_tune_stop(struct backend_device *base)
{
    tuner_stop(front_device(base)->front->tuner);
}

static struct backend table = {
    .abi = BACKEND_ABI,
    .keeps_fds = true,
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
    .conditions = nvml_conditions,
    .can_access = front_can_access,
    .stream_new = front_stream_new,
    .stream_free = front_stream_free,
    .submit = front_submit,
    .withdraw = front_withdraw,
    .cancel = front_cancel,
    .program_free = front_program_free,
    .poll = front_poll,
    .arm = front_arm,
    .ends_soon = front_ends_soon,
    .wake_fd = front_wake_fd,
    .work = front_work,
    .domain_end = front_domain_end,
    .code_load = front_code_load,
    .code_unload = front_code_unload,
    .code_function = front_code_function,
    .kernel_limits = front_kernel_limits,
    .abandon = front_abandon,
    .end_processes = front_end_processes,
    .processes = front_processes,
};

const struct backend *executor_backend(const struct gpu_backend *gpus)
{
    const struct backend *local = &gpus->base;

    table.name = local->name;
    table.times_always = local->times_always;
    table.host_memory = local->host_memory;
    table.spin = local->spin;
    table.check = local->check;
    table.image = local->image;
    table.tunes = local->tunes;
    table.tune = local->tune ? front_tune : NULL;
    table.tune_rest = local->tune ? front_tune_rest : NULL;
    table.tune_prepare = local->tune ? front_tune_prepare : NULL;
    table.tune_stop = local->tune ? front_tune_stop : NULL;
    return &table;
}
