#include "main/supervise.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "main/supervise_internal.h"
#include "server/control/server.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/signals.h"

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
