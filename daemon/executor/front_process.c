/* Starts and ends the executor's process. */
#include <errno.h>
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

#include "executor/bell.h"
#include "executor/front.h"
#include "util/log.h"
#include "util/spawn.h"

enum {
    READY_S = 120, /* a machine with many GPUs takes a third of a second for each */
    END_S = 10,
    CALL_S = 120 /* how long a call may take: the driver may wait for kernels that run */
};

extern char **environ;

/* ---- the process ---- */

enum { ARGUMENTS = 5, ARGUMENT_BYTES = PATH_MAX + 32 };

static int spawn(pid_t *ret_pid, int control, const struct backend_config *config, struct error *e)
{
    char texts[ARGUMENTS][ARGUMENT_BYTES];
    char *list[ARGUMENTS + 3] = {(char *)(uintptr_t) "kopsd", (char *)(uintptr_t)EXECUTOR_ARGUMENT};
    int r;

    snprintf(texts[0], ARGUMENT_BYTES, "driver=%s", config->cuda_driver ? config->cuda_driver : "");
    snprintf(texts[1], ARGUMENT_BYTES, "blaslt=%s", config->cuda_blaslt ? config->cuda_blaslt : "");
    snprintf(texts[2], ARGUMENT_BYTES, "workspace=%llu", (unsigned long long)config->cuda_workspace_bytes);
    snprintf(texts[3], ARGUMENT_BYTES, "spin=%llu", (unsigned long long)config->spin_us);
    snprintf(texts[4], ARGUMENT_BYTES, "debug=%d", log_enabled(LOG_LEVEL_DEBUG));
    for (unsigned i = 0; i < ARGUMENTS; i++)
        list[2 + i] = texts[i];
    r = spawn_process("/proc/self/exe", list, environ, control, CALL_CONTROL_FD, ret_pid);
    return r ? error_set(e, ERROR_INTERNAL, "an executor cannot be started: %s", strerror(r)) : 0;
}

/* Waits for the process, at most `seconds`; then ends it. */
static void reap(struct executor *x, int seconds)
{
    struct pollfd ended = {.fd = x->pidfd, .events = POLLIN};
    int r = 0;

    if (x->pid <= 0)
        return;
    while (x->pidfd >= 0 && (r = poll(&ended, 1, seconds * 1000)) < 0 && errno == EINTR)
        ;
    if (r <= 0)
        kill(x->pid, SIGKILL);
    while (waitpid(x->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    x->pid = 0;
}

/* ---- what both share ---- */

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void free_shared(struct executor *x)
{
    close_one(&x->control);
    close_one(&x->bell);
    close_one(&x->watch);
    close_one(&x->pidfd);
    for (unsigned i = 0; i < CALL_CHANNELS; i++)
        close_one(&x->channels[i]);
    x->region = region_unmap(x->region);
    ids_free(&x->handles);
    ids_free(&x->stream_ids);
    ids_free(&x->program_ids);
    ids_free(&x->slots);
    free(x->jobs);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->channel_free);
}

static void init(struct executor *x, const struct backend_host *host)
{
    memset(x, 0, sizeof(*x));
    x->host = *host;
    x->pidfd = x->control = x->bell = x->watch = -1;
    for (unsigned i = 0; i < CALL_CHANNELS; i++)
        x->channels[i] = -1;
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->channel_free, NULL);
    ids_init(&x->handles, EXECUTOR_HANDLES_MAX);
    ids_init(&x->stream_ids, EXECUTOR_STREAMS_MAX);
    ids_init(&x->program_ids, EXECUTOR_PROGRAMS_MAX);
    ids_init(&x->slots, EXECUTOR_JOBS_MAX);
    list_init(&x->overflow);
    list_init(&x->blocked);
    list_init(&x->busy);
}

static int watch(struct executor *x, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};

    return epoll_ctl(x->watch, EPOLL_CTL_ADD, fd, &event);
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
    x->watch = epoll_create1(EPOLL_CLOEXEC);
    x->jobs = calloc(EXECUTOR_JOBS_MAX + 1, sizeof(*x->jobs));
    if (x->watch < 0 || watch(x, x->bell) < 0 || watch(x, x->control) < 0 || !x->jobs)
        goto fail;
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
    struct error said;
    unsigned n = 0;
    int fds[CALL_FDS_MAX], got;

    setsockopt(x->control, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    got = call_receive(x->control, &said, sizeof(said), fds, &n);
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
    if (got != (int)sizeof(said))
        return error_set(e, ERROR_INTERNAL, "the executor ended, or did not get ready in %d s", READY_S);
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

int front_start(struct executor *x, const struct backend_config *config, const struct backend_host *host,
                struct error *e)
{
    int theirs[CALL_FDS_MAX], control = -1, r = -1;

    init(x, host);
    for (unsigned i = 0; i < CALL_FDS_MAX; i++)
        theirs[i] = -1;
    if (make_shared(x, &control, theirs, e) < 0 || spawn(&x->pid, control, config, e) < 0)
        goto close_theirs;
    x->pidfd = (int)syscall(SYS_pidfd_open, x->pid, 0);
    r = call_send(x->control, "kopsd", 5, theirs, FIRST_FDS);
    if (r < 0)
        error_set(e, ERROR_INTERNAL, "the executor does not take its descriptors: %s", strerror(errno));

close_theirs:
    for (unsigned i = 0; i < FIRST_FDS; i++)
        close_one(&theirs[i]);
    close_one(&control);
    if (r == 0)
        r = wait_until_ready(x, e);
    if (r < 0) {
        reap(x, 0);
        free_shared(x);
        return -1;
    }
    log_info("executor", "pid=%d devices=%u", (int)x->pid, x->n_described);
    return 0;
}

void front_stop(struct executor *x)
{
    close_one(&x->control); /* the executor ends when it sees that */
    reap(x, atomic_load(&x->gone) ? 0 : END_S);
    free_shared(x);
}

/* Where it has ended by itself, the log says how. */
static void log_end(const struct executor *x)
{
    siginfo_t how = {.si_pid = 0};

    if (x->pid > 0 && waitid(P_PID, (id_t)x->pid, &how, WEXITED | WNOHANG | WNOWAIT) == 0 && how.si_pid)
        log_error("executor_ended", "pid=%d %s=%d", (int)x->pid, how.si_code == CLD_EXITED ? "status" : "signal",
                  how.si_status);
}

void front_kill(struct executor *x, const struct error *why)
{
    if (atomic_exchange(&x->gone, true))
        return;
    x->why = *why;
    log_end(x);
    epoll_ctl(x->watch, EPOLL_CTL_DEL, x->control, NULL);
    log_error("executor_lost", "pid=%d why=\"%s\"", (int)x->pid, why->message);
    if (x->pid > 0)
        kill(x->pid, SIGKILL);
    /* Calls under way end: their threads wait on these sockets. */
    for (unsigned i = 0; i < CALL_CHANNELS; i++)
        shutdown(x->channels[i], SHUT_RDWR);
    x->host.wake(x->host.context);
}

void front_check(struct executor *x)
{
    struct pollfd control = {.fd = x->control, .events = POLLIN};
    struct error e;

    if (atomic_load(&x->gone))
        return;
    bell_silence(x->bell);
    if (poll(&control, 1, 0) > 0) /* it says nothing more: the socket is readable when it has ended */
        error_set(&e, ERROR_DEVICE_LOST, "the executor of the GPU ended unexpectedly");
    else if (atomic_load(&x->broken))
        error_set(&e, ERROR_DEVICE_LOST, "the executor of the GPU did not answer a call within %d s", CALL_S);
    else
        return;
    front_kill(x, &e);
}
