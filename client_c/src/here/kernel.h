/* Kernels of users, launched in a context of this process: checked by the rules that the daemon checks launches by
 * (daemon/core), in the same code. */
#ifndef KOPS_CLIENT_HERE_KERNEL_H
#define KOPS_CLIENT_HERE_KERNEL_H

#include "base/bytes.h"
#include "code.h"
#include "read.h"

struct here_kernel;

/* What the daemon told of a kernel's binary and entry, and the params of `kernel` as they were sent there. */
struct here_declaration {
    struct here_code *code;
    const char *entry, *symbol;
    unsigned n_params;
    const uint32_t *offsets, *sizes; /* of the parameters in the binary */
    const void *params;              /* one MessagePack map: a request's params */
    size_t length;
};

/* Everything is copied. Errors: those of `kernel`. */
enum kops_code here_kernel_new(const struct here_declaration *d, struct here_kernel **ret, struct kops_error *e);
/* NULL is allowed. Graphs that were captured with it go on. */
void here_kernel_free(struct here_kernel *k);

/* One launch. `args` are as many as the kernel has parameters; KOPS_ARG_TENSOR takes the next of `tensors`. */
struct here_call {
    const struct here_tensor *tensors;
    unsigned n_tensors;
    const struct kops_argument *args;
    unsigned n_args;
    const struct kops_launch_geometry *geometry; /* NULL: as declared */
    cuda_queue stream;                           /* of the current context; may be under capture */
    int device; /* the tensors', by its number in this process, which the context must be of; -1: any */
};

/* Checks and launches; returns when it is on the stream. *ret_due: it is time for here_kernel_tell(). Errors: those of
 * `launch`, no_cuda, unsupported, device_error.
 */
enum kops_code here_launch(struct here_kernel *k, const struct here_call *call, bool *ret_due, struct kops_error *e);

/* The same between two events; returns when it has ended. *ret_us: the time between them, 0 where nothing ran. Errors:
 * capturing, besides. */
enum kops_code here_launch_timed(struct here_kernel *k, const struct here_call *call, double *ret_us,
                                 struct kops_error *e);

/* Takes the time of a timed launch that has ended: before here_kernel_tell(), and not by holders of locks. */
void here_kernel_read(struct here_kernel *k);

/* Appends the params of the method launched: what this process launched since the last time. `module`: its id on the
 * connection that is told. False: there is nothing to tell. */
bool here_kernel_tell(struct here_kernel *k, uint64_t module, struct bytes *out);

/* The UUID of the current context's device. */
enum kops_code here_device(char ret_uuid[CUDA_UUID_TEXT], struct kops_error *e);

#endif
