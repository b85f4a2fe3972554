/* Domains: which executor serves one, and how domains share the GPUs, each by itself: turns, holds, loads. */
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
    struct list blocked; /* struct front_stream.blocked_link: wait for the executor, room or this turn */
    bool has;
    uint64_t since_ns, waiting_ns, had_ns; /* since when it has it; since when it waits, 0: it does not; in all */
    uint64_t wanted_at_ns;                 /* front_turns.wanted_ns when it began */
    uint64_t late_ns; /* since when others go beside it, as its jobs do not end; 0: it is not late */
};

/* The turns on one GPU. */
struct front_turns {
    unsigned n, n_late, n_waiting;  /* late ones are among the n */
    uint64_t least_ns;              /* what a domain that comes anew is taken to have had */
    uint64_t wanted_ns, counted_ns; /* time in which it was wanted by more than had turns, until then */
    uint64_t beside_ns, seen_ns;    /* others wait, or have turns beside late ones, since then; when that was last so */
};

/* What an executor has on one GPU. */
struct front_load {
    unsigned jobs;        /* unfinished, of the GPU's streams */
    unsigned in_a_row;    /* of these, ended since it had none */
    uint64_t job_ns;      /* how long a domain's job takes once it is the first of its stream, the last ones mostly */
    unsigned users;       /* unfinished jobs that work on the GPU or with memory of it */
    uint64_t used_ns;     /* had the last one then */
    uint64_t outlasts_ns; /* since when its exclusive job has no hold any more, and others are beside it; 0: it has */
};

/* ---- holds: see front_hold.c ---- */

/* When a user's exclusive job last began. */
struct front_hold_user {
    uint64_t owner, last_ns;
};

enum { FRONT_HOLD_USERS = 32 /* that are remembered, the last ones */ };

/* The hold of one GPU. */
struct front_hold {
    struct executor *holder;     /* the only one that is sent a job of the GPU; NULL: all are */
    uint64_t key;                /* its domain */
    struct front_stream *stream; /* whose job it is, or is to be; NULL: it has ended */
    uint64_t owner;              /* the job's */
    bool exclusive;              /* the job is exclusive, and does not count */
    bool counting;               /* the holder has its job */
    uint64_t since_ns;           /* it waits for the others since then, or it counts */
    uint64_t kept_ns;            /* a job of others waits for the hold's end since then; 0: none does */
    uint64_t asked_ns;           /* another exclusive job waits for it since then; 0: none does */
    uint64_t again_ns;           /* no other hold before */
    bool ended;                  /* all domains may go on */
    bool outlasted;              /* an executor has outlasts_ns */
    bool wanted;                 /* a job waits for again_ns */
    struct list alone;         /* struct front_stream.alone_link: wait to be alone, those first that wait for longest */
    struct front_stream *next; /* of these, the one whose turn it is; NULL: not chosen */
    struct front_hold_user users[FRONT_HOLD_USERS];
};

/* ---- domains ---- */

struct front_domain {
    struct list link; /* in front.new_domains, later in front.domains */
    uint64_t key;
    unsigned codes;            /* under front.lock: loaded for it */
    struct executor *executor; /* NULL: none. Changed by the loop under front.lock */
    bool wanted;               /* under front.lock: a thread waits for the executor */
    struct list work;          /* under front.lock: waits for the executor */
    unsigned n_work, n_given;  /* under front.lock: not done; of these, the keeper's */
    unsigned failures;         /* starts in a row that failed */
    struct error error;        /* of the last */
    uint64_t retry_ns;         /* no start before */
    uint64_t place_ns;         /* since when it has its executor */
    uint64_t room_ns;          /* since when it waits for a place for one; 0: it does not */
    uint64_t leaving_ns;       /* since when its executor gets no more, since others wait for one; 0: it does */
    unsigned streams;          /* whose next job, or without one whose last, is the domain's */
    struct front_turn turns[BACKEND_MAX_DEVICES]; /* by the device's number */
};

/* ---- front_fleet.c: domains and their executors ---- */

