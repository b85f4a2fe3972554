/* The state of this room: the turn of the loop, and how it ends. Only files of this folder include it. Thread: loop. */
#ifndef KOPS_SERVER_CONTROL_ROOM_H
#define KOPS_SERVER_CONTROL_ROOM_H

#include "server/base/shared.h"
#include "util/work.h"

/* New work is refused while admission.draining. See drain.c. */
struct drain {
    bool stop, done;     /* done: said so in the log */
    uint64_t stop_by_ns; /* 0: when nothing is in flight any more */
    struct list waiting; /* requests, by queue_link */
    uv_timer_t timer;
};

struct control {
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle;
    bool slept;                /* the loop blocked since something last came */
    uint64_t last_activity_ns; /* as of when the busy poll last looked */
    uint64_t busy_poll_ns;     /* the budget: config.spin_us, or less while it keeps failing */
    struct drain drain;
    struct watchdog *watchdog; /* NULL where nothing is to be watched */
    struct work read_settings;
    bool reading_settings;
    struct server *server;
    uv_timer_t shutdown_timer;
    bool handles_closed;
    int exit_status;
};

#endif
