/* Launches in this process, counted by their shapes for the daemon's statistics: the daemon does not see them, so it is
 * told. One of TALLY_EVERY is timed by two events, which are read later, so that nothing waits; a launch is not timed
 * where its time would have no room.
 *
 * A launch on a stream under capture counts once, without a time; later runs of the graph are not seen. Thread: any.
 * The driver is never called with the tally's lock held, so a full GPU queue delays only the thread that launches.
 *
 * To launch: here_tally_count() with the lock held; without it here_tally_begin() if the launch is to be timed, the
 * launch, here_tally_end(). here_tally_uncount() where the driver refused the launch. */
#ifndef KOPS_CLIENT_HERE_TALLY_H
#define KOPS_CLIENT_HERE_TALLY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "core/op.h"
#include "cuda/cuda_driver.h"

enum {
    TALLY_EVERY = 61,
    TALLY_ROWS = 64, /* as many as a message has room for */
    TALLY_SAMPLES = 8,
    TALLY_WORDS_MAX = STEP_MAX_OPERANDS * (1 + TENSOR_MAX_RANK)
};

/* Key of a launch's row: the shapes of its operands, inputs then outputs, and its attributes. */
struct here_shapes {
    unsigned n_operands, n_words;
    uint32_t flags;                 /* an op's boolean attributes that are true, a bit each, in declared order */
    int64_t words[TALLY_WORDS_MAX]; /* for each operand its rank, then its shape */
};

/* Fills *ret with `flags` 0. `operands`: NULL for a null pointer, which has no dimensions. */
void here_shapes_of(const struct tensor *const *operands, unsigned n, struct here_shapes *ret);

struct here_tally;

struct here_tally *here_tally_new(void);                  /* NULL: no memory */
struct here_tally *here_tally_free(struct here_tally *t); /* NULL is allowed; returns NULL */

/* The lock. The tally's owner may use it to guard its own data about the same launches. */
void here_tally_lock(struct here_tally *t);
void here_tally_unlock(struct here_tally *t);

/* The row of some shapes, kept so that it need not be looked up again. {0}: none. */
struct here_row {
    uint32_t generation; /* generation of the tally's rows; a row of another generation is gone */
    unsigned index;      /* TALLY_ROWS: there was no room for a row */
};

struct here_counted {
    struct here_row row;
    bool timed; /* the launch is to be timed */
    bool due;   /* the daemon should be told: about once a second, sooner where there is no room for more shapes */
};

/* Counts a launch that is about to be made. `*row` is the row of an earlier launch with these shapes, or {0}; it
 * becomes this launch's row. Lock held. */
struct here_counted here_tally_count(struct here_tally *t, const struct here_shapes *shapes, struct here_row *row);

/* Takes the count of a launch back. */
void here_tally_uncount(struct here_tally *t, struct here_row row);

/* Adds a time of a counted launch. */
void here_tally_time(struct here_tally *t, struct here_row row, double us);

/* Puts an event on the stream before a launch; here_tally_end() follows. False: the launch cannot be timed now. */
bool here_tally_begin(struct here_tally *t, const struct cuda_driver *d, cuda_context context, cuda_queue stream);

/* Puts an event on the stream after the launch. */
void here_tally_end(struct here_tally *t, const struct cuda_driver *d, cuda_queue stream, struct here_row row);

/* Reads the time of the launch that was timed last, if it has ended. Calls the driver: the caller must hold no locks.
 */
void here_tally_read(struct here_tally *t);

/* Appends the `rows` of the notification `launched`, and empties the tally. `op`: the op that was launched; NULL: a
 * user's kernel. False: nothing to tell. */
bool here_tally_take(struct here_tally *t, const struct op *op, struct bytes *out);

/* ---- launching ---- */

/* Puts the launch on the stream. */
typedef cuda_status here_enqueue(const struct cuda_driver *d, void *work, cuda_queue stream);

/* Enqueues a launch that was counted, timed if `counted->timed`. A launch that the driver refuses is not counted.
 * `tally` NULL: no launch is counted. */
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
