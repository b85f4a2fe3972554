/* Device arrays of launches in this process's own contexts (here.c, here_op.c). Under the GIL. */
#ifndef KOPS_PYTHON_ARRAYS_H
#define KOPS_PYTHON_ARRAYS_H

#include "here/read.h"

#include "python_native.h"

/* Reads a torch CUDA tensor, or a tuple (address, dtype, shape, strides or None, device or -1) of another array.
 * `device` is that of the arrays before, -1: none told it, and becomes theirs. False: with an exception set, as for an
 * array on another device, or for a value that is neither. */
bool array_read(PyObject *value, struct operand *ret, int *device);

/* The same array for libkops; it points into *o. */
struct here_tensor array_refer(const struct operand *o);

/* Where a launch goes: the number given, or for None torch's current stream of the device (-1: the default stream).
 * False with an exception set. */
bool array_stream(PyObject *given, int device, void **ret_stream);

#endif
