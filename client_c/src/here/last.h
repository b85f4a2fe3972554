/* The last calls of a kernel, as they were checked and planned: a call that is equal to one of them to the byte,
 * addresses too, is launched without doing that again. Loops make such calls, also some by turns. Not thread safe. */
#ifndef KOPS_CLIENT_HERE_LAST_H
#define KOPS_CLIENT_HERE_LAST_H

#include "core/kernel.h"
#include "kernel.h"
#include "tally.h"

/* All that the checks of the longest call depend on, besides its kernel and context. */
enum { LAST_WORDS_MAX = 1 + 2 * KERNEL_MAX_PARAMS + KERNEL_MAX_TENSORS * (4 + 2 * TENSOR_MAX_RANK) + 3 * (1 + 3) + 2 };

struct here_last_call {
    bool kept;               /* false: there is none */
    struct here_row row;     /* of the shapes, in the kernel's tally */
    struct plan_kernel plan; /* the addresses are in its params */
    uint64_t words[LAST_WORDS_MAX];
    struct here_shapes shapes;
};

enum { LAST_CALLS = 4 };

struct here_last {
    struct here_last_call calls[LAST_CALLS];
    unsigned found; /* the one that was found or kept last */
};

/* NULL: it is none of the last ones. The result is good until the next is kept. */
struct here_last_call *here_last_find(struct here_last *last, const struct here_call *call);

/* Instead of one that was kept before. A call that the checks refuse in any case, since it is too long, is not kept. */
void here_last_keep(struct here_last *last, const struct here_call *call, const struct plan_kernel *plan,
                    const struct here_shapes *shapes);

void here_last_drop(struct here_last *last);

/* A plan without the room in it that is not used. */
void here_plan_copy(struct plan_kernel *to, const struct plan_kernel *from);

#endif