/* The domain of that key, made at first use. NULL: no memory. Thread: any, with front.lock held. */
struct front_domain *front_domain_get(struct front *f, uint64_t key);
void front_domains_take(struct front *f);
/* A ready executor of the domain; waits for one. NULL: *e. Its calls may fail at any time. To be given back by
 * front_executor_release(). Thread: pool. */
struct executor *front_executor_of(struct front *f, uint64_t key, struct error *e);
enum { FRONT_TRIES = 3 /* of a call, each in another executor where the one before was lost */ };

/* Tries of a call: `for (struct front_try t = {f, key}; front_try_next(&t, r, e);) r = …`. */
struct front_try {
    struct front *front;
    uint64_t key;
    struct executor *x; /* the executor to call now */
    unsigned n;
};

/* Whether to call, again or for the first time: `r` is what the call returned, and -1 at first. Thread: pool. */
bool front_try_next(struct front_try *t, int r, struct error *e);

/* The domain has an executor, or will have one. -1: *e, it cannot. */
int front_domain_serve(struct front_domain *d, struct front *f, struct error *e);
/* The executor, a spare or a new one, serves the domain from now on. */
void front_domain_give(struct front_domain *d, struct executor *x);
/* The executor has ended, or ends: its domain has none. */
void front_domain_lose(struct executor *x);
/* Ends an executor that has no job. The domain keeps its code; a later job gets another executor. */
void front_executor_dismiss(struct executor *x);
/* Something has changed: starts wanted executors, ends those without use, keeps spares. */
void front_domains_turn(struct front *f);
/* backend.work(): a domain's work that may wait for its kernels. */
int front_work(struct backend_device *device, uint64_t key, struct backend_work *work, struct error *e);
/* Calls done() of the work that has ended. */
void front_work_done(struct front *f);

/* ---- front_turns.c: whose kernels go next on a GPU, and the jobs that executors have there ---- */

/* How long one job may take while others wait for the GPU or for an executor. */
uint64_t front_longest_ns(const struct front *f);
/* Whether a job of the domain may be sent to the GPU now; else the domain waits for its turn there. */
bool front_turn_take(struct front_device *gpu, struct front_domain *d);
/* A domain's executor has no job on a GPU any more, or time has passed: turns go on. */
void front_turns_turn(struct front *f);
void front_turn_drop(struct front *f, struct front_domain *d);

/* The GPUs that a job of `gpu` works on, or with whose memory, a bit each. */
uint32_t front_load_gpus(const struct front_device *gpu, const struct backend_job *job);
void front_load_add(struct executor *x, const struct front_job *own);
void front_load_remove(struct executor *x, const struct front_job *own);

/* ---- front_hold.c: work that is alone on its GPU ---- */

void front_hold_init(struct front_hold *h);
/* Whether the stream's next job counts, or is to be alone. */
bool front_hold_is_wanted(const struct front_stream *s, const struct backend_job *job);
/* Whether the stream's next job, which works on or with `gpus`, may be sent now to its domain's executor. A job that
 * counts, or is exclusive, waits until no executor has a job on or with its GPU, and holds the others until it has
 * ended, or, exclusive, for as long as others may wait. */
bool front_hold_take(struct front_stream *s, const struct backend_job *job, uint32_t gpus);
void front_hold_sent(const struct front_stream *s, struct front_job *own);
void front_hold_took_back(const struct front_job *own);
/* The stream's first unsent job ends, or goes. */
void front_hold_forget(struct front_stream *s);
/* Holds that are over, or last too long, end. */
void front_hold_turn(struct front *f);
/* The executor ends its holds: it is about to be freed. */
void front_hold_end(const struct executor *x);

/* The device whose counters the domain's new process is to take by a privilege, see privilege.h; -1: none, or no
 * privilege is needed, or allowed. */
int front_privilege_device(const struct front *f, const struct front_domain *d);
/* Whether the domain's executor took counters and has counted, or took those of another device: it is to end. */
bool front_privilege_is_spent(const struct front *f, const struct front_domain *d);
/* Whether no process has taken counters: there is one at a time, until it is reaped. */
bool front_privilege_is_free(const struct front *f);

#endif
