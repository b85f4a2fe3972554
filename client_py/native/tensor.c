/* Reading a torch tensor with as few calls into Python as possible: by DLPack's exchange functions where torch has
 * them, else by its methods. */
#include "python_native.h"

#include "base/fail.h"

struct dl_exchange {
    struct {
        struct {
            uint32_t major, minor;
        } version;
        void *previous;
    } header;
    void *allocate, *from_object, *to_object;
    int (*read)(void *object, struct dl_tensor *ret);
    int (*current_stream)(int32_t device_type, int32_t device, void **ret_stream);
};

enum { MAX_TYPES = 4, MAX_DTYPES = KOPS_F8_E5M2 };

/* ---- torch's types and functions ---- */

static PyObject *types[MAX_TYPES];   /* exact types of tensors; subclasses may mean anything */
static PyObject *dtypes[MAX_DTYPES]; /* in the order of enum kops_dtype; None where torch has none */
static const struct dl_exchange *exchange;
static PyObject *current_stream, *empty_like, *empty;
static PyObject *name_data_ptr, *name_shape, *name_stride, *name_is_contiguous, *name_dtype, *name_get_device,
    *name_is_neg;

static bool intern_names(void)
{
    static const struct native_name names[] = {
        {&name_data_ptr, "data_ptr"}, {&name_shape, "shape"},
        {&name_stride, "stride"},     {&name_is_contiguous, "is_contiguous"},
        {&name_dtype, "dtype"},       {&name_get_device, "get_device"},
        {&name_is_neg, "is_neg"},
    };

    return native_intern(names, sizeof(names) / sizeof(names[0]));
}

PyObject *tensor_configure(PyObject *module, PyObject *arguments)
{
    PyObject *new_types, *new_dtypes, *capsule, *stream, *like, *of;

    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!OOOO", &PyTuple_Type, &new_types, &PyTuple_Type, &new_dtypes, &capsule,
                          &stream, &like, &of) ||
        !intern_names())
        return NULL;
    if (PyTuple_Size(new_types) > MAX_TYPES || PyTuple_Size(new_dtypes) != MAX_DTYPES) {
        PyErr_SetString(PyExc_ValueError, "configure: too many types, or not as many dtypes as there are");
        return NULL;
    }
    exchange = NULL;
    if (PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (exchange && (exchange->header.version.major != 1 || !exchange->read || !exchange->current_stream))
        exchange = NULL;
    for (Py_ssize_t i = 0; i < MAX_TYPES; i++) {
        PyObject *type = i < PyTuple_Size(new_types) ? PyTuple_GetItem(new_types, i) : NULL;

        native_replace(&types[i], type);
    }
    for (Py_ssize_t i = 0; i < MAX_DTYPES; i++)
        native_replace(&dtypes[i], PyTuple_GetItem(new_dtypes, i));
    native_replace(&current_stream, stream);
    native_replace(&empty_like, like);
    native_replace(&empty, of);
    return PyBool_FromLong(exchange != NULL);
}

/* ---- reading ---- */

static bool no_elements(const struct native_tensor *t)
{
    for (unsigned i = 0; i < t->rank; i++)
        if (t->shape[i] == 0)
            return true;
    return false;
}

static bool row_major(const struct native_tensor *t)
{
    int64_t step = 1;

    for (unsigned i = t->rank; i-- > 0;) {
        if (t->shape[i] != 1 && t->strides[i] != step)
            return false;
        step *= t->shape[i];
    }
    return true;
}

bool tensor_dtype(const struct dl_tensor *t, enum kops_dtype *ret)
{
    enum { INT, UINT, FLOAT, BFLOAT = 4, BOOL = 6, F8_E4M3 = 10, F8_E5M2 = 12 };
    static const struct {
        unsigned char code, bits, dtype;
    } known[] = {
        /* the usual ones first */
        {FLOAT, 32, KOPS_F32}, {BFLOAT, 16, KOPS_BF16},    {FLOAT, 16, KOPS_F16},      {FLOAT, 64, KOPS_F64},
        {INT, 32, KOPS_I32},   {INT, 64, KOPS_I64},        {UINT, 8, KOPS_U8},         {INT, 8, KOPS_I8},
        {INT, 16, KOPS_I16},   {UINT, 16, KOPS_U16},       {UINT, 32, KOPS_U32},       {UINT, 64, KOPS_U64},
        {BOOL, 8, KOPS_BOOL},  {F8_E4M3, 8, KOPS_F8_E4M3}, {F8_E5M2, 8, KOPS_F8_E5M2},
    };

    for (size_t i = 0; t->dtype.lanes == 1 && i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].code == t->dtype.code && known[i].bits == t->dtype.bits) {
            *ret = (enum kops_dtype)known[i].dtype;
            return true;
        }
    return false;
}

