/* Users' kernels, launched in a context of this process. Launches are checked by the daemon's own code (daemon/core).
 */
#ifndef KOPS_CLIENT_HERE_KERNEL_H
#define KOPS_CLIENT_HERE_KERNEL_H

#include "base/bytes.h"
#include "code.h"
#include "core/kernel.h"
#include "tally.h"

struct here_kernel;

/* A kernel's binary and entry as the daemon described them, and the params of the method `kernel` as they were sent. */
struct here_declaration {
    struct here_code *code;
    const char *entry, *symbol;
    unsigned n_params;
    const uint32_t *offsets, *sizes; /* offsets and sizes of the parameters in the binary */
    const void *params;              /* a MessagePack map: a request's params */
    size_t length;
};

/* Copies everything. Errors: those of the method `kernel`. */
enum kops_code here_kernel_new(const struct here_declaration *d, struct here_kernel **ret, struct kops_error *e);
/* Checks the params of the method `kernel`, all that needs no binary. Errors: those of that method. */
enum kops_code here_check_declaration(const void *params, size_t length, struct kops_error *e);
/* NULL is allowed. Captured graphs that contain the kernel stay usable. */
void here_kernel_free(struct here_kernel *k);

/* A launch. `args` has one for each parameter of the kernel; KOPS_ARG_TENSOR takes the next of `tensors`. */
struct here_call {
    const struct native_tensor *tensors;
    unsigned n_tensors;
    const struct kops_argument *args;
    unsigned n_args;
    const struct kops_launch_geometry *geometry; /* NULL: as declared */
    cuda_queue stream;                           /* a stream of the current context; may be under capture */
    int device; /* number in this process of the tensors' device, which the context must belong to; -1: any */
};

/* Checks and launches; returns when the launch is on the stream. *ret_due: here_kernel_tell() should be called. Errors:
 * those of `launch`, no_cuda, unsupported, device_error. */
enum kops_code here_launch(struct here_kernel *k, const struct here_call *call, bool *ret_due, struct kops_error *e);

/* Launches between two events; returns when the launch has ended. *ret_us: the time between the events, 0 where nothing
 * ran. Errors: those of here_launch(), capturing. */
enum kops_code here_launch_timed(struct here_kernel *k, const struct here_call *call, double *ret_us,
                                 struct kops_error *e);

/* Reads the time of a timed launch that has ended. Call it before here_kernel_tell(), without locks. */
void here_kernel_read(struct here_kernel *k);

/* Appends the params of the notification `launched`: launches in this process since the last time. `module`: the
 * module's id on the daemon's connection. False: nothing to tell. */
bool here_kernel_tell(struct here_kernel *k, uint64_t module, struct bytes *out);

/* The UUID of the current context's device. */
enum kops_code here_device(char ret_uuid[CUDA_UUID_TEXT], struct kops_error *e);

/* ---- the last calls of a kernel, checked and planned. A call that is byte for byte equal to one of them, addresses
 * included, is launched without a new check. Loops make such calls, some alternating. Not thread safe. ---- */

/* Words of the longest call: all that its checks depend on, besides kernel and context. */
enum { LAST_WORDS_MAX = 1 + 2 * KERNEL_MAX_PARAMS + KERNEL_MAX_TENSORS * (4 + 2 * TENSOR_MAX_RANK) + 3 * (1 + 3) + 2 };

struct here_last_call {
    bool kept;               /* false: the slot is empty */
    struct here_row row;     /* row of the call's shapes in the kernel's tally */
    struct plan_kernel plan; /* plan, with the addresses in its params */
    uint64_t words[LAST_WORDS_MAX];
    struct here_shapes shapes;
};

enum { LAST_CALLS = 4 };

struct here_last {
    struct here_last_call calls[LAST_CALLS];
    unsigned found; /* slot that was found or kept last */
};

/* Returns the equal call among the last ones, valid until the next here_last_keep(); NULL: none. */
struct here_last_call *here_last_find(struct here_last *last, const struct here_call *call);

/* Keeps a call in place of an older one. A call too long for the words is not kept; the checks refuse it anyway. */
void here_last_keep(struct here_last *last, const struct here_call *call, const struct plan_kernel *plan,
                    const struct here_shapes *shapes);

void here_last_drop(struct here_last *last);

#endif
