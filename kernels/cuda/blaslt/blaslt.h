/* cuBLASLt as a gemm variant: loaded at run time where it is found, one handle and one cache of plans per device. The
 * library takes some 60 ms and 90 MiB of host memory, so processes that may never see a gemm load it late. */
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

/* Chooses the library: `path`, or the usual names when NULL; "none" is none. Loads it now, or, with `late`, when a plan
 * is first wanted. Before the other calls. False: there is none, and the log says why. The path stays as it is. */
bool blaslt_choose(const char *path, bool late);

/* The device's handle and plans, whose algorithms may use `workspace_bytes` of scratch. The handle itself is made at
 * the first plan, because that takes long. NULL: no memory. */
struct blaslt *blaslt_new(struct cuda_device *d, uint64_t workspace_bytes);
/* No plan is in use. NULL is allowed; returns NULL. */
struct blaslt *blaslt_free(struct blaslt *b);

/* A library that was to be loaded late is not there: there are no plans. */
bool blaslt_is_absent(const struct blaslt *b);

/* invalid_argument unless cuBLASLt can express the plan (a gemm's layout, or it is none). Thread: any. */
int blaslt_check(const struct plan *plan, struct error *e);
/* How many calls of the library the plan's product takes; it can be expressed. */
unsigned blaslt_calls(const struct plan *plan);

/* The version of the library, which is loaded now if it is to be; 0: there is none. Thread: any; may block. */
size_t blaslt_version(void);

/* All that the choice of what runs the plan at these addresses depends on, also where the library is not there. Errors:
 * as blaslt_check(). Thread: any. */
int blaslt_problem_of(const struct plan *plan, const uint64_t *addresses, unsigned char ret[TUNING_PROBLEM_BYTES],
                      struct error *e);
/* The same for people: "bf16 4096x4096x4096 nt". */
void blaslt_problem_text(const struct plan *plan, const uint64_t *addresses, char *into, size_t size);

/* A reference to the plan for this problem at these addresses, from the cache or made now, which may take long.
 * `choice`: the algorithm, if the library still takes it; NULL: the library's own first choice. Errors: unsupported,
 * out_of_memory, device_lost. Thread: any, the context is current. */
int blaslt_plan_get(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                    const struct tuning_choice *choice, struct blaslt_plan **ret_plan, struct error *e);
bool blaslt_plan_is_cached(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                           const struct tuning_choice *choice);

/* The library's candidates for the problem, its first choice first. `max` is the room of `ret`; *ret_n may be 0.
 * Errors: as blaslt_plan_get(). */
int blaslt_candidates(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                      struct tuning_candidate *ret, unsigned max, unsigned *ret_n, struct error *e);

/* Bytes of workspace that the plan's stream must have. */
size_t blaslt_plan_workspace(const struct blaslt_plan *p);

/* Has the driver load the kernels of the product, so that its first run loads nothing: runs its algorithm on a small
 * product, or captures the product once where that cannot be. A failure is left to that run. Thread: any, the context
 * is current; may block. */
void blaslt_plan_load(struct blaslt_plan *p, const struct plan *plan, const uint64_t *addresses);

/* NULL is allowed; returns NULL. Thread: any. */
struct blaslt_plan *blaslt_plan_unref(struct blaslt_plan *p);

/* Enqueues the product, for the `plan` and `addresses` that were given to blaslt_plan_get(). Thread: loop. */
int blaslt_plan_run(const struct cuda_queue *queue, struct blaslt_plan *p, const struct plan *plan,
                    const uint64_t *addresses, struct error *e);

#endif
