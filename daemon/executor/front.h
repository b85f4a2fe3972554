/* Executors as the daemon sees them. Only the front_ files include this.
 *
 * A front is a backend whose work executors do: a common one for jobs without users' code, one for each domain that has
 * some, and spares. Memory, code and programs are objects under numbers of the daemon's; an executor opens an object
 * when a job first needs it. So an executor that ends is replaced by a new one that has nothing yet.
 *
 * Threads: the loop, the pool, and a keeper for each executor, a thread that starts its process, opens objects there,
 * and ends it. Fields and functions are the loop's unless their comments say otherwise. The daemon believes nothing
 * that an executor writes: an executor that breaks the rules is killed. */
#ifndef KOPS_EXECUTOR_FRONT_H
#define KOPS_EXECUTOR_FRONT_H

#include <pthread.h>
#include <sys/types.h>

#include "executor/executor.h"
#include "executor/forecast.h"
#include "executor/front_executor.h"
#include "executor/record.h"

/* ---- objects: what the daemon has under a number and executors open when they need it: memory and code ---- */

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

/* ---- front_memory.c. Thread: any ---- */

/* A new struct of `size` bytes, which an object begins; the caller's until front_object_close(). NULL: *e. */
void *front_object_new(size_t size, enum front_kind kind, struct front_device *device, struct error *e);
void front_object_set_present(struct front_object *o, const struct executor *x);
/* Takes it off the list, closes it in every executor that has it, and frees the struct. In the common executor it is
 * closed before this returns; keepers close it in the others. Thread: pool. */
void front_object_close(struct front_object *o);
/* The executor with that bit is gone. Thread: loop. */
void front_objects_forget(struct front *f, unsigned bit);
/* Opens an object in the domain's executor, or, where that is lost, in the next one. Thread: pool. */
int front_open_in(struct front_object *o, uint64_t domain, struct error *e);

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

/* The number under which executors have the memory; 0: none. */
uint32_t front_handle(const struct front_device *d, struct backend_memory *memory);
/* Whether the executor has all that the job needs. Thread: loop. */
bool front_has_all(const struct front_device *d, const struct backend_job *job, const struct executor *x);
/* Opens there all that the job needs. Thread: keeper. */
int front_open_all(struct front_device *d, const struct backend_job *job, struct executor *x, struct error *e);

/* ---- front_code.c. Thread: any ---- */

int front_code_load(struct backend_device *device, uint64_t domain, const void *binary, size_t size,
                    struct backend_code **ret_code, struct error *e);
void front_code_unload(struct backend_device *device, struct backend_code *code);
int front_code_function(struct backend_device *device, struct backend_code *code, const char *lowered,
                        struct backend_function *ret_function, struct error *e);
/* Loads the code in an executor where it is not loaded yet. Thread: keeper or pool. */
int front_code_open(struct front_object *o, struct executor *x, struct error *e);
/* The code of a step's function, while a job that launches it is not done. */
struct front_object *front_code_of(uint64_t function);

/* ---- programs, in front_code.c. Thread: loop ---- */

/* The number of the job's program; *ret_replay: the executor has its steps. 0: the job is no program, or has no number
 * left and runs as a sequence. */
uint32_t front_program_of(const struct front_device *d, struct executor *x, const struct backend_job *job,
                          bool *ret_replay);
/* The executor has the steps of the job's program from now on. */
void front_program_note(const struct backend_job *job, const struct executor *x);
void front_program_free(struct backend_device *device, struct backend_program *program);
/* An executor with that bit is gone. */
void front_programs_forget(struct front *f, unsigned bit);

enum { FRONT_REPEATS_MAX = 3 /* how often a job is begun anew whose executor was lost */ };

struct front_device {
    struct backend_device base; /* first */
    struct front *front;
    uint32_t number; /* the executors' */
    struct front_turns turns;
    struct front_hold hold;
    struct executor_device facts;
    const char *variants[OP_COUNT][EXECUTOR_DTYPES][BACKEND_MAX_VARIANTS + 1];
};

/* The server has the queue of a stream. The front knows the jobs that an executor has, and the next one. */
struct front_stream {
    struct list link;    /* in front.busy, while it has jobs or a next one */
    struct list on_link; /* in on->streams */
    struct list blocked_link;
    struct front_device *device;
    uint32_t number;
    enum backend_priority priority;
    struct front_domain *domain; /* domain of the next job, or of the last; NULL: there was no job */
    struct executor *on;         /* the executor that knows the stream; NULL: none */
    struct list jobs;            /* struct backend_job.link: those that the executor has, in order */
    unsigned sent;               /* their number */
    uint64_t likely_ns;          /* time when the last sent job is likely to end; 0: not known */
    struct backend_job *next;    /* the job that waits to be submitted again, or whose objects are opened; NULL: none */
    /* While the keeper opens objects that the next job needs, which the front has taken: */
    struct front_task open;
    struct list opened_link; /* in front.opened; under front.lock */
    bool opening;
    uint64_t end_ns;  /* the executor is to end if it is not done by then; 0: no haste */
    bool opened_late; /* the executor was lost meanwhile */
    int opened;       /* 0, or negative: open_error */
    struct error open_error;
    /* While its next job waits to be alone on the GPU: */
    struct list alone_link; /* in front_hold.alone */
    uint64_t alone_ns;      /* begin of the wait */
    bool beside;            /* the job has waited long enough, and runs beside others */
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
    struct list new_domains; /* under lock: domains that the loop does not know yet */
    struct front_domain *common;
    struct list objects;                  /* under lock: struct front_object.link */
    struct ids handles, codes, functions; /* under lock */
    struct list opened;                   /* under lock: struct front_stream.opened_link */
    struct list worked;                   /* under lock: work of domains that has ended */
    atomic_bool news;                     /* for the loop: states, opened objects, domains that are wanted */
    atomic_uint used;                     /* devices that were ever needed, a bit each */
    bool ending;                          /* under lock: no executor is started for a domain any more */
    bool closing;                         /* under lock: no executor is started any more */
    struct error lost;                    /* under lock: ERROR_NONE, or why no executor can be had any more */

