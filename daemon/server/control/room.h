/* The state of this room: the loop's turns, the drain, the watchdog and the shutdown. Only files of this folder include
 * it. Thread: loop. */
#ifndef KOPS_SERVER_CONTROL_ROOM_H
#define KOPS_SERVER_CONTROL_ROOM_H

#include "server/base/shared.h"
#include "util/loop.h"

/* The drain under way, while admission.draining. See drain.c. */
struct drain {
    bool stop, done;     /* done: the log says so already */
    uint64_t stop_by_ns; /* 0: when no work is in flight any more */
    struct list waiting; /* requests, by queue_link */
    uv_timer_t timer;
};

struct control {
    uv_prepare_t prepare;
    uv_idle_t idle;
    uv_poll_t devices[BACKEND_MAX_DEVICES]; /* watch descriptors of backends */
    unsigned n_devices_watched;
    bool slept;                /* the loop slept since the last event, for want of requests */
    uint64_t last_activity_ns; /* as of the busy poll's last look */
    uint64_t busy_poll_ns;     /* the busy poll's budget: config.spin_us, or less while polling does not pay */
    struct drain drain;
    struct watchdog *watchdog; /* NULL: nothing to watch */
    struct work read_settings;
    bool reading_settings, only_sockets; /* the configuration that is being read */
    struct {
        uv_fs_event_t watch;
        uv_timer_t timer; /* changes come in groups */
        char *path;       /* folder that is watched; NULL: none */
        dev_t device;
        ino_t inode; /* 0: the watch failed */
    } socket_folder; /* where sockets of identities come and go */
    struct server *server;
    uv_timer_t shutdown_timer;
    uv_timer_t idle_exit; /* runs while there is no connection, where that ends the daemon */
    bool handles_closed;
    bool processes_ended; /* the shutdown has killed all executors */
    int exit_status;
};

#endif
