/* Random work, with the answer that is right: small integers, so that every result is exact in every dtype. */
#ifndef SOAK_WORK_H
#define SOAK_WORK_H

#include <kops/kops.h>

#include "memory.h"

enum { WORK_TENSORS = 4, WORK_ELEMENTS = 4096 };

enum work_kind { WORK_ADD, WORK_SQUARE, WORK_GEMM, WORK_SEQUENCE };

struct work {
    enum work_kind kind;
    struct kops_tensor t[WORK_TENSORS]; /* inputs first; the last one is the output */
    unsigned n_tensors;
    struct kops_attr attrs[4];
    struct kops_request request;
    struct kops_step steps[2]; /* of a sequence: d = (a + b)², by way of c */
    struct kops_sequence sequence;
    double expected[WORK_ELEMENTS]; /* row-major */
};

/* Makes some. It points into itself, so it stays where it is. *ret_made: false where there is no room left for it. */
enum kops_code work_make(struct work *w, struct memory *m, bool *ret_made, struct kops_error *e);

/* What it promises when others end under it: see expect.h. */
unsigned work_promise(const struct work *w);

/* Whether the output is right. */
bool work_check(const struct work *w);

/* A line that says what it was. */
void work_tell(const struct work *w, char *into, size_t size);

#endif
