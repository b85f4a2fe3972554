/* Ordered calls: ops as part of the caller's CUDA streams.
 *
 * A lane is one of the daemon's streams, lent to one CUDA stream at a time, with the two words of the page that belong
 * to it (timeline.h). A call puts two memory operations on the CUDA stream, "ready is v" and "wait until done is v",
 * and sends the request with both numbers, in this order, under the client's lock: so the numbers rise, and a wait
 * exists only for a request that is sent, or on a page whose connection is given up.
 *
 * Errors and completions arrive with the replies, which are taken in by whoever waits for anything, and by the next
 * call. All state is guarded by the client's lock. */
#ifndef KOPS_CLIENT_ORDERED_H
#define KOPS_CLIENT_ORDERED_H

#include "session/session.h"
#include "timeline.h"

struct gather;

struct lane {
    unsigned index;       /* the daemon's stream */
    cuda_context context; /* the CUDA stream's */
    unsigned long long id;
    bool used;
    bool taken;            /* some thread is at it: others wait, so that calls keep their order */
    unsigned outstanding;  /* calls without a reply */
    uint64_t value;        /* the last given out */
    uint64_t touched;      /* when it was used last, in calls */
    uint64_t first, ended; /* numbers: no op before the first one, or up to the ended one, is outstanding */
    uint32_t generation;   /* of `base` */
    cuda_pointer base;     /* of the page, in its context */
    struct gather *gather; /* made by the first batch */
};

struct ordered {
    const struct cuda_driver *driver;
    struct timeline *timeline; /* the newest; older ones behind it */
    bool making;               /* some thread asks for a new one */
    struct lane lanes[TIMELINE_STREAMS];
    struct lane *last;
    uint64_t number;              /* of the last op */
    unsigned outstanding;         /* calls, of all lanes */
    unsigned gathering;           /* lanes whose gathered ops are not sent */
    struct bytes releases;        /* notifications that must not overtake these, */
    uint32_t releases_generation; /* for that connection */
    struct kops_error failed;     /* the first error since the last report: of the op enqueued first, */
    uint64_t failed_number;       /* with its number */
};

/* A call on its way. */
struct ordered_work {
    struct lane *lane;
    cuda_queue stream;
    struct wire_how *how; /* gets stream, ready and done; or `raw` does */
    struct wire_raw *raw;
    bool starts, waits;    /* the work waits for what is on the stream; what comes there waits for the work */
    uint64_t number, last; /* of its first and last op; 0: not given out yet */
    unsigned n_ops;
    const char *name;           /* of what is run, for messages */
    const unsigned char *names; /* of gathered ops: places of their names; NULL: `name` for all */
    const uint16_t *after;      /* their numbers, counted from the first one's */
};

/* ---- calls; the lock is held and may be dropped while they wait ---- */

/* Begins a call on a stream: reports an earlier error, finds the driver and takes the lane. */
enum kops_code ordered_enter(struct kops_client *c, void *stream, uint64_t deadline, struct lane **ret_lane,
                             struct kops_error *e);
void ordered_leave(struct kops_client *c, struct lane *lane);

/* The lane that a stream has, NULL when it has no calls under way. False: it may be any. */
bool ordered_find(struct kops_client *c, void *stream, struct lane **ret_lane);

/* Waits for a lane that another thread may have; false: the deadline passed. */
bool lane_take(struct kops_client *c, struct lane *lane, uint64_t deadline);

/* The number of the earliest op that may not have ended yet; 0: all have. */
uint64_t ordered_oldest(const struct kops_client *c);

/* Gives out the earlier error; KOPS_OK when there is none. */
enum kops_code ordered_report(struct kops_client *c, struct kops_error *e);

/* Takes in replies that are at hand, so that the daemon need not wait for us. */
void ordered_collect(struct kops_client *c);

/* The same however few there are, and an end of the connection that nobody has noticed. */
void ordered_collect_all(struct kops_client *c);

/* ---- for job.c ---- */

/* Whether the page belongs to the present connection; asks for a new one. */
bool ordered_current(const struct kops_client *c);
enum kops_code ordered_renew(struct kops_client *c, uint64_t deadline, struct kops_error *e);

/* The numbers that the work will have; nothing is taken yet. */
void ordered_assign(struct kops_client *c, struct ordered_work *work);

/* Puts the memory operations on the stream; from now on the request must be sent or the connection be given up. */
enum kops_code ordered_commit(struct kops_client *c, struct ordered_work *work, struct call *call,
                              struct kops_error *e);

/* ---- for the session ---- */

/* The reply came, or never will. */
void ordered_ended(struct kops_client *c, struct call *call, const struct kops_error *error);

/* Whether gathered ops wait for more, and where releases wait meanwhile. */
bool ordered_gathering(const struct kops_client *c);
struct bytes *ordered_releases(struct kops_client *c);

/* The client is closed: waits for what is under way, releases the streams, gives the pages back. */
void ordered_close(struct kops_client *c);

/* This process is a child: lets go of what is the parent's. */
void ordered_forget(struct kops_client *c);

/* Lets the stream wait for everything that the lane was sent. */
enum kops_code ordered_wait_for_last(struct kops_client *c, struct lane *lane, cuda_queue stream, struct kops_error *e);

/* ---- batch.c ---- */

bool batch_open(const struct lane *lane);

enum kops_code batch_begin(struct lane *lane, struct kops_error *e);

/* Gathers one op, sends what is gathered when it is enough. `run` has its operands resolved for the connection of
 * `generation`. */
enum kops_code batch_add(struct kops_client *c, struct lane *lane, cuda_queue stream, const struct wire_run *run,
                         uint32_t generation, uint64_t deadline, struct kops_error *e);

/* Sends what is gathered; `waits`: and lets the stream wait for it. */
enum kops_code batch_flush(struct kops_client *c, struct lane *lane, cuda_queue stream, bool waits, uint64_t deadline,
                           struct kops_error *e);

/* The same for every lane, where nobody waits. */
enum kops_code batch_flush_all(struct kops_client *c, uint64_t deadline, struct kops_error *e);

/* Sends what is gathered, and lets the stream wait for all of the batch. The batch is over. */
enum kops_code batch_end(struct kops_client *c, struct lane *lane, cuda_queue stream, uint64_t deadline,
                         struct kops_error *e);

/* Work of another form inside a batch: it starts when the batch has, nobody waits for it yet. */
void batch_join(struct lane *lane, struct ordered_work *work);

/* The number of the first op that is gathered and not sent; 0: none is. */
uint64_t batch_oldest(const struct lane *lane);

struct gather *gather_free(struct gather *g);

#endif
