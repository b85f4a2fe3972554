/* Times of executions: each is timed by CUPTI's record, by a stamp of its kernel, or by events around it. Thread: loop.
 */
#ifndef KOPS_CUDA_TIMED_H
#define KOPS_CUDA_TIMED_H

#include "job.h"
#include "stamps.h"
#include "times/records.h"

struct cuda_stream;

/* Makes the execution an untimed one. */
void cuda_timed_init(struct cuda_execution *x);

/* Call before the work of a timed execution is enqueued. */
int cuda_timed_begin(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct cuda_execution *x,
                     struct error *e);
/* Call when the execution and the event behind it are on the stream. */
void cuda_timed_enqueued(struct cuda_stream *s, struct cuda_execution *x);

/* Call when the execution has ended. Its time becomes a sample of the job, now or when CUPTI's record has come. */
void cuda_timed_end(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct cuda_execution *x,
                    uint64_t seen_ns);

/* Call before the driver's stream is destroyed. */
void cuda_timed_forget(struct cuda_stream *s);

/* ---- CUPTI's records: some jobs wait for them; the times of others are reported to the host later ---- */

enum { RECORDED_LATE_MAX = 256 /* ended executions to report; older ones are dropped */ };

struct cuda_recorded {
    struct cuda_late {
        struct cuda_ended ended;
        uint64_t token;
    } late[RECORDED_LATE_MAX]; /* a ring */
    uint64_t late_begin, late_end;
    unsigned under_way; /* executions in flight with a ticket */
    bool busy;          /* CUPTI might hold records back at the last look */
    uint64_t busy_ns;   /* time of the last look that counted as busy */
    uint64_t flushed_ns;
};

/* The state of the stream whose first job waits for records. */
struct cuda_rest {
    unsigned ended; /* ended executions of later jobs */
    bool idle;      /* all executions of the stream have ended */
    bool busy;      /* executions are in flight, on this stream or, with records, on another */
};

void cuda_recorded_init(struct cuda_recorded *r);

/* Whether a job that is not prepared may need records, so that CUPTI is started. `busy`: the device has other jobs. */
bool cuda_recorded_may_be_wanted(const struct backend_job *base, bool busy);

/* Call around the launches of an execution. begin() gives it a ticket. choose(), for every execution, suppresses
 * records where it has none. resume() undoes end(). */
void cuda_recorded_choose(const struct cuda_execution *x);
void cuda_recorded_end(const struct cuda_execution *x);
void cuda_recorded_resume(const struct cuda_execution *x);

/* Takes the samples of a job from records, when its executions and copies have ended. False: call again later, since
 * records are missing or are better read with others'. A record is given up some time after the end of its execution,
 * and only after a flush. */
bool cuda_recorded_collect(struct cuda_recorded *r, struct backend_job *base, struct cuda_job *job,
                           const struct cuda_rest *rest);

/* Reports the times of ended executions to the host: with `idle` all, else once there are many or one is old. `now_ns`:
 * about now. True: records are missing; call again soon. */
bool cuda_recorded_tell(struct cuda_recorded *r, const struct backend_host *host, bool idle, uint64_t now_ns);

#endif
