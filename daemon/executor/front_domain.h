/* Domains: the executor that serves a domain, and the sharing of each GPU between domains by turns, holds and loads. */
#ifndef KOPS_EXECUTOR_FRONT_DOMAIN_H
#define KOPS_EXECUTOR_FRONT_DOMAIN_H

#include "backend/backend.h"

struct executor;
struct front;
struct front_device;
struct front_job;
struct front_stream;

/* ---- turns: see front_turns.c ---- */

/* A domain's turn on one GPU. */
struct front_turn {
    /* struct front_stream.blocked_link: streams that wait for the executor, for room or for this turn */
    struct list blocked;
    bool has;
    uint64_t since_ns, waiting_ns, had_ns; /* begin of the turn; begin of the wait (0: none); time of all turns */
    uint64_t wanted_at_ns;                 /* front_turns.wanted_ns when the turn began */
    uint64_t late_ns; /* when others began to run beside it, as its jobs do not end; 0: it is not late */
};

/* The turns on one GPU. */
struct front_turns {
    unsigned n, n_late, n_waiting; /* turns; the late ones among them; waiting domains */
    uint64_t least_ns;             /* had_ns that a new domain starts with */
    /* Time in which more domains wanted the GPU than had turns; time up to which that is counted. */
    uint64_t wanted_ns, counted_ns;
    /* When others began to wait, or to have turns beside late ones; the last time that was so. */
    uint64_t beside_ns, seen_ns;
};

/* Work of an executor on one GPU. */
struct front_load {
    unsigned jobs;     /* unfinished jobs of the GPU's streams */
    unsigned in_a_row; /* jobs that ended one after the other, without a pause */
    uint64_t job_ns;   /* typical time of a domain's job once it is the first of its stream, mostly by the last jobs */
    unsigned users;    /* unfinished jobs that work on the GPU or with memory of it */
    uint64_t used_ns;  /* last time when `users` was above 0 */
    uint64_t outlasts_ns; /* when the hold of its exclusive job ended, and others came beside it; 0: no such job */
};

/* ---- holds: see front_hold.c ---- */

/* Last time that an exclusive job of a user began. */
struct front_hold_user {
    uint64_t owner, last_ns;
};

enum { FRONT_HOLD_USERS = 32 /* users that are remembered, the latest ones */ };

/* The hold of one GPU. */
struct front_hold {
    struct executor *holder;     /* the only executor that is sent jobs of the GPU; NULL: all are */
    uint64_t key;                /* the holder's domain */
    struct front_stream *stream; /* stream of the job that holds, or will; NULL: the job has ended */
    uint64_t owner;
    bool exclusive;    /* the job is exclusive, and does not count */
    bool counting;     /* the holder has its job */
    uint64_t since_ns; /* begin of the wait for other executors' jobs, or of counting */
    uint64_t kept_ns;  /* when a job of others began to wait for the hold's end; 0: none waits */
    uint64_t asked_ns; /* when another exclusive job began to wait for the hold; 0: none waits */
    uint64_t again_ns; /* earliest time of another hold */
    bool ended;        /* all domains may go on */
    bool outlasted;    /* some executor has outlasts_ns */
    bool wanted;
    struct list alone; /* struct front_stream.alone_link: streams that wait to be alone, the longest wait first */
    struct front_stream *next; /* the stream in `alone` whose turn it is; NULL: not chosen */
    struct front_hold_user users[FRONT_HOLD_USERS];
};

/* ---- domains ---- */

struct front_domain {
    struct list link; /* in front.new_domains, later in front.domains */
    uint64_t key;
    unsigned codes;            /* under front.lock: number of binaries loaded for the domain */
    struct executor *executor; /* NULL: none. Changed by the loop under front.lock */
    bool wanted;               /* under front.lock: a thread waits for the executor */
    struct list work;          /* under front.lock: work that waits for the executor */
    unsigned n_work, n_given;  /* under front.lock: work not done; the keeper's part of it */
    unsigned failures;         /* starts in a row that failed */
    struct error error;        /* error of the last start */
    uint64_t retry_ns;         /* earliest time of another start */
    uint64_t place_ns;         /* time when it got its executor */
    uint64_t room_ns;          /* when it began to wait for a place for an executor; 0: it does not */
    /* When its executor stopped getting jobs, because others wait for one; 0: it gets jobs. */
    uint64_t leaving_ns;
    unsigned opening; /* streams for whose next job the keeper opens objects */
    unsigned streams; /* streams whose next job, or last job where there is no next, is the domain's */
    struct front_turn turns[BACKEND_MAX_DEVICES]; /* by the device's number */
};

