/* An executor as the daemon sees it. Only the front_ files include this.
 *
 * Threads: fields are the loop's but where said. Nothing that the executor writes is believed: an executor that breaks
 * the rules is killed, and its jobs end with device_lost. */
#ifndef KOPS_EXECUTOR_FRONT_H
#define KOPS_EXECUTOR_FRONT_H

#include <pthread.h>
#include <sys/types.h>

#include "executor/call.h"
#include "executor/executor.h"
#include "executor/ids.h"
#include "executor/record.h"
#include "executor/region.h"

/* A job that the executor has. */
struct front_job {
    struct backend_job *job; /* NULL: the slot is free */
    struct front_stream *stream;
    uint64_t submitted_ns;
    uint32_t slot, serial; /* the serial tells the slot's jobs apart */
};

struct executor {
    pid_t pid;
    int pidfd;
    int control; /* its end is the executor's */
    int bell;    /* see bell.h */
    int watch;   /* an epoll of `bell` and `control` */
    struct executor_region *region;
    struct backend_host host;

    /* Calls. Thread: any. */
    pthread_mutex_t lock;
    pthread_cond_t channel_free;
    int channels[CALL_CHANNELS];
    bool channel_busy[CALL_CHANNELS];
    struct ids handles;
    atomic_bool broken; /* a call failed on its way: the loop will kill the executor */
    atomic_bool gone;   /* the process has ended or is ending: calls fail, jobs end */

    struct ring out, in;
    struct list overflow; /* struct overflow: small records that wait for room in the ring */
    struct list blocked;  /* struct front_stream.blocked_link: streams whose jobs wait for room */
    struct list busy;     /* struct front_stream.link: streams with jobs */
    struct ids stream_ids, program_ids, slots;
    struct front_job *jobs; /* by slot */
    unsigned unfinished;
    unsigned polls;       /* counted, to look after the process now and then */
    unsigned stretched;   /* polls since the last record for which the loop was told to go on polling */
    bool slept;           /* since the last look: the executor may have rung */
    uint32_t n_described; /* devices that it said it has */
    struct error why;     /* what jobs end with once it is gone */
    unsigned n_open;
};

struct front_device {
    struct backend_device base; /* first */
    struct executor *executor;
    uint32_t number; /* the executor's */
    struct executor_device facts;
    const char *variants[OP_COUNT][EXECUTOR_DTYPES][BACKEND_MAX_VARIANTS + 1];
};

struct front_stream {
    struct list link, blocked_link;
    struct front_device *device;
    uint32_t number;
    struct list jobs;    /* struct backend_job.link, in submission order, until done */
    struct list *unsent; /* the first job that the executor does not have; &jobs: none */
};

/* Device memory that an executor has open. */
struct front_memory {
    struct backend_memory base; /* first */
    uint32_t handle;
};

/* Shared host memory that an executor has mapped: backend_memory.attached. */
struct front_attachment {
    uint32_t handle;
};

static inline struct front_device *front_device(struct backend_device *base)
{
    return (struct front_device *)(void *)base;
}

/* ---- front_process.c ---- */

/* Starts an executor that opens `config`'s devices, and waits until it is ready. */
int front_start(struct executor *x, const struct backend_config *config, const struct backend_host *host,
                struct error *e);
/* Ends it in order, or after front_kill() only tidies up. No job is left, no call is under way. */
void front_stop(struct executor *x);
/* Ends it now. `why`: what its jobs end with. Thread: loop. */
void front_kill(struct executor *x, const struct error *why);
/* Looks whether the executor is still there and answers. */
void front_check(struct executor *x);

/* ---- front_memory.c; any thread ---- */

/* A call and its reply. `fds`: of the request; *ret_fd: the reply's only descriptor, NULL where it has none. */
int front_call(struct executor *x, struct call_request *request, const char *text, const int *fds,
               struct call_reply *ret_reply, int *ret_fd, struct error *e);

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

/* The executor's handle of a memory that it has; 0: it has not. */
uint32_t front_handle(const struct backend_device *device, uint32_t memory_id);
bool front_needs_prepare(struct backend_device *device, const struct backend_job *job);
int front_prepare(struct backend_stream *stream, struct backend_job *job, struct error *e);

/* ---- front_code.c; any thread ---- */

int front_code_load(struct backend_device *device, uint64_t domain, const void *binary, size_t size,
                    struct backend_code **ret_code, struct error *e);
void front_code_unload(struct backend_device *device, struct backend_code *code);
int front_code_function(struct backend_device *device, struct backend_code *code, const char *lowered,
                        struct backend_function *ret_function, struct error *e);

/* ---- front_send.c ---- */

int front_stream_new(struct backend_device *device, enum backend_priority priority, struct backend_stream **ret_stream,
                     struct error *e);
void front_stream_free(struct backend_stream *stream);
void front_submit(struct backend_stream *stream, struct backend_job *job);
void front_cancel(struct backend_job *job);
void front_program_free(struct backend_device *device, struct backend_program *program);

/* What waits because the ring was full. */
static inline bool front_has_rest(const struct executor *x)
{
    return !list_empty(&x->overflow) || !list_empty(&x->blocked);
}

/* Sends it as far as there is room. */
void front_send_rest(struct executor *x);
/* Forgets it; the jobs stay on their streams. */
void front_drop_rest(struct executor *x);

/* ---- front_poll.c ---- */

unsigned front_poll(struct backend_device *device);
void front_arm(struct backend_device *device);

#endif
