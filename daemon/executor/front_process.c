/* Starts and ends an executor's process. */
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
#include <sys/wait.h>
#include <unistd.h>

#include "executor/arguments.h"
#include "executor/bell.h"
#include "executor/confine.h"
#include "executor/front.h"
#include "util/clock.h"
#include "util/log.h"

enum {
    READY_S = 120,  /* a machine with many GPUs takes a third of a second for each */
    LAST_MS = 1000, /* from the end of its socket to the process's */
    END_MS = 10000,
    DOMAIN_END_MS = 1000,
    ORDER_MS = 5000,  /* for an executor that is hurried: it ends itself after 3 s */
    DEATH_MS = 60000, /* a process with kernels that run takes 0.1 s */
    MOMENT_MS = 50,   /* for a process to end whose contexts MPS has ended */
    CALL_S = 120      /* how long a call may take: the driver may wait for kernels that run */
};

enum { SAY_NS = 100000000 };

/* ---- the process ---- */

static int spawn(const struct executor *x, pid_t *ret_pid, int control, struct error *e)
{
    enum { OWN = 3, ALL = OWN + ARGUMENTS_CONFIG };
    const struct backend_config *config = &x->front->config;
    char texts[ALL][ARGUMENT_BYTES];
    char *list[ALL + 3] = {(char *)(uintptr_t) "kopsd", (char *)(uintptr_t)EXECUTOR_ARGUMENT};
    char **environment = arguments_environment(x->common);
    int r;

    if (!environment)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for an executor's environment");
    snprintf(texts[0], ARGUMENT_BYTES, "spin=%llu", (unsigned long long)config->spin_us);
    snprintf(texts[1], ARGUMENT_BYTES, "common=%d", x->common);
    snprintf(texts[2], ARGUMENT_BYTES, x->counts < 0 ? "counts=" : "counts=%d", x->counts);
    arguments_write(config, texts + OWN);
    for (unsigned i = 0; i < ALL; i++)
        list[2 + i] = texts[i];
    r = confine_spawn(config, list, environment, control, ret_pid);
    free(environment);
    return r ? error_set(e, ERROR_INTERNAL, "an executor cannot be started: %s", strerror(r)) : 0;
}

/* Waits for the process' end. False: it has not ended in time. */
static bool wait_for_end(const struct executor *x, int ms)
{
    struct pollfd ended = {.fd = x->pidfd, .events = POLLIN};
    int r = 0;

    while (x->pidfd >= 0 && (r = poll(&ended, 1, ms)) < 0 && errno == EINTR)
        ;
    return r > 0;
}

/* ---- what both share ---- */

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void front_process_free(struct executor *x)
{
    front_drop_overflow(x);
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

/* Makes all descriptors. theirs: those of the executor, in the order of its first message. */
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

/* Waits for the executor's word that its devices are open. */
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

int front_process_start(struct executor *x, struct error *e)
{
    int theirs[CALL_FDS_MAX], control = -1, r = -1;

    for (unsigned i = 0; i < CALL_FDS_MAX; i++)
        theirs[i] = -1;
    if (make_shared(x, &control, theirs, e) < 0 || spawn(x, &x->pid, control, e) < 0 || open_pidfd(x, e) < 0)
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

/* The log says how it has ended, if it has. */
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

/* A process that the driver does not let go of writes on, so nobody may be told that its jobs have ended: then only the
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

void front_process_end(struct executor *x)
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
        shutdown(x->control, SHUT_RDWR); /* the executor ends when it sees that; closed by front_process_free() */
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

void front_unwatch(const struct executor *x)
{
    if (!x->ready)
        return;
    epoll_ctl(x->front->watch, EPOLL_CTL_DEL, x->bell, NULL);
    epoll_ctl(x->front->watch, EPOLL_CTL_DEL, x->control, NULL);
}

void front_abort(struct executor *x)
{
    atomic_store(&x->gone, true);
    front_unwatch(x);
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

/* Whether the executor, which says that its context is broken, has had the time to say what became of its jobs. */
static bool has_said(struct executor *x)
{
    const uint64_t now_ns = clock_now_ns();

    if (!x->broken_ns)
        x->broken_ns = now_ns;
    if (!x->unfinished || now_ns >= x->broken_ns + SAY_NS)
        return true;
    front_set_timer(x->front, x->broken_ns + SAY_NS);
    return false;
}

void front_check(struct executor *x)
{
    struct pollfd control = {.fd = x->control, .events = POLLIN};
    const enum front_broken broken = (enum front_broken)atomic_load(&x->broken);
    struct error e;

    if (atomic_load(&x->gone) || !x->ready || x->stop) /* one that is told to end does */
        return;
    bell_silence(x->bell);
    /* The socket is readable when the process has ended. */
    x->vanished = poll(&control, 1, 0) > 0 || broken == FRONT_BROKEN_SOCKET;
    if (x->vanished)
        error_set(&e, ERROR_DEVICE_LOST, "the executor of the GPU ended unexpectedly");
    else if (broken == FRONT_BROKEN_TIME)
        error_set(&e, ERROR_DEVICE_LOST, "the executor of the GPU did not answer a call within %d s", CALL_S);
    else if (broken == FRONT_BROKEN_CONTEXT && has_said(x))
        error_set(&e, ERROR_DEVICE_LOST, "the GPU's context is broken");
    else
        return;
    front_kill(x, &e);
}
