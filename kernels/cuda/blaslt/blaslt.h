/* cuBLASLt as a gemm variant: loaded at run time where it is found, one handle and one cache of plans per device.
 * The library takes some 60 ms and 90 MiB of host memory, so processes that may never see a gemm load it late.
 * Thread: any, the context is current, except where a function says otherwise. */
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

/* Chooses the library before the other calls: `path`, "none", or the usual names when NULL. Loads it now, or, with
 * `late`, when a plan is first wanted. False: there is none, and the log says why. The path stays as it is. */
bool blaslt_choose(const char *path, bool late);

/* The device's handle and plans, whose algorithms may use `workspace_bytes` of scratch. NULL: no memory. */
struct blaslt *blaslt_new(struct cuda_device *d, uint64_t workspace_bytes);
/* No plan is in use. NULL is allowed; returns NULL. */
struct blaslt *blaslt_free(struct blaslt *b);

/* Whether a library that was to be loaded late is not there: then there are no plans. */
bool blaslt_is_absent(const struct blaslt *b);

/* invalid_argument unless cuBLASLt can express the plan. */
int blaslt_check(const struct plan *plan, struct error *e);
/* Calls of the library that the plan's product takes. */
unsigned blaslt_calls(const struct plan *plan);

/* The version of the library, which may be loaded for it; 0: there is none. May block. */
size_t blaslt_version(void);

/* All that the choice of a kernel for the plan depends on, as bytes, also where the library is not there. Errors: as
 * blaslt_check(). */
int blaslt_problem_of(const struct plan *plan, const uint64_t *addresses, unsigned char ret[TUNING_PROBLEM_BYTES],
                      struct error *e);
/* The problem for people: "bf16 4096x4096x4096 nt". */
void blaslt_problem_text(const struct plan *plan, const uint64_t *addresses, char *into, size_t size);

/* A reference to the plan for this problem, from the cache or made now, which may take long. `choice`: the
 * algorithm, if the library still takes it; NULL: the library's own first choice. Errors: unsupported,
 * out_of_memory, device_lost. */
int blaslt_plan_get(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                    const struct tuning_choice *choice, struct blaslt_plan **ret_plan, struct error *e);
bool blaslt_plan_is_cached(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                           const struct tuning_choice *choice);

/* The library's candidates for the problem, its first choice first: at most `max`, maybe none. Errors: as
 * blaslt_plan_get(). */
int blaslt_candidates(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                      struct tuning_candidate *ret, unsigned max, unsigned *ret_n, struct error *e);

size_t blaslt_plan_workspace(const struct blaslt_plan *p);

struct blaslt_plan *blaslt_plan_unref(struct blaslt_plan *p);

/* Enqueues the product, for the `plan` and `addresses` that were given to blaslt_plan_get(). Thread: loop. */
int blaslt_plan_run(const struct cuda_queue *queue, struct blaslt_plan *p, const struct plan *plan,
                    const uint64_t *addresses, struct error *e);

#endif
