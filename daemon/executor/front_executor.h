/* Executors and domains. An executor: its process, its keeper, calls into it and records to it. */
#ifndef KOPS_EXECUTOR_FRONT_EXECUTOR_H
#define KOPS_EXECUTOR_FRONT_EXECUTOR_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include "backend/backend.h"
#include "executor/call.h"
#include "executor/record.h"

/* ---- small dense numbers, given out lowest first after those that came back. Not thread safe. ---- */

struct ids {
    uint32_t *free; /* owned: numbers that came back; room for every number that is out */
    uint32_t n_free, room, highest, max;
};

static inline void ids_init(struct ids *t, uint32_t max)
{
    *t = (struct ids){.max = max};
}

static inline void ids_free(struct ids *t)
{
    free(t->free);
    t->free = NULL;
}

/* From 1 to max; 0: none is left, or no memory. */
static inline uint32_t ids_take(struct ids *t)
{
    if (t->n_free)
        return t->free[--t->n_free];
    if (t->highest == t->max)
        return 0;
    if (t->highest == t->room) {
        const uint32_t room = t->room ? 2 * t->room : 64;
        uint32_t *more = (uint32_t *)realloc(t->free, room * sizeof(*more));

        if (!more)
            return 0;
        t->free = more;
        t->room = room;
    }
    return ++t->highest;
}

/* Harmless with 0. */
static inline void ids_give(struct ids *t, uint32_t id)
{
    if (id)
        t->free[t->n_free++] = id;
}

/* ---- domains: the executor that serves a domain, and the sharing of each GPU between domains by turns, holds and
 * loads ---- */

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
    bool ended;                /* its connection has: no job comes any more */
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
/* The domain's executor did not start, or ended before it did anything: the next one is started later. */
void front_domain_delay(struct front_domain *d, struct front *f, const struct error *why);
bool front_is_blocked(const struct front *f, const struct front_domain *d);
/* Tells whether a job or other work waits for the domain's executor. */
bool front_domain_is_awaited(struct front *f, const struct front_domain *d);
/* Gives the work that waits to the keeper of the domain's executor. */
void front_domain_give_work(struct front_domain *d);
/* The domain gets no executor: ends its work, and the wait of threads. */
void front_domain_refuse(struct front *f, struct front_domain *d, const struct error *why);
/* Ends the executor, which is to leave, where it opens objects for too long. */
void front_opening_end_late(struct executor *x);
void front_spares_keep(struct front *f);
/* Ends all executors, in order where they do so in time. Thread: any, without others. */
void front_executors_end(struct front *f);
/* backend.work(): queues a domain's work, which may wait for its kernels. */
int front_work(struct backend_device *device, uint64_t key, struct backend_work *work, struct error *e);
/* Calls done() of the work that has ended. */
void front_work_done(struct front *f);
/* Whether the executor of a connection without code stays for a while: jobs come one by one, and the next one would
 * wait for a new process. Users who profile do so again, too. */
bool front_domain_lingers(const struct front_domain *d);
/* The executor has no job any more: sees to it that its domain is looked at when it may be over. */
void front_domain_rests(const struct executor *x);
/* backend.domain_end() */
void front_domain_end(struct backend_device *device, uint64_t key);

/* ---- front_turns.c: whose kernels go next on a GPU, and the jobs that executors have there ---- */

/* Returns the longest time of a job while others wait for the GPU or for an executor. */
uint64_t front_longest_ns(const struct front *f);
/* Tells whether a job of the domain may be sent to the GPU now; otherwise the domain waits for its turn there. */
bool front_turn_take(struct front_device *gpu, struct front_domain *d);
/* Ends turns, after a domain's executor has no job on the GPU any more, or after time has passed. */
void front_turns_turn(struct front_device *gpu);
/* Begins the turn of the next domain, which is to go on. NULL: none. */
struct front_domain *front_turn_next(struct front_device *gpu);
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
/* Ends the hold that is over, or lasts too long. Returns whether streams that waited for its end may go on. */
bool front_hold_turn(struct front_device *gpu);
/* The domain that the GPU is held for, whose job has not been sent. NULL: none. */
struct front_domain *front_hold_next(const struct front_device *gpu);
/* Ends the holds of an executor that is about to be freed. */
void front_hold_end(const struct executor *x);

