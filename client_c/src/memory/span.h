/* Which memory a tensor covers, to see whether two of them meet. Careful rather than exact: all bytes between the first
 * and the last element count as covered. Lock held. */
#ifndef KOPS_CLIENT_SPAN_H
#define KOPS_CLIENT_SPAN_H

#include "buffer.h"

struct span {
    uint64_t space[3];      /* the kind of memory, and which one: bytes of different spaces never meet */
    uint64_t begin, length; /* within it */
};

/* False: it cannot be known. */
bool span_of(const struct kops_tensor *t, struct span *ret);

bool spans_meet(const struct span *a, const struct span *b);

#endif
