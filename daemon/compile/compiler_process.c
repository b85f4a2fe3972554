#include "compile/compiler_internal.h"

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

#include "compile/helper.h"
#include "remote/wire.h"
#include "util/error.h"
#include "util/log.h"
#include "util/loop.h"

enum { READ_CHUNK = 64 << 10, START_S = 30 };

static void on_poll(uv_poll_t *poll, int status, int events);

/* ---- a process that compiles one source ---- */

static long pidfd_signal(int pidfd, int signal)
{
    return syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0);
}

static void process_closed(uv_handle_t *handle)
{
    struct process *p = handle->data;
    struct compiler *c = p->compiler;

    if (--p->handles)
        return;
    close(p->socket);
    if (p->pidfd >= 0)
        close(p->pidfd);
    buffer_free(&p->in);
    list_remove(&p->link);
    free(p);
    compiler_let_go(c);
}

static void start_deadline(struct process *p, unsigned seconds);
static void on_deadline(uv_timer_t *timer);
static void process_set_exited(struct process *p, int status, uint64_t peak_kib);

static struct process *process_new(struct forker *f, uint64_t id, int socket, struct error *e)
{
    struct compiler *c = f->compiler;
    struct process *p = calloc(1, sizeof(*p));

    if (!p || uv_poll_init(c->loop, &p->poll, socket) < 0) {
        free(p);
        close(socket);
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a compile");
        return NULL;
    }
    *p = (struct process){.compiler = c, .forker = f, .id = id, .socket = socket, .pidfd = -1, .poll = p->poll};
    uv_timer_init(c->loop, &p->deadline);
    p->poll.data = p->deadline.data = p;
    p->handles = 2;
    buffer_init(&p->in, FRAME_MAX_ANSWER + sizeof(struct frame_header));
    list_append(&c->processes, &p->link);
    if (watch_start(&p->poll, UV_READABLE, on_poll) < 0) {
        p->state = PROCESS_ENDING; /* no helper was asked for it */
        process_set_exited(p, 0, 0);
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory to watch a compile");
        return NULL;
    }
    start_deadline(p, START_S + c->time_s);
    return p;
}

void process_kill(struct process *p)
{
    if (p->state == PROCESS_ENDING && p->killed)
        return;
    p->state = PROCESS_ENDING;
    p->killed = true;
    p->job = NULL;
    uv_timer_stop(&p->deadline);
    shutdown(p->socket, SHUT_RDWR); /* a process that waits ends by itself */
    if (p->pidfd < 0 || p->exited)
        return; /* as soon as it is known */
    /* A daemon that may not signal other users' processes leaves it to the helper's end. */
    if (pidfd_signal(p->pidfd, SIGKILL) < 0 && errno == EPERM && p->forker)
        forker_stop(p->forker);
}

/* A process whose pidfd is not known yet is signalled as soon as it is. */
static bool signal_job(struct process *p, int signal)
{
    return p->pidfd < 0 || p->exited || pidfd_signal(p->pidfd, signal) == 0 || errno != EPERM;
}

bool process_pause(struct process *p)
{
    uint64_t due_ms = uv_timer_get_due_in(&p->deadline);

    if (!signal_job(p, SIGSTOP))
        return false;
    p->left_ms = due_ms ? due_ms : 1;
    uv_timer_stop(&p->deadline);
    return true;
}

void process_resume(struct process *p)
{
    signal_job(p, SIGCONT);
    uv_update_time(p->compiler->loop);
    uv_timer_start(&p->deadline, on_deadline, p->left_ms, 0);
}

static void process_set_pidfd(struct process *p, int pidfd)
{
    p->pidfd = pidfd;
    if (p->job && p->job->paused)
        signal_job(p, SIGSTOP);
    if (p->killed) {
        p->killed = false;
        process_kill(p);
    }
}

static void __attribute__((format(printf, 3, 4)))
fail_job(struct process *p, enum failure_reason reason, const char *format, ...)
{
    const struct compile_failure failure = {failure_reason_name(reason), "", 0};
    struct compile_job *job = p->job;
    char message[ERROR_MESSAGE_MAX];
    struct error e;
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    error_set(&e, ERROR_COMPILE_FAILED, "%s", message);
    p->job = NULL;
    job_finish(job, NULL, &e, &failure);
}

