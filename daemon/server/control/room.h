/* The state of this room: the loop's turns, the drain, the watchdog and the shutdown. Only files of this folder include
 * it. Thread: loop. */
#ifndef KOPS_SERVER_CONTROL_ROOM_H
#define KOPS_SERVER_CONTROL_ROOM_H

#include "server/base/shared.h"
#include "server/peer/request.h"
#include "util/loop.h"

/* The drain under way, while admission.draining. See shutdown.c. */
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

/* ---- event_loop.c: the order of work in a turn, and the decision to sleep ---- */

int event_loop_init(struct server *s, struct error *e);
/* Watches the descriptors of the devices, which are open. Devices that share a descriptor follow each other. */
int event_loop_watch_devices(struct server *s, struct error *e);
void event_loop_stop(struct server *s);

/* The end of a daemon that nobody uses: server.idle_exit_s. Thread: loop. */

void idle_exit_init(struct server *s);
void idle_exit_close(struct server *s);

/* The time may be another one; the wait begins anew. */
void idle_exit_reload(struct server *s);

/* ---- methods.c ---- */

/* METHOD_COUNT entries, which live as long as the process. */
const struct method_entry *methods_table(void);

/* ---- server.c ---- */

/* Calls the hook read() on the pool, then reload(), unless the shutdown has begun by then. */
void server_read_settings(struct server *s, bool only_sockets);

/* Watches no folder of sockets any more: the loop is about to end. */
void socket_folder_close(struct server *s);

/* ---- shutdown.c ---- */

void shutdown_init(struct server *s);

/* Begins the shutdown after SIGTERM or SIGINT; has the settings read again after SIGHUP. */
void shutdown_check_signals(struct server *s);

/* Begins the shutdown; harmless when called again. */
void shutdown_begin(struct server *s);

/* Continues the shutdown; called in every turn of the loop while stopping. */
void shutdown_step(struct server *s);

/* The drain: work that has begun ends, and new work is refused. See Draining in PROTOCOL.md. Thread: loop. */

void drain_init(struct server *s);

/* Answers drain requests that need not wait longer, and begins the shutdown after a drain with `stop`. Called at the
 * end of a turn of the loop. True when it did something, so that there may be output again. */
bool drain_step(struct server *s);

/* Size of the request's state. */
extern const size_t drain_state_bytes;

/* ---- watchdog.c ---- */

/* Starts the thread if there is a limit, a service manager that wants signs of life, or a reader of the status line.
 * Failing to start it is an error. */
int watchdog_start(struct server *s, const struct server_hooks *hooks, struct error *e);

/* Tells the service manager the server's new state at once, and not with the next sign of life. */
void watchdog_tell(struct server *s);

/* Stops asking for signs of life, since the loop ends. If the rest takes longer than server.loop_timeout_s, the thread
 * ends the process with the server's exit status. */
void watchdog_wind_up(struct server *s);

/* Waits for the thread to end, after the loop's end. */
void watchdog_stop(struct server *s);

#endif
