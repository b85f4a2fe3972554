/* Built-in ops, launched in a context of this process. daemon/core plans them, kernels/cuda/ops chooses the kernel, as
 * in the daemon; the daemon hands the kernels out as binaries (code.h). Ops that the daemon gives to cuBLASLt run
 * another kernel of the daemon's here. */
#ifndef KOPS_CLIENT_HERE_OP_H
#define KOPS_CLIENT_HERE_OP_H

#include "code.h"
#include "tally.h"

/* Ops that one client launched in this process: a tally for each op, dtypes and device, for the daemon's statistics,
 * and the last executions. Thread: any. */
struct here_ops;

struct here_ops *here_ops_new(void); /* NULL: no memory */
/* NULL is allowed; returns NULL. */
struct here_ops *here_ops_free(struct here_ops *o);

/* Calls here_tally_read() for all tallies. */
void here_ops_read(struct here_ops *o);

/* Calls tell() with the params of a notification `launched` for each tally that has something to tell. */
typedef void here_ops_told(void *to, const void *params, size_t length);
void here_ops_tell(struct here_ops *o, here_ops_told *tell, void *to);

struct here_op_call {
    const char *op;
    const struct native_tensor *tensors; /* inputs, then outputs */
    unsigned n_inputs, n_outputs;
    const void *attrs; /* a MessagePack map: a request's attrs; NULL: the declared defaults */
    size_t attrs_length;
    cuda_queue stream;    /* a stream of the current context; may be under capture */
    int device;           /* number in this process of the tensors' device, which the context must belong to; -1: any */
    bool timed;           /* time the execution, and wait for its end */
    struct here_ops *ops; /* tallies that count the execution; NULL: not counted */
};

struct here_op_result {
    const char *missing; /* binary to get first (here_image_keep()), and nothing was launched; NULL: none is missing */
    const char *variant; /* the kernel used; "": there was nothing to do */
    bool due;            /* here_ops_tell() should be called */
    double us;           /* with `timed`: the time between two events; 0 where nothing ran */
};

/* Checks and launches; returns when the launch is on the stream. Errors: those of `run`, no_cuda, unsupported,
 * capturing (only with `timed`), device_error. */
enum kops_code here_op(const struct here_op_call *call, struct here_op_result *ret, struct kops_error *e);

#endif
