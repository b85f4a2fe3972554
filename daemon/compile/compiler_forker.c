/* The helper that forks, as the daemon sees it. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compile/compiler_internal.h"
#include "compile/helper.h"
#include "util/log.h"
#include "util/shortage.h"
#include "util/spawn.h"
#include "util/watch.h"

enum { START_MS = 60000, END_MS = 5000, MAX_ARGUMENTS = 12 + HELPER_MAX_INCLUDES };

struct arguments {
    char texts[MAX_ARGUMENTS][PATH_MAX + 16];
    char *list[MAX_ARGUMENTS + 1];
    unsigned n;
};

static void __attribute__((format(printf, 2, 3))) add(struct arguments *a, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(a->texts[a->n], sizeof(a->texts[0]), format, args);
    va_end(args);
    a->list[a->n] = a->texts[a->n];
    a->n++;
}

static struct arguments *arguments_new(const struct compiler *c)
{
    struct arguments *a = calloc(1, sizeof(*a));

    if (!a)
        return NULL;
    add(a, "kopsd");
    add(a, "%s", HELPER_ARGUMENT);
    add(a, "nvrtc=%s", c->place.path);
    if (c->user)
        add(a, "user=%s", c->user);
    add(a, "sandbox=%d", (int)c->sandbox);
    add(a, "memory=%u", c->memory_mib);
    add(a, "time=%u", c->time_s);
    add(a, "processes=%u", c->helpers);
    add(a, "parent=%d", (int)getpid());
    if (c->alone)
        add(a, "alone=1");
    for (unsigned i = 0; i < c->place.n_includes; i++)
        add(a, "include=%s", c->place.includes[i]);
    add(a, "trees=%u", c->place.n_trees);
    add(a, "stamp=%llx", (unsigned long long)c->place.stamp);
    return a;
}

/* Of the environment the process gets only the part that finds libraries. */
static int spawn(const char *binary, struct arguments *a, int control, pid_t *ret_pid)
{
    static char locale[] = "LC_ALL=C", zone[] = "TZ=UTC0";
    char libraries[PATH_MAX];
    char *environment[4] = {locale, zone};
    const struct spawn_fd fd = {control, HELPER_CONTROL_FD};
    const char *path = getenv("LD_LIBRARY_PATH");

    if (path && snprintf(libraries, sizeof(libraries), "LD_LIBRARY_PATH=%s", path) < (int)sizeof(libraries))
        environment[2] = libraries;
    return spawn_process(binary, a->list, environment, &fd, 1, ret_pid);
}

/* On the pool: starting a process copies page tables, which takes long in a large daemon. */
static void start_run(struct work *work)
{
    struct forker *f = (struct forker *)work;
    struct arguments *a = arguments_new(f->compiler);
    int sockets[2], r;

    if (!a || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0) {
        error_shortage(&f->error, a ? errno : ENOMEM, "starting the compiler");
        goto free_arguments;
    }
    r = spawn(f->compiler->binary, a, sockets[1], &f->pid);
    close(sockets[1]);
    if (r) {
        f->pid = 0;
        error_set(&f->error, ERROR_UNSUPPORTED, "the compiler cannot be started: %.80s: %s", f->compiler->binary,
                  strerror(r));
        close(sockets[0]);
        goto free_arguments;
    }
    f->control = sockets[0];
    f->pidfd = (int)syscall(SYS_pidfd_open, f->pid, 0);
    if (f->pidfd < 0) { /* it sees the closed socket, and ends */
        error_set(&f->error, ERROR_UNSUPPORTED, "the compiler cannot be watched: %s", strerror(errno));
        close(f->control);
        waitpid(f->pid, NULL, 0);
        f->pid = 0;
    }
free_arguments:
    free(a);
}

static void handle_closed(uv_handle_t *handle)
{
    struct forker *f = handle->data;
    struct compiler *c = f->compiler;

    if (--f->handles)
        return;
    if (f->pid) {
        close(f->control);
        close(f->pidfd);
    }
    list_remove(&f->link);
    free(f);
    compiler_let_go(c);
}

static void forget(struct forker *f)
{
    if (f->compiler->forker == f)
        f->compiler->forker = NULL;
}

static void on_impatience(uv_timer_t *timer)
{
    struct forker *f = timer->data;
    struct error e;

    if (!f->ready && !f->stopped && !f->hung_up) {
        f->said_why = true;
        error_set(&e, ERROR_UNSUPPORTED, "the compiler does not get ready");
        forget(f);
        compiler_helper_failed(f->compiler, &e, TOLERATED_NEVER);
    }
    if (f->hung_up)
        forget(f); /* also where it may not be killed */
    syscall(SYS_pidfd_send_signal, f->pidfd, SIGKILL, NULL, 0);
}

