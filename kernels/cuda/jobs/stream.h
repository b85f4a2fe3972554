/* Streams: device queues whose jobs run in order, kept for reuse, since making one takes long. Thread: loop, except
 * where a function says otherwise. */
#ifndef KOPS_CUDA_STREAM_H
#define KOPS_CUDA_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver/device.h"
#include "stamps.h"
#include "util/list.h"

/* Marks: the values that a stream's flag gets, one behind each execution. Marks are random, since a user's kernel can
 * write to the page of flags but cannot guess a mark. An execution has ended when the flag has its mark or a later
 * one. */

enum { MARKS_WINDOW = 64 /* outstanding marks of a stream; a power of two */ };

/* A generator whose numbers cannot be predicted without reading this struct, which no other process can. */
struct cuda_random {
    uint64_t key[2], drawn;
};

/* False: the system gives no random numbers, as early in the boot. */
bool cuda_random_seed(struct cuda_random *random);
/* Returns a number that is not 0. */
uint64_t cuda_random_next(struct cuda_random *random);

struct cuda_marks {
    uint64_t issued, ended; /* numbers of the last mark that was issued, and that was seen in the flag */
    uint64_t seen;          /* the value of mark `ended`; 0 before the first */
    uint64_t values[MARKS_WINDOW];
};

/* Returns the value of the next mark, which is valid after cuda_marks_issue(). */
uint64_t cuda_marks_next(struct cuda_marks *marks, struct cuda_random *random);
/* Returns the number of the mark, from 1. */
static inline uint64_t cuda_marks_issue(struct cuda_marks *marks)
{
    return ++marks->issued;
}

/* Looks for the flag's value among the outstanding marks. Other values, written by a kernel or torn, are ignored. */
void cuda_marks_look(struct cuda_marks *marks, uint64_t value);

static inline uint64_t cuda_marks_ended(struct cuda_marks *marks, const atomic_ullong *flag)
{
    const uint64_t value = atomic_load_explicit(flag, memory_order_acquire);

    if (value != marks->seen)
        cuda_marks_look(marks, value);
    return marks->ended;
}

struct cuda_executor;

struct cuda_streams {
    struct cuda_device *device;
    uint64_t workspace_bytes;
    struct cuda_flags flags;
    struct cuda_random random;        /* makes the streams' marks */
    int priorities[PRIORITY_COUNT];   /* the driver's numbers */
    struct list idle[PRIORITY_COUNT]; /* struct cuda_stream, for the next connection */
    unsigned idle_count[PRIORITY_COUNT];
    unsigned workspaces; /* streams with a workspace */
    atomic_uint smalls;  /* streams with small memory */
};

struct cuda_stream {
    struct cuda_queue queue; /* non-blocking: never waits for the default stream */
    struct cuda_streams *streams;
    struct cuda_executor *executor;
    struct list jobs;    /* struct backend_job.link, in submission order, until done */
    struct list *next;   /* the first job that is not fully issued; &jobs: none */
    unsigned unfinished; /* length of `jobs` */
    struct list link;    /* in executor->busy while it has jobs, or in streams->idle */
    enum backend_priority priority;
    unsigned in_flight;       /* issued executions whose end was not yet collected */
    unsigned steps_in_flight; /* launches in them */
    unsigned recorded;        /* executions in flight with a ticket of CUPTI's records */
    atomic_ullong *flag;      /* a word that the GPU writes behind each execution; NULL: events tell */
    CUdeviceptr flag_address;
    struct cuda_marks marks; /* the values of `flag` */
    CUevent wake;            /* EVENT_PLAIN_END behind the last mark, for a thread to sleep on; or NULL */
    CUevent waited;          /* the event that was last given to a waiter */
    double last_us;          /* time of the last execution that events or records timed */
    struct {
        CUevent event;     /* EVENT_TIMED, before an execution behind a gate; or NULL */
        uint64_t begin_ns; /* begin of that execution, by the GPU's clock */
        uint64_t set_ns;
    } anchor; /* a reference point for the times of later executions */
};

static inline struct cuda_stream *cuda_stream(struct backend_stream *s)
{
    return (struct cuda_stream *)(void *)s;
}

/* Counts the executions whose end the flag does not show yet; 0 without a flag. */
static inline unsigned cuda_stream_executions_ahead(struct cuda_stream *s)
{
    return s->flag ? (unsigned)(s->marks.issued - cuda_marks_ended(&s->marks, s->flag)) : 0;
}

/* `workspace_bytes`: cuBLASLt's workspace of each stream. The context is current. */
int cuda_streams_open(struct cuda_streams *streams, struct cuda_device *d, uint64_t workspace_bytes, struct error *e);
/* Needs that all streams are idle. */
void cuda_streams_close(struct cuda_streams *streams);

int cuda_stream_new(struct cuda_streams *streams, enum backend_priority priority, struct cuda_executor *executor,
                    struct cuda_stream **ret_stream, struct error *e);
/* stream_free() of struct backend. */
void cuda_stream_free(struct backend_stream *stream);

int cuda_stream_need_workspace(struct cuda_stream *s, struct error *e);

/* Gives the stream small memory, unless it has some. Thread: any, but no other thread uses the stream. */
int cuda_stream_need_small(struct cuda_stream *s, struct error *e);

/* Frees memory after the last job: the scratch memory, and workspace and small memory if many streams have some. */
void cuda_stream_rest(struct cuda_stream *s);

#endif
