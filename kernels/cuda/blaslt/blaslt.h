/* cuBLASLt as a gemm variant: loaded at run time where it is found, one handle and one cache of plans per device.
 * Loading takes some 60 ms and 90 MiB of host memory, so processes that may never run a gemm load it with the first
 * plan. Thread: any, the context is current, except where a function says otherwise. */
#ifndef KOPS_CUDA_BLASLT_H
#define KOPS_CUDA_BLASLT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/plan.h"
#include "core/tuning.h"
#include "util/error.h"

struct blaslt;
struct blaslt_plan;
struct cuda_device;
struct cuda_queue;

/* Chooses the library before the other calls: `path`, which must stay valid, "none", or the usual names when NULL.
 * Loads the library now, or, with `late`, with the first plan. False: there is no library, and the log says why. */
bool blaslt_choose(const char *path, bool late);

/* The device's handle and plans, whose algorithms may use `workspace_bytes` of scratch. NULL: no memory. */
struct blaslt *blaslt_new(struct cuda_device *d, uint64_t workspace_bytes);
/* Needs that no plan is in use. NULL is allowed; returns NULL. */
struct blaslt *blaslt_free(struct blaslt *b);

/* Whether `late` loading has failed: then there are no plans. */
bool blaslt_is_absent(const struct blaslt *b);

/* Error: invalid_argument, cuBLASLt cannot express the plan. */
int blaslt_check(const struct plan *plan, struct error *e);
/* Returns how many calls of the library the plan's product takes. */
unsigned blaslt_calls(const struct plan *plan);

/* Returns the library's version; 0: there is no library. Loads it, if need be. May block. */
size_t blaslt_version(void);

/* Writes the problem as bytes: everything on which the choice of a kernel for the plan depends. Needs no library.
 * Errors: as blaslt_check(). */
int blaslt_problem_of(const struct plan *plan, const uint64_t *addresses, unsigned char ret[TUNING_PROBLEM_BYTES],
                      struct error *e);
/* Writes the problem as text, such as "bf16 4096x4096x4096 nt". */
void blaslt_problem_text(const struct plan *plan, const uint64_t *addresses, char *into, size_t size);

/* Gets a reference to the plan for this problem, from the cache or made now, which may take long. `choice`: the
 * algorithm to use if the library accepts it; NULL: the library's first choice. Errors: unsupported, out_of_memory,
 * device_lost. */
int blaslt_plan_get(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                    const struct tuning_choice *choice, struct blaslt_plan **ret_plan, struct error *e);
bool blaslt_plan_is_cached(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                           const struct tuning_choice *choice);

/* Lists the library's candidates for the problem, its first choice first: at most `max`, maybe none. Errors: as
 * blaslt_plan_get(). */
int blaslt_candidates(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                      struct tuning_candidate *ret, unsigned max, unsigned *ret_n, struct error *e);

size_t blaslt_plan_workspace(const struct blaslt_plan *p);

struct blaslt_plan *blaslt_plan_unref(struct blaslt_plan *p);

/* Enqueues the product, for the `plan` and `addresses` that were given to blaslt_plan_get(). Thread: loop. */
int blaslt_plan_run(const struct cuda_queue *queue, struct blaslt_plan *p, const struct plan *plan,
                    const uint64_t *addresses, struct error *e);

#endif
