/* Ordered calls: ops as part of the caller's CUDA streams.
 *
 * An ordered stream is one of the daemon's streams, lent to one CUDA stream at a time, with two words of the page
 * (timeline.h). A call puts two memory operations on the CUDA stream, "ready is v" and "wait until done is v", and then
 * sends the request with both numbers, all under the client's lock. So the numbers rise, and a stream waits only for a
 * request that is sent, or on a page whose connection is given up.
 *
 * Errors and completions arrive with the replies. Any thread that waits on the client reads them, and so does the next
 * call. The client's lock guards all state; functions that wait drop it meanwhile. */
#ifndef KOPS_CLIENT_ORDERED_H
#define KOPS_CLIENT_ORDERED_H

#include "session/client.h"
#include "timeline.h"

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

#endif
