/* Launches of kernels and ops in the caller's CUDA context. */
#ifndef KOPS_CLIENT_HERE_H
#define KOPS_CLIENT_HERE_H

#include <kops/kops.h>

#include "jobs/ordered.h"
#include "kernel.h"
#include "run.h"

/* Refuses ways and options that only the daemon supports. `options` may be NULL. */
enum kops_code launch_here_check(const struct dispatch *d, const struct kops_options *options, struct kops_error *e);

/* Tells whether a call that names no place may run here: the client's options say so, and the call's way and options do
 * not need the daemon. Tensors and stream are checked later. Without the lock. */
bool call_goes_here(const struct kops_client *c, const struct dispatch *d, const struct kops_options *options);

/* Tells whether the call belongs to an open batch: a call that names no place does. Lock held. */
static inline bool call_is_batched(struct kops_client *c, const struct dispatch *d)
{
    return d->way == DISPATCH_ENQUEUE && batch_is_open(c, d->stream);
}

/* Tells whether the tensors lie in device memory of this process. Tensors without memory do not count. */
static inline bool tensors_are_here(const struct kops_tensor *tensors, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (tensors[i].buffer && !cuda_map_is_here(tensors[i].buffer, process_id()))
            return false;
    return true;
}

/* The tensors of a launch, as they lie in this process. */
struct here_tensors {
    struct native_tensor at[KOPS_MAX_KERNEL_TENSORS];
    unsigned n;
    pid_t process;            /* the calling process: process_id() */
    struct kops_buffer *with; /* buffer of the first tensor that has memory, whose device all others must share; NULL:
                                 none has memory */
};

/* Returns the device's number in this process; -1: no tensor has memory. */
static inline int here_tensors_device(const struct here_tensors *h)
{
    return h->with ? h->with->ordinal : -1;
}

/* Makes a tensor's memory usable here. Takes the lock where it must be mapped first. */
enum kops_code here_tensors_map(const struct kops_tensor *t, struct kops_error *e);
enum kops_code here_tensors_refuse(const struct here_tensors *h, const struct kops_tensor *t, struct kops_error *e);

/* Adds a tensor. Without the lock. Errors: no_cuda, bad_argument (shared memory), out_of_bounds, device_mismatch. */
static inline enum kops_code here_tensors_add(struct here_tensors *h, const struct kops_tensor *t, struct kops_error *e)
{
    struct native_tensor *at = &h->at[h->n++];
    struct kops_buffer *b = t->buffer;

    *at = operand_layout(t);
    if (!b)
        return KOPS_OK;
    if (!cuda_map_is_here(b, h->process)) {
        enum kops_code r = here_tensors_map(t, e);

        if (r)
            return r;
    }
    if (!h->with)
        h->with = b;
    if (t->offset > b->size || b->ordinal != h->with->ordinal)
        return here_tensors_refuse(h, t, e);
    at->offset = b->pointer + t->offset;
    at->bytes = b->size - t->offset;
    return KOPS_OK;
}

/* Enqueues, or launches and waits. Without the lock. `options` may be NULL. */
enum kops_code launch_here(struct kops_kernel *k, const struct here_call *call, const struct dispatch *d,
                           const struct kops_options *options, struct kops_error *e);

/* Runs an op whose operands and attributes were checked, as launch_here() does a kernel. Drops the lock. */
enum kops_code op_here(struct kops_client *c, const struct kops_request *request, const struct dispatch *d,
                       struct kops_error *e);

/* Tells the daemon of launches here that it has not been told of, for its statistics, where the connection knows the
 * kernel's module. Does not wait. Lock held. */
void kernel_tell_here(struct kops_kernel *k);
void kernels_tell_here(struct kops_client *c);
void ops_tell_here(struct kops_client *c);
/* Tells the daemon of ops the last time. */
void ops_close_here(struct kops_client *c);

#endif