enum { EXECUTORS_MAX = 60 /* a bit each in front_object.present */, FRONT_EXPECTED_MAX = 1024 };

/* Work for an executor's keeper. */
struct front_task {
    struct list link;
    void (*run)(struct executor *x, struct front_task *task); /* on the keeper; calls fail once x->gone */
};

struct front_job {
    struct backend_job *job; /* NULL: the slot is free */
    struct front_stream *stream;
    uint64_t submitted_ns, first_ns; /* first_ns: time when no earlier job of its stream was left */
    uint32_t slot, serial;           /* the serial tells the slot's jobs apart */
    uint32_t gpus;                   /* GPUs that it works on, or whose memory it uses; a bit each */
    bool alone;                      /* an exclusive job, and no other was on its GPU so far */
    bool told, begun;                /* the executor reported the job lost (job->error); reported it begun */
    bool again;                      /* the next executor gets the job, see front_recover.c */
    uint64_t end_ns;                 /* time by which the job must end; 0: no haste */
    uint64_t kind;                   /* the forecast's key; 0: none */
};

enum front_broken {
    FRONT_SOUND,
    FRONT_BROKEN_CONTEXT, /* the reply says that a context is broken; the executor will say so, too */
    FRONT_BROKEN_SOCKET,  /* the executor has ended, or does not keep to the rules */
    FRONT_BROKEN_TIME     /* no reply in time */
};

/* A job whose time is told after its end. */
struct front_expected {
    uint64_t token, started_ns;
};

struct executor {
    struct list link; /* in front.executors; changed by the loop under front.lock */
    struct front *front;
    struct front_domain *domain; /* NULL: a spare. Changed by the loop under front.lock */
    unsigned bit;
    bool common;
    int counts;   /* number of a device whose counters it takes by a privilege: it counts once, and ends; -1: none */
    uint64_t key; /* key of the domain that it serves or served */

    /* Under front.lock. */
    enum backend_process_state state;
    bool ended;               /* the process was reaped */
    bool stop;                /* end in order, when the tasks are done */
    unsigned users;           /* threads in calls; the executor is freed after the last */
    struct list tasks;        /* struct front_task */
    pthread_cond_t wanted;    /* signalled for a task, or the end */
    struct error start_error; /* error of a start that failed */
    bool silent;              /* the start failed without a reason */
    int pidfd;

    pid_t pid;
    pthread_t keeper;
    int control; /* control socket: its end is the executor's end */
    int bell;    /* see call.h */
    struct executor_region *region;

    /* Calls. Thread: any. */
    pthread_mutex_t lock;
    pthread_cond_t channel_free;
    int channels[CALL_CHANNELS];
    bool channel_busy[CALL_CHANNELS];
    atomic_uint broken; /* enum front_broken: the loop will kill the executor */
    atomic_bool gone;   /* the process has ended or is ending: calls fail, nothing is sent */

    /* Devices that have a context in the executor, a bit each, and the lock for making one. Thread: keeper, pool. */
    atomic_uint active;
    pthread_mutex_t activating;

    bool ready; /* the loop has seen that the executor is ready */
    struct ring out, in;
    struct list overflow; /* struct overflow: small records that wait for room in the ring */
    struct list streams;  /* struct front_stream.on_link: streams that the executor knows */
    struct ids slots;
    struct front_job *jobs;                             /* by slot */
    struct front_expected expected[FRONT_EXPECTED_MAX]; /* by token */
    unsigned unfinished;                                /* jobs in the executor */
    unsigned stretched;        /* polls since the last record after which the loop was told to continue polling */
    unsigned rings;            /* rings of its bell since the last record */
    bool broke;                /* a context of its GPUs is broken, as it said */
    bool vanished;             /* the socket closed before the daemon told the executor to end */
    bool killed;               /* vanished by a SIGKILL that was not the daemon's, for example the OOM killer's */
    bool nonsense;             /* a rule was broken: nothing that the executor writes is read any more */
    uint32_t n_described;      /* devices that the executor described */
    struct error why;          /* reason why it is gone */
    bool useful;               /* a job has ended there */
    bool abandoned;            /* none of its jobs is at fault, or the server knows the culprit */
    struct front_job *culprit; /* job for whose sake the executor is killed; NULL: none */
    uint64_t broken_ns;        /* when the loop learned of `broken`; 0: it has not */
    uint64_t ready_ns;         /* when it became ready for jobs */
    /* used: end of the last job; busy: begin of work; device: sum of work. */
    uint64_t started_ns, used_ns, busy_ns, device_ns;
    struct front_load loads[BACKEND_MAX_DEVICES]; /* by the device's number */
};

