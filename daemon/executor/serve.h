/* The executor's own side. Only the serve files include this.
 *
 * Threads: the loop (the process's first thread) runs the backend's loop functions and owns streams, jobs and programs.
 * Each channel has a thread, which takes the daemon's calls. The executor trusts the daemon, and
 * checks lengths only. */
#ifndef KOPS_EXECUTOR_SERVE_H
#define KOPS_EXECUTOR_SERVE_H

#include <pthread.h>

#include "executor/call.h"
#include "executor/record.h"

struct serving;

struct served_stream {
    struct backend_device *device;
    struct backend_stream *local; /* NULL: all its jobs fail with `error` */
    struct error error;
};

struct served_program {
    uint64_t serial;    /* never given twice */
    struct step *steps; /* owned */
    uint32_t n_steps;
    struct backend_device *device;
    struct backend_program *local;
};

enum served_state { SERVED_FREE, SERVED_RUNNING /* the backend has it */, SERVED_ENDED };

struct served_job {
    struct backend_job base; /* first */
    struct list list_link;   /* in serving.running or serving.unreported */
    struct serving *serving;
    uint32_t slot, serial;
    enum served_state state;
    uint32_t reported; /* samples that the daemon has */
    double sample, *samples;
    struct backend_counters *counters; /* owned: of a job that counts; else NULL */
    struct step *steps;                /* owned; room for `room`, kept from job to job */
    uint32_t room;
    uint64_t bound; /* the serial of the program whose steps these are; 0: of none */
};

struct serving {
    const struct backend *backend; /* gpus->base */
    const struct gpu_backend *gpus;
    struct executor_region *region;
    const struct tuning_table *tuning; /* NULL: there is none */
    int control, bell;
    int own_bell[2]; /* the loop waits at the first end; other threads ring the second */
    int channels[CALL_CHANNELS];
    struct backend_device *devices[BACKEND_MAX_DEVICES];
    atomic_bool active[BACKEND_MAX_DEVICES]; /* a device that is not is left alone */
    pthread_mutex_t activating[BACKEND_MAX_DEVICES];
    unsigned n_devices;
    uint64_t spin_ns;
    bool common; /* the common executor, which runs no users' code */
    int counts;  /* a device whose counters this process takes by a privilege, see confine.h; -1: none */
    struct ring in, out;
    struct served_stream **streams; /* by number */
    struct served_program **programs;
    uint64_t programs_made;
    struct backend_code **codes; /* by number; written by the threads that take calls */
    _Atomic uint64_t *functions; /* by number: the backend's own */
    struct served_job **jobs;    /* by slot, kept for the slot's next job */
    struct list running;         /* struct served_job.list_link: jobs that the backend has */
    struct list unreported;      /* struct served_job.list_link: ended jobs for which the ring had no room */
    atomic_bool woken;           /* host->wake() was called since the devices were last polled */
    unsigned unfinished;         /* jobs that the backend has */
    uint32_t lost;               /* devices that the daemon was told are lost, a bit each */
    unsigned turns;
    bool overslept; /* the loop was asleep until now, and no event would have woken it at a job's end */
    bool issuing;   /* region->issuing is set */
    bool timed;     /* the daemon was not woken for a RECORD_TIMED in the ring */
};

/* The loop's way to wait for the jobs that the backend has. */
struct serve_wait {
    bool poll;         /* poll: a job is likely to end soon */
    bool all_later;    /* all jobs are likely to end later, the first after until_ns */
    uint64_t until_ns; /* UINT64_MAX: not known */
};

/* Makes the device's context, unless it is there. Thread: any. */
int device_activate(struct serving *p, unsigned index, struct error *e);

/* ---- serve_jobs.c; the loop ---- */

int jobs_init(struct serving *p, struct error *e);
/* How to wait for the jobs that the backend has. */
struct serve_wait jobs_wait(const struct serving *p, uint64_t now_ns);
/* Takes the daemon's records, polls the devices and reports what has ended. Returns whether there was
 * anything to do. */
bool jobs_turn(struct serving *p);
/* Before the loop sleeps. */
void jobs_arm(struct serving *p);
/* host->timed() of the devices. */
void jobs_on_timed(void *serving, uint64_t token, const struct backend_times *times);

#endif