void forker_stop(struct forker *f)
{
    forget(f);
    if (f->stopped)
        return;
    f->stopped = true;
    if (f->polls < 2)
        return; /* start_done() sees it */
    uv_poll_stop(&f->control_poll);
    shutdown(f->control, SHUT_RDWR);
    uv_timer_start(&f->patience, on_impatience, END_MS, 0);
}

static struct process *find(const struct forker *f, uint64_t id)
{
    list_for_each_safe (node, after, &f->compiler->processes) {
        struct process *p = list_entry(node, struct process, link);

        if (p->forker == f && p->id == id)
            return p;
    }
    return NULL;
}

static void on_ready(struct forker *f, const struct helper_event *event)
{
    struct compiler *c = f->compiler;

    f->ready = true;
    f->alone = event->alone;
    uv_timer_stop(&f->patience);
    snprintf(c->name, sizeof(c->name), "NVRTC %u.%u", event->major, event->minor);
    log_info("compiler", "pid=%d version=%u.%u alone=%d", (int)f->pid, event->major, event->minor, f->alone);
    if (event->text[0])
        log_warning("compiler", "pid=%d sandbox=incomplete why=\"%.200s\"", (int)f->pid, event->text);
}

static void on_failed(struct forker *f, const struct helper_event *event)
{
    struct error e;

    f->said_why = true;
    error_set(&e, event->code ? (enum error_code)event->code : ERROR_UNSUPPORTED, "%.255s", event->text);
    forget(f);
    compiler_helper_failed(f->compiler, &e, TOLERATED_NEVER);
}

/* Takes ownership of `fd` (negative: none). */
static void on_event(struct forker *f, const struct helper_event *event, int fd)
{
    struct process *p = find(f, event->id);

    if (event->kind == HELPER_READY && !f->ready)
        on_ready(f, event);
    else if (event->kind == HELPER_FAILED)
        on_failed(f, event);
    else if (event->kind == HELPER_FORKED && p && p->pidfd < 0 && fd >= 0) {
        process_set_pidfd(p, fd);
        fd = -1;
    } else if (event->kind == HELPER_EXITED && p && !p->exited)
        process_set_exited(p, event->status, event->peak_kib);
    if (fd >= 0)
        close(fd);
}

/* Returns 1 with an event, 0 when there is none now, -1 at the end. */
static int receive(struct forker *f, struct helper_event *event, int *ret_fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec data = {event, sizeof(*event)};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.space)};
    ssize_t n;

    do
        n = recvmsg(f->control, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return 0;
    *ret_fd = -1;
    if (n > 0 && message.msg_controllen >= CMSG_LEN(sizeof(int)) && control.header.cmsg_type == SCM_RIGHTS)
        memcpy(ret_fd, CMSG_DATA(&control.header), sizeof(int));
    if (n == sizeof(*event)) {
        event->text[sizeof(event->text) - 1] = '\0';
        return 1;
    }
    if (n > 0 && *ret_fd >= 0)
        close(*ret_fd);
    return -1;
}

/* It was to end now, or has said why it does. */
static bool ends_as_expected(const struct forker *f)
{
    return f->stopped || f->said_why || (f->alone && f->used);
}

static void on_control(uv_poll_t *poll, int status, int events)
{
    struct forker *f = poll->data;
    struct compiler *c = f->compiler;
    struct helper_event event;
    int fd, r = 1;

    (void)events;
    while (!f->stopped && (r = status < 0 ? -1 : receive(f, &event, &fd)) > 0)
        on_event(f, &event, fd);
    if (r < 0 && !f->stopped) {
        uv_poll_stop(&f->control_poll);
        f->hung_up = true;
        if (ends_as_expected(f))
            forget(f);
        if (f->said_why && !f->alone)
            forker_stop(f);
        else if (!ends_as_expected(f)) /* the cause is known when it is reaped */
            uv_timer_start(&f->patience, on_impatience, END_MS, 0);
    }
    compiler_schedule(c);
}

static void close_all(struct forker *f)
{
    uv_close((uv_handle_t *)&f->patience, handle_closed);
    if (f->polls > 0)
        uv_close((uv_handle_t *)&f->control_poll, handle_closed);
    if (f->polls > 1)
        uv_close((uv_handle_t *)&f->pidfd_poll, handle_closed);
}

