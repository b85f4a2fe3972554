/* The state of this room: waiting runs, the devices' jobs, and queues kept for later streams. Only files of this folder
 * include this header. Thread: loop. */
#ifndef KOPS_SERVER_EXEC_ROOM_H
#define KOPS_SERVER_EXEC_ROOM_H

#include "server/exec/exec.h"
#include "server/exec/run.h"
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

#endif
