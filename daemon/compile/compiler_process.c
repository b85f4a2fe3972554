/* A process that compiles one source, as the daemon sees it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compile/compiler_internal.h"
#include "util/log.h"
#include "util/watch.h"

enum { READ_CHUNK = 64 << 10, START_S = 30 };

static void on_poll(uv_poll_t *poll, int status, int events);

static void handle_closed(uv_handle_t *handle)
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

struct process *process_new(struct forker *f, uint64_t id, int socket, struct error *e)
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
    list_init(&p->link);
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
    shutdown(p->socket, SHUT_RDWR); /* one that waits ends by itself */
    if (p->pidfd < 0 || p->exited)
        return; /* as soon as it is known */
    /* A daemon that may not signal other users' processes leaves it to the helper's end. */
    if (syscall(SYS_pidfd_send_signal, p->pidfd, SIGKILL, NULL, 0) < 0 && errno == EPERM && p->forker)
        forker_stop(p->forker);
}

/* One whose pidfd is not known yet is signalled as soon as that is. */
static bool signal_job(struct process *p, int signal)
{
    return p->pidfd < 0 || p->exited || syscall(SYS_pidfd_send_signal, p->pidfd, signal, NULL, 0) == 0 ||
           errno != EPERM;
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

void process_set_pidfd(struct process *p, int pidfd)
{
    p->pidfd = pidfd;
    if (p->job && p->job->paused)
        signal_job(p, SIGSTOP);
    if (p->killed) {
        p->killed = false;
        process_kill(p);
    }
}

static void fail_job(struct process *p, enum failure_reason reason, const char *message)
{
    const struct compile_failure failure = {failure_reason_name(reason), "", 0};
    struct compile_job *job = p->job;
    struct error e;

    error_set(&e, ERROR_COMPILE_FAILED, "%s", message);
    p->job = NULL;
    job_fail(job, &e, &failure);
}

static void on_deadline(uv_timer_t *timer)
{
    struct process *p = timer->data;
    char message[ERROR_MESSAGE_MAX];
    struct error e;

    snprintf(message, sizeof(message), "the compile took longer than %u s and was stopped (kernels.time_s)",
             p->compiler->time_s);
    if (p->job) {
        fail_job(p, FAILURE_TIME, message);
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

/* Returns false when there is more to write. */
static bool flush(struct process *p)
{
    const struct buffer *request = p->job ? &p->job->request : NULL;

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
    /* It is watched already: a change cannot fail. */
    uv_poll_start(&p->poll, flush(p) ? UV_READABLE : UV_READABLE | UV_WRITABLE, on_poll);
}

/* Whether the answer has the job's entries, by their names, and its architecture. */
static bool answers(const struct compile_job *job, const struct compiled *c)
{
    if (c->n_entries != job->n_entries || strcmp(c->arch, job->arch) != 0)
        return false;
    for (unsigned i = 0; i < c->n_entries; i++)
        if (strcmp(c->entries[i].name, job->entries[i]) != 0 ||
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
    job_succeed(job, c);
}

static bool acceptable(const struct frame_failure *failure)
{
    return failure->code == ERROR_COMPILE_FAILED || failure->code == ERROR_INVALID_ARGUMENT ||
           failure->code == ERROR_LIMIT_EXCEEDED || failure->code == ERROR_UNSUPPORTED;
}

static void on_failed(struct process *p, const unsigned char *body, size_t length)
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
    if (!acceptable(&failure))
        failure = (struct frame_failure){ERROR_COMPILE_FAILED, FAILURE_CRASH, "the compiler failed"};
    error_set(&e, (enum error_code)failure.code, "%s", failure.message);
    if (!job) { /* it could not even start */
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
    job_fail(job, &e, &told);
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
        on_failed(p, body, length);
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

/* Reads all that is there. Returns false at the end. */
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

/* Why a process that had a job is gone. */
static void explain(struct process *p)
{
    uint64_t limit_kib = (uint64_t)p->compiler->memory_mib << 10;
    char message[ERROR_MESSAGE_MAX];
    int signal = WIFSIGNALED(p->status) ? WTERMSIG(p->status) : 0;

    if (signal == SIGXCPU) {
        fail_job(p, FAILURE_TIME, "the compile took too much time and was stopped (kernels.time_s)");
    } else if (p->peak_kib > limit_kib / 4 * 3) {
        snprintf(message, sizeof(message), "the compile took more than %u MiB and was stopped (kernels.memory_mib)",
                 p->compiler->memory_mib);
        fail_job(p, FAILURE_MEMORY, message);
    } else if (job_repeat(p->job, p->lost)) {
        p->job = NULL;
    } else {
        snprintf(message, sizeof(message), "the compiler crashed on this source (%s %d)", signal ? "signal" : "status",
                 signal ? signal : WEXITSTATUS(p->status));
        fail_job(p, FAILURE_CRASH, message);
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
    uv_close((uv_handle_t *)&p->poll, handle_closed);
    uv_close((uv_handle_t *)&p->deadline, handle_closed);
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
        /* It ends, or is killed; the cause is known when it is reaped. */
        if (p->pidfd >= 0)
            syscall(SYS_pidfd_send_signal, p->pidfd, SIGKILL, NULL, 0);
    }
    compiler_schedule(c);
}

void process_set_exited(struct process *p, int status, uint64_t peak_kib)
{
    p->exited = true;
    p->status = status;
    p->peak_kib = peak_kib;
    if (!p->hung_up)
        fill(p); /* an answer may wait there still */
    finish(p);
}

void process_set_lost(struct process *p)
{
    p->lost = true;
    process_set_exited(p, SIGKILL, 0);
}
