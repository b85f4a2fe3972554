/* The last launch of a kernel, as it was checked and planned: a call that is equal to the byte, addresses too, is
 * launched without doing that again. Loops make such calls. Not thread safe. */
#ifndef KOPS_CLIENT_HERE_LAST_H
#define KOPS_CLIENT_HERE_LAST_H

#include "core/kernel.h"
#include "kernel.h"
#include "tally.h"

/* A launch that was planned. */
struct here_planned {
    struct plan_kernel plan; /* the addresses are in its params */
    struct here_shapes shapes;
};

/* What the checks of a call depend on, besides its kernel and context; `length` 0: they refuse it in any case. */
struct here_key {
    unsigned length; /* of `words`, which have room for the longest call */
    uint64_t words[1 + 2 * KERNEL_MAX_PARAMS + KERNEL_MAX_TENSORS * (3 + 2 * TENSOR_MAX_RANK) + 3 * (1 + 3) + 2];
};

struct here_last {
    struct here_key key; /* `length` 0: there is none */
    struct here_planned planned;
};

void here_key_of(const struct here_call *call, struct here_key *ret);

/* False: the last call was another one. */
bool here_last_find(const struct here_last *last, const struct here_key *key, struct here_planned *ret);
void here_last_keep(struct here_last *last, const struct here_key *key, const struct here_planned *planned);
static inline void here_last_drop(struct here_last *last)
{
    last->key.length = 0;
}

#endif
