/* Device arrays of launches in this process's own contexts (here.c, here_op.c). Under the GIL. */
#ifndef KOPS_PYTHON_ARRAYS_H
#define KOPS_PYTHON_ARRAYS_H

#include "here/read.h"

#include "python_native.h"

/* Reads a torch CUDA tensor, or a tuple (address, dtype, shape, strides or None, device or -1) of another array.
 * `device` is the earlier arrays' device, -1 if none told it, and is set from this one. False, with an exception set:
 * the array is on another device, or `value` is neither. */
bool array_read(PyObject *value, struct operand *ret, int *device);

/* Returns the array in libkops' form, which points into *o. */
struct here_tensor array_refer(const struct operand *o);

/* Finds the stream of a launch: the number given, or for None torch's current stream of the device (-1: the default
 * stream). False with an exception set. */
bool array_stream(PyObject *given, int device, void **ret_stream);

#endif
