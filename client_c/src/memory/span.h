/* Which memory a tensor covers, to see whether two of them meet. Careful rather than exact: what lies between the first
 * and the last element counts as covered. Lock held. */
#ifndef KOPS_CLIENT_SPAN_H
#define KOPS_CLIENT_SPAN_H

#include "buffer.h"

struct span {
    uint64_t space[3];      /* bytes of different spaces never meet: what kind, and which one */
    uint64_t begin, length; /* within it */
};

/* False: nobody can tell. */
bool span_of(const struct kops_tensor *t, struct span *ret);

bool spans_meet(const struct span *a, const struct span *b);

#endif
