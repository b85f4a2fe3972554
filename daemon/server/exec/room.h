/* The state of this room: waiting runs, the devices' jobs, and queues kept for later streams. Only files of this folder
 * include this header. Thread: loop. */
#ifndef KOPS_SERVER_EXEC_ROOM_H
#define KOPS_SERVER_EXEC_ROOM_H

#include "server/exec/command_list.h"
#include "server/exec/exec.h"
#include "server/exec/run.h"
#include "server/peer/connection.h"
#include "util/idtable.h"

/* The streams that wait for a word of their timelines, and the timer that wakes the loop to look at them. */
struct timeline_poll {
    struct list users;  /* struct account by held_link: users with waiting streams, the next one first */
    unsigned turn;      /* number of the last look */
    bool slept;         /* the loop slept since then */
    uint64_t newest_ns; /* when the newest wait began */
    int timer;          /* timerfd */
    uv_poll_t poll;
};

struct exec {
    const struct run_observer *observer;
    unsigned jobs_running[BACKEND_MAX_DEVICES];   /* submitted, not done */
    uint64_t jobs_begun[BACKEND_MAX_DEVICES];     /* ever submitted */
    unsigned urgent_running[BACKEND_MAX_DEVICES]; /* running jobs that are not of low priority */
    uint64_t tokens;                              /* tokens given to runs whose times may come later */
    unsigned untimed[BACKEND_MAX_DEVICES];        /* runs whose client asked for no timing */
    unsigned n_jobs_running;
    uint64_t polls;                                               /* polls of devices, so far */
    struct list free_queues[BACKEND_MAX_DEVICES][PRIORITY_COUNT]; /* struct device_queue */
    unsigned queues_made[BACKEND_MAX_DEVICES];
    struct list programs;      /* struct program */
    struct list yielding;      /* streams whose next run is of low priority, while other work is on its device */
    struct timeline_poll held; /* streams whose next run waits for its client's word */
    struct list deadlines;     /* runs with a deadline */
    uv_timer_t deadline_timer;

    uv_timer_t device_watchdog_timer;
    bool hung[BACKEND_MAX_DEVICES];
    struct run *to_end[BACKEND_MAX_DEVICES];      /* while it looks: the first stuck run that can be ended alone */
    uint64_t progress_of_ns[BACKEND_MAX_DEVICES]; /* when the oldest of what has progressed since the last tick came */
};

struct connection_exec {
    struct idtable programs; /* struct program */
    struct command_memory run_memory, program_memory;
    uint64_t program_bytes;
    unsigned queued;             /* unfinished runs that no device has */
    bool launched;               /* the connection has launched a kernel of its own */
    struct timelines *timelines; /* NULL until asked for */
    struct stream *streams[STREAMS_MAX];
};

/* A run on the device, received at `received_ns`, has progressed. */
static inline void note_progress(struct server *s, unsigned device, uint64_t received_ns)
{
    if (received_ns < s->exec->progress_of_ns[device])
        s->exec->progress_of_ns[device] = received_ns;
}

/* ---- program.c: recorded sequences, which a connection runs by id ---- */

/* Fills the run's command list from the program and the bindings. */
int program_bind(struct connection *c, struct run *run, const struct rpc_arg *args, struct error *e);
/* The run has ended: takes its command list back, and drops the run's reference. */
void program_end_run(struct run *run);

/* A run of the program has succeeded. exec_tell_programs() tells the observer. */
void program_count_run(struct run *run);

/* Forgets the program; its runs still finish. -1: unknown_program. */
int connection_release_program(struct connection *c, uint64_t id, struct error *e);
void programs_drop_all(struct connection *c);

/* ---- timeline.c: ordered work ---- */

struct timelines;

int timelines_init(struct server *s, struct error *e);
void timelines_stop(struct server *s);
/* Frees the timelines, after the loop has ended. */
void timelines_free(struct server *s);

/* Looks at every word that a run waits for. */
void timelines_poll(struct server *s);
/* Call before the loop sleeps: sets the timer that wakes it, soon for a young wait, seldom for an old one. */
void timelines_arm(struct server *s);

/* Writes the highest value to all done words after the connection's last job, so that no stream of the client waits on.
 * NULL is allowed. */
void timelines_close(struct server *s, struct timelines *t);

/* Checks, for a run with a ready or done value, that the connection has its page and that the values rise on the
 * stream, and notes them. */
int timeline_check(struct stream *stream, uint64_t ready, uint64_t done, struct error *e);
/* Makes the job of a run with a done value write it. */
void timeline_set_signal(struct run *run);

bool timeline_is_reached(const struct run *run);
/* The stream's next run waits for its word. Harmless when it is held already. */
void timeline_hold(struct run *run);
/* The stream's next run ends without having waited: the run behind it waits in its place. */
void timeline_pass_on(struct run *run);
/* Writes the run's done value, if it has one. All earlier runs of the stream have ended. */
void timeline_write_done(struct run *run);

/* ---- device_watchdog.c: jobs that never end ---- */

void device_watchdog_init(struct server *s);
/* Starts the timer. It may be called at any time; a running timer begins anew. */
void device_watchdog_watch(struct server *s);
/* server.job_timeout_s has changed. */
void device_watchdog_reload(struct server *s);
void device_watchdog_stop(struct server *s);

#endif
