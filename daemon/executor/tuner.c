#include "executor/executor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "executor/call.h"
#include "executor/confine.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/log.h"
#include "util/process.h"

/* ---- messages ---- */

enum tuner_message_kind {
    TUNER_READY,  /* the process: devices are described; or `error` */
    TUNER_TUNE,   /* the daemon: `uuid`, `request` */
    TUNER_LISTED, /* the process: `result` has the candidates; the daemon: the same, with what is known of them */
    TUNER_PAUSE,  /* the process: may it go on? */
    TUNER_GO,     /* the daemon: it may. Its very first message, with the descriptor of the table where there is one */
    TUNER_CANCEL, /* the daemon: it may not, the tuning is to end */
    TUNER_DONE,   /* the process: `error`, or `result` */
};

/* Messages are as long as their kind: what follows `kind` may be left out. */
struct tuner_message {
    uint32_t kind, reserved;
    union {
        struct {
            char uuid[48];
            struct tuning_request request;
        };
        struct {
            struct error error; /* ERROR_NONE: none */
            struct tuning_result result;
        };
    };
};

/* The size of the message, which is at least `least` and brings no descriptors; -1: the other end is gone, or breaks
 * the rules. */
static int receive(int control, struct tuner_message *m, size_t least)
{
    int fds[CALL_FDS_MAX];
    unsigned n = 0;
    const int got = call_receive(control, m, sizeof(*m), fds, &n);

    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
    return got >= (int)least && n == 0 ? got : -1;
}

static int send_kind(int control, enum tuner_message_kind kind)
{
    const uint32_t words[2] = {kind, 0};

    return call_send(control, words, sizeof(words), NULL, 0);
}

/* ---- the daemon's side ---- */

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

