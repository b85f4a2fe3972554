/* Ordered calls: ops as part of the caller's CUDA streams.
 *
 * An ordered stream is one of the daemon's streams, lent to one CUDA stream at a time, with two words of the page
 * (struct timeline). A call puts two memory operations on the CUDA stream, "ready is v" and "wait until done is v", and
 * then sends the request with both numbers, all under the client's lock. So the numbers rise, and a stream waits only
 * for a request that is sent, or on a page whose connection is given up.
 *
 * Errors and completions arrive with the replies. Any thread that waits on the client reads them, and so does the next
 * call. The client's lock guards all state; functions that wait drop it meanwhile. */
#ifndef KOPS_CLIENT_ORDERED_H
#define KOPS_CLIENT_ORDERED_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda/cuda_driver.h"
#include "session/client.h"
#include "wire/wire.h"

/* The page of timelines that one connection shares with the daemon, and the watcher thread for it.
 *
 * Word s is the *ready* value of the caller's stream s, word 256 + s its *done* value; both only rise. Streams of this
 * process wait for *done* in the GPU's front end, where nothing but a write to the page wakes them. When the connection
 * ends, the daemon writes nothing more, or only values of work under way. So a watcher thread writes the far end into
 * every done word, again and again with growing pauses, until the page is closed. Before, it sleeps in poll(2). It
 * takes no lock and calls no driver, so it works while the rest of the process hangs in the driver.
 *
 * A page belongs to one connection (`generation`) and is never used after it. Thread: any, under the client's lock. */

enum { TIMELINE_STREAMS = 256, TIMELINE_BYTES = 4096 };

struct timeline {
    struct timeline *next; /* older pages */
    uint32_t generation;
    const struct cuda_driver *driver;
    cuda_context context;   /* context in which the words were registered */
    _Atomic int64_t *words; /* mapped, and registered with the driver */
    int socket;             /* a duplicate of the connection's socket */
    int stop;               /* eventfd */
    atomic_bool over;       /* the connection has ended */
    pthread_t watcher;
};

/* Frees the struct in a child, which has no watcher; the parent's watcher goes on. */
void timeline_forget(struct timeline *t);

static inline uint64_t timeline_ready_offset(unsigned stream)
{
    return 8 * (uint64_t)stream;
}

static inline uint64_t timeline_done_offset(unsigned stream)
{
    return 8 * ((uint64_t)stream + TIMELINE_STREAMS);
}

enum { ORDERED_MAX_OPS = 64 }; /* ops of one request */

struct batch;

struct ordered_stream {
    unsigned index;       /* number of the daemon's stream */
    cuda_context context; /* context of the CUDA stream */
    unsigned long long id;
    bool used;
    bool taken;             /* a thread is in a call on the stream: others wait, so that calls keep their order */
    unsigned outstanding;   /* calls without a reply */
    uint64_t value;         /* the last value given out */
    uint64_t touched;       /* time of the last use, counted in calls */
    uint64_t first, ended;  /* op numbers: only ops from `first` on and above `ended` can be outstanding */
    uint32_t generation;    /* generation of the page at `base` */
    cuda_pointer base;      /* device address of the page in the stream's context */
    struct batch *batch;    /* owned; made by the first batch */
    bool in_batch;          /* between the begin and the end of a batch */
    uint64_t gathered_from; /* number of the first op that is gathered and not sent; 0: none */
};

struct ordered {
    const struct cuda_driver *driver;
    struct timeline *timeline; /* the newest page; older ones are linked behind it */
    bool making;               /* a thread asks for a new page */
    struct ordered_stream streams[TIMELINE_STREAMS];
    struct ordered_stream *last;
    uint64_t number; /* number of the last op */
    unsigned outstanding;
    struct kops_error failed; /* the first error since the last report, by the order of enqueueing */
    uint64_t failed_number;   /* number of the op that it is of */
};

struct ordered_work {
    struct ordered_stream *stream;
    cuda_queue cuda_stream;
    struct wire_how *how; /* gets stream, ready and done; NULL: `raw` gets them */
    struct wire_raw *raw;
    bool starts;           /* the work waits for everything before it on the CUDA stream */
    bool waits;            /* later work of the CUDA stream waits for this work */
    uint64_t number, last; /* numbers of the first and last op; 0: not given out yet */
    unsigned n_ops;
    const char *name;           /* name of the op or kernel, for messages; lives as long as the client */
    const unsigned char *names; /* gathered ops: places of their names (session/client.h); NULL: `name` for all */
    const uint16_t *after;      /* gathered ops: their numbers, counted from the first one */
};

