/* Executions whose times are CUPTI's records: some jobs wait for them, others' times the host hears later. Thread:
 * loop. */
#ifndef KOPS_CUDA_RECORDED_H
#define KOPS_CUDA_RECORDED_H

#include "job.h"
#include "stamps.h"
#include "times/records.h"

enum { RECORDED_LATE_MAX = 256 /* executions that have ended and were not told: older ones are forgotten */ };

struct cuda_recorded {
    struct cuda_late {
        struct cuda_ended ended;
        uint64_t token;
    } late[RECORDED_LATE_MAX]; /* a ring */
    uint64_t late_begin, late_end;
    unsigned under_way;  /* executions with a ticket that were issued and not seen to have ended */
    bool busy;           /* at the last look for records: CUPTI may hold back those of what has ended */
    uint64_t busy_ns;    /* the last time that it was so */
    uint64_t flushed_ns; /* when CUPTI was last made to hand records out */
};

/* The surroundings of a job that waits for its records. */
struct cuda_rest {
    unsigned ended; /* executions of later jobs of the stream */
    bool idle;      /* all executions of the stream have ended */
    bool busy;      /* more is under way, on this stream or, with records, on another */
};

void cuda_recorded_init(struct cuda_recorded *r);

/* Whether the job should be timed by records, as far as is known before it is prepared: CUPTI is started for it.
 * `busy`: the device has other jobs. */
bool cuda_recorded_may_be_wanted(const struct backend_job *base, bool busy);
/* Whether the job's executions are timed by records. `stamps`: its kernel can tell its times. `in_a_row`: it is one
 * of many, which events would hold up, and nobody waits for this one alone. */
bool cuda_recorded_are_wanted(const struct backend_job *base, bool stamps, bool in_a_row);

/* Around the launches of an execution: begin() gives it a ticket; choose(), for every execution, has those without
 * one leave no record; resume() takes an end() back. */
int cuda_recorded_begin(struct backend_job *base, struct cuda_job *job, struct cuda_execution *x, struct error *e);
void cuda_recorded_choose(const struct cuda_execution *x);
void cuda_recorded_end(const struct cuda_execution *x);
void cuda_recorded_resume(const struct cuda_execution *x);

/* An execution with a ticket has ended. */
void cuda_recorded_ended(struct cuda_recorded *r, struct backend_job *base, struct cuda_job *job,
                         const struct cuda_execution *x, uint64_t seen_ns);
/* Takes the samples of a job that has ended, copies back too, from the records. False: records are missing, or are
 * better read later, with others'. A record that does not come is given up some time after its execution has ended,
 * and not before CUPTI was made to hand out what it has. */
bool cuda_recorded_collect(struct cuda_recorded *r, struct backend_job *base, struct cuda_job *job,
                           const struct cuda_rest *rest);

/* Adds a sample, and notes when the job was on the device. `clock`: the span's; NULL: CLOCK_MONOTONIC. */
void cuda_recorded_note(struct backend_job *base, const struct cuda_clock *clock, const struct cuda_span *span);

/* Tells the host the times of executions that have ended: `idle`, all; else once there are many, or one is old.
 * `now_ns`: about now. True: records are still to come, so it is to be called again soon. */
bool cuda_recorded_tell(struct cuda_recorded *r, const struct backend_host *host, bool idle, uint64_t now_ns);

#endif
