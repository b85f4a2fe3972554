/* Runs of ops and launches of kernels, in each of the ways. The operands, attributes and options of the public structs
 * are checked and resolved to ids. Lock held, unless said otherwise. */
#ifndef KOPS_CLIENT_RUN_H
#define KOPS_CLIENT_RUN_H

#include "jobs/job.h"
#include "kernel.h"
#include "memory/buffer.h"

/* Faults that would change the meaning of an operand's message. The daemon checks everything about the op. */
enum operand_fault {
    OPERAND_IS_GOOD,
    OPERAND_HAS_TOO_MANY_DIMENSIONS,
    OPERAND_HAS_NO_DTYPE,
    OPERAND_IS_FOREIGN,
    OPERAND_LIES_TOO_FAR
};

static inline enum operand_fault operand_fault_of(const struct kops_client *c, const struct kops_tensor *t)
{
    const struct kops_buffer *b = t->buffer;

    if (t->rank > KOPS_MAX_RANK)
        return OPERAND_HAS_TOO_MANY_DIMENSIONS;
    if (!kops_dtype_size(t->dtype))
        return OPERAND_HAS_NO_DTYPE;
    if (b && b->client != c)
        return OPERAND_IS_FOREIGN;
    return b && t->offset > UINT64_MAX - b->base_offset ? OPERAND_LIES_TOO_FAR : OPERAND_IS_GOOD;
}

/* Refuses a tensor. `list` and `place` name it in the message. */
enum kops_code operand_refuse(enum operand_fault fault, const struct kops_tensor *t, const char *list, size_t place,
                              struct kops_error *e);

/* Refuses an operand that has a fault. */
static inline enum kops_code operand_check(const struct kops_client *c, const struct kops_tensor *t, const char *list,
                                           size_t place, struct kops_error *e)
{
    const enum operand_fault fault = operand_fault_of(c, t);

    return fault ? operand_refuse(fault, t, list, place, e) : KOPS_OK;
}

enum kops_code attrs_check(const struct kops_attr *attrs, size_t n, struct kops_error *e);
/* Tells whether an op with these attributes writes its outputs without reading them. */
bool attrs_only_write(const struct kops_attr *attrs, size_t n);

enum kops_code options_check(const struct kops_options *options, struct kops_error *e);

/* Returns the layout of a tensor, which points into *t; its memory is left out. */
static inline struct native_tensor operand_layout(const struct kops_tensor *t)
{
    return (struct native_tensor){
        .shape = t->shape, .strides = t->has_strides ? t->strides : NULL, .rank = t->rank, .dtype = t->dtype};
}

/* Fills *ret, which points into *t. False: the present connection does not know the buffer. */
static inline bool operand_resolve(const struct kops_client *c, const struct kops_tensor *t, struct native_tensor *ret)
{
    const struct kops_buffer *b = t->buffer;

    *ret = operand_layout(t);
    ret->buffer = b ? b->remote.id : 0;
    ret->offset = t->offset + (b ? b->base_offset : 0);
    return !b || remote_known(c, &b->remote);
}

/* Refuses, before anything is sent, a request that no daemon would take. */
enum kops_code request_check(const struct kops_client *c, const struct kops_request *r, struct kops_error *e);

/* The request's tensors: inputs, then outputs. */
static inline const struct kops_tensor *request_tensor(const struct kops_request *r, size_t i)
{
    return i < r->n_inputs ? &r->inputs[i] : &r->outputs[i - r->n_inputs];
}

/* An op or a launch on its way. */
struct work {
    struct kops_kernel *kernel;                               /* NULL: an op */
    const struct kops_tensor *given[KOPS_MAX_KERNEL_TENSORS]; /* as the caller has them: inputs, then outputs */
    struct native_tensor tensors[KOPS_MAX_KERNEL_TENSORS];    /* as the connection knows them */
    struct wire_run wire;
    struct job job;
};

/* Fills work->job, whose options may be NULL. All other members but `tensors` are set by the caller. */
void work_begin(struct work *work, const struct kops_options *options, recovery_safe *safe);

enum kops_code launch_request(struct kops_kernel *k, const struct kops_argument *args, size_t n_args,
                              const struct kops_launch_options *how, const struct dispatch *d,
                              struct kops_error *ret_error);

#endif
