/* An executor as the daemon sees it: calls into it, records to it, its process, and its keeper. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/confine.h"
#include "executor/front.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/log.h"

/* ---- two ways to have the loop look at the front: now, from any thread, and at a time ---- */

void front_tell(struct front *f)
{
    atomic_store(&f->news, true);
    f->host.wake(f->host.context);
}

void front_set_timer(struct front *f, uint64_t at_ns)
{
    const struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(at_ns / 1000000000), .tv_nsec = (long)(at_ns % 1000000000)}};

    if (at_ns >= f->timer_ns)
        return;
    f->timer_ns = at_ns;
    timerfd_settime(f->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* ---- calls. Thread: any ---- */

static unsigned take_channel(struct executor *x)
{
    unsigned i = 0;

    pthread_mutex_lock(&x->lock);
    while (x->channel_busy[i]) {
        if (i == CALL_CHANNELS - 1)
            pthread_cond_wait(&x->channel_free, &x->lock);
        i = (i + 1) % CALL_CHANNELS;
    }
    x->channel_busy[i] = true;
    pthread_mutex_unlock(&x->lock);
    return i;
}

/* Fails a call without a reply, or one of a broken context. The daemon cannot know whether the executor did the work,
 * so the loop ends it. */
static int broken(struct executor *x, enum front_broken why, struct error *e)
{
    unsigned before = FRONT_SOUND;

    if (!atomic_load(&x->gone) && atomic_compare_exchange_strong(&x->broken, &before, why))
        front_tell(x->front);
    return error_set(e, ERROR_DEVICE_LOST, "the executor of the GPU has ended");
}

int front_distrust(struct executor *x, struct error *e)
{
    return broken(x, FRONT_BROKEN_SOCKET, e);
}

static int take_reply(const struct call_reply *reply, const int *fds, int *ret_fd)
{
    const bool wanted = ret_fd && reply->n_fds == 1 && reply->result == 0;

    for (unsigned i = 0; i < reply->n_fds; i++)
        if (!wanted)
            close(fds[i]);
    if (wanted)
        *ret_fd = fds[0];
    return ret_fd && reply->result == 0 && !wanted ? -1 : 0;
}

int front_call(struct executor *x, struct call_request *request, const char *text, const int *fds,
               struct call_reply *ret_reply, int *ret_fd, struct error *e)
{
    int reply_fds[CALL_FDS_MAX], r;
    unsigned channel;
    bool late;

    if (front_is_lost(x))
        return error_set(e, ERROR_DEVICE_LOST, "the executor of the GPU has ended");
    channel = take_channel(x);
    r = call_send_request(x->channels[channel], request, text, fds);
    errno = 0;
    if (r == 0)
        r = call_receive_reply(x->channels[channel], ret_reply, reply_fds);
    late = errno == EAGAIN || errno == EWOULDBLOCK;
    pthread_mutex_lock(&x->lock);
    x->channel_busy[channel] = false;
    pthread_cond_signal(&x->channel_free);
    pthread_mutex_unlock(&x->lock);
    if (r < 0)
        return broken(x, late ? FRONT_BROKEN_TIME : FRONT_BROKEN_SOCKET, e);
    if (take_reply(ret_reply, reply_fds, ret_fd) < 0)
        return error_set(e, ERROR_QUOTA_EXCEEDED, "the daemon has no descriptor left for the memory");
    if (ret_reply->result == 0)
        return 0;
    *e = ret_reply->error;
    error_accept(e);
    return e->code == ERROR_DEVICE_LOST ? broken(x, FRONT_BROKEN_CONTEXT, e) : -1;
}

int front_device_open(struct executor *x, uint32_t number, struct error *e)
{
    struct call_request request = {.kind = CALL_ACTIVATE, .device = number};
    struct call_reply reply;
    int r = 0;

    if (atomic_load(&x->active) >> number & 1)
        return 0;
    pthread_mutex_lock(&x->activating);
    if (!(atomic_load(&x->active) >> number & 1))
        r = front_call(x, &request, NULL, NULL, &reply, NULL, e);
    if (r == 0) {
        atomic_fetch_or(&x->active, 1U << number);
        atomic_fetch_or(&x->front->used, 1U << number);
    }
    pthread_mutex_unlock(&x->activating);
    return r;
}

/* ---- records. Thread: loop ---- */

struct overflow {
    struct list link;
    uint32_t size;
    unsigned char bytes[]; /* a record */
};

void front_ring_doorbell(const struct executor *x)
{
    /* The record's word was stored before; the executor stores its own word and then looks at the ring again. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&x->region->executor_sleeps, memory_order_relaxed) &&
        atomic_exchange(&x->region->executor_sleeps, 0))
        bell_ring(x->bell);
}

static bool send_now(struct executor *x, const void *record, uint32_t size)
{
    void *at = ring_reserve(&x->out, size);

    if (!at)
        return false;
    memcpy(at, record, size);
    ring_publish(&x->out);
    front_ring_doorbell(x);
    return true;
}

void front_send_record(struct executor *x, const void *record, uint32_t size)
{
    struct overflow *later;
    struct error e;

    if (atomic_load_explicit(&x->gone, memory_order_relaxed) || (list_empty(&x->overflow) && send_now(x, record, size)))
        return;
    later = malloc(sizeof(*later) + size);
    if (!later) { /* without it both sides would disagree */
        error_set(&e, ERROR_DEVICE_LOST, "no memory for a record to the executor of the GPU");
        front_kill(x, &e);
        return;
    }
    later->size = size;
    memcpy(later->bytes, record, size);
    list_append(&x->overflow, &later->link);
}

