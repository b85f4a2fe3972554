#include "main/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "main/flags.h"
#include "main/listen.h"
#include "main/notify.h"
#include "server/control/server.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/process.h"

/* ---- the child's process, and what it says ---- */

/* Times are of CLOCK_MONOTONIC; 0: none. */
struct supervisor {
    const struct flags *flags;
    const struct config *config;
    struct listener listener;
    struct notifier outer; /* our own manager */
    uint64_t outer_watchdog_ns, tell_at;
    int signals;          /* a signalfd */
    int inner, inner_end; /* the socket where the child notifies, and the child's end of it */
    uint64_t patience_ns; /* longest silence of a child that is ready; 0: no limit */

    pid_t child;       /* 0: there is none */
    bool ready;        /* the present child is ready */
    bool served;       /* the present child has answered a request */
    bool ever_ready;   /* some child was ready */
    bool stopping;     /* we were told to end */
    uint64_t ready_at; /* when the present child became ready */
    uint64_t start_at;
    uint64_t heard_by; /* end of the child's silence: it is ended when nothing came until then */
    uint64_t kill_at;
    struct backoff backoff;
    uint64_t ended_at; /* the first end since a child was ready */
    unsigned restarts; /* restarts since the start of the supervisor */
    int status;        /* exit status */
    bool over;
};

struct child_message {
    bool ready, alive, served, stopping;
    uint64_t extend_us;
    char passed[1024]; /* lines for our own manager */
};

enum { LISTEN_FD = 3, NOTIFY_FD = 4 };

/* Opens the socket where children notify. */
static int child_listen(struct supervisor *s, struct error *e)
{
    const int yes = 1;
    int ends[2];

    /* A socket pair, since other processes could fill a named socket. The kernel names each message's sender. */
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) < 0)
        return error_set(e, ERROR_INTERNAL, "the socket for notifications: %s", strerror(errno));
    s->inner = ends[0];
    s->inner_end = fcntl(ends[1], F_DUPFD_CLOEXEC, NOTIFY_FD + 1); /* above the child's descriptors */
    close(ends[1]);
    if (s->inner_end < 0 || fcntl(s->inner, F_SETFL, O_NONBLOCK) < 0 ||
        setsockopt(s->inner, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes)) < 0)
        return error_set(e, ERROR_INTERNAL, "the socket for notifications: %s", strerror(errno));
    return 0;
}

/* ---- starting ---- */

static char **child_arguments(const struct flags *f)
{
    char **argv = calloc((size_t)f->argc + 1, sizeof(*argv));
    unsigned n = 0;

    for (int i = 0; argv && i < f->argc; i++)
        if (f->argv[i] != f->supervise_argument)
            argv[n++] = f->argv[i];
    return argv;
}

static void set_number(const char *name, unsigned long long value)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", value);
    setenv(name, text, 1);
}

static _Noreturn void become_server(const struct supervisor *s, char **argv, pid_t parent)
{
    sigset_t hangup;

    /* As long as we live; also when we have gone before this was said. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILURE);
    if (s->listener.fd == LISTEN_FD)
        fcntl(LISTEN_FD, F_SETFD, 0);
    else if (dup2(s->listener.fd, LISTEN_FD) < 0)
        _exit(EXIT_FAILURE);
    if (dup2(s->inner_end, NOTIFY_FD) < 0)
        _exit(EXIT_FAILURE);
    set_number("LISTEN_PID", (unsigned long long)getpid());
    set_number("LISTEN_FDS", 1);
    setenv("LISTEN_FDNAMES", "kopsd", 1);
    set_number(NOTIFIER_FD, NOTIFY_FD);
    if (s->patience_ns) {
        set_number("WATCHDOG_USEC", s->patience_ns / 1000);
        set_number("WATCHDOG_PID", (unsigned long long)getpid());
    }
    sigemptyset(&hangup);
    sigaddset(&hangup, SIGHUP); /* the child unblocks it when it can read its settings again */
    sigprocmask(SIG_SETMASK, &hangup, NULL);
    execv("/proc/self/exe", argv);
    execvp(argv[0], argv);
    fprintf(stderr, "kopsd: starting the server: %s\n", strerror(errno));
    _exit(EXIT_FAILURE);
}

