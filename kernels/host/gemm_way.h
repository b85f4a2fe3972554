/* The ways to multiply on this device, their names for clients, and the choice for a step. If the client names none and
 * both libraries are available, they are measured in use (choice.h). */
#ifndef KOPS_HOST_GEMM_WAY_H
#define KOPS_HOST_GEMM_WAY_H

#include "choice.h"
#include "execute.h"

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
