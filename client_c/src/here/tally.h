/* Launches in this process, counted by their shapes: the daemon sees nothing of them, and is told for its statistics.
 * One of TALLY_EVERY is timed by two events, which are read later: nothing waits for them.
 *
 * A launch on a stream under capture counts once, without a time; what the graph runs later is not seen. Thread: any.
 */
#ifndef KOPS_CLIENT_HERE_TALLY_H
#define KOPS_CLIENT_HERE_TALLY_H

#include "base/bytes.h"
#include "core/plan.h"
#include "core/tensor.h"
#include "cuda/cuda_driver.h"

enum {
    TALLY_EVERY = 61,
    TALLY_ROWS = 16,
    TALLY_SAMPLES = 16,
    TALLY_WORDS_MAX = STEP_MAX_OPERANDS * (1 + TENSOR_MAX_RANK)
};

/* The shapes of a launch's operands, inputs then outputs: what its row is told apart by. */
struct here_shapes {
    unsigned n_operands, n_words;
    int64_t words[TALLY_WORDS_MAX]; /* for each operand its rank, then its shape */
};

/* `operands`: NULL for a null pointer, which has no dimension. */
void here_shapes_of(const struct tensor *const *operands, unsigned n, struct here_shapes *ret);

struct here_tally;

struct here_tally *here_tally_new(void);                  /* NULL: no memory */
struct here_tally *here_tally_free(struct here_tally *t); /* NULL is allowed; returns NULL */

/* Before a launch: whether this one is timed. Then its beginning is on the stream, and here_tally_end() follows. */
bool here_tally_begin(struct here_tally *t, const struct cuda_driver *d, cuda_context context, cuda_queue stream);

/* Counts a launch. `us`: how long it took, where that is known; NAN: it is not. Returns whether it is time to tell the
 * daemon. */
bool here_tally_count(struct here_tally *t, const struct here_shapes *shapes, double us);

/* The same for a launch that here_tally_begin() times: its end is put on the stream. */
bool here_tally_end(struct here_tally *t, const struct cuda_driver *d, cuda_queue stream,
                    const struct here_shapes *shapes);

/* Appends the `rows` of the method launched, and begins anew. False: there is nothing to tell. */
bool here_tally_take(struct here_tally *t, struct bytes *out);

#endif
