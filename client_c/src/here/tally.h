/* Launches in this process, counted by their shapes: the daemon sees nothing of them, and is told for its statistics.
 * One of TALLY_EVERY is timed by two events, which are read later: nothing waits for them; and none is timed whose time
 * there would be no room for.
 *
 * A launch on a stream under capture counts once, without a time; what the graph runs later is not seen. Thread: any.
 * No call of the driver's is made with the tally's lock: a full queue of the GPU holds up only who launches.
 *
 * One launch: here_tally_count() with the lock, then without it here_tally_begin() where it is the launch's turn to be
 * timed, the launch, here_tally_end(); here_tally_uncount() where the driver refused it. */
#ifndef KOPS_CLIENT_HERE_TALLY_H
#define KOPS_CLIENT_HERE_TALLY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "core/op.h"
#include "cuda/cuda_driver.h"

enum {
    TALLY_EVERY = 61,
    TALLY_ROWS = 64, /* as many as a message has */
    TALLY_SAMPLES = 8,
    TALLY_WORDS_MAX = STEP_MAX_OPERANDS * (1 + TENSOR_MAX_RANK)
};

/* What a launch's row is told apart by: the shapes of its operands, inputs then outputs, and attributes. */
struct here_shapes {
    unsigned n_operands, n_words;
    uint32_t flags;                 /* of an op: which of its attributes are true, a bit each, in declared order */
    int64_t words[TALLY_WORDS_MAX]; /* for each operand its rank, then its shape */
};

/* `operands`: NULL for a null pointer, which has no dimension. `flags` are 0. */
void here_shapes_of(const struct tensor *const *operands, unsigned n, struct here_shapes *ret);

struct here_tally;

struct here_tally *here_tally_new(void);                  /* NULL: no memory */
struct here_tally *here_tally_free(struct here_tally *t); /* NULL is allowed; returns NULL */

/* The lock, which the tally's owner may use for what belongs to the same launches. */
void here_tally_lock(struct here_tally *t);
void here_tally_unlock(struct here_tally *t);

/* The row of some shapes, so that it need not be looked for again. {0}: of none. */
struct here_row {
    uint32_t generation; /* a row of another generation of the tally's is gone */
    unsigned index;      /* TALLY_ROWS: there was no room for one */
};

/* A launch that was counted. */
struct here_counted {
    struct here_row row;
    bool timed; /* it is its turn */
    bool due;   /* it is time to tell the daemon: about once a second, sooner where there is no room for more shapes */
};

/* Counts a launch that is about to be made. `*row`: that of an earlier one with these shapes, or {0}; it becomes this
 * one's. Lock held. */
struct here_counted here_tally_count(struct here_tally *t, const struct here_shapes *shapes, struct here_row *row);

/* Takes it back. */
void here_tally_uncount(struct here_tally *t, struct here_row row);

/* A time of a launch that was counted. */
void here_tally_time(struct here_tally *t, struct here_row row, double us);

/* Before a launch: puts its beginning on the stream; here_tally_end() follows. False: it cannot be timed now. */
bool here_tally_begin(struct here_tally *t, const struct cuda_driver *d, cuda_context context, cuda_queue stream);

/* Puts its end on the stream. */
void here_tally_end(struct here_tally *t, const struct cuda_driver *d, cuda_queue stream, struct here_row row);

/* Takes the time of the launch that was timed last, if it has ended. Asks the driver: not for holders of locks. */
void here_tally_read(struct here_tally *t);

/* Appends the `rows` of the method launched, and begins anew. `op`: whose launches they are; NULL: a user kernel's.
 * False: there is nothing to tell. */
bool here_tally_take(struct here_tally *t, const struct op *op, struct bytes *out);

/* ---- launching ---- */

/* Puts the launch on the stream. */
typedef cuda_status here_enqueue(const struct cuda_driver *d, void *work, cuda_queue stream);

/* Enqueues a launch that was counted, timed where it is its turn. A launch that the driver refuses is not counted.
 * `tally` NULL: none is. */
static inline cuda_status here_enqueue_counted(struct here_tally *tally, const struct here_counted *counted,
                                               const struct cuda_driver *d, cuda_context context, cuda_queue stream,
                                               here_enqueue *enqueue, void *work)
{
    const bool timed = tally && counted->timed && here_tally_begin(tally, d, context, stream);
    const cuda_status status = enqueue(d, work, stream);

    if (timed)
        here_tally_end(tally, d, stream, counted->row);
    if (tally && status)
        here_tally_uncount(tally, counted->row);
    return status;
}

/* Enqueues a launch between two events, and returns when it has ended. *ret_us: the time between them. Errors:
 * capturing, device_error. */
enum kops_code here_timed(struct here_tally *tally, const struct here_counted *counted, const struct cuda_driver *d,
                          cuda_queue stream, here_enqueue *enqueue, void *work, double *ret_us, struct kops_error *e);

#endif