/* ---- front_fleet.c: domains and their executors ---- */

/* Returns the domain of that key, made at first use. NULL: no memory. Thread: any, with front.lock held. */
struct front_domain *front_domain_get(struct front *f, uint64_t key);
void front_domains_take(struct front *f);
/* Returns a ready executor of the domain; waits for one. NULL: *e. Its calls may fail at any time. Give it back with
 * front_executor_release(). Thread: pool. */
struct executor *front_executor_of(struct front *f, uint64_t key, struct error *e);
enum { FRONT_TRIES = 3 /* tries of a call, each in another executor where the one before was lost */ };

/* Tries of a call: `for (struct front_try t = {f, key}; front_try_next(&t, r, e);) r = …`. */
struct front_try {
    struct front *front;
    uint64_t key;
    struct executor *x; /* the executor to call now */
    unsigned n;
};

/* Tells whether to call, again or for the first time. `r` is the call's last result, and -1 at first. Thread: pool. */
bool front_try_next(struct front_try *t, int r, struct error *e);

/* Makes sure that the domain has an executor, or will have one. -1: *e, it cannot. */
int front_domain_serve(struct front_domain *d, struct front *f, struct error *e);
/* Gives the domain an executor, a spare or a new one. */
void front_domain_give(struct front_domain *d, struct executor *x);
/* Takes an executor that has ended, or ends, from its domain. */
void front_domain_lose(struct executor *x);
/* Ends an executor that has no job. The domain keeps its code; a later job gets another executor. */
void front_executor_dismiss(struct executor *x);
/* Starts wanted executors, ends unused ones and keeps spares, after a change. */
void front_domains_turn(struct front *f);
/* backend.work(): queues a domain's work, which may wait for its kernels. */
int front_work(struct backend_device *device, uint64_t key, struct backend_work *work, struct error *e);
/* Calls done() of the work that has ended. */
void front_work_done(struct front *f);

/* ---- front_turns.c: whose kernels go next on a GPU, and the jobs that executors have there ---- */

/* Returns the longest time of a job while others wait for the GPU or for an executor. */
uint64_t front_longest_ns(const struct front *f);
/* Tells whether a job of the domain may be sent to the GPU now; otherwise the domain waits for its turn there. */
bool front_turn_take(struct front_device *gpu, struct front_domain *d);
/* Continues with the turns, after a domain's executor has no job on a GPU any more, or after time has passed. */
void front_turns_turn(struct front *f);
void front_turn_drop(struct front *f, struct front_domain *d);

/* Returns the GPUs that a job of `gpu` works on, or whose memory it uses, a bit each. */
uint32_t front_load_gpus(const struct front_device *gpu, const struct backend_job *job);
void front_load_add(struct executor *x, const struct front_job *own);
void front_load_remove(struct executor *x, const struct front_job *own);

/* ---- front_hold.c: work that is alone on its GPU ---- */

void front_hold_init(struct front_hold *h);
/* Tells whether the stream's next job counts, or is exclusive. */
bool front_hold_is_wanted(const struct front_stream *s, const struct backend_job *job);
/* Tells whether the stream's next job, which works on or with `gpus`, may be sent now to its domain's executor. A job
 * that counts, or is exclusive, waits until no executor has a job on or with its GPU. It holds the others until it has
 * ended or, if exclusive, for as long as others may wait. */
bool front_hold_take(struct front_stream *s, const struct backend_job *job, uint32_t gpus);
void front_hold_sent(const struct front_stream *s, struct front_job *own);
void front_hold_took_back(const struct front_job *own);
/* Forgets the stream's next job, which ends without an executor. */
void front_hold_forget(struct front_stream *s);
/* Ends holds that are over, or last too long. */
void front_hold_turn(struct front *f);
/* Ends the holds of an executor that is about to be freed. */
void front_hold_end(const struct executor *x);

/* Returns the device whose counters the domain's new process takes by a privilege, see privilege.h; -1: none, or no
 * privilege is needed, or allowed. */
int front_privilege_device(const struct front *f, const struct front_domain *d);
/* Tells whether the domain's executor must end: it took counters and has counted, or took those of another device. */
bool front_privilege_is_spent(const struct front *f, const struct front_domain *d);
/* Tells whether no process has taken counters: there is one at a time, until it is reaped. */
bool front_privilege_is_free(const struct front *f);

#endif
