/* The common part of the short ways of ops (fast.c) and of kernels (launch.c). Under the GIL unless a function's
 * comment says otherwise. */
#ifndef KOPS_PYTHON_FAST_H
#define KOPS_PYTHON_FAST_H

#include "jobs/job.h"
#include "python_native.h"

/* Ways to send a request: put on the stream; waited for; waited for, with its times. */
enum fast_way { FAST_ENQUEUED, FAST_WAITS, FAST_TIMED };
enum fast_way fast_way_of(PyObject *number);

/* A request that is being made, see fast_begin(). */
struct fast {
    struct link *link;
    const struct cuda_driver *driver;
    const char *op;
    PyObject *inputs; /* a tuple, borrowed */
    PyObject *out;    /* owned */
    unsigned n_inputs;
    struct operand operands[FAST_OPERANDS];
    struct native_tensor tensors[FAST_OPERANDS];
    void *context, *stream;
    struct kops_options options;
    struct native_request request;
    struct kops_result result;
};

/* ---- fast.c ---- */

/* Makes a tensor for an op's result, where its shape and dtype follow simply from the inputs by a rule of FAST_RULES.
 * NULL: they do not, or an exception is set. */
PyObject *fast_result(PyObject *first, const struct operand *operands, unsigned n_inputs, int rule);

/* ---- fast.c: the driver, and memory that the daemon knows of ---- */

extern int (*fast_stream_synchronize)(void *stream); /* the driver's function, once the driver is loaded */

/* ---- fast.c: sending ---- */

void fast_begin(struct fast *f, struct link *link, PyObject *inputs);

/* Returns the result of a short way that cannot be taken: NotImplemented, or NULL with the exception that is set. */
PyObject *fast_decline(void);

/* Reads the bytes of a packed map; None leaves them alone. False with an exception set. */
bool fast_packed(PyObject *value, const char **ret_data, size_t *ret_length);

/* Refers to operand i, which was read. False: its memory is not registered, or is on another device than earlier
 * operands. */
bool fast_resolve(struct fast *f, unsigned i);

/* Tells whether the calling thread is on the operands' device, and finds the current stream. */
bool fast_place(struct fast *f);

/* Sends the request; `inputs` and `out` live until it has ended. 0, a code in *e, or -1 with an exception set. */
int fast_send(struct fast *f, enum fast_way way, struct kops_error *e);

/* Returns the times of a timed request that has ended: eight numbers or None in the order of kops.Timings, device,
 * variant, timer. */
PyObject *fast_timings(const struct fast *f);

#endif
