/* The last executions of ops that were planned and launched in contexts of this process, of one client: one that is
 * equal in all that the rules look at is launched as it was planned. Thread: any; one lock. */
#ifndef KOPS_CLIENT_HERE_OP_LAST_H
#define KOPS_CLIENT_HERE_OP_LAST_H

#include "core/op.h"
#include "op.h"
#include "ops/launch.h"

struct here_op_last;

struct here_op_last *here_op_last_new(void); /* NULL: no memory */
/* NULL is allowed; returns NULL. */
struct here_op_last *here_op_last_free(struct here_op_last *l);

/* What an execution launches, and where it is counted. */
struct here_op_made {
    const struct op *op;
    cuda_function function;
    struct cuda_launch launch; /* its maps are encoded */
    struct here_tally *tally;  /* NULL: it is not counted */
    struct here_counted counted;
};

/* Whether the call was launched lately in that context; then it is counted. */
bool here_op_last_find(struct here_op_last *l, cuda_context context, const struct here_op_call *call,
                       struct here_op_made *ret);

/* Keeps what a call launches. */
void here_op_last_keep(struct here_op_last *l, cuda_context context, const struct here_op_call *call,
                       const struct here_op_made *made, const struct here_shapes *shapes);

#endif