/* The functions below read into the place of tensor number ->n. */

static bool read_exchange(PyObject *value, struct operands *o, int *ret_device)
{
    struct native_tensor *to = &o->at[o->n];
    struct dl_tensor t = {.data = NULL};

    if (exchange->read(value, &t))
        return false;
    if (t.device.type != DL_CUDA || t.ndim < 0 || t.ndim > FAST_RANK)
        return false;
    *to = (struct native_tensor){
        .offset = (uint64_t)(uintptr_t)t.data + t.byte_offset, .shape = o->shapes[o->n], .rank = (unsigned)t.ndim};
    if (!tensor_dtype(&t, &to->dtype))
        return false;
    *ret_device = t.device.id;
    for (unsigned i = 0; i < to->rank; i++)
        o->shapes[o->n][i] = t.shape[i];
    if (!t.strides)
        return true;
    for (unsigned i = 0; i < to->rank; i++)
        o->strides[o->n][i] = t.strides[i];
    to->strides = o->strides[o->n];
    if (row_major(to))
        to->strides = NULL;
    return true;
}

static bool get_number(PyObject *value, PyObject *method, int64_t *ret)
{
    PyObject *number = PyObject_CallMethodObjArgs(value, method, NULL);

    if (!number)
        return false;
    *ret = (int64_t)PyLong_AsUnsignedLongLongMask(number);
    Py_DECREF(number);
    return !PyErr_Occurred();
}

