/* Executors as the daemon sees them. Only the front_ files include this.
 *
 * A front is a backend whose work is done by executors: a common one for jobs without code of users, one for each
 * domain that has some, and spares. Memory, code and programs are objects under numbers of the daemon's; an executor
 * opens one when a job of its first needs it. So an executor that ends is replaced by a new one that has nothing yet.
 *
 * Threads: the loop, the pool, and a keeper for each executor, a thread that starts its process, opens objects there,
 * and ends it. Fields are the loop's but where said. Nothing that an executor writes is believed: one that breaks the
 * rules is killed. */
#ifndef KOPS_EXECUTOR_FRONT_H
#define KOPS_EXECUTOR_FRONT_H

#include <pthread.h>
#include <sys/types.h>

#include "executor/call.h"
#include "executor/executor.h"
#include "executor/forecast.h"
#include "executor/front_share.h"
#include "executor/ids.h"
#include "executor/record.h"
#include "executor/region.h"

enum {
    EXECUTORS_MAX = 60,   /* a bit each in front_object.present */
    FRONT_REPEATS_MAX = 3 /* how often a job is begun anew whose executor was lost */
};

struct front;
struct executor;

/* Work for an executor's keeper. */
struct front_task {
    struct list link;
    void (*run)(struct executor *x, struct front_task *task); /* on the keeper; calls fail once x->gone */
};

/* ---- executors ---- */

/* A job that an executor has. */
struct front_job {
    struct backend_job *job; /* NULL: the slot is free */
    struct front_stream *stream;
    uint64_t submitted_ns, first_ns; /* first_ns: no job of its stream was before it any more */
    uint32_t slot, serial;           /* the serial tells the slot's jobs apart */
    uint32_t gpus;                   /* that it works on, or with whose memory; a bit each */
    bool alone;                      /* it is exclusive, and no other job was on its GPU so far */
    bool told, begun;                /* the executor said that it lost the job (job->error), and that it had begun */
    bool again;                      /* the next executor gets it, see front_repeat.c */
    uint64_t end_ns;                 /* it is to end by then; 0: no haste */
    uint64_t kind;                   /* the forecast's key; 0: none */
};

/* What a call has shown. */
enum front_broken {
    FRONT_SOUND,
    FRONT_BROKEN_CONTEXT, /* the reply says that a context is broken; the executor will say so, too */
    FRONT_BROKEN_SOCKET,  /* the executor has ended, or does not keep to the rules */
    FRONT_BROKEN_TIME     /* there was no reply in time */
};

enum { FRONT_EXPECTED_MAX = 1024 };

/* A job whose time comes later. */
struct front_expected {
    uint64_t token, started_ns;
};

struct executor {
    struct list link; /* in front.executors; changed by the loop under front.lock */
    struct front *front;
    struct front_domain *domain; /* NULL: a spare. Changed by the loop under front.lock */
    unsigned bit;
    bool common;
    int counts;   /* a device's number: it takes that one's counters by a privilege, counts once, and ends; -1: none */
    uint64_t key; /* of the domain that it serves or served */

    /* Under front.lock. */
    enum backend_process_state state;
    bool ended;               /* the process was reaped */
    bool stop;                /* ends in order, when its tasks are done */
    unsigned users;           /* threads in calls; it is freed after the last */
    struct list tasks;        /* struct front_task */
    pthread_cond_t wanted;    /* a task, or the end */
    struct error start_error; /* where it never got ready */
    bool silent;              /* and ended without saying why */
    int pidfd;

    pid_t pid;
    pthread_t keeper;
    int control; /* its end is the executor's */
    int bell;    /* see bell.h */
    struct executor_region *region;

    /* Calls. Thread: any. */
    pthread_mutex_t lock;
    pthread_cond_t channel_free;
    int channels[CALL_CHANNELS];
    bool channel_busy[CALL_CHANNELS];
    atomic_uint broken; /* enum front_broken: the loop will kill the executor */
    atomic_bool gone;   /* the process has ended or is ending: calls fail, nothing is sent */

    /* Devices that have a context there, a bit each, and the lock of those who make one. Thread: keeper, pool. */
    atomic_uint active;
    pthread_mutex_t activating;

