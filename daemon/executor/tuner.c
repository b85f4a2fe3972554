/* The daemon's side of a tuner. */
#include "executor/tuner.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "executor/arguments.h"
#include "executor/call.h"
#include "executor/confine.h"
#include "util/clock.h"
#include "util/log.h"

enum {
    ANSWER_S = 120, /* for a context to be made, or for the slowest kernel */
    END_MS = 2000,
};

struct tuner {
    const struct backend_config *config;
    pid_t pid;   /* 0: there is no process */
    int control; /* -1: there is no process. Changed under the lock, by the thread that tunes */
    bool used;   /* the process was asked to tune */
    pthread_mutex_t lock;
    atomic_bool stopped;
    struct tuner_message message;
};

struct tuner *tuner_new(const struct backend_config *config)
{
    struct tuner *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    t->config = config;
    t->control = -1;
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

static int lost(const struct tuner *t, struct error *e)
{
    if (atomic_load(&t->stopped))
        return error_set(e, ERROR_CANCELLED, "the daemon ends");
    return error_set(e, ERROR_DEVICE_LOST, "the process that tunes has ended, or does not answer");
}

/* ---- the process ---- */

/* Returns the socket as it was. */
static int set_control(struct tuner *t, int control)
{
    int before;

    pthread_mutex_lock(&t->lock);
    before = t->control;
    t->control = control;
    pthread_mutex_unlock(&t->lock);
    return before;
}

static int spawn(struct tuner *t, int control, struct error *e)
{
    char texts[ARGUMENTS_CONFIG][ARGUMENT_BYTES];
    char *list[ARGUMENTS_CONFIG + 3] = {(char *)(uintptr_t) "kopsd", (char *)(uintptr_t)TUNER_ARGUMENT};
    char **environment = arguments_environment(false);
    int r;

    if (!environment)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a tuner's environment");
    arguments_write(t->config, texts);
    for (unsigned i = 0; i < ARGUMENTS_CONFIG; i++)
        list[2 + i] = texts[i];
    r = confine_spawn(t->config, list, environment, control, &t->pid);
    free(environment);
    return r ? error_set(e, ERROR_INTERNAL, "a tuner cannot be started: %s", strerror(r)) : 0;
}

/* The size of the message, which is at least `least`; -1: the process is gone, or breaks the rules. */
static int receive(struct tuner *t, size_t least)
{
    int fds[CALL_FDS_MAX];
    unsigned n = 0;
    const int got = call_receive(t->control, &t->message, sizeof(t->message), fds, &n);

    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
    return got >= (int)least && n == 0 ? got : -1;
}

static int wait_until_ready(struct tuner *t, struct error *e)
{
    if (receive(t, offsetof(struct tuner_message, result)) < 0 || t->message.kind != TUNER_READY)
        return lost(t, e);
    if (t->message.error.code == ERROR_NONE)
        return 0;
    *e = t->message.error;
    error_accept(e);
    return -1;
}

static int start(struct tuner *t, struct error *e)
{
    const struct timeval limit = {.tv_sec = ANSWER_S};
    const uint32_t words[2] = {TUNER_GO, 0};
    const uint64_t begin_ns = clock_now_ns();
    int pair[2], r;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "the socket of a tuner: %s", strerror(errno));
    t->used = false;
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    r = spawn(t, pair[1], e);
    close(pair[1]);
    if (r < 0) {
        close(pair[0]);
        return -1;
    }
    set_control(t, pair[0]);
    /* Where this fails the process is gone, which wait_until_ready() sees. */
    call_send(pair[0], words, sizeof(words), &t->config->tuning_fd, t->config->tuning ? 1 : 0);
    if (wait_until_ready(t, e) < 0) {
        tuner_rest(t);
        return -1;
    }
    log_info("tuner", "pid=%d ready_ms=%llu", (int)t->pid,
             (unsigned long long)(clock_now_ns() - begin_ns) / (1000 * 1000));
    return 0;
}

int tuner_prepare(struct tuner *t, struct error *e)
{
    if (atomic_load(&t->stopped))
        return lost(t, e);
    return t->control < 0 ? start(t, e) : 0;
}

bool tuner_has_context(const struct tuner *t)
{
    return t->pid > 0 && t->used;
}

