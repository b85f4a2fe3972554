/* The loop's turn: progress of devices, flushing of replies, and when to sleep. */
#ifndef KOPS_SERVER_PUMP_H
#define KOPS_SERVER_PUMP_H

#include "server/types.h"

int event_loop_init(struct server *s, struct error *e);
void event_loop_stop(struct server *s);

/* Everything that can be done without waiting. */
void event_loop_turn(struct server *s);

/* For struct backend_host; any thread. `context` is the server. */
void event_loop_wake(void *context);

/* A job was given to the device. */
void device_work_submitted(struct server *s, struct run *run);
/* A job's done() came. */
void device_work_ended(struct server *s, struct run *run);

/* hang.c: jobs that never end. watch() may be called as often as one likes; it is for uv_is_active() to say whether the
 * timer is to be started. */
void device_watchdog_init(struct server *s);
void device_watchdog_watch(struct server *s);
/* server.job_timeout_s has changed. */
void device_watchdog_reload(struct server *s);
/* A run that came at `received_ns` got on. */
static inline void device_watchdog_note(struct server *s, unsigned device, uint64_t received_ns)
{
    if (received_ns < s->progress_of_ns[device])
        s->progress_of_ns[device] = received_ns;
}
void device_watchdog_stop(struct server *s);

#endif
