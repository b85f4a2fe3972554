/* Ordered calls: ops as part of the caller's CUDA streams.
 *
 * An ordered stream is one of the daemon's streams, lent to one CUDA stream at a time, with the two words of the page
 * that belong to it (timeline.h). A call puts two memory operations on the CUDA stream, "ready is v" and "wait until
 * done is v", and sends the request with both numbers, in this order, under the client's lock. So the numbers rise, and
 * a wait exists only for a request that is sent, or on a page whose connection is given up.
 *
 * Errors and completions arrive with the replies. Any thread that waits on the client reads them, and so does
 * the next call. The client's lock guards all state; functions that wait drop it meanwhile. */
#ifndef KOPS_CLIENT_ORDERED_H
#define KOPS_CLIENT_ORDERED_H

#include "session/client.h"
#include "timeline.h"

enum { ORDERED_MAX_OPS = 64 }; /* of one request */

struct batch;

struct ordered_stream {
    unsigned index;       /* the daemon's stream */
    cuda_context context; /* of the CUDA stream */
    unsigned long long id;
    bool used;
    bool taken;             /* a thread is in a call on it: others wait, so that calls keep their order */
    unsigned outstanding;   /* calls without a reply */
    uint64_t value;         /* the last given out */
    uint64_t touched;       /* when it was used last, in calls */
    uint64_t first, ended;  /* numbers: no op before the first one, or up to the ended one, is outstanding */
    uint32_t generation;    /* of `base` */
    cuda_pointer base;      /* of the page, in its context */
    struct batch *batch;    /* owned; made by the first batch */
    bool in_batch;          /* between the begin and the end of a batch */
    uint64_t gathered_from; /* number of the first op that is gathered and not sent; 0: none is */
};

struct ordered {
    const struct cuda_driver *driver;
    struct timeline *timeline; /* the newest; older ones behind it */
    bool making;               /* a thread asks for a new one */
    struct ordered_stream streams[TIMELINE_STREAMS];
    struct ordered_stream *last;
    uint64_t number;          /* of the last op */
    unsigned outstanding;     /* calls, of all streams */
    struct kops_error failed; /* the first error since the last report: of the op enqueued first, */
    uint64_t failed_number;   /* with its number */
};

/* A call on its way. */
struct ordered_work {
    struct ordered_stream *stream;
    cuda_queue cuda_stream;
    struct wire_how *how; /* gets stream, ready and done; or `raw` does */
    struct wire_raw *raw;
    bool starts;           /* the work waits for everything before it on the CUDA stream */
    bool waits;            /* later work of the CUDA stream waits for this work */
    uint64_t number, last; /* of its first and last op; 0: not given out yet */
    unsigned n_ops;
    const char *name;           /* of the op or kernel, for messages; lives as long as the client */
    const unsigned char *names; /* of gathered ops: places of their names (session/client.h); NULL: `name` for all */
    const uint16_t *after;      /* their numbers, counted from the first one's */
};

/* ---- a call begins on a stream ---- */

/* Begins a call on a CUDA stream: reports an earlier error, finds the driver and takes the ordered stream. */
enum kops_code ordered_enter(struct kops_client *c, void *cuda_stream, uint64_t deadline,
                             struct ordered_stream **ret_stream, struct kops_error *e);
void ordered_leave(struct kops_client *c, struct ordered_stream *stream);

/* The ordered stream of a CUDA stream, NULL when that has no calls under way. False: it may be any. */
bool ordered_find(struct kops_client *c, void *cuda_stream, struct ordered_stream **ret_stream);

/* Waits for an ordered stream that another thread may have; false: the deadline passed. */
bool ordered_take(struct kops_client *c, struct ordered_stream *stream, uint64_t deadline);

/* The number of the earliest op that may not have ended yet; 0: all have. */
uint64_t ordered_oldest(const struct kops_client *c);

/* The client is closed: waits for work under way, releases the CUDA streams, gives the pages back. Batches were closed
 * before. */
void ordered_close(struct kops_client *c);

/* ---- its numbers and words, and its end ---- */

/* Gives out the earlier error; KOPS_OK when there is none. */
enum kops_code ordered_report(struct kops_client *c, struct kops_error *e);

/* Reads replies that are at hand, so that the daemon need not wait for the client. */
void ordered_collect(struct kops_client *c);

/* The same however few there are, and notices the end of the connection. */
void ordered_collect_all(struct kops_client *c);

/* Whether the page belongs to the present connection; asks for a new one. */
bool ordered_current(const struct kops_client *c);
enum kops_code ordered_renew(struct kops_client *c, uint64_t deadline, struct kops_error *e);

/* Gives the work the numbers that it will have, and the call room for them; nothing is taken yet. */
enum kops_code ordered_assign(const struct ordered_work *work, struct call *call, struct kops_error *e);

/* Puts the memory operations on the CUDA stream; from now on the request must be sent or the connection be given up. */
enum kops_code ordered_commit(struct kops_client *c, struct ordered_work *work, struct call *call,
                              struct kops_error *e);

/* Lets the CUDA stream wait for everything that the ordered stream was sent. */
enum kops_code ordered_wait_for_last(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream,
                                     struct kops_error *e);

#endif
