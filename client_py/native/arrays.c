#include "arrays.h"

#include "base/fail.h"

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

/* Compares a further array's device, `of`, with the others'; -1: it is not told. */
static bool join(int of, int *device)
{
    struct kops_error e;

    if (of >= 0 && *device >= 0 && of != *device) {
        fail(&e, KOPS_ERR_DEVICE_MISMATCH, "arrays live on GPU %d and on GPU %d: a launch here takes those of one GPU",
             *device, of);
        native_raise(&e);
        return false;
    }
    if (of >= 0)
        *device = of;
    return true;
}

bool array_read(PyObject *value, struct operand *o, int *device)
{
    if (!PyTuple_Check(value))
        return tensor_read(value, o) && join(o->device, device);
    if (PyTuple_Size(value) != 5 || !read_array(value, o))
        return false;
    o->device = (int)PyLong_AsLong(PyTuple_GetItem(value, 4));
    return !PyErr_Occurred() && join(o->device, device);
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
