/* Functions of modules, as launches see them. Under the mutex. */
#ifndef KOPS_STANDIN_FUNCTION_H
#define KOPS_STANDIN_FUNCTION_H

#include "cubin.h"
#include "standin.h"

struct function {
    struct function *next;
    CUfunction handle;
    const struct kernel *kernel;     /* ours; or, of a module with an image that was read: */
    const struct cubin_kernel *code; /* what it says of the function */
    const struct user_kernel *user;  /* NULL: nobody here can compute it */
    unsigned shared_limit, cluster_limit;
};

/* Of a block. */
static inline unsigned function_max_threads(const struct function *f)
{
    return f->code && f->code->max_threads ? f->code->max_threads : 1024;
}

#endif
