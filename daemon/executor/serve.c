/* The executor's process: its start, its devices, the daemon's calls, its loop, its end. */
#include "executor/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "backend/memory.h"
#include "core/tuning.h"
#include "executor/confine.h"
#include "executor/executor.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/process.h"

/* ---- the daemon's calls, which may block ---- */

struct taker {
    struct serving *serving;
    int socket;
    struct call_request request;
    char text[CALL_TEXT_MAX + 1];
    int fds[CALL_FDS_MAX];
    struct call_reply reply;
    int reply_fd;
};

static struct backend_device *device_of(const struct taker *t)
{
    return t->serving->devices[t->request.device];
}

/* Keeps the memory under the request's handle. */
static int keep(struct taker *t, struct backend_memory *memory)
{
    t->reply.size = memory->size;
    t->reply.address = memory->address;
    memory_id_set(t->request.handle, memory);
    return 0;
}

static int import(struct taker *t, struct error *e)
{
    struct backend_memory *memory;

    memcpy(t->request.import.fds, t->fds, sizeof(t->request.import.fds));
    if (t->serving->backend->memory_import(device_of(t), &t->request.import, &memory, e) < 0)
        return -1;
    return keep(t, memory);
}

static int allocate(struct taker *t, struct error *e)
{
    struct backend_memory *memory;

    if (t->serving->backend->memory_alloc(device_of(t), t->request.size, &memory, &t->reply_fd, e) < 0)
        return -1;
    t->reply.n_fds = 1;
    return keep(t, memory);
}

static void detach(const struct serving *p, struct backend_memory *memory)
{
    for (unsigned i = 0; i < p->n_devices; i++)
        if (memory->attached[i])
            p->backend->memory_detach(p->devices[i], memory);
}

static int map_host(struct taker *t, struct error *e)
{
    const struct backend *backend = t->serving->backend;
    struct backend_memory *memory;

    if (t->request.n_fds != 1)
        return error_set(e, ERROR_INTERNAL, "shared memory without a descriptor");
    if (memfd_map(t->fds[0], t->request.size, t->request.import.writable, &memory, e) < 0)
        return -1;
    if (t->request.attach && backend->memory_attach(device_of(t), memory, e) < 0) {
        detach(t->serving, memory);
        memfd_unmap(memory);
        return -1;
    }
    return keep(t, memory);
}

static int extend(struct taker *t, struct error *e)
{
    struct backend_memory *memory = memory_by_id(t->request.handle);

    memcpy(t->request.import.fds, t->fds, sizeof(t->request.import.fds));
    if (t->serving->backend->memory_extend(memory, &t->request.import, &t->reply.size, e) < 0)
        return -1;
    memory->size = t->reply.size;
    return 0;
}

static int close_memory(struct taker *t, struct error *e)
{
    struct backend_memory *memory = memory_by_id(t->request.handle);

    (void)e;
    memory_id_set(t->request.handle, NULL);
    if (memory && memory->kind != MEMORY_MEMFD) {
        t->serving->backend->memory_close(memory);
    } else if (memory) {
        detach(t->serving, memory);
        memfd_unmap(memory);
    }
    return 0;
}

static int load_code(struct taker *t, struct error *e)
{
    struct backend_code *code;
    void *binary;
    int r;

    if (t->request.n_fds != 1 || t->request.code > EXECUTOR_CODES_MAX)
        return error_set(e, ERROR_INTERNAL, "a binary without a descriptor, or without a number");
    binary = mmap(NULL, t->request.size, PROT_READ, MAP_PRIVATE, t->fds[0], 0);
    if (binary == MAP_FAILED)
        return error_set(e, ERROR_OUT_OF_MEMORY, "mapping a binary: %s", strerror(errno));
    r = t->serving->backend->code_load(device_of(t), DOMAIN_COMMON, binary, t->request.size, &code, e);
    munmap(binary, t->request.size);
    if (r == 0)
        t->serving->codes[t->request.code] = code;
    return r;
}

static struct backend_code *code_of(const struct taker *t)
{
    return t->request.code <= EXECUTOR_CODES_MAX ? t->serving->codes[t->request.code] : NULL;
}

