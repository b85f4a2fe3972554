/* Launches of users' kernels on torch CUDA tensors, as fast.c does ops: a kernel's parameters are prepared once, in a
 * Kernel. Anything unexpected is left to the slow path. */
#include <float.h>
#include <math.h>

#include "fast.h"

enum { LAUNCH_PARAMS = 32, ANY_RANK = -1, ANY_LAYOUT = -2 };

struct parameter {
    signed char dtype; /* enum kops_dtype; negative for a scalar, 0 for a structure */
    signed char rank;  /* rank of a tensor, or one of the two values above */
};

struct kernel {
    PyObject ob_base;
    PyObject *name;
    unsigned n;
    struct parameter params[LAUNCH_PARAMS];
};

static PyTypeObject *kernel_type; /* the module's, for checks */

/* ---- arguments ---- */

static bool integer_fits(enum kops_dtype dtype, int64_t value)
{
    switch (dtype) {
    case KOPS_I8:
        return value >= INT8_MIN && value <= INT8_MAX;
    case KOPS_U8:
        return value >= 0 && value <= UINT8_MAX;
    case KOPS_I16:
        return value >= INT16_MIN && value <= INT16_MAX;
    case KOPS_U16:
        return value >= 0 && value <= UINT16_MAX;
    case KOPS_I32:
        return value >= INT32_MIN && value <= INT32_MAX;
    case KOPS_U32:
        return value >= 0 && value <= UINT32_MAX;
    case KOPS_I64:
        return true;
    case KOPS_U64: /* larger ones are rare */
        return value >= 0;
    default:
        return false;
    }
}

static bool real_fits(enum kops_dtype dtype, double value)
{
    const double size = fabs(value);

    if (dtype == KOPS_F64 || !isfinite(value))
        return true;
    /* The limit is below the largest bfloat16, so that no rounding can carry over. */
    return size <= (dtype == KOPS_F16 ? 65504.0 : 3.3e38);
}

/* Reads a Python number as the parameter's type. */
static bool read_scalar(enum kops_dtype dtype, PyObject *value, struct kops_argument *ret)
{
    long long integer;
    double real;

    if (dtype <= KOPS_BF16) {
        if (!PyFloat_Check(value) && !PyLong_Check(value))
            return false;
        real = PyFloat_AsDouble(value);
        *ret = kops_arg_float(real);
        return !(real == -1 && PyErr_Occurred()) && real_fits(dtype, real);
    }
    if (dtype == KOPS_BOOL) {
        *ret = kops_arg_bool(value == Py_True);
        return PyBool_Check(value);
    }
    if (!PyLong_Check(value))
        return false;
    integer = PyLong_AsLongLong(value);
    *ret = kops_arg_int(integer);
    return !(integer == -1 && PyErr_Occurred()) && integer_fits(dtype, integer);
}

/* Reads bytes, as the rest of the client has made them. */
static bool read_structure(PyObject *value, struct kops_argument *ret)
{
    Py_ssize_t size;
    char *bytes;

    if (!PyBytes_Check(value) || PyBytes_AsStringAndSize(value, &bytes, &size) < 0)
        return false;
    *ret = kops_arg_bytes(bytes, (uint32_t)size);
    return true;
}

static bool read_tensor(struct fast *f, const struct parameter *p, PyObject *value)
{
    struct operand *o = &f->operands[f->n_inputs];

    if (f->n_inputs == FAST_OPERANDS || !tensor_read(value, o) || o->dtype != (enum kops_dtype)p->dtype)
        return false;
    if ((p->rank >= 0 && o->rank != (unsigned)p->rank) || (p->rank != ANY_LAYOUT && !o->contiguous))
        return false;
    return fast_resolve(f, f->n_inputs++);
}