/* Starts the server with the socket and a watchdog. */
static int child_start(struct supervisor *s, struct error *e)
{
    char **argv = child_arguments(s->flags);
    const pid_t parent = getpid();
    pid_t child;

    if (!argv)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start the server");
    child = fork();
    if (child == 0)
        become_server(s, argv, parent);
    free(argv);
    if (child < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "fork: %s", strerror(errno));
    s->child = child;
    return 0;
}

/* ---- hearing ---- */

static void hear_line(struct child_message *m, const char *line, size_t length)
{
    static const char extend[] = "EXTEND_TIMEOUT_USEC=";
    const size_t used = strlen(m->passed);

    if (length == 7 && !strncmp(line, "READY=1", length))
        m->ready = true;
    if (length == 10 && !strncmp(line, "WATCHDOG=1", length)) {
        m->alive = true; /* whether we live is for us to say */
        return;
    }
    if (length == 10 && !strncmp(line, "STOPPING=1", length)) {
        m->stopping = true; /* the child's end is not ours */
        return;
    }
    if (length == strlen(NOTIFIER_SERVED) && !strncmp(line, NOTIFIER_SERVED, length)) {
        m->served = true;
        return;
    }
    if (length > strlen(extend) && !strncmp(line, extend, strlen(extend)))
        m->extend_us = strtoull(line + strlen(extend), NULL, 10);
    snprintf(m->passed + used, sizeof(m->passed) - used, "%s%.*s", used ? "\n" : "", (int)length, line);
}

/* -1: nothing is there. */
static ssize_t receive(int fd, char *text, size_t size, pid_t *ret_sender)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(struct ucred))];
    } control = {0};
    struct iovec part = {.iov_base = text, .iov_len = size};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    const struct cmsghdr *c;
    struct ucred sender;
    ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);

    *ret_sender = 0;
    if (n < 0)
        return -1;
    c = CMSG_FIRSTHDR(&message);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) {
        memcpy(&sender, CMSG_DATA(c), sizeof(sender));
        *ret_sender = sender.pid;
    }
    return n;
}

/* Reads a message of the child; skips messages of others. False: nothing is left to read. */
static bool child_hear(const struct supervisor *s, struct child_message *ret)
{
    char text[1024 + 1];
    pid_t sender;
    ssize_t n;

    do
        n = receive(s->inner, text, sizeof(text) - 1, &sender);
    while (n >= 0 && (!s->child || sender != s->child));
    if (n < 0)
        return false;
    text[n] = '\0';
    *ret = (struct child_message){0};
    for (const char *line = text; *line;) {
        const size_t length = strcspn(line, "\n");

        if (length)
            hear_line(ret, line, length);
        line += length + (line[length] != '\0');
    }
    return true;
}

#define MILLISECOND UINT64_C(1000000)
#define SECOND      (1000 * MILLISECOND)

enum {
    START_LIMIT_S = 300, /* to get ready */
    STOP_MARGIN_S = 30,  /* to end, beyond server.shutdown_grace_ms */
    ABORT_LIMIT_S = 5    /* from SIGABRT to SIGKILL */
};

/* ---- the child's life ---- */

static void start(struct supervisor *s)
{
    struct error e;

    s->start_at = 0;
    s->ready = s->served = false;
    if (child_start(s, &e) < 0) {
        log_error("supervise_start", "why=\"%s\"", e.message);
        s->start_at = clock_now_ns() + SECOND;
        return;
    }
    s->heard_by = clock_now_ns() + START_LIMIT_S * SECOND;
    s->kill_at = 0;
    log_info("supervise_start", "pid=%d", (int)s->child);
}

