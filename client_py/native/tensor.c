/* Reading a torch tensor with as few calls into Python as possible: by DLPack's exchange functions where torch has
 * them, else by its methods. */
#include "python_native.h"

#include "base/fail.h"

/* ---- dlpack.h, as much as is needed ---- */

struct dl_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

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

enum { DL_CUDA = 2, MAX_TYPES = 4, MAX_DTYPES = KOPS_F8_E5M2 };

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

static bool no_elements(const struct operand *o)
{
    for (unsigned i = 0; i < o->rank; i++)
        if (o->shape[i] == 0)
            return true;
    return false;
}

static bool row_major(const struct operand *o)
{
    int64_t step = 1;

    for (unsigned i = o->rank; i-- > 0;) {
        if (o->shape[i] != 1 && o->strides[i] != step)
            return false;
        step *= o->shape[i];
    }
    return true;
}

/* DLPack's type codes and bits, the usual ones first. */
static bool find_dtype(unsigned code, unsigned bits, enum kops_dtype *ret)
{
    enum { INT, UINT, FLOAT, BFLOAT = 4, BOOL = 6, F8_E4M3 = 10, F8_E5M2 = 12 };
    static const struct {
        unsigned char code, bits, dtype;
    } known[] = {
        {FLOAT, 32, KOPS_F32}, {BFLOAT, 16, KOPS_BF16},    {FLOAT, 16, KOPS_F16},      {FLOAT, 64, KOPS_F64},
        {INT, 32, KOPS_I32},   {INT, 64, KOPS_I64},        {UINT, 8, KOPS_U8},         {INT, 8, KOPS_I8},
        {INT, 16, KOPS_I16},   {UINT, 16, KOPS_U16},       {UINT, 32, KOPS_U32},       {UINT, 64, KOPS_U64},
        {BOOL, 8, KOPS_BOOL},  {F8_E4M3, 8, KOPS_F8_E4M3}, {F8_E5M2, 8, KOPS_F8_E5M2},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].code == code && known[i].bits == bits) {
            *ret = (enum kops_dtype)known[i].dtype;
            return true;
        }
    return false;
}

static bool read_exchange(PyObject *value, struct operand *o)
{
    struct dl_tensor t = {.data = NULL};

    if (exchange->read(value, &t))
        return false;
    if (t.device.type != DL_CUDA || t.ndim < 0 || t.ndim > FAST_RANK || t.dtype.lanes != 1)
        return false;
    if (!find_dtype(t.dtype.code, t.dtype.bits, &o->dtype))
        return false;
    o->pointer = (uint64_t)(uintptr_t)t.data + t.byte_offset;
    o->device = t.device.id;
    o->rank = (unsigned)t.ndim;
    for (unsigned i = 0; i < o->rank; i++)
        o->shape[i] = t.shape[i];
    o->contiguous = !t.strides;
    if (t.strides) {
        for (unsigned i = 0; i < o->rank; i++)
            o->strides[i] = t.strides[i];
        o->contiguous = row_major(o);
    }
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

static bool read_dtype(PyObject *value, struct operand *o)
{
    PyObject *dtype = PyObject_GetAttr(value, name_dtype);
    bool found = false;

    for (int i = 0; dtype && i < MAX_DTYPES && !found; i++) {
        found = dtype == dtypes[i];
        o->dtype = (enum kops_dtype)(KOPS_F32 + i);
    }
    Py_XDECREF(dtype);
    return found;
}

static bool read_methods(PyObject *value, struct operand *o)
{
    int64_t device, pointer, contiguous;
    PyObject *tuple;
    unsigned n;
    bool ok;

    if (!read_dtype(value, o) || !get_number(value, name_get_device, &device) || device < 0)
        return false;
    tuple = PyObject_GetAttr(value, name_shape);
    ok = read_numbers(tuple, o->shape, &o->rank);
    Py_XDECREF(tuple);
    if (!ok || !get_number(value, name_data_ptr, &pointer) || !get_number(value, name_is_contiguous, &contiguous))
        return false;
    o->pointer = (uint64_t)pointer;
    o->device = (int)device;
    o->contiguous = contiguous != 0;
    if (o->contiguous)
        return true;
    tuple = PyObject_CallMethodObjArgs(value, name_stride, NULL);
    ok = read_numbers(tuple, o->strides, &n) && n == o->rank;
    Py_XDECREF(tuple);
    return ok;
}

bool tensor_read(PyObject *value, struct operand *ret)
{
    PyObject *type = (PyObject *)Py_TYPE(value);
    int64_t negated = 1;
    bool ok = false;

    for (int i = 0; i < MAX_TYPES && !ok; i++)
        ok = types[i] && types[i] == type;
    /* A negated view has ordinary memory with another meaning. */
    ok = ok && get_number(value, name_is_neg, &negated) && !negated &&
         (exchange ? read_exchange(value, ret) : read_methods(value, ret)) && !no_elements(ret);
    if (!ok)
        PyErr_Clear();
    return ok;
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
