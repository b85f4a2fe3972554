/* The watchdog: a thread of its own that ends the process when the loop does not turn any more.
 *
 * The thread asks the loop for a sign of life now and then. While signs come it tells the service manager
 * (hooks.alive). When none has come for server.loop_timeout_s it logs where the loop stands and ends the process: a
 * blocked loop serves no client.
 *
 * Time is counted in the thread's own ticks, so that a machine that slept, or a process that was stopped, is not taken
 * for a blocked loop. Thread: these functions are the loop's. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "server/control/room.h"
#include "server/observe/observe.h"
#include "util/clock.h"
#include "util/log.h"

#define SECOND UINT64_C(1000000000)

enum {
    LOOKS = 4 /* a limit is divided into so many looks; it is found at most one look late */,
    STATUS_PERIOD_S = 5,
    STATUS_MAX = 128
};

struct watchdog {
    struct server *server;
    struct server_hooks hooks;
    pthread_t thread;
    bool started;
    uint64_t period_ns, limit_ns; /* limit_ns 0: none */
    uv_async_t pulse;
    atomic_uint asked, answered;
    atomic_int status; /* the exit status for end_unfinished() */
    char told[STATUS_MAX];

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool winding_up, stop; /* under the lock */
};

/* ---- the loop's side ---- */

static void tell_status(struct watchdog *w)
{
    char text[STATUS_MAX];

    if (!w->hooks.status)
        return;
    server_status_text(w->server, text, sizeof(text));
    if (!strcmp(text, w->told))
        return;
    memcpy(w->told, text, sizeof(text));
    w->hooks.status(w->hooks.context, text);
}

void watchdog_tell(struct server *s)
{
    if (s->control->watchdog)
        tell_status(s->control->watchdog);
}

static void on_pulse(uv_async_t *async)
{
    struct watchdog *w = async->data;

    atomic_store(&w->answered, atomic_load(&w->asked));
    tell_status(w);
}

/* ---- the thread's side ---- */

/* Whether a line can be written: the log, a pipe that is not read, may be the cause of the block. */
static bool log_has_room(void)
{
    struct pollfd log = {.fd = STDERR_FILENO, .events = POLLOUT};

    return poll(&log, 1, 0) == 1;
}

static _Noreturn void end_blocked(struct watchdog *w)
{
    struct activity *a = &w->server->activity;
    const char *what = activity_load(&a->what);
    char who[WHO_MAX];

    if (log_has_room())
        log_error("loop_blocked", "timeout_s=%llu in=%s pid=%d %s action=exit status=%d",
                  (unsigned long long)(w->limit_ns / SECOND), what ? what : "none", activity_load(&a->pid),
                  identities_who(&w->server->accounts.identities, activity_load(&a->uid), who),
                  SERVER_EXIT_LOOP_BLOCKED);
    _exit(SERVER_EXIT_LOOP_BLOCKED);
}

static _Noreturn void end_unfinished(struct watchdog *w)
{
    int status = atomic_load(&w->status);

    if (log_has_room())
        log_error("stop_forced", "timeout_s=%llu why=\"the devices do not close\"",
                  (unsigned long long)(w->limit_ns / SECOND));
    _exit(status ? status : SERVER_EXIT_FAILED);
}

static bool answered(struct watchdog *w)
{
    return atomic_load(&w->answered) == atomic_load(&w->asked);
}

static void ask(struct watchdog *w)
{
    atomic_fetch_add(&w->asked, 1);
    uv_async_send(&w->pulse);
}

static void alive(struct watchdog *w)
{
    if (w->hooks.alive)
        w->hooks.alive(w->hooks.context);
}

/* Sleeps until the next look, or until the thread is told to stop. */
static void sleep_until(struct watchdog *w, uint64_t when_ns)
{
    struct timespec when = {.tv_sec = (time_t)(when_ns / SECOND), .tv_nsec = (long)(when_ns % SECOND)};

    while (!w->stop && pthread_cond_timedwait(&w->changed, &w->lock, &when) != ETIMEDOUT)
        ;
}

static void *watch(void *context)
{
    struct watchdog *w = context;
    uint64_t silent_ns = 0, before = clock_now_ns(), now;
    bool ending = false;

    pthread_mutex_lock(&w->lock);
    if (!w->winding_up)
        ask(w);
    while (!w->stop) {
        sleep_until(w, before + w->period_ns);
        if (w->stop)
            break;
        now = clock_now_ns();
        silent_ns += now - before < 2 * w->period_ns ? now - before : w->period_ns;
        before = now;
        if (w->winding_up) {
            silent_ns = ending ? silent_ns : 0;
            ending = true;
            if (w->limit_ns && silent_ns >= w->limit_ns)
                end_unfinished(w);
        } else if (answered(w)) {
            silent_ns = 0;
            alive(w);
            ask(w);
        } else if (w->limit_ns && silent_ns >= w->limit_ns) {
            end_blocked(w);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- life ---- */

static void shorten(uint64_t *period_ns, uint64_t to)
{
    if (to && (!*period_ns || to < *period_ns))
        *period_ns = to;
}

/* The limit is below the service manager's, which would end the process without a line in the log. */
static uint64_t limit_of(const struct server_config *c, const struct server_hooks *hooks)
{
    uint64_t limit = c->loop_timeout_s * SECOND;

    if (limit && hooks->alive && c->watchdog_us)
        shorten(&limit, c->watchdog_us * 1000 / 4 * 3);
    return limit;
}

static uint64_t period_of(const struct server_config *c, const struct server_hooks *hooks, uint64_t limit_ns)
{
    uint64_t period = 0;

    shorten(&period, limit_ns / LOOKS);
    if (hooks->alive)
        shorten(&period, c->watchdog_us * 1000 / 3);
    if (hooks->status)
        shorten(&period, STATUS_PERIOD_S * SECOND);
    return period;
}

static int start_thread(struct watchdog *w)
{
    sigset_t all, before;
    int r;

    /* Signals go to the loop's thread. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    r = pthread_create(&w->thread, NULL, watch, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

int watchdog_start(struct server *s, const struct server_hooks *hooks, struct error *e)
{
    const uint64_t limit_ns = limit_of(&s->config, hooks), period_ns = period_of(&s->config, hooks, limit_ns);
    pthread_condattr_t monotonic;
    struct watchdog *w;

    if (!period_ns)
        return 0;
    w = calloc(1, sizeof(*w));
    if (!w)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the watchdog");
    *w = (struct watchdog){.server = s, .hooks = *hooks, .period_ns = period_ns, .limit_ns = limit_ns};
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    uv_async_init(&s->loop, &w->pulse, on_pulse);
    w->pulse.data = w;
    s->control->watchdog = w;
    w->started = start_thread(w) == 0;
    /* After a failure the handle stays with the loop, and is closed when the server ends. */
    return w->started ? 0 : error_set(e, ERROR_INTERNAL, "the watchdog's thread cannot be started");
}

void watchdog_wind_up(struct server *s)
{
    struct watchdog *w = s->control->watchdog;

    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->winding_up = true;
    atomic_store(&w->status, s->control->exit_status);
    pthread_mutex_unlock(&w->lock);
    uv_close((uv_handle_t *)&w->pulse, NULL);
}

void watchdog_stop(struct server *s)
{
    struct watchdog *w = s->control->watchdog;

    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->started)
        pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
    s->control->watchdog = NULL;
}
