/* Random requests, each planned as the daemon plans them, run by every kernel that can run it, and compared with a
 * reference on the CPU. Elementwise results must be equal bit by bit; gemm must meet the op's declared tolerance;
 * nothing but out may change. */
#ifndef KOPS_CUDA_LAB_CASES_H
#define KOPS_CUDA_LAB_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arrays.h"
#include "core/op.h"
#include "machine.h"

enum { CASE_TEXT_MAX = 512 };

struct lab_case {
    struct op_call call;
    struct lab_array arrays[PLAN_MAX_OPERANDS]; /* inputs, then out; host NULL where out is an input */
    int in_place;                               /* that input, or -1 */
    char text[CASE_TEXT_MAX];                   /* describes the case, and the mistake */
};

/* Makes the tensors' layouts and contents. `scale` bounds the sizes: about scale² elements. */
void case_elementwise(struct lab_case *c, struct lab_random *r, enum op_id op, enum dtype dtype, int64_t scale);
void case_gemm(struct lab_case *c, struct lab_random *r, enum dtype dtype, int64_t scale);
void case_free(struct lab_case *c);

/* Run the case in every way there is; returns how many ways, or -1 where one was wrong (c->text says how). */
int case_check_elementwise(struct lab_case *c, const struct lab_machine *m);
int case_check_gemm(struct lab_case *c, const struct lab_machine *m);

/* Copies a random strided tensor; 1, or -1 where it went wrong. `text` has room for CASE_TEXT_MAX. */
int case_check_copy(struct lab_random *r, const struct lab_machine *m, enum dtype dtype, int64_t scale, char *text);

#endif