void tuner_rest(struct tuner *t)
{
    const int control = set_control(t, -1);
    const struct timespec moment = {.tv_nsec = 1000000};
    pid_t ended = 0;

    if (t->pid <= 0)
        return;
    if (control >= 0) {
        shutdown(control, SHUT_RDWR); /* it ends when it sees that */
        close(control);
    }
    if (!t->used)
        kill(t->pid, SIGKILL); /* it has no context, and may be loading libraries */
    for (int ms = 0; ms < END_MS && (ended = waitpid(t->pid, NULL, WNOHANG)) == 0; ms++)
        nanosleep(&moment, NULL);
    if (ended == 0) {
        kill(t->pid, SIGKILL);
        while (waitpid(t->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    t->pid = 0;
}

/* ---- one tuning ---- */

static int answer_pause(struct tuner *t, struct tuning_pace *pace, struct error *e)
{
    const int r = pace->wait(pace, e);
    const uint32_t words[2] = {r == 0 ? TUNER_GO : TUNER_CANCEL, 0};

    return call_send(t->control, words, sizeof(words), NULL, 0);
}

/* What a process that was taken over could say would still be a choice among what there is. */
static int check(struct tuning_result *r, struct error *e)
{
    bool sound = r->n > 0 && r->n <= TUNING_CANDIDATES_MAX && r->usual < r->n && r->before < r->n && r->best < r->n &&
                 r->noise >= 0 && r->noise <= 1e6 && memchr(r->machine, '\0', sizeof(r->machine)) &&
                 memchr(r->problem, '\0', sizeof(r->problem));

    sound = sound && r->n_new <= r->n;
    for (unsigned i = 0; sound && i < r->n; i++) {
        r->candidates[i].tried = r->candidates[i].tried != 0;
        sound = memchr(r->candidates[i].text, '\0', sizeof(r->candidates[i].text)) &&
                memchr(r->candidates[i].choice.variant, '\0', sizeof(r->candidates[i].choice.variant)) &&
                r->candidates[i].state <= TUNING_FAILED && !(r->candidates[i].us < 0);
    }
    return sound ? 0 : error_set(e, ERROR_INTERNAL, "the process that tunes says what cannot be");
}

static int finish(struct tuner *t, struct tuning_result *ret, struct error *e)
{
    if (t->message.error.code != ERROR_NONE) {
        *e = t->message.error;
        error_accept(e);
        return -1;
    }
    *ret = t->message.result;
    return check(ret, e);
}

/* As answer_pause(). */
static int answer_list(struct tuner *t, struct tuning_pace *pace, struct error *e)
{
    struct tuner_message *m = &t->message;
    const uint32_t cancel[2] = {TUNER_CANCEL, 0};

    if (check(&m->result, e) < 0)
        return -1;
    if (pace->listed(pace, &m->result, e) < 0)
        return call_send(t->control, cancel, sizeof(cancel), NULL, 0);
    return call_send(t->control, m, sizeof(*m), NULL, 0);
}

/* Returns 0 or -1 with the tuning's result; 1: the process is of no use any more. */
static int converse(struct tuner *t, struct tuning_pace *pace, struct tuning_result *ret, struct error *e)
{
    for (;;) {
        const int got = receive(t, 2 * sizeof(uint32_t));

        if (got == (int)sizeof(t->message) && t->message.kind == TUNER_DONE)
            return finish(t, ret, e);
        if (got == (int)sizeof(t->message) && t->message.kind == TUNER_LISTED && answer_list(t, pace, e) >= 0)
            continue;
        if (got < 0 || t->message.kind != TUNER_PAUSE || answer_pause(t, pace, e) < 0) {
            lost(t, e);
            return 1;
        }
    }
}

/* As converse(). */
static int ask(struct tuner *t, const char *uuid, const struct tuning_request *request, struct tuning_pace *pace,
               struct tuning_result *ret, struct error *e)
{
    struct tuner_message *m = &t->message;

    memset(m, 0, sizeof(*m));
    m->kind = TUNER_TUNE;
    strncpy(m->uuid, uuid, sizeof(m->uuid) - 1);
    m->request = *request;
    t->used = true;
    if (call_send(t->control, m, offsetof(struct tuner_message, request) + sizeof(m->request), NULL, 0) < 0) {
        lost(t, e);
        return 1;
    }
    return converse(t, pace, ret, e);
}

int tuner_tune(struct tuner *t, const char *uuid, const struct tuning_request *request, struct tuning_pace *pace,
               struct tuning_result *ret, struct error *e)
{
    struct pollfd gone = {.fd = t->control, .events = POLLIN};
    int r;

    /* A process that was kept ready says nothing unless it has ended. */
    if (t->control >= 0 && poll(&gone, 1, 0) > 0)
        tuner_rest(t);
    if (tuner_prepare(t, e) < 0)
        return -1;
    r = ask(t, uuid, request, pace, ret, e);
    /* A context that is broken is not used again. */
    if (r > 0 || (r < 0 && (e->code == ERROR_DEVICE_LOST || e->code == ERROR_INTERNAL)))
        tuner_rest(t);
    return r ? -1 : 0;
}

void tuner_stop(struct tuner *t)
{
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->stopped, true);
    if (t->control >= 0)
        shutdown(t->control, SHUT_RDWR);
    pthread_mutex_unlock(&t->lock);
}

void tuner_free(struct tuner *t)
{
    if (!t)
        return;
    tuner_rest(t);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
