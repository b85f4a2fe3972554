/* Built-in ops in a context of this process: op(), and the binaries that it needs. */
#include "here/op.h"

#include "arrays.h"

/* One call, read from Python's objects. */
struct read {
    struct operand operands[FAST_OPERANDS];
    struct here_tensor tensors[FAST_OPERANDS];
    struct here_op_call call;
};

static bool read_tensors(struct read *r, PyObject *tuple, int n_inputs)
{
    const Py_ssize_t n = PyTuple_Size(tuple);

    if (n > FAST_OPERANDS || n_inputs < 0 || n_inputs > n) {
        PyErr_SetString(PyExc_ValueError, "op: at most 16 tensors, the inputs among them");
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!array_read(PyTuple_GetItem(tuple, i), &r->operands[i], &r->call.device))
            return false;
        r->tensors[i] = array_refer(&r->operands[i]);
    }
    r->call.tensors = r->tensors;
    r->call.n_inputs = (unsigned)n_inputs;
    r->call.n_outputs = (unsigned)(n - n_inputs);
    return true;
}

static PyObject *answer(const struct here_op_call *call, const struct here_op_result *result)
{
    if (result->missing)
        return PyUnicode_FromString(result->missing);
    if (call->timed)
        return Py_BuildValue("ds", result->us, result->variant);
    Py_RETURN_NONE;
}

/* op(name, tensors, n_inputs, attrs, stream, timed): see the table of the module. `attrs` is packed, or None; `stream`
 * None: torch's current one of the tensors' device. */
PyObject *here_op_call(PyObject *module, PyObject *arguments)
{
    PyObject *tuple, *attrs, *stream;
    struct read r = {.call = {.device = -1}};
    struct here_op_result result;
    struct kops_error e;
    PyThreadState *thread;
    enum kops_code code;
    int n_inputs, timed;
    Py_ssize_t length;
    char *packed;

    (void)module;
    if (!PyArg_ParseTuple(arguments, "sO!iOOp", &r.call.op, &PyTuple_Type, &tuple, &n_inputs, &attrs, &stream, &timed))
        return NULL;
    if (!read_tensors(&r, tuple, n_inputs)) {
        if (PyErr_Occurred())
            return NULL;
        Py_INCREF(Py_NotImplemented);
        return Py_NotImplemented;
    }
    if (attrs != Py_None) {
        if (PyBytes_AsStringAndSize(attrs, &packed, &length))
            return NULL;
        r.call.attrs = packed;
    }
    if (!array_stream(stream, r.call.device, &r.call.stream))
        return NULL;
    r.call.timed = timed;
    thread = PyEval_SaveThread();
    code = here_op(&r.call, &result, &e);
    PyEval_RestoreThread(thread);
    return code ? native_raise(&e) : answer(&r.call, &result);
}

/* check_layout(number): raises Unsupported where the daemon's kernels take other parameters than this library makes. */
PyObject *here_check_layout(PyObject *module, PyObject *number)
{
    const uint64_t layout = PyLong_AsUnsignedLongLong(number);
    struct kops_error e;

    (void)module;
    if (PyErr_Occurred())
        return NULL;
    if (here_image_check(layout, &e))
        return native_raise(&e);
    Py_RETURN_NONE;
}

/* keep_image(name, fd, size) */
PyObject *here_keep_image(PyObject *module, PyObject *arguments)
{
    unsigned long long size;
    struct kops_error e;
    const char *name;
    int fd;

    (void)module;
    if (!PyArg_ParseTuple(arguments, "siK", &name, &fd, &size))
        return NULL;
    if (here_image_keep(name, fd, (size_t)size, &e))
        return native_raise(&e);
    Py_RETURN_NONE;
}
