/* Operands, attributes and options of the public structs: checked, and resolved to ids. Lock held. */
#ifndef KOPS_CLIENT_OPERAND_H
#define KOPS_CLIENT_OPERAND_H

#include "memory/buffer.h"

/* Refuses an operand whose message would mean something else; the daemon checks everything about the op. `list` and
 * `place` name the tensor in messages. */
enum kops_code operand_check(const struct kops_client *c, const struct kops_tensor *t, const char *list, size_t place,
                             struct kops_error *e);
enum kops_code attrs_check(const struct kops_attr *attrs, size_t n, struct kops_error *e);
/* Whether an op with these attributes writes its outputs without reading them. */
bool attrs_only_write(const struct kops_attr *attrs, size_t n);

enum kops_code options_check(const struct kops_options *options, struct kops_error *e);

/* Fills *ret, which points into *t; false: the present connection does not know the buffer. */
static inline bool operand_resolve(const struct kops_client *c, const struct kops_tensor *t, struct native_tensor *ret)
{
    const struct kops_buffer *b = t->buffer;

    *ret = (struct native_tensor){.buffer = b ? b->remote.id : 0,
                                  .offset = t->offset + (b ? b->base_offset : 0),
                                  .shape = t->shape,
                                  .strides = t->has_strides ? t->strides : NULL,
                                  .rank = t->rank,
                                  .dtype = t->dtype};
    return !b || remote_known(c, &b->remote);
}

#endif