/* The executor has ended, or will: what failed in it may do in the next one. Thread: any. */
static inline bool front_is_lost(const struct executor *x)
{
    return atomic_load(&x->gone) || atomic_load(&x->broken);
}

/* ---- two ways to have the loop look at the front: now, and at a time ---- */

/* Tells the loop that there is news. Thread: any. */
void front_tell(struct front *f);
/* Sets the timer to `at_ns` where that is sooner. */
void front_set_timer(struct front *f, uint64_t at_ns);

/* ---- the process ---- */

/* Makes an executor without a process. NULL: *e. */
struct executor *front_process_new(struct front *f, bool common, int counts, struct error *e);
/* Kills the process, or leaves that to the keeper, which reaps it. */
void front_kill(struct executor *x, const struct error *why);
/* Kills the process without a line in the log: the daemon ends. */
void front_abort(struct executor *x);
/* Kills an executor that has ended, or does not answer. */
void front_check(struct executor *x);

/* ---- the keeper ---- */

/* Starts an executor with its keeper. NULL: *e. */
struct executor *front_executor_start(struct front *f, bool common, int counts, struct error *e);
/* Lets it end in order; it takes no more jobs. */
void front_executor_stop(struct executor *x);
/* A thread is done with an executor that it counts among x->users. Thread: any. */
void front_executor_release(struct executor *x);
/* Waits for the threads of an executor that has ended: the keeper, and those in calls, which fail. */
void front_executor_join(struct executor *x);
/* Frees it when they are gone; its bit is another one's from now on. */
void front_executor_free(struct executor *x);
/* Gives the keeper a task. False: it takes none any more. Thread: any, with front.lock held. */
bool front_task_add(struct executor *x, struct front_task *task);

/* ---- calls. Thread: any ---- */

/* A call and its reply. `fds`: of the request; *ret_fd: the reply's only descriptor, NULL where it has none. */
int front_call(struct executor *x, struct call_request *request, const char *text, const int *fds,
               struct call_reply *ret_reply, int *ret_fd, struct error *e);
/* Ends the executor, which said what cannot be: *e. Returns -1. */
int front_distrust(struct executor *x, struct error *e);
/* Makes the device's context there, unless it has one. */
int front_device_open(struct executor *x, uint32_t number, struct error *e);

/* ---- records ---- */

/* Sends a small record now or, when the ring is full, before everything that follows. */
void front_send_record(struct executor *x, const void *record, uint32_t size);
void front_send_number(struct executor *x, enum record_kind kind, uint32_t number, uint32_t serial);
/* Tells the executor that knows the stream to forget it. */
void front_stream_leave(struct front_stream *s);
/* After a record was written: wakes the executor where it sleeps. */
void front_ring_doorbell(const struct executor *x);
/* Sends what waits for room, as far as there is some. */
void front_send_overflow(struct executor *x);

/* ---- front_mps.c: executors that are clients of MPS; see deploy/README.md ---- */

/* The common executor, where the driver said that it reaches a GPU through MPS. Its end by a signal may take other
 * clients of MPS along. Thread: loop, keeper. */
bool front_mps_is_client(const struct executor *x);
/* Tells MPS to end the client's work; returns when MPS has answered, or has not in time. Thread: keeper. */
void front_mps_terminate(pid_t client);

#endif
