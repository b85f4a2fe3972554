/* Built-in ops, launched in a context of this process: planned by the daemon's own rules (daemon/core), with the
 * daemon's own choice among its kernels (kernels/cuda/ops), which are handed out as binaries (code.h). Ops that the
 * daemon gives to cuBLASLt run one of the daemon's own kernels here. */
#ifndef KOPS_CLIENT_HERE_OP_H
#define KOPS_CLIENT_HERE_OP_H

#include "code.h"
#include "read.h"
#include "tally.h"

/* The ops that one client launched in this process: a tally for each op, dtypes and device, for the daemon's
 * statistics, and the last executions. Thread: any. */
struct here_ops;

struct here_ops *here_ops_new(void); /* NULL: no memory */
/* NULL is allowed; returns NULL. */
struct here_ops *here_ops_free(struct here_ops *o);

/* As here_tally_read(), of all of them. */
void here_ops_read(struct here_ops *o);

/* Calls tell() with the params of a notification `launched` for each tally that has something to tell. */
typedef void here_ops_told(void *to, const void *params, size_t length);
void here_ops_tell(struct here_ops *o, here_ops_told *tell, void *to);

/* One execution. */
struct here_op_call {
    const char *op;
    const struct here_tensor *tensors; /* inputs, then outputs */
    unsigned n_inputs, n_outputs;
    const void *attrs; /* one MessagePack map: a request's attrs; NULL: as declared */
    size_t attrs_length;
    cuda_queue stream;    /* of the current context; may be under capture */
    int device;           /* the tensors', by its number in this process, which the context must be of; -1: any */
    bool timed;           /* waits until it has ended */
    struct here_ops *ops; /* to be counted in; NULL: it is not counted */
};

/* How an execution went. */
struct here_op_result {
    const char *missing; /* the binary that this process has to get first (here_image_keep()): nothing was launched;
                          * NULL: none is missing */
    const char *variant; /* the kernel used; "": nothing was to be done */
    bool due;            /* it is time for here_ops_tell() */
    double us;           /* of a timed one: the time between two events; 0 where nothing ran */
};

/* Checks and launches; returns when it is on the stream. Errors: those of `run`, no_cuda, unsupported, capturing (only
 * timed), device_error. */
enum kops_code here_op(const struct here_op_call *call, struct here_op_result *ret, struct kops_error *e);

#endif