    bool ready; /* the loop has seen that it is */
    struct ring out, in;
    struct list overflow; /* struct overflow: small records that wait for room in the ring */
    struct list streams;  /* struct front_stream.on_link: those that it knows */
    struct ids slots;
    struct front_job *jobs;                             /* by slot */
    struct front_expected expected[FRONT_EXPECTED_MAX]; /* by token */
    unsigned unfinished;                                /* jobs that it has */
    unsigned stretched;        /* polls since the last record for which the loop was told to go on polling */
    unsigned rings;            /* of its bell since the last record */
    bool broke;                /* it said that a context of its GPUs is broken */
    bool vanished;             /* its socket closed before the daemon told it to end */
    bool killed;               /* it vanished by a SIGKILL that was not the daemon's, for example of the OOM killer */
    bool nonsense;             /* it broke the rules: nothing of it is read any more */
    uint32_t n_described;      /* devices that it said it has */
    struct error why;          /* why it is gone */
    bool useful;               /* a job has ended there */
    bool abandoned;            /* none of its jobs is at fault, or the server knows the culprit */
    struct front_job *culprit; /* it is killed to end this job; NULL: otherwise */
    uint64_t broken_ns;        /* since when the loop knows of `broken`; 0: it does not */
    uint64_t ready_ns;         /* since when it could have jobs */
    uint64_t started_ns, used_ns, busy_ns, device_ns; /* used: had its last job; busy: since when; device: in all */
    struct front_load loads[BACKEND_MAX_DEVICES];     /* by the device's number */
};

/* ---- domains ---- */

struct front_domain {
    struct list link; /* in front.new_domains, later in front.domains */
    uint64_t key;
    unsigned codes;            /* under front.lock: loaded for it */
    struct executor *executor; /* NULL: none. Changed by the loop under front.lock */
    bool wanted;               /* under front.lock: a thread waits for the executor */
    struct list work;          /* under front.lock: waits for the executor, see front_work.c */
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

/* ---- the front ---- */

struct front_device {
    struct backend_device base; /* first */
    struct front *front;
    uint32_t number; /* the executors' */
    struct front_turns turns;
    struct front_hold hold;
    struct executor_device facts;
    const char *variants[OP_COUNT][EXECUTOR_DTYPES][BACKEND_MAX_VARIANTS + 1];
};

struct front_stream {
    struct list link;    /* in front.busy, while it has jobs */
    struct list on_link; /* in on->streams */
    struct list blocked_link;
    struct front_device *device;
    uint32_t number;
    enum backend_priority priority;
    struct front_domain *domain; /* of the next job, or the last; NULL: it has no jobs */
    struct executor *on;         /* knows the stream; NULL: none */
    struct list jobs;            /* struct backend_job.link, in submission order, until done */
    struct list *unsent;         /* the first job that the executor does not have; &jobs: none */
    unsigned sent;               /* jobs before it */
    uint64_t likely_ns;          /* when the last of them is likely to end; 0: not known */
    /* While the keeper opens what the first unsent job needs. */
    struct front_task prepare;
    struct list prepared_link; /* in front.prepared; under front.lock */
    bool preparing;
    struct backend_job *prepare_job;
    uint64_t end_ns;    /* the executor is to end if it is not done by then; 0: no haste */
    bool prepared_late; /* the executor was lost meanwhile */
    int prepared;       /* 0, or negative: prepare_error */
    bool refused;       /* the first unsent job ends with prepare_error */
    struct error prepare_error;
    /* While its first unsent job waits to be alone on the GPU; see front_alone.c. */
    struct list alone_link; /* in front_hold.alone */
    uint64_t alone_ns;      /* since when */
    bool beside;            /* it has waited long enough, and runs beside others */
};

struct front {
    struct backend_host host;
    struct backend_config config;
    struct front_device *devices[BACKEND_MAX_DEVICES];
    unsigned n_devices, n_open;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* an executor's state, or a domain's executor */
    struct list executors;  /* struct executor.link */
    struct executor *by_bit[EXECUTORS_MAX];
    struct list domains;     /* struct front_domain.link */
    struct list new_domains; /* under lock: the same, until the loop knows them */
    struct front_domain *common;
    struct list objects;                  /* under lock: struct front_object.link */
    struct ids handles, codes, functions; /* under lock */
    struct list prepared;                 /* under lock: struct front_stream.prepared_link */
    struct list worked;                   /* under lock: see front_work.c */
    atomic_bool news;                     /* for the loop: states, prepared streams, domains that are wanted */
    atomic_uint used;                     /* devices that were ever needed, a bit each */
    bool ending;                          /* under lock: no executor is started for a domain any more */
    bool closing;                         /* under lock: no executor is started any more */
    struct error lost;                    /* under lock: ERROR_NONE, or why no executor can be had any more */