void front_send_number(struct executor *x, enum record_kind kind, uint32_t number, uint32_t serial)
{
    const struct record_number record = {.kind = kind, .number = number, .serial = serial};

    front_send_record(x, &record, sizeof(record));
}

void front_send_overflow(struct executor *x)
{
    list_each (struct overflow, next, link, &x->overflow) {
        if (!send_now(x, next->bytes, next->size))
            return;
        list_remove(&next->link);
        free(next);
    }
}

void front_stream_leave(struct front_stream *s)
{
    const struct record_stream record = {.kind = RECORD_STREAM_FREE, .stream = s->number};

    if (!s->on)
        return;
    front_send_record(s->on, &record, sizeof(record));
    list_remove(&s->on_link);
    s->on = NULL;
}

enum {
    READY_S = 120,  /* a machine with many GPUs takes a third of a second for each */
    LAST_MS = 1000, /* from the end of the socket to the end of the process */
    END_MS = 10000,
    DOMAIN_END_MS = 1000,
    ORDER_MS = 5000,  /* longest wait for an executor that is hurried: it ends itself after 3 s */
    DEATH_MS = 60000, /* longest wait for the death of a process; one with running kernels takes 0.1 s */
    MOMENT_MS = 50,   /* longest wait for the end of a process whose contexts MPS has ended */
    CALL_S = 120,     /* longest call: the driver may wait for running kernels */
    SAY_NS = 100000000
};

/* ---- the process ---- */

static int spawn(struct executor *x, int control, struct error *e)
{
    const struct backend_config *config = &x->front->config;
    char spin[32], counts[32] = "counts=";
    const char *const own[] = {spin, x->common ? "common=1" : "common=0", counts, NULL};
    int r;

    snprintf(spin, sizeof(spin), "spin=%llu", (unsigned long long)config->spin_us);
    if (x->counts >= 0)
        snprintf(counts, sizeof(counts), "counts=%d", x->counts);
    r = confine_spawn(config, EXECUTOR_ARGUMENT, own, x->common, control, &x->pid);
    if (r == 0)
        return 0;
    if (r == ENOMEM || r == EMFILE || r == ENFILE)
        return error_shortage(e, r, "starting an executor");
    return error_set(e, ERROR_INTERNAL, "an executor cannot be started: %s", strerror(r));
}

