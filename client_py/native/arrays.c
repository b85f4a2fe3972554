#include "arrays.h"

static bool read_numbers(PyObject *tuple, int64_t *into, unsigned *ret_n)
{
    const Py_ssize_t n = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : FAST_RANK + 1;

    if (n > FAST_RANK) {
        PyErr_SetString(PyExc_ValueError, "an array of at most 8 dimensions is expected");
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        into[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    *ret_n = (unsigned)n;
    return !PyErr_Occurred();
}

static bool read_array(PyObject *value, struct operand *o)
{
    PyObject *strides = PyTuple_GetItem(value, 3);
    unsigned n;

    o->pointer = PyLong_AsUnsignedLongLong(PyTuple_GetItem(value, 0));
    o->dtype = (enum kops_dtype)PyLong_AsLong(PyTuple_GetItem(value, 1));
    o->contiguous = strides == Py_None;
    if (PyErr_Occurred() || !read_numbers(PyTuple_GetItem(value, 2), o->shape, &o->rank))
        return false;
    return o->contiguous || read_numbers(strides, o->strides, &n);
}

bool array_read(PyObject *value, struct operand *o, int *device)
{
    if (PyTuple_Check(value))
        return PyTuple_Size(value) == 4 && read_array(value, o);
    if (!tensor_read(value, o) || (*device >= 0 && *device != o->device))
        return false;
    *device = o->device;
    return true;
}

struct here_tensor array_refer(const struct operand *o)
{
    return (struct here_tensor){.pointer = o->pointer,
                                .shape = o->shape,
                                .strides = o->contiguous ? NULL : o->strides,
                                .rank = o->rank,
                                .dtype = o->dtype};
}

bool array_stream(PyObject *given, int device, void **ret_stream)
{
    *ret_stream = NULL;
    if (given != Py_None)
        *ret_stream = PyLong_AsVoidPtr(given);
    else if (device >= 0 && !tensor_stream(device, ret_stream))
        PyErr_SetString(PyExc_RuntimeError, "torch did not tell its current stream");
    return !PyErr_Occurred();
}