/* ---- a call begins on a stream ---- */

/* Begins a call on a CUDA stream: reports an earlier error, finds the driver and takes the ordered stream. */
enum kops_code ordered_enter(struct kops_client *c, void *cuda_stream, uint64_t deadline,
                             struct ordered_stream **ret_stream, struct kops_error *e);
void ordered_leave(struct kops_client *c, struct ordered_stream *stream);

/* Finds the ordered stream of a CUDA stream; NULL when no calls are under way there. False: the stream cannot be told.
 */
bool ordered_find(struct kops_client *c, void *cuda_stream, struct ordered_stream **ret_stream);

/* Waits for an ordered stream that another thread may have; false: the deadline passed. */
bool ordered_take(struct kops_client *c, struct ordered_stream *stream, uint64_t deadline);

/* The number of the earliest op that may not have ended yet; 0: all have. */
uint64_t ordered_oldest(const struct kops_client *c);

/* Closes with the client: waits for work under way, releases the CUDA streams, gives the pages back. Batches were
 * closed before. */
void ordered_close(struct kops_client *c);

/* ---- its numbers and words, and its end ---- */

/* Gives out the earlier error; KOPS_OK when there is none. */
enum kops_code ordered_report(struct kops_client *c, struct kops_error *e);

/* Reads replies that are at hand once enough are outstanding, so that the daemon need not wait for the client. */
void ordered_collect(struct kops_client *c);

/* Reads replies however few are outstanding, and notices the end of the connection. */
void ordered_collect_all(struct kops_client *c);

/* Tells whether the page belongs to the present connection. ordered_renew() asks for a new one. */
bool ordered_current(const struct kops_client *c);
enum kops_code ordered_renew(struct kops_client *c, uint64_t deadline, struct kops_error *e);

/* Assigns numbers to the work, and gives the call room for them; nothing is taken yet. */
enum kops_code ordered_assign(const struct ordered_work *work, struct call *call, struct kops_error *e);

/* Puts the memory operations on the CUDA stream; from now on the request must be sent or the connection be given up. */
enum kops_code ordered_commit(struct kops_client *c, struct ordered_work *work, struct call *call,
                              struct kops_error *e);

/* Lets the CUDA stream wait for everything that the ordered stream was sent. */
enum kops_code ordered_wait_for_last(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream,
                                     struct kops_error *e);

/* ---- batches ----
 *
 * Ops of one ordered stream, gathered into sequences, that the caller's CUDA stream waits for together.
 *
 * The first request of a batch waits for the CUDA stream. Each request has its own number for `done`; the end of the
 * batch lets the CUDA stream wait for the last one. Sequences start short, so that the GPU is not idle while the first
 * one is gathered. Lock held; functions that send drop it while they wait. */

enum kops_code batch_begin(struct kops_client *c, struct ordered_stream *stream, struct kops_error *e);

/* Gathers one op, and sends the gathered ops when they are enough. `run` has its operands resolved for the connection
 * of `generation`. */
enum kops_code batch_add(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream,
                         const struct wire_run *run, uint32_t generation, uint64_t deadline, struct kops_error *e);

/* Sends the gathered ops. With `waits`, the CUDA stream then waits for them. */
enum kops_code batch_flush(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream, bool waits,
                           uint64_t deadline, struct kops_error *e);

/* Sends the gathered ops of every stream; no CUDA stream waits. */
enum kops_code batch_flush_all(struct kops_client *c, uint64_t deadline, struct kops_error *e);

/* Sends the gathered ops, and lets the CUDA stream wait for all of the batch. The batch is over. */
enum kops_code batch_end(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream,
                         uint64_t deadline, struct kops_error *e);

/* Whether a batch is open on a CUDA stream of the current context. */
bool batch_is_open(struct kops_client *c, cuda_queue cuda_stream);

/* Ends a batch that is open on the CUDA stream, and begins it anew, also where an error is returned. Work that this
 * process puts there next runs after the ops so far, and before the later ones. A stream under capture is left as it
 * is: its work runs later. */
enum kops_code batch_settle(struct kops_client *c, cuda_queue cuda_stream, uint64_t deadline, struct kops_error *e);

/* Joins work that is not gathered to a batch: it starts when the batch has started, and nothing waits for it yet. */
void batch_join(struct ordered_stream *stream, struct ordered_work *work);

/* The client is closed: ops that are gathered and not sent are dropped. */
void batch_close_all(struct kops_client *c);

#endif