    struct ids stream_ids, program_ids;
    struct list programs; /* struct front_program.link */
    struct list busy;     /* struct front_stream.link: streams with jobs, or a next one */
    struct list failed;   /* struct backend_job.link: ended by the front; done() comes from poll() */
    unsigned unfinished;  /* jobs that submit() has taken */
    uint64_t last_start_ns;
    bool slept;           /* the loop has, since the last look */
    unsigned polls;       /* counted, to look after executors now and then */
    bool wants_room;      /* a domain waits until another one's executor has nothing to do */
    int watch;            /* an epoll of bells and control sockets (data: the executor) and of `timer` (NULL) */
    int timer;            /* see front_set_timer() */
    uint64_t timer_ns;    /* when it is due; UINT64_MAX: never */
    uint64_t next_end_ns; /* the earliest front_job.end_ns; UINT64_MAX: none */
    struct backend_process_counts counts;
    struct forecast forecast;
    struct tuner *tuner; /* functions of the tuner have thread rules of their own */
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

/* ---- front_send.c ---- */

int front_stream_new(struct backend_device *device, enum backend_priority priority, struct backend_stream **ret_stream,
                     struct error *e);
void front_stream_free(struct backend_stream *stream);
bool front_submit(struct backend_stream *stream, struct backend_job *job);
void front_withdraw(struct backend_job *job);
void front_cancel(struct backend_job *job);
/* NULL: no executor has the job. See front_send.c. */
static inline struct front_job *front_job_of(const struct backend_job *job)
{
    return (uintptr_t)job->impl & 1 ? NULL : job->impl;
}
static inline struct backend_job *front_job_at(struct list *node)
{
    return list_entry(node, struct backend_job, link);
}
/* The first job that an executor has of the stream; NULL: none. */
static inline struct front_job *front_first_of(const struct front_stream *s)
{
    return s->sent ? front_job_of(front_job_at(list_first(&s->jobs))) : NULL;
}

/* Has the stream's next job submitted again. */
void front_advance(struct front_stream *s);
/* Advances the streams that wait for the domain, on one GPU or on all. */
void front_advance_on(struct front_domain *d, const struct front_device *gpu);
void front_advance_domain(const struct front *f, struct front_domain *d);
/* The executor no longer has the job, the first of its stream: frees its slot, and takes it off the stream. */
void front_take_back(struct front_job *own);
/* Ends a job of the stream that no executor has. done() comes from poll(). `why` it failed; NULL: it was done. */
void front_end(const struct front_stream *s, struct backend_job *job, const struct error *why);
/* Gives a job that no executor has back to the server's queue: see backend_job.again. */
void front_give_back(struct front_stream *s, struct backend_job *job);
/* Gives jobs back whose objects keepers have opened, and has them submitted again. */
void front_take_opened(struct front *f);

/* ---- front_poll.c ---- */

unsigned front_poll(struct backend_device *device);
void front_arm(struct backend_device *device);
bool front_ends_soon(const struct backend_device *device, uint64_t now_ns);

/* ---- front_records.c: what an executor writes ---- */

/* Takes records of a ready executor, as many as a ring holds at most. */
void front_take_records(struct executor *x);
/* Kills the executor, which broke a rule. */
void front_break_off(struct executor *x, const char *what);

/* ---- front_recover.c: jobs that end with their executor ---- */

/* The executor was reaped: decides about its jobs. ret_streams: struct front_stream.blocked_link of those to go on. */
void front_recover(struct executor *x, struct list *ret_streams);

/* ---- front_deadlines.c: jobs that must end ---- */

bool front_has_kernel(const struct backend_job *job);
/* A job with end_now is in a domain's executor, which is killed if the job does not end within moments. */
void front_end_soon(struct front *f, struct front_job *own);
/* Ends the executor soon whose keeper opens what the stream's next job needs. */
void front_end_opening(struct front_stream *s);
/* Kills the executor where the first job of a stream has run for longer since others wait (`since_ns`). `gpu`: of one
 * of its streams; NULL: of any. */
void front_end_late(struct executor *x, const struct front_device *gpu, uint64_t since_ns, uint64_t longest_ns);
void front_deadlines_turn(struct front *f);

#endif
