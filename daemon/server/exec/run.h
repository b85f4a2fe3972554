/* A run's life: from a decoded request, through its stream and the device, to the reply. Thread: loop. */
#ifndef KOPS_SERVER_EXEC_RUN_H
#define KOPS_SERVER_EXEC_RUN_H

#include "rpc/value.h"
#include "server/exec/command_list.h"
#include "server/exec/stream.h"
#include "server/peer/request.h"

/* Reasons why a run ends early. RUN_ENDING: the daemon ends. */
enum run_stop { RUN_GOES_ON, RUN_CANCELLED, RUN_ENDING, RUN_DEADLINE, RUN_ABANDONED };

/* An offered run is still queued: the first of its stream, which its device does not take yet, or gave back. */
enum run_state { RUN_QUEUED, RUN_OFFERED, RUN_SUBMITTED };

struct run_options {
    uint64_t stream, warmup, repeat;
    bool timing, exact, exclusive;
    uint64_t deadline_ms, ready, done; /* 0: none */
};

/* The state of a request that runs ops: run, launch, sequence, run_program. request_of() gives the request back. */
struct run {
    enum run_state state;
    enum run_stop stop;
    struct command_list commands;
    struct backend_job job;
    struct backend_device *device;
    enum backend_priority priority;
    struct program *program;           /* a reference while it runs; NULL: no program */
    bool rebound;                      /* the command list differs from the program's */
    bool sampled;                      /* timed for the statistics alone */
    struct backend_counters *counters; /* owned: what the job counts; NULL: it runs as usual. See run_methods.c */
    bool must_end;                     /* run_end_now() was called */
    struct stream *stream;
    struct list queue_link, deadline_link;
    unsigned maps_pending;
    uint64_t map_started_ns, ready_ns, deadline_ns;
    uint64_t ready, done; /* timeline values; 0: none */
    double map_us;        /* NAN: every mapping was open */
    bool failed;
    struct error error;
    double sample, *samples; /* `sample` for one, allocated for more */
    /* The command list of a single step. */
    struct tensor one_tensors[STEP_MAX_OPERANDS];
    struct operand_ref one_refs[STEP_MAX_OPERANDS];
    struct step one_step;
    const struct op *one_op;
    struct kernel *one_kernel;
};

/* The observer of runs, which keeps the statistics: observe/. */
struct run_observer {
    /* A run has ended; its reply follows, unless it was answered before. `device_us`: how long its device was busy with
     * it. `total_us`: since the request came. */
    void (*ended)(const struct request *r, const struct run *run, double device_us, double total_us, uint64_t now_ns);
    /* A step of a program ran `count` times, without a measurement. */
    void (*program_ran)(struct server *s, uid_t uid, const struct op_call *call, const struct backend_device *device,
                        const char *variant, uint64_t count);
    /* Whether every run of the user is to be timed. */
    bool (*wants_times)(const struct server *s, uid_t uid);
};

/* run.c: queues a decoded run. */
void run_begin(struct run *run, const struct run_options *o);
/* Refuses a run: answers with the error, for ordered work in its turn. Gives everything back. */
void run_refuse(struct run *run, const struct run_options *o, const struct error *e);
/* The run has ended: replies and gives everything back. */
void run_end(struct run *run);
/* run_decode.c: decodes one op (RUN_…) or one launch (LAUNCH_…): the command list and the device. */
int run_decode_single(struct connection *c, struct run *run, const struct rpc_arg *args, struct error *e);
int launch_decode(struct connection *c, struct run *run, const struct rpc_arg *args, struct error *e);

/* Stops every run of the connection. */
void run_stop_all(struct connection *c, enum run_stop why);

/* reply.c: tells the observer of the ended run, and answers it unless it was answered before. */
void run_reply(struct request *r, struct run *run);
/* Answers a stopped run whose job a device still has. */
void run_reply_early(struct run *run);

/* Tells the device that has the run to let the job end when it can. */
void run_cancel_job(struct run *run);
/* Whether run_end_now() ends it: a run of a domain, on a device whose executors can be ended. */
bool run_can_end_now(const struct run *run);
/* The run's job ends soon, even while a kernel of it runs. Its executor may end with it, which costs other runs of the
 * domain their results. A run behind another one of its stream is only cancelled at first, since its end would be the
 * other's: false. It ends when it is the first one. */
bool run_end_now(struct run *run);

void deadlines_init(struct server *s);

#endif