/* Requests hear of a helper that ends at its start, and not of one that was killed later. */
static void note_end(struct forker *f, int status)
{
    struct error e;

    if (ends_as_expected(f))
        return;
    error_set(&e, ERROR_UNSUPPORTED, "the compiler's helper ended without a word (%s %d); see the log",
              WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    compiler_helper_failed(f->compiler, &e, f->ready || WIFSIGNALED(status) ? TOLERATED_LOSSES : TOLERATED_NEVER);
}

/* Its children died with it. */
static void on_end(uv_poll_t *poll, int status, int events)
{
    struct forker *f = poll->data;
    struct compiler *c = f->compiler;
    int ended = SIGKILL; /* also where it was reaped elsewhere */

    (void)status;
    (void)events;
    if (waitpid(f->pid, &ended, WNOHANG) == 0)
        return;
    log_debug("compiler", "pid=%d ended=%d", (int)f->pid, ended);
    if (!f->stopped && !f->hung_up)
        on_control(&f->control_poll, 0, UV_READABLE); /* its last words */
    forget(f);
    note_end(f, ended);
    list_for_each_safe (node, after, &c->processes) {
        struct process *p = list_entry(node, struct process, link);

        if (p->forker != f)
            continue;
        if (!p->exited && f->alone)
            process_set_exited(p, ended, 0);
        else if (!p->exited)
            process_set_lost(p);
        p->forker = NULL;
    }
    uv_poll_stop(&f->pidfd_poll);
    close_all(f);
    compiler_kick(c);
}

static int add_poll(struct forker *f, uv_poll_t *poll, int fd)
{
    int r = uv_poll_init(f->compiler->loop, poll, fd);

    if (r < 0)
        return r;
    poll->data = f;
    f->polls++;
    f->handles++;
    return 0;
}

/* A helper that cannot be watched is of no use. It has only just begun, so that reaping it takes no time. */
static void watch(struct forker *f)
{
    int r = add_poll(f, &f->control_poll, f->control);

    if (r == 0)
        r = add_poll(f, &f->pidfd_poll, f->pidfd);
    if (r == 0)
        r = watch_start(&f->pidfd_poll, UV_READABLE, on_end);
    if (r == 0 && !f->stopped)
        r = watch_start(&f->control_poll, UV_READABLE, on_control);
    if (r == 0)
        return;
    error_set(&f->error, ERROR_OUT_OF_MEMORY, "the compiler cannot be watched: %s", uv_strerror(r));
    syscall(SYS_pidfd_send_signal, f->pidfd, SIGKILL, NULL, 0);
    shutdown(f->control, SHUT_RDWR); /* where it is another user's: then it ends by itself */
    waitpid(f->pid, NULL, 0);
}

static void start_done(struct work *work)
{
    struct forker *f = (struct forker *)work;
    struct compiler *c = f->compiler;

    if (!f->error.code)
        watch(f);
    if (f->error.code) {
        forget(f);
        compiler_helper_failed(c, &f->error, TOLERATED_NEVER);
        close_all(f);
        return;
    }
    if (f->stopped) {
        f->stopped = false;
        forker_stop(f);
        return;
    }
    uv_timer_start(&f->patience, on_impatience, START_MS, 0);
}

int forker_start(struct compiler *c, struct error *e)
{
    struct forker *f = calloc(1, sizeof(*f));

    if (!f)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a helper");
    f->compiler = c;
    f->control = f->pidfd = -1;
    list_init(&f->link);
    list_append(&c->forkers, &f->link);
    uv_timer_init(c->loop, &f->patience);
    f->patience.data = f;
    f->handles = 1;
    c->forker = f;
    work_submit(c->loop, &f->work, start_run, start_done);
    return 0;
}

static int send_command(const struct forker *f, const struct helper_command *command, int fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec data = {(void *)(uintptr_t)command, sizeof(*command)};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.space)};

    memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
    return sendmsg(f->control, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -1 : 0;
}

int forker_ask(struct forker *f, bool hurry, struct error *e)
{
    struct compiler *c = f->compiler;
    const struct helper_command command = {++c->next_id, hurry};
    struct process *p;
    int sockets[2], r = 0;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) < 0)
        return error_shortage(e, errno, "a socket for a compile");
    p = process_new(f, command.id, sockets[0], e);
    if (!p) {
        close(sockets[1]);
        return -1;
    }
    if (send_command(f, &command, sockets[1]) < 0) {
        p->state = PROCESS_ENDING; /* no process will follow */
        process_set_exited(p, 0, 0);
        error_set(e, ERROR_UNSUPPORTED, "the compiler's helper cannot be asked: %s", strerror(errno));
        r = 1;
    }
    close(sockets[1]);
    f->used = true;
    if (f->alone)
        forget(f);
    return r;
}