/* `tuple` may be NULL, with an exception set. */
static bool read_numbers(PyObject *tuple, int64_t *into, unsigned *ret_n)
{
    const Py_ssize_t n = tuple && PyTuple_Check(tuple) ? PyTuple_Size(tuple) : FAST_RANK + 1;

    if (n > FAST_RANK) {
        PyErr_SetString(PyExc_ValueError, "an array of at most 8 dimensions is expected");
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        into[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    *ret_n = (unsigned)n;
    return !PyErr_Occurred();
}

static bool read_dtype(PyObject *value, enum kops_dtype *ret)
{
    PyObject *dtype = PyObject_GetAttr(value, name_dtype);
    bool found = false;

    for (int i = 0; dtype && i < MAX_DTYPES && !found; i++) {
        found = dtype == dtypes[i];
        *ret = (enum kops_dtype)(KOPS_F32 + i);
    }
    Py_XDECREF(dtype);
    return found;
}

static bool read_methods(PyObject *value, struct operands *o, int *ret_device)
{
    struct native_tensor *to = &o->at[o->n];
    int64_t device, pointer, contiguous;
    PyObject *tuple;
    unsigned n;
    bool ok;

    *to = (struct native_tensor){.shape = o->shapes[o->n]};
    if (!read_dtype(value, &to->dtype) || !get_number(value, name_get_device, &device) || device < 0)
        return false;
    tuple = PyObject_GetAttr(value, name_shape);
    ok = read_numbers(tuple, o->shapes[o->n], &to->rank);
    Py_XDECREF(tuple);
    if (!ok || !get_number(value, name_data_ptr, &pointer) || !get_number(value, name_is_contiguous, &contiguous))
        return false;
    to->offset = (uint64_t)pointer;
    *ret_device = (int)device;
    if (contiguous)
        return true;
    to->strides = o->strides[o->n];
    tuple = PyObject_CallMethodObjArgs(value, name_stride, NULL);
    ok = read_numbers(tuple, o->strides[o->n], &n) && n == to->rank;
    Py_XDECREF(tuple);
    return ok;
}

bool tensor_is(PyObject *value)
{
    PyObject *type = (PyObject *)Py_TYPE(value);

    for (int i = 0; i < MAX_TYPES; i++)
        if (types[i] == type)
            return true;
    return false;
}

bool tensor_dl(PyObject *value, struct dl_tensor *ret)
{
    *ret = (struct dl_tensor){.data = NULL};
    if (!exchange || !tensor_is(value))
        return false;
    if (!exchange->read(value, ret) && ret->ndim >= 0)
        return true;
    PyErr_Clear();
    return false;
}

static bool read_tensor(PyObject *value, struct operands *o, int *ret_device)
{
    bool ok = tensor_is(value);
    int64_t negated = 1;

    /* A negated view has ordinary memory with another meaning. */
    ok = ok && get_number(value, name_is_neg, &negated) && !negated &&
         (exchange ? read_exchange(value, o, ret_device) : read_methods(value, o, ret_device)) &&
         !no_elements(&o->at[o->n]);
    if (!ok)
        PyErr_Clear();
    return ok;
}

/* Tells whether a tensor on a device (-1: it is not told) may be beside the others. */
static bool joins(const struct operands *o, int device)
{
    return device < 0 || o->device < 0 || device == o->device;
}

/* Counts the tensor that was read. Returns true. */
static bool take(struct operands *o, int device)
{
    if (device >= 0)
        o->device = device;
    o->n++;
    return true;
}

bool tensor_read(PyObject *value, struct operands *o)
{
    int device;

    return o->n < FAST_OPERANDS && read_tensor(value, o, &device) && joins(o, device) && take(o, device);
}

/* ---- the rest of torch ---- */

bool tensor_stream(int device, void **ret_stream)
{
    PyObject *number;

    if (exchange)
        return !exchange->current_stream(DL_CUDA, device, ret_stream);
    number = PyObject_CallFunction(current_stream, "i", device);
    if (number)
        *ret_stream = PyLong_AsVoidPtr(number);
    Py_XDECREF(number);
    if (!PyErr_Occurred())
        return true;
    PyErr_Clear();
    return false;
}

PyObject *tensor_like(PyObject *value)
{
    return PyObject_CallFunctionObjArgs(empty_like, value, NULL);
}

PyObject *tensor_of(PyObject *like, const int64_t *shape, unsigned rank)
{
    PyObject *tuple = PyTuple_New(rank), *made;

    for (unsigned i = 0; tuple && i < rank; i++)
        if (PyTuple_SetItem(tuple, i, PyLong_FromLongLong(shape[i])))
            Py_CLEAR(tuple);
    if (!tuple)
        return NULL;
    made = PyObject_CallFunctionObjArgs(empty, like, tuple, NULL);
    Py_DECREF(tuple);
    return made;
}

/* ---- arrays of launches here ---- */

/* Reads a kops._tensors.operands.Layout: (dtype, shape, strides or None, address or None, device or -1). */
static bool read_layout(PyObject *value, struct operands *o, int *ret_device)
{
    struct native_tensor *to = &o->at[o->n];
    PyObject *shape, *strides, *address;
    const char *dtype;
    unsigned n;

    if (!PyArg_ParseTuple(value, "sOOOi", &dtype, &shape, &strides, &address, ret_device)) {
        PyErr_Clear(); /* another tuple: the slow path says so */
        return false;
    }
    *to = (struct native_tensor){.offset = address == Py_None ? 0 : PyLong_AsUnsignedLongLong(address),
                                 .shape = o->shapes[o->n],
                                 .strides = strides == Py_None ? NULL : o->strides[o->n]};
    return !PyErr_Occurred() && kops_dtype_parse(dtype, &to->dtype) &&
           read_numbers(shape, o->shapes[o->n], &to->rank) &&
           (!to->strides || read_numbers(strides, o->strides[o->n], &n));
}

bool array_read(PyObject *value, struct operands *o)
{
    struct kops_error e;
    int device;

    if (o->n == FAST_OPERANDS ||
        !(PyTuple_Check(value) ? read_layout(value, o, &device) : read_tensor(value, o, &device)))
        return false;
    if (joins(o, device))
        return take(o, device);
    fail(&e, KOPS_ERR_DEVICE_MISMATCH, "arrays live on GPU %d and on GPU %d: a launch here takes those of one GPU",
         o->device, device);
    native_raise(&e);
    return false;
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