static bool wait_for_end(const struct executor *x, int ms)
{
    struct pollfd ended = {.fd = x->pidfd, .events = POLLIN};
    int r = 0;

    while (x->pidfd >= 0 && (r = poll(&ended, 1, ms)) < 0 && errno == EINTR)
        ;
    return r > 0;
}

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void process_free(struct executor *x)
{
    list_each (struct overflow, record, link, &x->overflow)
        free(record);
    close_one(&x->control);
    close_one(&x->bell);
    close_one(&x->pidfd);
    for (unsigned i = 0; i < CALL_CHANNELS; i++)
        close_one(&x->channels[i]);
    x->region = region_unmap(x->region);
    ids_free(&x->slots);
    free(x->jobs);
    pthread_mutex_destroy(&x->lock);
    pthread_mutex_destroy(&x->activating);
    pthread_cond_destroy(&x->channel_free);
    pthread_cond_destroy(&x->wanted);
    free(x);
}

struct executor *front_process_new(struct front *f, bool common, int counts, struct error *e)
{
    struct executor *x = calloc(1, sizeof(*x));

    if (x)
        x->jobs = calloc(EXECUTOR_JOBS_MAX + 1, sizeof(*x->jobs));
    if (!x || !x->jobs) {
        free(x);
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for an executor");
        return NULL;
    }
    x->front = f;
    x->common = common;
    x->counts = counts;
    x->pidfd = x->control = x->bell = -1;
    for (unsigned i = 0; i < CALL_CHANNELS; i++)
        x->channels[i] = -1;
    pthread_mutex_init(&x->lock, NULL);
    pthread_mutex_init(&x->activating, NULL);
    pthread_cond_init(&x->channel_free, NULL);
    pthread_cond_init(&x->wanted, NULL);
    ids_init(&x->slots, EXECUTOR_JOBS_MAX);
    list_init(&x->link);
    list_init(&x->tasks);
    list_init(&x->overflow);
    list_init(&x->streams);
    return x;
}

/* Makes all descriptors. theirs: the executor's ends, in the order of its first message. */
static int make_shared(struct executor *x, int *ret_control, int theirs[CALL_FDS_MAX], struct error *e)
{
    const struct timeval limit = {.tv_sec = CALL_S};
    int pair[2];

    for (unsigned i = 0; i < CALL_CHANNELS; i++) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
            goto fail;
        x->channels[i] = pair[0];
        theirs[FIRST_CHANNELS + i] = pair[1];
        if (setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0)
            goto fail;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        goto fail;
    x->control = pair[0];
    *ret_control = pair[1];
    if (bell_new(pair) < 0)
        goto fail;
    x->bell = pair[0];
    theirs[FIRST_BELL] = pair[1];
    if (x->front->config.tuning) {
        theirs[FIRST_TUNING] = fcntl(x->front->config.tuning_fd, F_DUPFD_CLOEXEC, 0);
        if (theirs[FIRST_TUNING] < 0)
            goto fail;
    }
    x->region = region_new(&theirs[FIRST_REGION], e);
    if (!x->region)
        return -1;
    ring_init(&x->out, &x->region->to_executor, x->region->to_executor_bytes);
    ring_init(&x->in, &x->region->to_daemon, x->region->to_daemon_bytes);
    return 0;

fail:
    return error_set(e, ERROR_OUT_OF_MEMORY, "the descriptors of an executor: %s", strerror(errno));
}

