/* What tuning has chosen for steps on one device: looked up in the table that the daemon writes. */
#ifndef KOPS_CUDA_TUNED_H
#define KOPS_CUDA_TUNED_H

#include "core/tuning.h"

struct cuda_kernels;

/* What choices depend on beside the problem: the kind of GPU, the driver, cuBLASLt, our own kernels. Loads cuBLASLt
 * where it is to be loaded late. Thread: any; may block. */
void cuda_tuned_machine(const struct cuda_kernels *k, char *into, size_t size);

/* The key of a step with this plan at these addresses. Errors: unsupported, there is nothing to choose among. Thread:
 * any; may block the first time, as cuda_tuned_machine(). */
int cuda_tuned_key(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses,
                   struct tuning_key *ret, struct error *e);

/* Whether cuda_tuned_find() can tell: the machine's key is known, or there are no choices at all. True where
 * `may_block` is. Thread: any; may block then, as cuda_tuned_machine(). */
bool cuda_tuned_is_known(const struct cuda_kernels *k, bool may_block);

/* The choice for the plan at these addresses. False: there is none, or the machine's key is not known yet and
 * `may_block` is false. Thread: any. */
bool cuda_tuned_find(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses, bool may_block,
                     struct tuning_choice *ret);

/* The same where it is an algorithm of cuBLASLt's. */
bool cuda_tuned_find_algorithm(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses,
                               bool may_block, struct tuning_choice *ret);

#endif
