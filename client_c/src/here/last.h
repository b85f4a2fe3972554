/* The last calls of a kernel, checked and planned. A call that is byte for byte equal to one of them, addresses
 * included, is launched without a new check. Loops make such calls, some alternating. Not thread safe. */
#ifndef KOPS_CLIENT_HERE_LAST_H
#define KOPS_CLIENT_HERE_LAST_H

#include "core/kernel.h"
#include "kernel.h"
#include "tally.h"

/* Words of the longest call: all that its checks depend on, besides kernel and context. */
enum { LAST_WORDS_MAX = 1 + 2 * KERNEL_MAX_PARAMS + KERNEL_MAX_TENSORS * (4 + 2 * TENSOR_MAX_RANK) + 3 * (1 + 3) + 2 };

struct here_last_call {
    bool kept;               /* false: the slot is empty */
    struct here_row row;     /* row of the call's shapes in the kernel's tally */
    struct plan_kernel plan; /* plan, with the addresses in its params */
    uint64_t words[LAST_WORDS_MAX];
    struct here_shapes shapes;
};

enum { LAST_CALLS = 4 };

struct here_last {
    struct here_last_call calls[LAST_CALLS];
    unsigned found; /* slot that was found or kept last */
};

/* Returns the equal call among the last ones, valid until the next here_last_keep(); NULL: none. */
struct here_last_call *here_last_find(struct here_last *last, const struct here_call *call);

/* Keeps a call in place of an older one. A call too long for the words is not kept; the checks refuse it anyway. */
void here_last_keep(struct here_last *last, const struct here_call *call, const struct plan_kernel *plan,
                    const struct here_shapes *shapes);

void here_last_drop(struct here_last *last);

/* Copies a plan without its unused room. */
void here_plan_copy(struct plan_kernel *to, const struct plan_kernel *from);

#endif