static int wait_until_ready(struct executor *x, struct error *e)
{
    const struct timeval limit = {.tv_sec = READY_S};
    struct pollfd ended = {.fd = x->pidfd, .events = POLLIN};
    struct error said;
    unsigned n = 0;
    int fds[CALL_FDS_MAX], got;

    setsockopt(x->control, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    got = call_receive(x->control, &said, sizeof(said), fds, &n);
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
    x->silent = got != (int)sizeof(said) && poll(&ended, 1, LAST_MS) > 0;
    if (got != (int)sizeof(said))
        return error_set(e, ERROR_DEVICE_LOST, "the executor ended, or did not get ready in %d s", READY_S);
    if (said.code != ERROR_NONE) {
        error_accept(&said);
        *e = said;
        return -1;
    }
    x->n_described = *(volatile uint32_t *)&x->region->n_devices;
    if (x->n_described > BACKEND_MAX_DEVICES)
        return error_set(e, ERROR_INTERNAL, "the executor has more devices than there can be");
    return 0;
}

static int open_pidfd(struct executor *x, struct error *e)
{
    const int fd = (int)syscall(SYS_pidfd_open, x->pid, 0);

    pthread_mutex_lock(&x->front->lock);
    x->pidfd = fd;
    pthread_mutex_unlock(&x->front->lock);
    if (fd < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "pidfd_open: %s", strerror(errno));
    return atomic_load(&x->gone) ? error_set(e, ERROR_DEVICE_LOST, "the daemon ends") : 0;
}

static int process_start(struct executor *x, struct error *e)
{
    int theirs[CALL_FDS_MAX], control = -1, r = -1;

    for (unsigned i = 0; i < CALL_FDS_MAX; i++)
        theirs[i] = -1;
    if (make_shared(x, &control, theirs, e) < 0 || spawn(x, control, e) < 0 || open_pidfd(x, e) < 0)
        goto close_theirs;
    r = call_send(x->control, "kopsd", 5, theirs, theirs[FIRST_TUNING] < 0 ? FIRST_TUNING : FIRST_FDS);
    if (r < 0)
        error_set(e, ERROR_INTERNAL, "the executor does not take its descriptors: %s", strerror(errno));

close_theirs:
    for (unsigned i = 0; i < FIRST_FDS; i++)
        close_one(&theirs[i]);
    close_one(&control);
    if (r == 0)
        r = wait_until_ready(x, e);
    if (r == 0)
        log_info("executor", "pid=%d devices=%u common=%d", (int)x->pid, x->n_described, x->common);
    return r;
}

static void log_end(const struct executor *x)
{
    siginfo_t how = {.si_pid = 0};

    if (x->pid > 0 && waitid(P_PID, (id_t)x->pid, &how, WEXITED | WNOHANG | WNOWAIT) == 0 && how.si_pid)
        log_error("executor_ended", "pid=%d %s=%d", (int)x->pid, how.si_code == CLD_EXITED ? "status" : "signal",
                  how.si_status);
}

static bool end_by_mps(const struct executor *x)
{
    front_mps_terminate(x->pid);
    return wait_for_end(x, MOMENT_MS);
}

/* Ends a client of MPS. hurried: it may have kernels that do not end. False: the caller is to kill it. */
static bool end_client(const struct executor *x, bool hurried)
{
    bool ended;

    if (wait_for_end(x, 0))
        return true;
    ended = hurried && end_by_mps(x);
    shutdown(x->control, SHUT_RDWR);
    ended = ended || wait_for_end(x, hurried ? ORDER_MS : END_MS) || (!hurried && end_by_mps(x));
    if (!ended)
        log_error("executor_killed", "pid=%d why=\"it does not end; other clients of MPS may lose their contexts\"",
                  (int)x->pid);
    else if (hurried)
        log_end(x);
    return ended;
}

/* A process that the driver does not let go of writes on, so nobody may be told that its jobs have ended: only the
 * daemon's own end helps. */
static void wait_for_death(struct executor *x)
{
    struct front *f = x->front;

    if (wait_for_end(x, DEATH_MS))
        return;
    log_error("executor_undead", "pid=%d why=\"it was killed %d s ago and has not ended\"", (int)x->pid,
              DEATH_MS / 1000);
    pthread_mutex_lock(&f->lock);
    error_set(&f->lost, ERROR_DEVICE_LOST, "the driver does not let go of a process that was killed");
    pthread_mutex_unlock(&f->lock);
    front_tell(f);
}

static void process_end(struct executor *x)
{
    const bool gone = atomic_load(&x->gone) || x->start_error.code != ERROR_NONE;
    int status = 0;
    bool ended;

    if (x->pid <= 0)
        return;
    if (front_mps_is_client(x)) {
        /* In a context that is broken no kernel runs. */
        ended = end_client(x, gone && !x->broke);
    } else {
        shutdown(x->control, SHUT_RDWR); /* the executor ends when it sees that; closed by process_free() */
        ended = wait_for_end(x, gone ? 0 : x->common ? END_MS : DOMAIN_END_MS);
    }
    if (!ended) {
        kill(x->pid, SIGKILL);
        wait_for_death(x);
    }
    while (waitpid(x->pid, &status, 0) < 0 && errno == EINTR)
        ;
    x->killed = x->vanished && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    x->pid = 0;
}

static void unwatch(const struct executor *x)
{
    if (!x->ready)
        return;
    epoll_ctl(x->front->watch, EPOLL_CTL_DEL, x->bell, NULL);
    epoll_ctl(x->front->watch, EPOLL_CTL_DEL, x->control, NULL);
}

void front_abort(struct executor *x)
{
    atomic_store(&x->gone, true);
    unwatch(x);
    pthread_mutex_lock(&x->front->lock);
    x->state = PROCESS_ENDING;
    if (x->pidfd >= 0 && front_mps_is_client(x))
        shutdown(x->control, SHUT_RD); /* the keeper ends it, and may be waiting for its first word */
    else if (x->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, x->pidfd, SIGKILL, NULL, 0);
    pthread_cond_signal(&x->wanted);
    pthread_cond_broadcast(&x->front->changed);
    pthread_mutex_unlock(&x->front->lock);
    /* Calls under way end: their threads wait on these sockets. */
    for (unsigned i = 0; i < CALL_CHANNELS; i++)
        shutdown(x->channels[i], SHUT_RDWR);
}

void front_kill(struct executor *x, const struct error *why)
{
    if (atomic_load(&x->gone))
        return;
    x->why = *why;
    if (x->ready)
        log_end(x);
    log_error("executor_lost", "pid=%d why=\"%s\"", (int)x->pid, why->message);
    front_abort(x);
}

void front_check(struct executor *x)
{
    struct pollfd control = {.fd = x->control, .events = POLLIN};
    const enum front_broken broken = (enum front_broken)atomic_load(&x->broken);
    const uint64_t now_ns = clock_now_ns();
    struct error e;

    if (atomic_load(&x->gone) || !x->ready || x->stop) /* an executor that is told to end will end */
        return;
    bell_silence(x->bell);
    if (broken == FRONT_BROKEN_CONTEXT && !x->broken_ns)
        x->broken_ns = now_ns;
    /* The socket is readable when the process has ended. */
    x->vanished = poll(&control, 1, 0) > 0 || broken == FRONT_BROKEN_SOCKET;
    if (x->vanished)
        error_set(&e, ERROR_DEVICE_LOST, "the executor of the GPU ended unexpectedly");
    else if (broken == FRONT_BROKEN_TIME)
        error_set(&e, ERROR_DEVICE_LOST, "the executor of the GPU did not answer a call within %d s", CALL_S);
    else if (broken == FRONT_BROKEN_CONTEXT)
        error_set(&e, ERROR_DEVICE_LOST, "the GPU's context is broken");
    else
        return;
    /* An executor whose context is broken gets the time to say what became of its jobs. */
    if (broken == FRONT_BROKEN_CONTEXT && !x->vanished && x->unfinished && now_ns < x->broken_ns + SAY_NS)
        front_set_timer(x->front, x->broken_ns + SAY_NS);
    else
        front_kill(x, &e);
}

/* ---- the keeper ---- */

bool front_task_add(struct executor *x, struct front_task *task)
{
    if (x->state == PROCESS_ENDING)
        return false;
    list_append(&x->tasks, &task->link);
    pthread_cond_signal(&x->wanted);
    return true;
}

/* The next task; NULL: the executor is to end, and takes no more tasks. */
static struct front_task *next_task(struct executor *x)
{
    struct list *node;

    pthread_mutex_lock(&x->front->lock);
    while (!(node = list_pop(&x->tasks)) && x->state != PROCESS_ENDING && !x->stop)
        pthread_cond_wait(&x->wanted, &x->front->lock);
    if (!node)
        x->state = PROCESS_ENDING;
    pthread_mutex_unlock(&x->front->lock);
    return node ? list_entry(node, struct front_task, link) : NULL;
}

/* Makes contexts before they are needed: of the only device, or of those that were needed before. */
static void warm_up(struct executor *x)
{
    const unsigned used = atomic_load(&x->front->used);
    struct error e;

    for (uint32_t i = 0; i < x->n_described; i++)
        if ((x->n_described == 1 || used >> i & 1) && front_device_open(x, i, &e) < 0)
            log_warning("executor", "pid=%d device=%u why=\"%s\"", (int)x->pid, i, e.message);
}

static void *keep(void *argument)
{
    struct executor *x = argument;
    struct front *f = x->front;
    struct front_task *task;
    struct error e = {.code = ERROR_NONE};
    const int r = process_start(x, &e);

    if (r == 0 && !x->common)
        warm_up(x);
    pthread_mutex_lock(&f->lock);
    x->start_error.code = ERROR_NONE;
    if (r < 0)
        x->start_error = e;
    if (x->state == PROCESS_STARTING)
        x->state = r < 0 ? PROCESS_ENDING : PROCESS_SPARE;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    front_tell(f);
    if (r == 0 && x->common) /* the daemon is ready before */
        warm_up(x);
    while ((task = next_task(x)))
        task->run(x, task);
    process_end(x);
    pthread_mutex_lock(&f->lock);
    x->ended = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    front_tell(f);
    return NULL;
}

static bool add_locked(struct executor *x)
{
    struct front *f = x->front;

    pthread_mutex_lock(&f->lock);
    while (x->bit < EXECUTORS_MAX && f->by_bit[x->bit])
        x->bit++;
    if (x->bit < EXECUTORS_MAX) {
        f->by_bit[x->bit] = x;
        list_append(&f->executors, &x->link);
    }
    pthread_mutex_unlock(&f->lock);
    return x->bit < EXECUTORS_MAX;
}

static void remove_locked(struct executor *x)
{
    pthread_mutex_lock(&x->front->lock);
    list_remove(&x->link);
    x->front->by_bit[x->bit] = NULL;
    pthread_mutex_unlock(&x->front->lock);
}

struct executor *front_executor_start(struct front *f, bool common, int counts, struct error *e)
{
    struct executor *x = front_process_new(f, common, counts, e);
    bool added;

    if (!x)
        return NULL;
    x->state = PROCESS_STARTING;
    x->start_error.code = ERROR_NONE;
    x->started_ns = x->used_ns = clock_now_ns();
    added = add_locked(x);
    if (!added || pthread_create(&x->keeper, NULL, keep, x) != 0) {
        if (added)
            remove_locked(x);
        process_free(x);
        error_set(e, ERROR_OUT_OF_MEMORY, "no thread, or no place, for an executor");
        return NULL;
    }
    f->counts.started++;
    return x;
}

void front_executor_stop(struct executor *x)
{
    unwatch(x);
    pthread_mutex_lock(&x->front->lock);
    x->stop = true;
    pthread_cond_signal(&x->wanted);
    pthread_mutex_unlock(&x->front->lock);
}

void front_executor_release(struct executor *x)
{
    pthread_mutex_lock(&x->front->lock);
    if (--x->users == 0)
        pthread_cond_broadcast(&x->front->changed);
    pthread_mutex_unlock(&x->front->lock);
}

void front_executor_join(struct executor *x)
{
    struct front *f = x->front;

    pthread_join(x->keeper, NULL);
    pthread_mutex_lock(&f->lock);
    while (x->users)
        pthread_cond_wait(&f->changed, &f->lock);
    pthread_mutex_unlock(&f->lock);
}

void front_executor_free(struct executor *x)
{
    unwatch(x);
    remove_locked(x);
    process_free(x);
}