static int start(struct tuner *t, struct error *e)
{
    const struct timeval limit = {.tv_sec = ANSWER_S};
    const uint32_t words[2] = {TUNER_GO, 0};
    struct tuner_message *m = &t->message;
    const uint64_t begin_ns = clock_now_ns();
    int pair[2], r;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return error_shortage(e, errno, "the socket of a tuner");
    t->used = false;
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    r = confine_spawn(t->config, TUNER_ARGUMENT, NULL, false, pair[1], &t->pid);
    close(pair[1]);
    if (r) {
        close(pair[0]);
        if (r == ENOMEM || r == EMFILE || r == ENFILE)
            return error_shortage(e, r, "starting a tuner");
        return error_set(e, ERROR_INTERNAL, "a tuner cannot be started: %s", strerror(r));
    }
    pthread_mutex_lock(&t->lock);
    t->control = pair[0];
    pthread_mutex_unlock(&t->lock);
    /* Where this fails the process has ended, which receive() sees. */
    call_send(pair[0], words, sizeof(words), &t->config->tuning_fd, t->config->tuning ? 1 : 0);
    if (receive(t->control, m, offsetof(struct tuner_message, result)) < 0 || m->kind != TUNER_READY) {
        lost(t, e);
        goto rest;
    }
    if (m->error.code != ERROR_NONE) {
        *e = m->error;
        error_accept(e);
        goto rest;
    }
    log_info("tuner", "pid=%d ready_ms=%llu", (int)t->pid,
             (unsigned long long)(clock_now_ns() - begin_ns) / (1000 * 1000));
    return 0;

rest:
    tuner_rest(t);
    return -1;
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
    const struct timespec moment = {.tv_nsec = 1000000};
    const int control = t->control;
    pid_t ended = 0;

    pthread_mutex_lock(&t->lock);
    t->control = -1;
    pthread_mutex_unlock(&t->lock);
    if (t->pid <= 0)
        return;
    if (control >= 0) {
        shutdown(control, SHUT_RDWR); /* the process ends when it sees that */
        close(control);
    }
    if (!t->used)
        kill(t->pid, SIGKILL); /* an unused process has no context, but may be loading libraries */
    for (int ms = 0; ms < END_MS && (ended = waitpid(t->pid, NULL, WNOHANG)) == 0; ms++)
        nanosleep(&moment, NULL);
    if (ended == 0) {
        kill(t->pid, SIGKILL);
        while (waitpid(t->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    t->pid = 0;
}

/* Checks a result. A process that was taken over could still say no more than a choice among the candidates. */
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

/* Sends the candidates with what is known of them. -1: the process is of no use any more. */
static int answer_list(struct tuner *t, struct tuning_pace *pace, struct error *e)
{
    struct tuner_message *m = &t->message;

    if (check(&m->result, e) < 0)
        return -1;
    if (pace->listed(pace, &m->result, e) < 0)
        return send_kind(t->control, TUNER_CANCEL);
    return call_send(t->control, m, sizeof(*m), NULL, 0);
}

/* Returns 0 or -1 with the tuning's result; 1: the process is of no use any more. */
static int converse(struct tuner *t, struct tuning_pace *pace, struct tuning_result *ret, struct error *e)
{
    for (;;) {
        const int got = receive(t->control, &t->message, 2 * sizeof(uint32_t));

        if (got == (int)sizeof(t->message) && t->message.kind == TUNER_DONE) {
            *ret = t->message.result;
            if (t->message.error.code == ERROR_NONE)
                return check(ret, e);
            *e = t->message.error;
            error_accept(e);
            return -1;
        }
        if (got == (int)sizeof(t->message) && t->message.kind == TUNER_LISTED && answer_list(t, pace, e) >= 0)
            continue;
        if (got < 0 || t->message.kind != TUNER_PAUSE ||
            send_kind(t->control, pace->wait(pace, e) == 0 ? TUNER_GO : TUNER_CANCEL) < 0) {
            lost(t, e);
            return 1;
        }
    }
}

int tuner_tune(struct tuner *t, const char *uuid, const struct tuning_request *request, struct tuning_pace *pace,
               struct tuning_result *ret, struct error *e)
{
    struct pollfd gone = {.fd = t->control, .events = POLLIN};
    struct tuner_message *m = &t->message;
    int r = 1;

    /* A process that was kept ready says nothing unless it has ended. */
    if (t->control >= 0 && poll(&gone, 1, 0) > 0)
        tuner_rest(t);
    if (tuner_prepare(t, e) < 0)
        return -1;
    memset(m, 0, sizeof(*m));
    m->kind = TUNER_TUNE;
    strncpy(m->uuid, uuid, sizeof(m->uuid) - 1);
    m->request = *request;
    t->used = true;
    if (call_send(t->control, m, offsetof(struct tuner_message, request) + sizeof(m->request), NULL, 0) < 0)
        lost(t, e);
    else
        r = converse(t, pace, ret, e);
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

/* ---- the process's side. Thread: one ---- */

struct tuning {
    struct tuning_pace pace; /* first */
    const struct gpu_backend *gpus;
    struct backend_device *devices[BACKEND_MAX_DEVICES];
    unsigned n_devices;
    uint32_t active; /* devices that have a context, a bit each */
    struct tuner_message message;
};

/* Asks whether to go on. Where the daemon does not answer it has ended. */
static int wait_for_go(struct tuning_pace *pace, struct error *e)
{
    static struct tuner_message answer;

    (void)pace;
    if (send_kind(CALL_CONTROL_FD, TUNER_PAUSE) < 0 || receive(CALL_CONTROL_FD, &answer, 2 * sizeof(uint32_t)) < 0)
        _exit(0);
    return answer.kind == TUNER_GO ? 0 : error_set(e, ERROR_CANCELLED, "the tuning was cancelled");
}

static int tell_list(struct tuning_pace *pace, struct tuning_result *result, struct error *e)
{
    static struct tuner_message said;

    (void)pace;
    memset(&said, 0, sizeof(said));
    said.kind = TUNER_LISTED;
    said.result = *result;
    if (call_send(CALL_CONTROL_FD, &said, sizeof(said), NULL, 0) < 0 ||
        receive(CALL_CONTROL_FD, &said, 2 * sizeof(uint32_t)) < 0)
        _exit(0);
    if (said.kind != TUNER_LISTED)
        return error_set(e, ERROR_CANCELLED, "the tuning was cancelled");
    *result = said.result;
    return 0;
}

static void no_wake(void *context)
{
    (void)context; /* nothing runs here but a tuning */
}

static int tune(struct tuning *t, const char *uuid, const struct tuning_request *request, struct tuning_result *ret,
                struct error *e)
{
    struct backend_device *d = NULL;

    for (unsigned i = 0; i < t->n_devices && !d; i++)
        if (!strncmp(t->devices[i]->info.uuid, uuid, sizeof(t->devices[i]->info.uuid)))
            d = t->devices[i];
    if (!d)
        return error_set(e, ERROR_INTERNAL, "the tuner has no such device");
    if (!(t->active & 1U << d->index) && t->gpus->activate(d, e) < 0)
        return -1;
    t->active |= 1U << d->index;
    return t->gpus->base.tune(d, request, &t->pace, ret, e);
}

static void serve(struct tuning *t)
{
    static struct tuning_request request;
    struct tuner_message *m = &t->message;
    char uuid[sizeof(m->uuid)];

    while (receive(CALL_CONTROL_FD, m, offsetof(struct tuner_message, request) + sizeof(m->request)) >= 0 &&
           m->kind == TUNER_TUNE) {
        request = m->request;
        memcpy(uuid, m->uuid, sizeof(uuid));
        uuid[sizeof(uuid) - 1] = '\0';
        memset(m, 0, sizeof(*m));
        m->kind = TUNER_DONE;
        if (tune(t, uuid, &request, &m->result, &m->error) == 0)
            m->error.code = ERROR_NONE;
        if (call_send(CALL_CONTROL_FD, m, sizeof(*m), NULL, 0) < 0)
            return;
    }
}

bool tuner_wanted(int argc, char **argv)
{
    return argc > 1 && !strcmp(argv[1], TUNER_ARGUMENT);
}

static int prepare_here(struct tuning *t, struct backend_config *config, struct error *e)
{
    const struct backend_host host = {.wake = no_wake, .context = t};
    const struct confine_what what = {.common = false};
    uint32_t words[2];
    int fds[CALL_FDS_MAX], r = 0;
    unsigned n = 0;

    if (confine_begin(config, what, e) < 0)
        return -1;
    if (call_receive(CALL_CONTROL_FD, words, sizeof(words), fds, &n) < 0)
        return error_set(e, ERROR_INTERNAL, "the daemon said nothing");
    if (n > 0)
        r = tuning_table_map(fds[0], &config->tuning, e);
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
    if (r < 0 || t->gpus->base.open(config, &host, t->devices, BACKEND_MAX_DEVICES, &t->n_devices, e) < 0)
        return -1;
    for (unsigned i = 0; i < t->n_devices; i++)
        t->devices[i]->index = i;
    return confine_finish(e);
}

int tuner_main(int argc, char **argv, const struct gpu_backend *local)
{
    static struct tuning t;
    struct backend_config config = {0};
    struct tuner_message *m = &t.message;

    if (fcntl(CALL_CONTROL_FD, F_SETFD, FD_CLOEXEC) < 0)
        return 2; /* not started by a daemon */
    prctl(PR_SET_NAME, "kopsd-tuner");
    signals_prepare_helper();
    for (int i = 2; i < argc; i++)
        confine_argument(argv[i], &config);
    t.gpus = local;
    t.pace = (struct tuning_pace){.wait = wait_for_go, .listed = tell_list};
    m->kind = TUNER_READY;
    if (prepare_here(&t, &config, &m->error) == 0)
        m->error.code = ERROR_NONE;
    if (call_send(CALL_CONTROL_FD, m, offsetof(struct tuner_message, result), NULL, 0) == 0 && !m->error.code)
        serve(&t);
    _exit(0); /* the driver's own handlers of exit() would wait */
}