static bool read_arguments(struct fast *f, const struct kernel *k, struct kops_argument *args)
{
    for (unsigned i = 0; i < k->n; i++) {
        const struct parameter *p = &k->params[i];
        PyObject *value = PyTuple_GetItem(f->inputs, i);

        if (p->dtype == 0) {
            if (!read_structure(value, &args[i]))
                return false;
        } else if (p->dtype < 0) {
            if (!read_scalar((enum kops_dtype) - p->dtype, value, &args[i]))
                return false;
        } else if (value == Py_None) {
            args[i] = kops_arg_null();
        } else {
            if (!read_tensor(f, p, value))
                return false;
            args[i] = kops_arg_tensor(NULL);
        }
    }
    return f->n_inputs > 0;
}

/* launch(kernel, id, arguments, geometry, blocking, timeout): None, or NotImplemented. */
PyObject *link_launch(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    struct kops_argument args[LAUNCH_PARAMS];
    const struct kernel *k;
    struct kops_error e;
    struct fast f;
    enum fast_way way;
    int r;

    if (count != 6 || Py_TYPE(arguments[0]) != kernel_type || !PyTuple_Check(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "launch(kernel, id, arguments, geometry, way, timeout)");
        return NULL;
    }
    k = (const struct kernel *)(const void *)arguments[0];
    fast_begin(&f, (struct link *)self, arguments[2]);
    f.request = (struct native_request){.generation = f.link->generation,
                                        .kernel = PyLong_AsUnsignedLongLong(arguments[1]),
                                        .tensors = f.tensors,
                                        .args = args,
                                        .n_args = k->n,
                                        .options = &f.options};
    way = fast_way_of(arguments[4]);
    f.request.op = PyUnicode_AsUTF8AndSize(k->name, NULL);
    if (!f.request.op || PyErr_Occurred() || !native_milliseconds(arguments[5], &f.options.timeout_ms) ||
        !fast_packed(arguments[3], &f.request.geometry, &f.request.geometry_length))
        return NULL;
    if (!f.link->client || f.link->closing || PyTuple_Size(f.inputs) != (Py_ssize_t)k->n ||
        !read_arguments(&f, k, args) || !fast_place(&f)) {
        PyErr_Clear(); /* a number too large: the slow path says so */
        return fast_decline();
    }
    f.request.n_inputs = f.n_inputs;
    r = fast_send(&f, way, &e);
    if (r < 0)
        return NULL;
    if (r)
        return native_raise(&e);
    if (way == FAST_TIMED)
        return fast_timings(&f);
    Py_RETURN_NONE;
}

/* ---- kernels ---- */

static bool fill(struct kernel *k, PyObject *dtypes, PyObject *ranks)
{
    const Py_ssize_t n = PyTuple_Size(dtypes);

    if (n > LAUNCH_PARAMS || PyTuple_Size(ranks) != n) {
        PyErr_SetString(PyExc_ValueError, "a kernel has at most 32 parameters");
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        k->params[i] = (struct parameter){(signed char)PyLong_AsLong(PyTuple_GetItem(dtypes, i)),
                                          (signed char)PyLong_AsLong(PyTuple_GetItem(ranks, i))};
    k->n = (unsigned)n;
    return !PyErr_Occurred();
}

static int initialise(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    struct kernel *k = (struct kernel *)self;
    PyObject *name, *dtypes, *ranks;

    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "UO!O!", &name, &PyTuple_Type, &dtypes, &PyTuple_Type, &ranks) ||
        !fill(k, dtypes, ranks))
        return -1;
    native_replace(&k->name, name);
    kernel_type = Py_TYPE(self);
    return 0;
}

static void deallocate(PyObject *self)
{

    Py_CLEAR(((struct kernel *)self)->name);
    native_free(self);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "Kernel(name, dtypes, ranks): what a kernel takes. dtypes are those of enum kops_dtype, negative of "
                "scalars, 0 of structures; ranks of tensors, -1 for any, -2 for any layout as well."},
    {Py_tp_init, initialise},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, deallocate},
    {0, NULL},
};

PyType_Spec kernel_spec = {"kops._native.Kernel", sizeof(struct kernel), 0, Py_TPFLAGS_DEFAULT, slots};
