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

/* Opens the socket where children notify. */
int child_listen(struct supervisor *s, struct error *e);

/* Starts the server with the socket and a watchdog. */
int child_start(struct supervisor *s, struct error *e);

struct child_message {
    bool ready, alive, served, stopping;
    uint64_t extend_us;
    char passed[1024]; /* lines for our own manager */
};

/* Reads a message of the child; skips messages of others. False: nothing is left to read. */
bool child_hear(const struct supervisor *s, struct child_message *ret);

#endif
