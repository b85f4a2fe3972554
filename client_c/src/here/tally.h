/* Launches in this process, counted by their shapes: the daemon sees nothing of them, and is told for its statistics.
 * One of TALLY_EVERY is timed by two events, which are read later: nothing waits for them.
 *
 * A launch on a stream under capture counts once, without a time; what the graph runs later is not seen. Thread: any.
 * No call of the driver's is made with the tally's lock: a full queue of the GPU holds up only who launches. */
#ifndef KOPS_CLIENT_HERE_TALLY_H
#define KOPS_CLIENT_HERE_TALLY_H

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

/* Before a launch: whether this one is timed. Then its beginning is on the stream, and here_tally_end() follows. */
bool here_tally_begin(struct here_tally *t, const struct cuda_driver *d, cuda_context context, cuda_queue stream);

/* Counts a launch. `us`: how long it took, where that is known; NAN: it is not. Returns whether it is time to tell the
 * daemon: about once a second, sooner where there is no room for more shapes. */
bool here_tally_count(struct here_tally *t, const struct here_shapes *shapes, double us);

/* The same for a launch that here_tally_begin() times: its end is put on the stream. */
bool here_tally_end(struct here_tally *t, const struct cuda_driver *d, cuda_queue stream,
                    const struct here_shapes *shapes);

/* Takes the time of the launch that was timed last, if it has ended. Asks the driver: not for holders of locks. */
void here_tally_read(struct here_tally *t);

/* Appends the `rows` of the method launched, and begins anew. `op`: whose launches they are; NULL: a user kernel's.
 * False: there is nothing to tell. */
bool here_tally_take(struct here_tally *t, const struct op *op, struct bytes *out);

#endif
