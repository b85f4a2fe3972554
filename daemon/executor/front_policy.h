/* What the front decides: which executors there are, whose turn it is, which jobs are ended, and what becomes of the
 * jobs of an executor that was lost. Thread: loop. */
#ifndef KOPS_EXECUTOR_FRONT_POLICY_H
#define KOPS_EXECUTOR_FRONT_POLICY_H

#include "executor/front.h"

/* ---- front_fleet.c: which executors there are ---- */

/* Makes sure that the domain has an executor, or will have one. -1: *e, it cannot. */
int front_domain_serve(struct front_domain *d, struct front *f, struct error *e);
/* The executor, a spare or a new one, serves the domain from now on. */
void front_domain_give(struct front_domain *d, struct executor *x);
/* Something has changed: starts wanted executors, ends those without use, keeps spares. */
void front_domains_turn(struct front *f);

/* ---- front_places.c: how many executors there are ---- */

/* Whether the domain may have an executor now: the spare, or a new one. Otherwise it waits, and others make room. */
bool front_place_take(struct front *f, struct front_domain *d, bool spare);
/* Whether there may be one more. */
bool front_place_is_free(struct front *f);
/* The domain's executor goes, where it is to and has no job any more. */
void front_place_leave(struct front_domain *d);
/* Ends an executor that has no job. The domain keeps its code; a later job gets another executor. */
void front_executor_dismiss(struct executor *x);

/* ---- front_turns.c: whose kernels go next on a GPU ---- */

/* Of one job, while others wait for the GPU or for an executor. */
static inline uint64_t front_longest_ns(const struct front *f)
{
    return (f->config.executors_longest_s ? f->config.executors_longest_s : 2) * UINT64_C(1000000000);
}

/* That others wait for a turn which is over, until they go beside it. */
static inline uint64_t front_late_ns(const struct front *f)
{
    return (f->config.executors_late_ms ? f->config.executors_late_ms : 25) * UINT64_C(1000000);
}

/* Whether a job of the domain may be sent to the GPU now; else the domain waits for its turn there. */
bool front_turn_take(struct front_device *gpu, struct front_domain *d);
/* A domain's executor has no job on a GPU any more, or time has passed: turns go on. */
void front_turns_turn(struct front *f);
/* The domain is gone. */
void front_turn_drop(struct front *f, struct front_domain *d);

/* ---- front_load.c: the jobs that executors have on each GPU ---- */

/* The GPUs that a job of `gpu` works on, or with whose memory, a bit each. */
uint32_t front_load_gpus(const struct front_device *gpu, const struct backend_job *job);
/* The executor has the job from now on. */
void front_load_add(struct executor *x, const struct front_job *own);
/* It has not any more. */
void front_load_remove(struct executor *x, const struct front_job *own);

/* ---- front_hold.c: work that is alone on its GPU ---- */

/* Nobody holds the GPU. */
void front_hold_init(struct front_hold *h);

/* Whether the stream's next job counts, or is to be alone. */
bool front_hold_is_wanted(const struct front_stream *s, const struct backend_job *job);
/* Whether the stream's next job, which works on or with `gpus`, may be sent now; its domain has an executor, which has
 * all that the job needs. One that counts, or is exclusive, waits until no executor has a job on or with its GPU, and
 * holds the others until it has ended, or, exclusive, for as long as others may wait. */
bool front_hold_take(struct front_stream *s, const struct backend_job *job, uint32_t gpus);
/* The job was sent. */
void front_hold_sent(const struct front_stream *s, struct front_job *own);
/* The executor no longer has the job. */
void front_hold_took_back(const struct front_job *own);
/* The stream's first unsent job ends, or goes. */
void front_hold_forget(struct front_stream *s);
/* Holds that are over, or last too long, end. */
void front_hold_turn(struct front *f);
/* The executor is about to be freed. */
void front_hold_end(const struct executor *x);

/* ---- front_alone.c: exclusive jobs that wait for a GPU ---- */

/* Whether it is the turn of the stream, of those that wait. */
bool front_alone_is_next(const struct front_stream *s);
/* The stream waits, from now on or already. */
void front_alone_wait(struct front_stream *s, uint64_t now_ns);
/* It does no more. */
void front_alone_leave(struct front_stream *s);
/* A user's exclusive job begins. */
void front_alone_note(struct front_hold *h, uint64_t owner, uint64_t now_ns);
/* Lets those go that have waited for long, beside others. Whether there were any. */
bool front_alone_turn(struct front_device *gpu, uint64_t now_ns);

/* ---- front_privilege.c: counters by a privilege ---- */

/* Counters by a privilege, see privilege.h: the device whose counters the domain's new process is to take; -1: none, or
 * no privilege is needed, or allowed. */
int front_privilege_device(const struct front *f, const struct front_domain *d);
/* Whether the domain's executor took counters and has counted, or took those of another device: it is to end. */
bool front_privilege_is_spent(const struct front *f, const struct front_domain *d);
/* Whether no process has taken counters: there is one at a time, until it is reaped. */
bool front_privilege_is_free(const struct front *f);

/* ---- front_deadline.c: jobs that must end ---- */

/* A job with end_now is in a domain's executor, which is killed if the job does not end within moments. */
void front_end_soon(struct front *f, struct front_job *own);
/* The same, where the keeper opens what the stream's next job needs. */
void front_end_opening(struct front_stream *s);
/* Kills the executor where the first job of a stream has run for longer since others wait (`since_ns`). `gpu`: of one
 * of its streams; NULL: of any. */
void front_end_late(struct executor *x, const struct front_device *gpu, uint64_t since_ns, uint64_t longest_ns);
/* Kills executors whose job had its time. */
void front_deadlines_turn(struct front *f);

/* ---- front_repeat.c: which jobs of a lost executor are begun anew ---- */

/* Whether the job may have begun in the lost executor, which may have said that it had not. */
static inline bool front_may_have_run(const struct front_job *own)
{
    return !own->told || own->begun;
}

/* Sets front_job.again of the stream's jobs that the lost executor had. *steps: those that were looked at so far. */
void front_choose_again(struct front_stream *s, const struct front_job *culprit, unsigned *steps);

/* ---- front_recover.c: what becomes of a lost executor's jobs ---- */

bool front_has_kernel(const struct backend_job *job);
/* The executor was reaped: decides about the jobs that it had. ret_streams: struct front_stream.blocked_link of those
 * that are to go on. */
void front_recover(struct executor *x, struct list *ret_streams);

#endif