    struct ids stream_ids, program_ids;
    struct list programs; /* struct front_program.link */
    struct list busy;     /* struct front_stream.link: streams with jobs */
    struct list failed;   /* struct backend_job.link: ended by the front; done() comes from poll() */
    unsigned unfinished;  /* jobs, sent or not */
    uint64_t last_start_ns;
    bool slept;           /* the loop has, since the last look */
    unsigned polls;       /* counted, to look after executors now and then */
    bool wants_room;      /* a domain waits until another one's executor has nothing to do */
    int watch;            /* an epoll of bells and control sockets (data: the executor) and of `timer` (NULL) */
    int timer;            /* see front_set_timer() */
    uint64_t timer_ns;    /* what it is set to; UINT64_MAX: nothing */
    uint64_t next_end_ns; /* the earliest front_job.end_ns; UINT64_MAX: none */
    struct backend_process_counts counts;
    struct forecast forecast;
    struct tuner *tuner; /* its functions have rules of their own */
};

static inline struct front_device *front_device(struct backend_device *base)
{
    return (struct front_device *)(void *)base;
}

/* ---- front.c ---- */

/* A front without executors and devices. NULL: *e. */
struct front *front_new(const struct backend_config *config, const struct backend_host *host, struct error *e);
/* Ends all executors. No job is left, no call is under way. */
void front_free(struct front *f);

/* ---- front_process.c: an executor's process ---- */

/* A new executor without a process. NULL: *e. Thread: loop. */
struct executor *front_process_new(struct front *f, bool common, int counts, struct error *e);
void front_process_free(struct executor *x);
/* Starts the process and waits until it has described its devices. Thread: keeper. */
int front_process_start(struct executor *x, struct error *e);
/* Ends the process, in order or, where it is gone, at once, and reaps it. A client of MPS is ended by MPS and in order
 * before it is killed. Thread: keeper. */
void front_process_end(struct executor *x);
/* Kills the process, or leaves that to the keeper, which reaps it. Thread: loop. */
void front_kill(struct executor *x, const struct error *why);
/* The same without a line in the log: the daemon ends. Thread: loop. */
void front_abort(struct executor *x);
/* The loop does not wake for it any more: it is about to end. Thread: loop. */
void front_unwatch(const struct executor *x);
/* Looks whether the executor is still there and answers. Thread: loop. */
void front_check(struct executor *x);

/* ---- front_mps.c: executors that are clients of MPS; see deploy/README.md ---- */

/* The common executor, where the driver said that it reaches a GPU through MPS. Its end by a signal may take other
 * clients of MPS along. Thread: loop, keeper. */
bool front_mps_is_client(const struct executor *x);
/* Tells MPS to end the client's work; returns when MPS has answered, or has not in time. Thread: keeper. */
void front_mps_terminate(pid_t client);

/* ---- front_call.c ---- */

/* A call and its reply. `fds`: of the request; *ret_fd: the reply's only descriptor, NULL where it has none. Thread:
 * any. */
int front_call(struct executor *x, struct call_request *request, const char *text, const int *fds,
               struct call_reply *ret_reply, int *ret_fd, struct error *e);
/* Ends the executor, which said what cannot be: *e. Returns -1. Thread: any. */
int front_distrust(struct executor *x, struct error *e);
/* Tells the loop that there is news. Thread: any. */
void front_tell(struct front *f);
/* Sets the timer to `at_ns` where that is sooner. Thread: loop. */
void front_set_timer(struct front *f, uint64_t at_ns);

/* ---- front_ring.c; the loop ---- */

/* Sends a small record now or, when the ring is full, before everything that follows. */
void front_send_record(struct executor *x, const void *record, uint32_t size);
/* The record `kind` about a number. */
void front_send_number(struct executor *x, enum record_kind kind, uint32_t number, uint32_t serial);
/* After a record was written: wakes the executor where it sleeps. */
void front_ring_doorbell(const struct executor *x);
/* Sends what waits for room. Returns false while some still does. */
bool front_send_overflow(struct executor *x);
void front_drop_overflow(struct executor *x);

/* ---- front_keeper.c: the keepers ---- */

/* Starts an executor with its keeper. NULL: *e. Thread: loop. */
struct executor *front_executor_start(struct front *f, bool common, int counts, struct error *e);
/* Lets it end in order; it takes no more jobs. Thread: loop. */
void front_executor_stop(struct executor *x);
/* A thread is done with an executor that it counts among x->users. Thread: any. */
void front_executor_release(struct executor *x);
/* Ends all executors, in order where they do so in time. Thread: any, without others. */
void front_executors_end(struct front *f);
/* Waits for the threads of an executor that has ended: the keeper, and those in calls, which fail. Thread: loop. */
void front_executor_join(struct executor *x);
/* Frees it when they are gone; its bit is another one's from now on. Thread: loop. */
void front_executor_free(struct executor *x);
/* Gives the keeper a task. False: it takes none any more. Thread: any, with front.lock held. */
bool front_task_add(struct executor *x, struct front_task *task);

/* ---- front_domain.c: which executor serves a domain ---- */

/* The domain of that key, made at first use. NULL: no memory. Thread: any, with front.lock held. */
struct front_domain *front_domain_get(struct front *f, uint64_t key);
/* The loop gets to know new domains. */
void front_domains_take(struct front *f);
enum { FRONT_TRIES = 3 /* of a call, each in another executor where the one before was lost */ };

/* The executor has ended, or will: what failed in it may do in the next one. Thread: any. */
static inline bool front_is_lost(const struct executor *x)
{
    return atomic_load(&x->gone) || atomic_load(&x->broken);
}

/* An executor of the domain that is ready, waiting for one. NULL: *e. Its calls may fail at any time. To be given back
 * by front_executor_release(). Thread: pool. */
struct executor *front_executor_of(struct front *f, uint64_t key, struct error *e);
/* Why the domain gets no executor; false: it may yet. Thread: any, with front.lock held, or the loop. */
bool front_is_refused(const struct front *f, const struct front_domain *d, struct error *e);
/* The executor has ended, or ends: its domain has none. Thread: loop. */
void front_domain_lose(struct executor *x);

/* ---- front_work.c: a domain's work that may wait for its kernels ---- */

/* backend.work(). Thread: loop. */
int front_work(struct backend_device *device, uint64_t key, struct backend_work *work, struct error *e);
/* The executor whose keeper the calling thread is, while that does such work; else NULL. */
struct executor *front_work_executor(void);
/* Gives the keeper of the domain's executor what waits, where that is ready. Thread: loop; so for the next two. */
void front_work_give(struct front_domain *d);
/* The domain gets no executor. */
void front_work_refuse(struct front *f, struct front_domain *d, const struct error *why);
/* Calls done() of the work that has ended. */
void front_work_done(struct front *f);

/* ---- front_object.c: what executors open ---- */

enum front_kind { FRONT_MEMORY, FRONT_HOST, FRONT_CODE };

struct front_object {
    struct list link; /* in front.objects, under front.lock */
    enum front_kind kind;
    uint32_t handle;
    atomic_ullong present; /* executors that have all of it, a bit each */
    atomic_ullong opened;  /* executors that may have some of it, and must close it */
    uint64_t opening;      /* under front.lock: executors in which a thread opens it */
    atomic_uint closing;   /* closes that go on, and one for the owner */
    struct front_device *device;
};

static inline bool front_is_present(const struct front_object *o, const struct executor *x)
{
    return atomic_load_explicit(&o->present, memory_order_acquire) >> x->bit & 1;
}

/* Adds a new object: the struct that it begins is the caller's, from malloc(), until front_object_close(). 0, or -1: no
 * number is left. Thread: any. */
int front_object_add(struct front_object *o, enum front_kind kind, struct front_device *device, struct error *e);
void front_object_set_present(struct front_object *o, const struct executor *x);
/* Lets one thread open the object in an executor; others wait for it. False: the object is there. Thread: any. */
bool front_object_begin(struct front_object *o, const struct executor *x);
void front_object_end(struct front_object *o, const struct executor *x);
/* Takes it off the list, closes it in every executor that has it, and frees the struct. In the common executor it is
 * closed before this returns; keepers close it in the others. Thread: pool. */
void front_object_close(struct front_object *o);
/* No executor has the bit any more. Thread: loop. */
void front_objects_forget(struct front *f, unsigned bit);

/* ---- front_memory.c; any thread ---- */

int front_memory_import(struct backend_device *device, const struct backend_import *import,
                        struct backend_memory **ret_memory, struct error *e);
int front_memory_alloc(struct backend_device *device, uint64_t size, struct backend_memory **ret_memory, int *ret_fd,
                       struct error *e);
void front_memory_close(struct backend_memory *memory);
int front_memory_extend(struct backend_memory *memory, const struct backend_import *more, uint64_t *ret_size,
                        struct error *e);
int front_memory_attach(struct backend_device *device, struct backend_memory *memory, struct error *e);
void front_memory_detach(struct backend_device *device, struct backend_memory *memory);
int front_memory_free(struct backend_device *device, uint64_t *ret_bytes);

/* ---- front_operands.c: what a job needs ---- */

/* The number under which executors have the memory; 0: none. */
uint32_t front_handle(const struct front_device *d, struct backend_memory *memory);
/* Whether the executor has all that the job needs. Thread: loop. */
bool front_has_all(const struct front_device *d, const struct backend_job *job, const struct executor *x);
/* Makes the device's context there, unless it has one. Thread: keeper or pool. */
int front_device_open(struct executor *x, uint32_t number, struct error *e);
/* Opens there all that the job needs. Thread: keeper. */
int front_open_all(struct front_device *d, const struct backend_job *job, struct executor *x, struct error *e);
/* Opens an object in the domain's executor, or, where that is lost, in the next one. Thread: pool. */
int front_open_in(struct front_object *o, uint64_t domain, struct error *e);
/* Opens one object in an executor where it is not open yet. Thread: keeper or pool. */
int front_memory_open(struct front_object *o, struct executor *x, struct error *e);
int front_host_open(struct front_object *o, struct executor *x, struct error *e);
int front_code_open(struct front_object *o, struct executor *x, struct error *e);
/* An executor with that bit is gone. With front.lock held. */
void front_memory_forget(struct front_object *o, unsigned bit);
/* The object of device memory. */
struct front_object *front_memory_object(struct backend_memory *memory);
/* The record of a memfd on the device, made at first use. NULL: *e. */
struct front_object *front_host_of(struct front_device *d, struct backend_memory *memory, bool attach, struct error *e);

/* ---- front_code.c; any thread ---- */

int front_code_load(struct backend_device *device, uint64_t domain, const void *binary, size_t size,
                    struct backend_code **ret_code, struct error *e);
void front_code_unload(struct backend_device *device, struct backend_code *code);
int front_code_function(struct backend_device *device, struct backend_code *code, const char *lowered,
                        struct backend_function *ret_function, struct error *e);
/* The code of a step's function. Thread: any, while a job that launches it is not done. */
struct front_object *front_code_of(uint64_t function);

/* ---- front_send.c ---- */

int front_stream_new(struct backend_device *device, enum backend_priority priority, struct backend_stream **ret_stream,
                     struct error *e);
void front_stream_free(struct backend_stream *stream);
void front_submit(struct backend_stream *stream, struct backend_job *job);
void front_cancel(struct backend_job *job);
/* What an executor knows as a job; NULL: none has it. */
struct front_job *front_job_of(const struct backend_job *job);

/* Sends the stream's jobs in order, as many as may go now; the stream waits where it must. */
void front_advance(struct front_stream *s);
/* The same for all streams of the GPU that wait for the domain. */
void front_advance_on(struct front_domain *d, const struct front_device *gpu);
/* The same on all GPUs. */
void front_advance_domain(const struct front *f, struct front_domain *d);
/* Whether a stream waits for the domain. */
bool front_is_blocked(const struct front *f, const struct front_domain *d);
/* The executor forgets the stream. */
void front_stream_leave(struct front_stream *s);
/* Ends a job that no executor has: takes it off its stream. done() comes from poll(). `why` it failed; NULL: it was
 * done. */
void front_end(struct front_stream *s, struct backend_job *job, const struct error *why);

/* ---- front_program.c; the loop ---- */

/* The number of the job's program; *ret_replay: the executor has its steps. 0: the job is no program, or has no number
 * left and runs as a sequence. */
uint32_t front_program_of(const struct front_device *d, struct executor *x, const struct backend_job *job,
                          bool *ret_replay);
/* The executor has the steps of the job's program from now on. */
void front_program_note(const struct backend_job *job, const struct executor *x);
void front_program_free(struct backend_device *device, struct backend_program *program);

/* An executor with that bit is gone. */
void front_programs_forget(struct front *f, unsigned bit);

/* ---- front_poll.c ---- */

unsigned front_poll(struct backend_device *device);
void front_arm(struct backend_device *device);
bool front_ends_soon(const struct backend_device *device, uint64_t now_ns);
/* The executor no longer has the job, the first of its stream: frees its slot. The job stays on its stream. */
void front_take_back(struct front_job *own);
/* Takes the job, which no executor has, off its stream for done(). */
void front_leave_stream(struct front_stream *s, struct backend_job *job);

/* All that an executor that has ended had said. */
void front_take_rest(struct executor *x);

#endif
