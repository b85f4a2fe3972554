/* An executor: its process, its keeper, calls into it and records to it. */
#ifndef KOPS_EXECUTOR_FRONT_EXECUTOR_H
#define KOPS_EXECUTOR_FRONT_EXECUTOR_H

#include <pthread.h>
#include <sys/types.h>

#include "executor/call.h"
#include "executor/front_domain.h"
#include "executor/ids.h"
#include "executor/record.h"

enum { EXECUTORS_MAX = 60 /* a bit each in front_object.present */, FRONT_EXPECTED_MAX = 1024 };

struct front;
struct front_stream;

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
/* Ends all executors, in order where they do so in time. Thread: any, without others. */
void front_executors_end(struct front *f);
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
