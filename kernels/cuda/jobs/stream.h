/* Streams: device queues whose jobs run in order, kept for reuse because making one takes long. Thread: loop, except
 * where a function says otherwise. */
#ifndef KOPS_CUDA_STREAM_H
#define KOPS_CUDA_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver/device.h"
#include "flags.h"
#include "util/list.h"

/* Marks: the values that a stream's flag gets, one behind each execution. A kernel can write to the page of flags,
 * so a mark is random: nobody knows it before the GPU writes it, and an execution has ended only when the flag has
 * its value or a later one. */

enum { MARKS_WINDOW = 64 /* outstanding ones of a stream; a power of two */ };

/* Nobody who has not read this struct, in memory of the process alone, can predict the numbers. */
struct cuda_random {
    uint64_t key[2], drawn;
};

/* False: the system gives no random numbers, which it does on every machine that has booted. */
bool cuda_random_seed(struct cuda_random *random);
/* Never 0. */
uint64_t cuda_random_next(struct cuda_random *random);

struct cuda_marks {
    uint64_t issued, ended; /* how many; the GPU has written the value of the `ended`th */
    uint64_t seen;          /* that value; 0 before the first */
    uint64_t values[MARKS_WINDOW];
};

/* The value of the next mark, which counts from cuda_marks_issue() on. */
uint64_t cuda_marks_next(struct cuda_marks *marks, struct cuda_random *random);
/* Returns the number of the mark, from 1. */
static inline uint64_t cuda_marks_issue(struct cuda_marks *marks)
{
    return ++marks->issued;
}

/* Looks for the flag's value among the outstanding marks. Another value is a kernel's, or half new. */
void cuda_marks_look(struct cuda_marks *marks, uint64_t value);

static inline uint64_t cuda_marks_ended(struct cuda_marks *marks, const atomic_ullong *flag)
{
    const uint64_t value = atomic_load_explicit(flag, memory_order_acquire);

    if (value != marks->seen)
        cuda_marks_look(marks, value);
    return marks->ended;
}

struct cuda_executor;

/* The streams of one device. */
struct cuda_streams {
    struct cuda_device *device;
    uint64_t workspace_bytes;
    struct cuda_flags flags;
    struct cuda_random random;        /* of the streams' marks */
    int priorities[PRIORITY_COUNT];   /* the driver's numbers */
    struct list idle[PRIORITY_COUNT]; /* struct cuda_stream, for the next connection */
    unsigned idle_count[PRIORITY_COUNT];
    unsigned workspaces; /* streams that have one */
    atomic_uint smalls;  /* the same of small memory */
};

struct cuda_stream {
    struct cuda_queue queue; /* non-blocking: never waits for the default stream */
    struct cuda_streams *streams;
    struct cuda_executor *executor;
    struct list jobs;    /* struct backend_job.link, in submission order, until done */
    struct list *next;   /* the first job that is not fully issued; &jobs: none */
    unsigned unfinished; /* of `jobs` */
    struct list link;    /* in executor->busy while it has jobs, or in streams->idle */
    enum backend_priority priority;
    unsigned in_flight;       /* executions issued and not yet seen to have ended */
    unsigned steps_in_flight; /* launches in them */
    unsigned recorded;        /* those of them that have a ticket of CUPTI's records */
    atomic_ullong *flag;      /* a word that the GPU writes behind each execution; NULL: events tell */
    CUdeviceptr flag_address;
    struct cuda_marks marks; /* the values that it gets */
    CUevent wake;            /* EVENT_PLAIN_END behind the last mark, for a thread to sleep on; or NULL */
    CUevent waited;          /* the event that a waiter was last given */
    double last_us;          /* of the last execution that was timed by events or records */
    struct {
        CUevent event;     /* EVENT_TIMED, before an execution behind a gate; or NULL */
        uint64_t begin_ns; /* when that execution began, by the GPU's clock */
        uint64_t set_ns;
    } anchor; /* from which the times of later executions are told */
};

static inline struct cuda_stream *cuda_stream(struct backend_stream *s)
{
    return (struct cuda_stream *)(void *)s;
}

/* Executions in flight that have not ended, as far as the flag tells; 0 without a flag. */
static inline unsigned cuda_stream_executions_ahead(struct cuda_stream *s)
{
    return s->flag ? (unsigned)(s->marks.issued - cuda_marks_ended(&s->marks, s->flag)) : 0;
}

/* `workspace_bytes`: of each stream, for cuBLASLt. The context is current. */
int cuda_streams_open(struct cuda_streams *streams, struct cuda_device *d, uint64_t workspace_bytes, struct error *e);
/* All streams are idle. */
void cuda_streams_close(struct cuda_streams *streams);

int cuda_stream_new(struct cuda_streams *streams, enum backend_priority priority, struct cuda_executor *executor,
                    struct cuda_stream **ret_stream, struct error *e);
/* stream_free() of struct backend. */
void cuda_stream_free(struct backend_stream *stream);

int cuda_stream_need_workspace(struct cuda_stream *s, struct error *e);

/* Thread: any, which has the stream to itself. */
int cuda_stream_need_small(struct cuda_stream *s, struct error *e);

/* After the last job: gives the scratch memory back, and workspace and small memory unless few streams have some. */
void cuda_stream_rest(struct cuda_stream *s);

#endif
