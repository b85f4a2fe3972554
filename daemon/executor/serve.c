/* The executor's process: its start, its devices, its loop, its end. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "core/tuning.h"
#include "executor/confine.h"
#include "executor/executor.h"
#include "executor/privilege.h"
#include "executor/serve.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/process.h"

enum {
    FEW_NEW = 8,          /* divisor of the polling time while all running jobs are likely to end later */
    UNARMED_NS = 1000000, /* longest sleep that no event ends: bounds the delay of an end where the forecast is wrong */
    LAST_JOBS_NS = 2000000000 /* how long running jobs may go on once the daemon is gone */
};

static void serve_wake(void *context)
{
    struct serving *p = context;

    /* The word stays set: the loop may be about to sleep. */
    atomic_store(&p->woken, true);
    if (atomic_exchange(&p->region->executor_sleeps, 0))
        bell_ring(p->own_bell[1]);
}

/* ---- devices: described at the start, made ready when the daemon first needs them ---- */

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

/* Describes the backend's devices to the daemon, without their contexts. */
static int describe_devices(struct serving *p, const struct backend_config *config, struct error *e)
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

/* Takes the counters of p->counts, where the driver and the daemon let it. Then no thread has a privilege, or the start
 * fails. */
static int take_counters(struct serving *p, struct error *e)
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

/* Makes all contexts of devices under MPS: the driver connects to MPS with the first context, and no socket is made
 * later. */
static void connect_devices(struct serving *p)
{
    struct error e;

    for (unsigned i = 0; i < p->n_devices; i++)
        if (p->devices[i]->info.shared && device_activate(p, i, &e) < 0)
            log_warning("device_unusable", "number=%u why=\"%s\"", i, e.message);
}

/* ---- the start ---- */

static int take_descriptors(struct serving *p, struct error *e)
{
    int fds[CALL_FDS_MAX];
    char hello[8];
    unsigned n = 0;

    if (call_receive(p->control, hello, sizeof(hello), fds, &n) < 0 || (n != FIRST_FDS && n != FIRST_TUNING))
        return error_set(e, ERROR_INTERNAL, "the daemon gave no descriptors");
    p->region = region_map(fds[FIRST_REGION], e);
    close(fds[FIRST_REGION]);
    if (!p->region)
        return -1;
    if (n == FIRST_FDS && tuning_table_map(fds[FIRST_TUNING], &p->tuning, e) < 0)
        return -1;
    if (n == FIRST_FDS)
        close(fds[FIRST_TUNING]);
    p->bell = fds[FIRST_BELL];
    memcpy(p->channels, fds + FIRST_CHANNELS, sizeof(p->channels));
    ring_init(&p->in, &p->region->to_executor, p->region->to_executor_bytes);
    ring_init(&p->out, &p->region->to_daemon, p->region->to_daemon_bytes);
    return 0;
}

/* Ends the process when the daemon ends: the loop may be in a call of the driver. Nothing more is sent on the control
 * socket once the descriptors have come. */
static void *watch_daemon(void *argument)
{
    const struct serving *p = argument;
    const struct timespec last = {.tv_sec = LAST_JOBS_NS / 1000000000 + 1};
    struct pollfd control = {.fd = p->control, .events = POLLIN};

    while (poll(&control, 1, -1) < 0 && errno == EINTR)
        ;
    nanosleep(&last, NULL);
    _exit(0);
}

static int start(struct serving *p, struct backend_config *config, struct error *e)
{
    const struct confine_what what = {.common = p->common, .counts = p->counts >= 0};
    pthread_t watch;

    if (confine_begin(config, what, e) < 0 || take_descriptors(p, e) < 0)
        return -1;
    config->tuning = p->tuning;
    if (bell_new(p->own_bell) < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "an executor's own bell: %s", strerror(errno));
    if (pthread_create(&watch, NULL, watch_daemon, p) != 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "an executor's threads cannot be made");
    pthread_detach(watch);
    if (jobs_init(p, e) < 0 || describe_devices(p, config, e) < 0)
        return -1;
    connect_devices(p);
    if (take_counters(p, e) < 0 || confine_finish(e) < 0)
        return -1;
    return calls_start(p, e);
}

/* ---- the loop ---- */