static void on_deadline(uv_timer_t *timer)
{
    struct process *p = timer->data;
    struct error e;

    if (p->job) {
        fail_job(p, FAILURE_TIME, "the compile took longer than %u s and was stopped (kernels.time_s)",
                 p->compiler->time_s);
    } else {
        error_set(&e, ERROR_UNSUPPORTED, "the compiler's process does not get ready");
        compiler_helper_failed(p->compiler, &e, TOLERATED_STARTS);
    }
    process_kill(p);
}

static void start_deadline(struct process *p, unsigned seconds)
{
    uv_update_time(p->compiler->loop);
    uv_timer_start(&p->deadline, on_deadline, (uint64_t)seconds * 1000, 0);
}

static bool flush(struct process *p)
{
    const struct buffer *request = p->job ? &p->job->frame : NULL;

    while (request && p->sent < buffer_length(request)) {
        ssize_t n = send(p->socket, request->data + request->start + p->sent, buffer_length(request) - p->sent,
                         MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno != EAGAIN; /* a broken connection is seen by reading */
        p->sent += (size_t)n;
    }
    return true;
}

void process_assign(struct process *p, struct compile_job *job)
{
    p->state = PROCESS_BUSY;
    p->job = job;
    job->process = p;
    start_deadline(p, p->compiler->time_s);
    uv_poll_start(&p->poll, flush(p) ? UV_READABLE : UV_READABLE | UV_WRITABLE, on_poll);
}

static bool answers(const struct compile_job *job, const struct compiled *c)
{
    const struct compile_input *input = &job->request.input;

    if (c->n_entries != input->n_entries || strcmp(c->arch, input->arch) != 0)
        return false;
    for (unsigned i = 0; i < c->n_entries; i++)
        if (strcmp(c->entries[i].name, input->entries[i]) != 0 ||
            text_clean(c->entries[i].lowered, strlen(c->entries[i].lowered)))
            return false;
    return true;
}

static void on_compiled(struct process *p, const unsigned char *body, size_t length)
{
    struct compile_job *job = p->job;
    struct compiled *c = NULL;
    struct error e;

    if (compiled_parse(body, length, &c, &e) < 0 || compiled_verify(c, &e) < 0 || !answers(job, c)) {
        log_warning("compiler", "what=answer fault=wrong");
        compiled_unref(c);
        fail_job(p, FAILURE_CRASH, "the compiler gave an answer that makes no sense");
        return;
    }
    memset(c->key, 0, sizeof(c->key));
    text_clean(c->log, strlen(c->log));
    p->job = NULL;
    e = (struct error){.code = ERROR_NONE};
    job_finish(job, c, &e, NULL);
}

static void on_failure(struct process *p, const unsigned char *body, size_t length)
{
    struct frame_failure failure = {.code = ERROR_INTERNAL};
    struct compile_failure told = {0};
    struct compile_job *job = p->job;
    char *log = NULL;
    struct error e;

    if (length >= sizeof(failure)) {
        memcpy(&failure, body, sizeof(failure));
        told.log_length = length - sizeof(failure) < COMPILED_MAX_LOG ? length - sizeof(failure) : COMPILED_MAX_LOG;
        log = malloc(told.log_length + 1);
    }
    failure.message[sizeof(failure.message) - 1] = '\0';
    text_clean(failure.message, strlen(failure.message));
    if (failure.code != ERROR_COMPILE_FAILED && failure.code != ERROR_INVALID_ARGUMENT &&
        failure.code != ERROR_LIMIT_EXCEEDED && failure.code != ERROR_UNSUPPORTED)
        failure = (struct frame_failure){ERROR_COMPILE_FAILED, FAILURE_CRASH, "the compiler failed"};
    error_set(&e, (enum error_code)failure.code, "%s", failure.message);
    if (!job) { /* the process could not even start */
        free(log);
        compiler_helper_failed(p->compiler, &e, TOLERATED_STARTS);
        return;
    }
    if (log) {
        memcpy(log, body + sizeof(failure), told.log_length);
        log[told.log_length] = '\0';
        text_clean(log, told.log_length);
    }
    told.log = log ? log : "";
    told.log_length = log ? told.log_length : 0;
    told.reason = failure_reason_name((enum failure_reason)failure.reason);
    p->job = NULL;
    job_finish(job, NULL, &e, &told);
    free(log);
}

static void on_frame(struct process *p, uint32_t kind, const unsigned char *body, size_t length)
{
    if (p->state == PROCESS_STARTING && kind == FRAME_WARM && !length) {
        p->state = PROCESS_WARM;
        compiler_helper_works(p->compiler);
        uv_timer_stop(&p->deadline);
    } else if (p->state == PROCESS_BUSY && kind == FRAME_COMPILED) {
        on_compiled(p, body, length);
        process_kill(p);
    } else if ((p->state == PROCESS_BUSY || p->state == PROCESS_STARTING) && kind == FRAME_FAILED) {
        on_failure(p, body, length);
        process_kill(p);
    } else if (p->state != PROCESS_ENDING) {
        if (p->job)
            fail_job(p, FAILURE_CRASH, "the compiler gave an answer that makes no sense");
        process_kill(p);
    }
}

static void take_frames(struct process *p)
{
    struct frame_header header;

    while (p->state != PROCESS_ENDING && buffer_length(&p->in) >= sizeof(header)) {
        memcpy(&header, p->in.data + p->in.start, sizeof(header));
        if (header.length > FRAME_MAX_ANSWER)
            header = (struct frame_header){0}; /* no kind that there is */
        if (buffer_length(&p->in) - sizeof(header) < header.length)
            return;
        on_frame(p, header.kind, p->in.data + p->in.start + sizeof(header), header.length);
        buffer_consume(&p->in, sizeof(header) + header.length);
    }
}

static bool fill(struct process *p)
{
    for (;;) {
        unsigned char *into = buffer_reserve(&p->in, READ_CHUNK);
        ssize_t n;

        if (!into)
            return false;
        n = recv(p->socket, into, READ_CHUNK, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN;
        if (n == 0)
            return false;
        p->in.end += (size_t)n;
        take_frames(p);
        if (p->state == PROCESS_ENDING)
            buffer_consume(&p->in, buffer_length(&p->in));
    }
}

static void explain(struct process *p)
{
    uint64_t limit_kib = (uint64_t)p->compiler->memory_mib << 10;
    int signal = WIFSIGNALED(p->status) ? WTERMSIG(p->status) : 0;

    if (signal == SIGXCPU) {
        fail_job(p, FAILURE_TIME, "the compile took too much time and was stopped (kernels.time_s)");
    } else if (p->peak_kib > limit_kib / 4 * 3) {
        fail_job(p, FAILURE_MEMORY, "the compile took more than %u MiB and was stopped (kernels.memory_mib)",
                 p->compiler->memory_mib);
    } else if (job_repeat(p->job, p->lost)) {
        p->job = NULL;
    } else {
        fail_job(p, FAILURE_CRASH, "the compiler crashed on this source (%s %d)", signal ? "signal" : "status",
                 signal ? signal : WEXITSTATUS(p->status));
    }
}

static void finish(struct process *p)
{
    struct error e;

    if (p->closing || !p->exited)
        return;
    p->closing = true;
    if (p->job) {
        explain(p);
    } else if (p->state == PROCESS_STARTING && !p->lost) {
        error_set(&e, ERROR_UNSUPPORTED, "the compiler's process ended while it started (status %d)", p->status);
        compiler_helper_failed(p->compiler, &e, TOLERATED_LOSSES);
    }
    p->state = PROCESS_ENDING;
    uv_close((uv_handle_t *)&p->poll, process_closed);
    uv_close((uv_handle_t *)&p->deadline, process_closed);
    compiler_kick(p->compiler);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct process *p = poll->data;
    struct compiler *c = p->compiler;

    if (events & UV_WRITABLE && flush(p))
        uv_poll_start(&p->poll, UV_READABLE, on_poll);
    if ((events & UV_READABLE || status < 0) && !fill(p)) {
        uv_poll_stop(&p->poll);
        p->hung_up = true;
        /* The process ends, or is killed; the cause is known when it is reaped. */
        if (p->pidfd >= 0)
            pidfd_signal(p->pidfd, SIGKILL);
    }
    compiler_schedule(c);
}

static void process_set_exited(struct process *p, int status, uint64_t peak_kib)
{
    p->exited = true;
    p->status = status;
    p->peak_kib = peak_kib;
    if (!p->hung_up)
        fill(p); /* an answer may wait there still */
    finish(p);
}

/* ---- the helper that forks ---- */

enum { START_MS = 60000, END_MS = 5000 };

/* A helper that ends meanwhile is noticed when it is reaped. */
static void send_setup(const struct compiler *c, int control)
{
    const struct toolkit_place *p = &c->place;
    struct helper_setup s = {.sandbox = c->sandbox,
                             .memory_mib = c->memory_mib,
                             .time_s = c->time_s,
                             .alone = c->alone,
                             .n_includes = p->n_includes,
                             .n_trees = p->n_trees,
                             .stamp = p->stamp};

    memcpy(s.nvrtc, p->nvrtc, sizeof(s.nvrtc));
    snprintf(s.user, sizeof(s.user), "%s", c->user);
    remote_send(control, &s, sizeof(s), 0, -1);
    for (unsigned i = 0; i < p->n_includes; i++)
        remote_send(control, p->includes[i], strlen(p->includes[i]) + 1, 0, -1);
}

/* On the pool: starting a process copies page tables, which takes long in a large daemon. */
static void start_run(struct work *work)
{
    static char name[] = "kopsd", argument[] = HELPER_ARGUMENT, locale[] = "LC_ALL=C", zone[] = "TZ=UTC0";
    struct forker *f = (struct forker *)work;
    char libraries[PATH_MAX], parent[32], *environment[4] = {locale, zone};
    char *arguments[] = {name, argument, parent, NULL};
    const char *path = getenv("LD_LIBRARY_PATH");
    struct remote_process p;

    snprintf(parent, sizeof(parent), "parent=%d", (int)getpid());
    if (path && snprintf(libraries, sizeof(libraries), "LD_LIBRARY_PATH=%s", path) < (int)sizeof(libraries))
        environment[2] = libraries; /* the rest of the environment is not for the helper */
    if (remote_start("the compiler", f->compiler->binary, arguments, environment, HELPER_CONTROL_FD, &p, &f->error) < 0)
        return;
    f->pid = p.pid;
    f->control = p.fd;
    f->pidfd = p.pidfd;
    send_setup(f->compiler, f->control);
}

static void forker_closed(uv_handle_t *handle)
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
    pidfd_signal(f->pidfd, SIGKILL);
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
    const long n = remote_receive(f->control, event, sizeof(*event), MSG_DONTWAIT, ret_fd);

    if (n == sizeof(*event)) {
        event->text[sizeof(event->text) - 1] = '\0';
        return 1;
    }
    if (*ret_fd >= 0)
        close(*ret_fd);
    return n < 0 && errno == EAGAIN ? 0 : -1;
}

/* The helper was to end now, or has said why it does. */
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
    uv_close((uv_handle_t *)&f->patience, forker_closed);
    if (f->polls > 0)
        uv_close((uv_handle_t *)&f->control_poll, forker_closed);
    if (f->polls > 1)
        uv_close((uv_handle_t *)&f->pidfd_poll, forker_closed);
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
        on_control(&f->control_poll, 0, UV_READABLE); /* the helper's last words */
    forget(f);
    note_end(f, ended);
    list_for_each_safe (node, after, &c->processes) {
        struct process *p = list_entry(node, struct process, link);

        if (p->forker != f)
            continue;
        if (!p->exited && f->alone)
            process_set_exited(p, ended, 0);
        else if (!p->exited) {
            p->lost = true;
            process_set_exited(p, SIGKILL, 0);
        }
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
    pidfd_signal(f->pidfd, SIGKILL);
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
    list_append(&c->forkers, &f->link);
    uv_timer_init(c->loop, &f->patience);
    f->patience.data = f;
    f->handles = 1;
    c->forker = f;
    work_submit(c->loop, &f->work, start_run, start_done);
    return 0;
}

int forker_ask(struct forker *f, struct error *e)
{
    struct compiler *c = f->compiler;
    const struct helper_command command = {++c->next_id};
    struct process *p;
    int sockets[2], r = 0;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) < 0)
        return error_shortage(e, errno, "a socket for a compile");
    p = process_new(f, command.id, sockets[0], e);
    if (!p) {
        close(sockets[1]);
        return -1;
    }
    if (remote_send(f->control, &command, sizeof(command), MSG_DONTWAIT, sockets[1]) < 0) {
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
