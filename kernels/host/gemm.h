/* Matrix products over any plan. Out is cut into tiles, each computed by one thread with the function `multiply` of a
 * BLAS, of oneDNN, or our own. Operands that the function accepts are used in place; others are copied by blocks, so
 * scratch memory is bounded. Sums of f16, bf16 and f8 are in f32 and rounded once. Thread: the pool's caller; scratch
 * memory is the pool's. */
#ifndef KOPS_HOST_GEMM_H
#define KOPS_HOST_GEMM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/plan.h"
#include "core/step.h"
#include "kernels.h"
#include "pool.h"

/* A block of a matrix in row-major order, for CBLAS and oneDNN. */
struct gemm_block {
    void *at;
    bool transposed;
    int ld;
};

/* out[m×n] = alpha·a[m×k]·b[k×n] + beta·out. `out` is not transposed. All have `dtype`, except that out is f32 for
 * bf16. Returns 0, or an error before anything was written. */
typedef int gemm_multiply(const void *library, enum dtype dtype, int64_t m, int64_t n, int64_t k, double alpha,
                          const struct gemm_block *a, const struct gemm_block *b, double beta,
                          const struct gemm_block *out);

/* A way to multiply on the calling thread. */
struct gemm_way {
    const void *library;
    gemm_multiply *multiply;
    unsigned in_place; /* bits of dtypes whose matrices are used in place. If 0, rows of blocks are contiguous, and
                          alpha is 1 */
};

/* A plan, its operands' first elements, and the kernels and pool that compute it. */
struct gemm_call {
    const struct plan *plan;
    unsigned char *const *pointers;
    const struct kernels *kernels;
    struct pool *pool;
};

/* Estimates the time of one thread in ns. */
double gemm_cost_ns(const struct plan *plan);

/* ---- the choice between two ways ----
 *
 * Chooses between two ways to do equal work by their measured times. A key puts work into classes. The first uses of a
 * class try both ways; then the faster one is used. Both are measured again now and then, so rarely that it costs
 * little.
 *
 * Pure bookkeeping: callers measure. The table is bounded; if there is no place for a new class, the least recently
 * used one is forgotten. Thread: any. */

enum { CHOICE_CLASSES = 512 /* most classes in the table */ };

struct choices {
    pthread_mutex_t lock;
    uint64_t now;                 /* uses of all classes */
    struct choice_class *classes; /* NULL: no memory, or choices are switched off */
};

struct choice_turn {
    unsigned way; /* 0 or 1; 0 is the default */
    bool measure; /* the caller must report the time */
};

/* Makes the table. Without memory for it, way 0 is always chosen. */
void choices_init(struct choices *choices);
void choices_deinit(struct choices *choices);

/* Chooses the way for a use of the class. `key` is not 0. */
struct choice_turn choices_next(struct choices *choices, uint64_t key);

/* Reports that a turn with `measure` took `ns` for `work` units, such as elements of a product. */
void choices_report(struct choices *choices, uint64_t key, unsigned way, double ns, double work);

/* ---- the ways of this device ----
 *
 * The ways to multiply on this device, their names for clients, and the choice for a step. If the client names none and
 * both libraries are available, they are measured in use. */

struct execution;
struct host_device;
struct thread_context;

enum gemm_ways_number { GEMM_BLAS, GEMM_ONEDNN, GEMM_OWN, GEMM_WAYS };

struct gemm_ways {
    const char *names[GEMM_WAYS];                     /* NULL: the device lacks the way */
    const char *variants[DTYPE_SLOTS][GEMM_WAYS + 1]; /* by dtype, best first, NULL-terminated */
    struct choices choices;
};

/* Call after the libraries were searched. `choose`: choose by measured times; else use the first library. */
void gemm_ways_init(struct host_device *device, bool choose);
void gemm_ways_deinit(struct gemm_ways *ways);

/* Whether the step must not run on the loop's thread: it may load a library, which takes long, or use oneDNN. */
bool gemm_needs_worker(struct host_device *device, const struct step *step);

/* Chooses the way, and loads its library. Error: unsupported. */
int gemm_begin(struct host_device *device, const struct thread_context *context, const struct step *step,
               struct execution *ret_execution, struct error *e);

/* Computes the step's product. Errors: out_of_memory, unsupported. */
int gemm_run(struct host_device *device, const struct thread_context *context, const struct step *step,
             unsigned char *const *pointers, const struct execution *x, struct error *e);

#endif