/* Sleeps until there may be something to do. False: the daemon is gone. */
static bool sleep_until_needed(struct serving *p, const struct serve_wait *wait, uint64_t now_ns)
{
    const uint64_t left_ns = wait->until_ns - now_ns;
    const struct timespec until = {.tv_sec = (time_t)(left_ns / 1000000000), .tv_nsec = (long)(left_ns % 1000000000)},
                          soon = {.tv_nsec = 1000000};
    struct pollfd fds[] = {{.fd = p->control, .events = POLLIN},
                           {.fd = p->bell, .events = POLLIN},
                           {.fd = p->own_bell[0], .events = POLLIN}};
    const bool retry = !list_empty(&p->unreported); /* nobody tells of room in the ring to the daemon */

    atomic_store(&p->region->executor_sleeps, 1);
    /* The daemon, and threads that wake the loop, store first and look at the word then. */
    atomic_thread_fence(memory_order_seq_cst);
    if (!ring_has_record(&p->in) && !atomic_load(&p->woken)) {
        p->overslept = wait->all_later && left_ns <= UNARMED_NS;
        if (!p->overslept)
            jobs_arm(p);
        while (ppoll(fds, 3, retry ? &soon : wait->until_ns != UINT64_MAX ? &until : NULL, NULL) < 0 && errno == EINTR)
            ;
    }
    atomic_store(&p->region->executor_sleeps, 0);
    bell_silence(p->bell);
    bell_silence(p->own_bell[0]);
    return !fds[0].revents;
}

static void serve(struct serving *p)
{
    enum { LONG_NS = 20 * 1000 * 1000 }; /* without progress for so long, a wake-up alone is no reason to poll */
    uint64_t last_ns = clock_now_ns(), progress_ns = last_ns;

    for (;;) {
        struct serve_wait wait;
        uint64_t now_ns;

        if (jobs_turn(p)) {
            last_ns = progress_ns = clock_now_ns();
            continue;
        }
        p->overslept = false;
        now_ns = clock_now_ns();
        wait = jobs_wait(p, now_ns);
        if (wait.poll || now_ns - last_ns < (wait.all_later ? p->spin_ns / FEW_NEW : p->spin_ns)) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
            continue;
        }
        if (!sleep_until_needed(p, &wait, now_ns))
            return;
        now_ns = clock_now_ns();
        last_ns = now_ns - progress_ns < LONG_NS ? now_ns : last_ns;
    }
}

bool executor_wanted(int argc, char **argv)
{
    return argc > 1 && !strcmp(argv[1], EXECUTOR_ARGUMENT);
}

int executor_main(int argc, char **argv, const struct gpu_backend *local)
{
    struct serving *p = calloc(1, sizeof(*p));
    struct backend_config config = {0};
    const struct timespec nap = {.tv_nsec = 100000};
    struct error said = {.code = ERROR_NONE}, e;
    int status = 0;

    if (!p || fcntl(CALL_CONTROL_FD, F_SETFD, FD_CLOEXEC) < 0)
        return 2; /* not started by a daemon */
    prctl(PR_SET_NAME, "kopsd-executor");
    prctl(PR_SET_TIMERSLACK, 1UL); /* a sleep ends when work is likely to end */
    signals_prepare_helper();
    /* The daemon ends the process by the end of the control socket. A signal to the whole service does not end it: jobs
     * may still run. */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    p->gpus = local;
    p->backend = &local->base;
    p->control = CALL_CONTROL_FD;
    p->counts = -1;
    for (int i = 2; i < argc; i++) {
        const char *value = confine_argument(argv[i], &config);

        if (value && !strcmp(argv[i], "common"))
            p->common = *value == '1';
        else if (value && *value && !strcmp(argv[i], "counts"))
            p->counts = (int)strtoul(value, NULL, 10);
        else if (value && !strcmp(argv[i], "spin"))
            p->spin_ns = strtoull(value, NULL, 10) * 1000;
    }
    config.cuda_blaslt_late = config.cuda_cupti_early = !p->common; /* a spare has time until a user's kernel comes */
    if (start(p, &config, &e) < 0) {
        said = e;
        status = 1;
    }
    if (call_send(p->control, &said, sizeof(said), NULL, 0) == 0 && status == 0) {
        serve(p);
        /* Under MPS the end of a process in the middle of its work would break the other clients. */
        for (uint64_t end_ns = clock_now_ns() + LAST_JOBS_NS; p->unfinished && clock_now_ns() < end_ns;)
            if (!jobs_turn(p))
                nanosleep(&nap, NULL);
    }
    /* Threads may be in calls of the driver, for which exit() would wait. */
    _exit(status);
}