static int find_function(struct taker *t, struct error *e)
{
    struct backend_code *code = code_of(t);

    if (!code || t->request.handle > EXECUTOR_FUNCTIONS_MAX)
        return error_set(e, ERROR_INTERNAL, "the executor has no such code");
    if (t->serving->backend->code_function(device_of(t), code, t->text, &t->reply.function, e) < 0)
        return -1;
    t->serving->functions[t->request.handle] = t->reply.function.id;
    return 0;
}

/* Unloads behind the records that were written before: one of them may free a program that launches the code. */
static int unload_code(struct taker *t, struct error *e)
{
    const struct timespec moment = {.tv_nsec = 50000};

    (void)e;
    while (atomic_load(&t->serving->region->to_executor.read) < t->request.position)
        nanosleep(&moment, NULL);
    if (!code_of(t))
        return 0;
    t->serving->backend->code_unload(device_of(t), code_of(t));
    t->serving->codes[t->request.code] = NULL;
    return 0;
}

static int activate(struct taker *t, struct error *e)
{
    return device_activate(t->serving, t->request.device, e);
}

static int tell_free_memory(struct taker *t, struct error *e)
{
    const struct backend *backend = t->serving->backend;

    if (backend->memory_free && backend->memory_free(device_of(t), &t->reply.size) == 0)
        return 0;
    return error_set(e, ERROR_UNSUPPORTED, "the device does not tell its free memory");
}

static int (*const calls[])(struct taker *t, struct error *e) = {
    [CALL_ACTIVATE] = activate,           [CALL_IMPORT] = import,           [CALL_ALLOC] = allocate,
    [CALL_MAP_HOST] = map_host,           [CALL_EXTEND] = extend,           [CALL_CLOSE] = close_memory,
    [CALL_CODE_LOAD] = load_code,         [CALL_CODE_UNLOAD] = unload_code, [CALL_CODE_FUNCTION] = find_function,
    [CALL_MEMORY_FREE] = tell_free_memory};

/* A call cannot be answered: the process ends, and the daemon hears of that. Where the daemon is gone, the loop ends
 * the process. */
static void give_up(const struct taker *t, const char *why)
{
    char byte;

    if (recv(t->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        return;
    log_error("executor", "why=\"%s\"", why);
    _exit(1);
}

static void answer(struct taker *t)
{
    memset(&t->reply, 0, sizeof(t->reply));
    t->reply_fd = -1;
    t->text[t->request.text_size] = '\0';
    if (t->request.device >= t->serving->n_devices)
        t->reply.result = error_set(&t->reply.error, ERROR_INTERNAL, "the executor has no such device");
    else if (t->request.kind != CALL_ACTIVATE && !atomic_load(&t->serving->active[t->request.device]))
        t->reply.result = error_set(&t->reply.error, ERROR_UNSUPPORTED, "nothing has used the device yet");
    else if (t->request.kind >= sizeof(calls) / sizeof(calls[0]))
        t->reply.result = error_set(&t->reply.error, ERROR_INTERNAL, "a call that the executor does not know");
    else
        t->reply.result = calls[t->request.kind](t, &t->reply.error);
    for (unsigned i = 0; i < t->request.n_fds; i++)
        close(t->fds[i]);
    if (call_send(t->socket, &t->reply, sizeof(t->reply), &t->reply_fd, t->reply.n_fds) < 0)
        give_up(t, "a reply cannot be sent");
    if (t->reply_fd >= 0)
        close(t->reply_fd);
}

static void *run(void *argument)
{
    struct taker *t = argument;

    while (call_receive_request(t->socket, &t->request, t->text, t->fds) == 0)
        answer(t);
    give_up(t, "a call cannot be received");
    return NULL;
}

/* Starts the threads that take calls. */
static int calls_start(struct serving *p, struct error *e)
{
    static struct taker takers[CALL_CHANNELS];

    for (unsigned i = 0; i < CALL_CHANNELS; i++) {
        pthread_t thread;

        takers[i].serving = p;
        takers[i].socket = p->channels[i];
        if (pthread_create(&thread, NULL, run, &takers[i]) != 0)
            return error_set(e, ERROR_OUT_OF_MEMORY, "an executor's threads cannot be made");
        pthread_detach(thread);
    }
    return 0;
}

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
