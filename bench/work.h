/* A piece of work that the daemon does again and again, on memory of its own: an op, or a kernel of a user's. */
#ifndef KOPS_BENCH_WORK_H
#define KOPS_BENCH_WORK_H

#include "operands.h"

struct work {
    struct operands operands;
    kops_client *client;
    kops_kernel *kernel; /* owned; NULL: an op */
    struct kops_argument args[4];
};

/* `name` is "add" or "kernel", both of `size` f32, or "gemm" of size³; `dtype` "f32" or "bf16", NULL: f32. Pointers
 * lead into the struct: do not move it. 0, or an exit status with a message. */
int work_make(struct work *work, kops_client *client, const char *name, size_t size, const char *dtype);
void work_release(struct work *work);

/* Blocking; `ret_result` may be NULL. 0, or -1 with a message. */
int work_run(struct work *work, const struct kops_options *options, struct kops_result *ret_result);
int work_submit(struct work *work, const struct kops_options *options, kops_ticket *ret_ticket);

#endif