static void restart(struct supervisor *s, const char *how, int number)
{
    const uint64_t now = clock_now_ns();
    const unsigned delay_ms = backoff_after(&s->backoff, s->served, now / MILLISECOND);

    log_info("supervise_restart", "delay_ms=%u", delay_ms);
    s->restarts++;
    if (!s->ended_at)
        s->ended_at = now;
    notify(&s->outer, "STATUS=the server ended with %s %d; it is started again", how, number);
    s->start_at = now + delay_ms * MILLISECOND;
}

/* The child that is ready now took another's place. */
static void recovered(struct supervisor *s)
{
    if (s->ended_at)
        log_info("recover", "pid=%d gap_ms=%llu restarts=%u", (int)s->child,
                 (unsigned long long)((s->ready_at - s->ended_at) / MILLISECOND), s->restarts);
    s->ended_at = 0;
}

static void end(struct supervisor *s, int status)
{
    s->status = status;
    s->over = true;
}

static void child_ended(struct supervisor *s, int wait_status)
{
    const bool exited = WIFEXITED(wait_status);
    const int number = exited ? WEXITSTATUS(wait_status) : WTERMSIG(wait_status);
    const char *how = exited ? "status" : "signal";
    const bool told = !exited && (number == SIGTERM || number == SIGINT); /* before it was ready to hear it */

    log_at(exited && !number ? LOG_LEVEL_INFO : LOG_LEVEL_WARNING, "supervise_exit", "pid=%d %s=%d", (int)s->child, how,
           number);
    s->child = 0;
    s->heard_by = s->kill_at = 0;
    if (s->stopping)
        end(s, exited ? number : told ? SERVER_EXIT_OK : SERVER_EXIT_FAILED);
    else if (exited && number == SERVER_EXIT_OK)
        end(s, SERVER_EXIT_OK);
    else if (!s->ever_ready && exited && (number == SERVER_EXIT_FAILED || number == EXIT_USAGE))
        end(s, number); /* the next one would fare no better */
    else
        restart(s, how, number);
}

static void on_messages(struct supervisor *s)
{
    struct child_message m;

    while (child_hear(s, &m)) {
        const uint64_t now = clock_now_ns();

        if (*m.passed)
            notify(&s->outer, "%s", m.passed);
        if (m.ready && !s->ready) {
            s->ready = s->ever_ready = true;
            s->ready_at = now;
            recovered(s);
        }
        s->served = s->served || m.served;
        if (m.extend_us || m.stopping)
            s->heard_by = now + m.extend_us * 1000 + STOP_MARGIN_S * SECOND;
        else if (s->ready && !s->stopping && (m.ready || m.alive))
            s->heard_by = s->patience_ns ? now + s->patience_ns : 0;
        log_trim(); /* executors and libraries write to it as well */
    }
}

/* Orphans of the child's are ours, and are waited for as well. */
static void reap(struct supervisor *s)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == s->child) {
            on_messages(s); /* the last messages of the child */
            child_ended(s, status);
        }
}

/* ---- events ---- */

static void stop(struct supervisor *s, int number)
{
    if (!s->stopping) {
        log_info("supervise_stop", "signal=%d", number);
        notify(&s->outer, "STOPPING=1\nSTATUS=stopping");
        /* Late clients are refused instead of waiting for a server that will not come; the child has the socket for
         * itself. */
        listener_close(&s->listener);
        s->heard_by = clock_now_ns() + s->config->shutdown_grace_ms * 2 * MILLISECOND + STOP_MARGIN_S * SECOND;
    }
    s->stopping = true;
    s->start_at = 0;
    if (s->child)
        kill(s->child, number);
    else
        end(s, SERVER_EXIT_OK);
}

