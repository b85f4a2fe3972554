/* Shared by the supervisor's files: supervise.c decides, supervise_child.c starts the child and receives its messages.
 */
#ifndef KOPS_MAIN_SUPERVISE_INTERNAL_H
#define KOPS_MAIN_SUPERVISE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "main/flags.h"
#include "main/listen.h"
#include "main/notify.h"
#include "util/backoff.h"

/* Times are of CLOCK_MONOTONIC; 0: none. */
struct supervisor {
    const struct flags *flags;
    const struct config *config;
    struct listener listener;
    struct notifier outer; /* our own manager */
    uint64_t outer_watchdog_ns, tell_at;
    int signals;          /* a signalfd */
    int inner, inner_end; /* where the child notifies, and its end of that */
    uint64_t patience_ns; /* a child that is ready is to be heard of so often; 0: never */

    pid_t child;       /* 0: there is none */
    bool ready;        /* the child is */
    bool served;       /* it has answered a request */
    bool ever_ready;   /* one was */
    bool stopping;     /* we were told to end */
    uint64_t ready_at; /* when it got so */
    uint64_t start_at; /* the next one */
    uint64_t heard_by; /* the child is to be heard of until then */
    uint64_t kill_at;
    struct backoff backoff;
    uint64_t ended_at; /* the first of the ends since one was ready */
    unsigned restarts; /* since the start */
    int status;        /* with which we end */
    bool over;
};

/* The socket where children notify. */
int child_listen(struct supervisor *s, struct error *e);

/* Starts the server with the socket and a watchdog. */
int child_start(struct supervisor *s, struct error *e);

/* The child's messages. */
struct child_message {
    bool ready, alive, served, stopping;
    uint64_t extend_us;
    char passed[1024]; /* the lines that are for our own manager as well */
};

/* False: nothing is left to read. Messages of others are skipped. */
bool child_hear(const struct supervisor *s, struct child_message *ret);

#endif
