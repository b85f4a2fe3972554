/* Ops on torch CUDA tensors whose memory is registered: from the tensors to the request without Python in between.
 * Every other argument is left to the slow path, which takes all and names the error. */
#include <string.h>

#include "fast.h"

enum rule { RULE_NONE, RULE_ELEMENTWISE, RULE_GEMM /* of the first two inputs */ };

static bool same_shape(const struct operand *a, const struct operand *b)
{
    return a->rank == b->rank && !memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0]));
}

PyObject *fast_result(PyObject *first, const struct operand *operands, unsigned n_inputs, int rule)
{
    const struct operand *a = &operands[0], *b = &operands[1];
    int64_t shape[2];

    for (unsigned i = 1; i < n_inputs; i++)
        if (operands[i].dtype != a->dtype)
            return NULL;
    if (rule == RULE_GEMM && n_inputs >= 2 && a->rank == 2 && b->rank == 2 && a->shape[1] == b->shape[0]) {
        shape[0] = a->shape[0];
        shape[1] = b->shape[1];
        return tensor_of(first, shape, 2);
    }
    if (rule != RULE_ELEMENTWISE)
        return NULL;
    for (unsigned i = 1; i < n_inputs; i++)
        if (!same_shape(a, &operands[i]))
            return NULL;
    return a->contiguous ? tensor_like(first) : tensor_of(first, a->shape, a->rank);
}

/* Everything that is known before the op is sent. False: for the slow path, or an exception is set. */
static bool prepare(struct fast *f, PyObject *out, enum rule rule)
{
    for (unsigned i = 0; i < f->n_inputs; i++)
        if (!tensor_read(PyTuple_GetItem(f->inputs, i), &f->operands[i]) || f->operands[i].dtype > KOPS_BF16 ||
            !fast_resolve(f, i))
            return false;
    if (!fast_place(f))
        return false;
    if (out == Py_None) {
        f->out = fast_result(PyTuple_GetItem(f->inputs, 0), f->operands, f->n_inputs, rule);
    } else {
        Py_INCREF(out);
        f->out = out;
    }
    return f->out && tensor_read(f->out, &f->operands[f->n_inputs]) && f->operands[f->n_inputs].dtype <= KOPS_BF16 &&
           fast_resolve(f, f->n_inputs);
}

/* The output, with the times where they were asked for. Takes the reference to the output. */
static PyObject *answer(struct fast *f, enum fast_way way)
{
    PyObject *times = way == FAST_TIMED ? fast_timings(f) : NULL, *both;

    if (way != FAST_TIMED)
        return f->out;
    both = times ? PyTuple_Pack(2, f->out, times) : NULL;
    Py_XDECREF(times);
    Py_DECREF(f->out);
    return both;
}

/* run(op, inputs, out, attrs, rule, way, timeout): the output, or NotImplemented. `way` 0: put on the current stream;
 * 1: waits; 2: waits, and returns (output, times). */
PyObject *link_run(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    struct kops_error e;
    struct fast f;
    PyObject *attrs;
    enum fast_way way;
    enum rule rule;
    int r;

    if (count != 7 || !PyTuple_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "run(op, inputs, out, attrs, rule, way, timeout)");
        return NULL;
    }
    fast_begin(&f, (struct link *)self, arguments[1]);
    f.n_inputs = (unsigned)PyTuple_Size(f.inputs);
    attrs = arguments[3];
    rule = (enum rule)PyLong_AsLong(arguments[4]);
    way = fast_way_of(arguments[5]);
    f.op = PyUnicode_AsUTF8AndSize(arguments[0], NULL);
    if (!f.op || !native_milliseconds(arguments[6], &f.options.timeout_ms))
        return NULL;
    if (!f.link->client || f.link->closing || f.n_inputs == 0 || f.n_inputs >= FAST_OPERANDS ||
        !prepare(&f, arguments[2], rule)) {
        Py_XDECREF(f.out);
        return fast_decline();
    }
    f.request = (struct native_request){.generation = f.link->generation,
                                        .op = f.op,
                                        .n_inputs = f.n_inputs,
                                        .n_outputs = 1,
                                        .tensors = f.tensors,
                                        .options = &f.options};
    if (!fast_packed(attrs, &f.request.attrs, &f.request.attrs_length)) {
        Py_DECREF(f.out);
        return NULL;
    }
    r = fast_send(&f, way, &e);
    if (!r)
        return answer(&f, way);
    Py_DECREF(f.out);
    return r < 0 ? NULL : native_raise(&e);
}