static void on_signals(struct supervisor *s)
{
    struct signalfd_siginfo info;

    while (read(s->signals, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            reap(s);
        else if (info.ssi_signo != SIGHUP)
            stop(s, (int)info.ssi_signo);
        else if (s->child)
            kill(s->child, SIGHUP);
    }
}

/* ---- time ---- */

static void kill_silent(struct supervisor *s, uint64_t now)
{
    log_error("supervise_hung", "pid=%d why=\"the server was not heard of\"", (int)s->child);
    s->heard_by = 0;
    s->kill_at = now + ABORT_LIMIT_S * SECOND;
    kill(s->child, SIGABRT);
}

static void on_time(struct supervisor *s)
{
    const uint64_t now = clock_now_ns();

    if (s->tell_at && now >= s->tell_at) {
        notify_maybe(&s->outer, "WATCHDOG=1");
        s->tell_at = now + s->outer_watchdog_ns / 3;
    }
    if (s->start_at && now >= s->start_at)
        start(s);
    if (s->child && s->heard_by && now >= s->heard_by)
        kill_silent(s, now);
    if (s->child && s->kill_at && now >= s->kill_at) {
        s->kill_at = now + ABORT_LIMIT_S * SECOND;
        kill(s->child, SIGKILL);
    }
}

static uint64_t next_time(const struct supervisor *s)
{
    const uint64_t times[] = {s->tell_at, s->start_at, s->heard_by, s->kill_at};
    uint64_t next = 0;

    for (unsigned i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        if (times[i] && (!next || times[i] < next))
            next = times[i];
    return next;
}

/* Waits for the next thing. Where this process did not run for a while (the machine slept, or both were stopped) the
 * child did not either. */
static void wait_for_something(struct supervisor *s)
{
    struct pollfd fds[] = {{.fd = s->signals, .events = POLLIN}, {.fd = s->inner, .events = POLLIN}};
    const uint64_t before = clock_now_ns(), next = next_time(s);
    const uint64_t wait_ms = next ? next > before ? (next - before) / MILLISECOND + 1 : 0 : 0;
    uint64_t late;

    if (poll(fds, 2, next ? (int)(wait_ms < INT32_MAX ? wait_ms : INT32_MAX) : -1) < 0)
        return;
    late = clock_now_ns() - before;
    if (next && s->heard_by && late > wait_ms * MILLISECOND + SECOND)
        s->heard_by += late - wait_ms * MILLISECOND;
}

/* ---- life ---- */

static int open_all(struct supervisor *s, struct error *e)
{
    struct privileges privileges;
    sigset_t signals;
    int r;

    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, NULL); /* from here on nothing is left behind */
    if (privileges_find(s->config, &privileges, e) < 0)
        return -1;
    r = listener_open(s->config, &privileges, &s->listener, e);
    privileges_free(&privileges);
    if (r < 0)
        return -1;
    s->signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signals < 0) {
        error_set(e, ERROR_INTERNAL, "signalfd: %s", strerror(errno));
        goto close_listener;
    }
    if (child_listen(s, e) < 0)
        goto close_signals;
    return 0;

close_signals:
    close(s->signals);
close_listener:
    listener_close(&s->listener);
    return -1;
}

int supervise(const struct flags *flags, const struct config *config)
{
    struct supervisor s = {.flags = flags, .config = config, .signals = -1, .inner = -1, .inner_end = -1};
    struct error e;

    signals_ignore_stray();
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    notifier_open(&s.outer);
    s.outer_watchdog_ns = notify_take_watchdog() * 1000;
    s.tell_at = s.outer_watchdog_ns ? clock_now_ns() : 0;
    s.patience_ns = 2 * config->loop_timeout_s * SECOND;
    if (open_all(&s, &e) < 0) {
        log_error("start", "why=\"%s\"", e.message);
        notifier_close(&s.outer);
        return SERVER_EXIT_FAILED;
    }
    start(&s);
    while (!s.over) {
        wait_for_something(&s);
        on_messages(&s);
        on_signals(&s);
        on_time(&s);
    }
    listener_close(&s.listener);
    close(s.inner);
    close(s.inner_end);
    close(s.signals);
    notifier_close(&s.outer);
    return s.status;
}
