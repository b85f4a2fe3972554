/* The ways to compute a product on this device: which there are, what clients call them, and which one a step takes.
 * Where the client does not say, the ways are measured while they serve (choice.h). */
#ifndef KOPS_HOST_GEMM_WAY_H
#define KOPS_HOST_GEMM_WAY_H

#include "choice.h"
#include "execute.h"

/* The ways that are chosen between, by their numbers as candidates. */
enum gemm_way { GEMM_BLAS, GEMM_ONEDNN, GEMM_BLOCKED, GEMM_BF16, GEMM_AMX, GEMM_WAYS };

enum { GEMM_VARIANTS = GEMM_WAYS + CPU_ISAS };

struct gemm_ways {
    bool choose;                                        /* false: the first one that is there */
    const char *variants[KERNEL_DTYPES][GEMM_VARIANTS]; /* by dtype; each list ends with NULL */
    const char *names[GEMM_WAYS];                       /* NULL: the device has none */
    struct choices choices;
};

/* After the libraries were looked for. */
void gemm_ways_init(struct host_device *device, bool choose);
void gemm_ways_deinit(struct gemm_ways *ways);

/* One class of products that the device has computed, for reports. Sizes are the least ones of the class. */
struct gemm_choice {
    enum dtype dtype;
    int64_t m, n, k;
    bool row_major[3]; /* a, b, out */
    bool batched;
    bool threads;       /* computed by several */
    const char *chosen; /* NULL: the ways still have turns */
    unsigned count;
    struct {
        const char *name;
        double ns_a_product; /* for one multiplication and addition; infinite: not measured */
    } ways[GEMM_WAYS];
};

/* The index-th class; false: there are no more. Thread: any. */
bool gemm_ways_get(struct gemm_ways *ways, unsigned index, struct gemm_choice *ret);

/* Whether the step is not for the loop's thread: it may load a library, which takes long, or is oneDNN's. */
bool gemm_needs_worker(struct host_device *device, const struct step *step);

/* Resolves the way, and loads its library. Error: unsupported. */
int gemm_begin(struct host_device *device, const struct thread_context *context, const struct step *step,
               struct execution *ret_execution, struct error *e);

/* Computes the step's product. Errors: out_of_memory, unsupported. */
int gemm_run(struct host_device *device, const struct thread_context *context, const struct step *step,
             unsigned char *const *pointers, const struct execution *x, struct error *e);

#endif
