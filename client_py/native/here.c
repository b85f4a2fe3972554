/* Launches in a context of this process. kops._native.Here is a kernel whose binary the daemon handed out; its
 * arguments are torch tensors, numbers, None, or Layouts (kops._tensors.operands) of other device arrays.
 * kops._native.Ops counts the built-in ops of one client, whose binaries are kept here. */
#include "here/kernel.h"
#include "here/op.h"

#include "python_native.h"

enum { HERE_PARAMS = 32 };

struct here {
    PyObject ob_base;
    struct here_kernel *kernel;
};

/* A call, read from Python's objects. */
struct here_read {
    struct operands tensors;
    struct kops_argument args[HERE_PARAMS];
    struct kops_launch_geometry geometry;
    struct here_call call;
};

/* ---- arguments ---- */

static bool read_integer(PyObject *value, struct kops_argument *ret)
{
    int overflow;
    const long long integer = PyLong_AsLongLongAndOverflow(value, &overflow);

    *ret = overflow > 0 ? kops_arg_uint(PyLong_AsUnsignedLongLong(value)) : kops_arg_int(integer);
    return !PyErr_Occurred();
}

/* Reads an argument. False: an exception is set, or `value` has another type. */
static bool read_argument(struct here_read *r, PyObject *value, struct kops_argument *ret)
{
    if (value == Py_None) {
        *ret = kops_arg_null();
        return true;
    }
    if (PyBool_Check(value)) {
        *ret = kops_arg_bool(value == Py_True);
        return true;
    }
    if (PyFloat_Check(value)) {
        *ret = kops_arg_float(PyFloat_AsDouble(value));
        return true;
    }
    if (PyLong_Check(value))
        return read_integer(value, ret);
    if (PyBytes_Check(value)) {
        *ret = kops_arg_bytes(PyBytes_AsString(value), (uint32_t)PyBytes_Size(value));
        return true;
    }
    if (!array_read(value, &r->tensors))
        return false;
    *ret = kops_arg_tensor(NULL);
    return true;
}

static bool read_arguments(struct here_read *r, PyObject *tuple)
{
    const Py_ssize_t n = PyTuple_Size(tuple);

    r->tensors.n = 0;
    r->tensors.device = -1;
    if (n > HERE_PARAMS)
        return false;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!read_argument(r, PyTuple_GetItem(tuple, i), &r->args[i]))
            return false;
    r->call = (struct here_call){.tensors = r->tensors.at,
                                 .n_tensors = r->tensors.n,
                                 .args = r->args,
                                 .n_args = (unsigned)n,
                                 .device = r->tensors.device};
    return true;
}

/* ---- geometry ---- */

static bool read_dims(PyObject *map, const char *name, struct kops_dims *ret)
{
    PyObject *list = PyDict_GetItemString(map, name);
    const Py_ssize_t n = list ? PyList_Size(list) : 0;

    *ret = (struct kops_dims){.n = 0};
    if (n < 0 || n > 3)
        return false;
    ret->n = (unsigned)n;
    for (Py_ssize_t i = 0; i < n; i++)
        ret->size[i] = PyLong_AsLongLong(PyList_GetItem(list, i));
    return !PyErr_Occurred();
}

static bool read_geometry(PyObject *map, struct here_read *r)
{
    PyObject *shared;

    if (map == Py_None)
        return true;
    if (!PyDict_Check(map)) {
        PyErr_SetString(PyExc_TypeError, "geometry must be a dict or None");
        return false;
    }
    if (!read_dims(map, "grid", &r->geometry.grid) || !read_dims(map, "block", &r->geometry.block) ||
        !read_dims(map, "cluster", &r->geometry.cluster))
        return false;
    shared = PyDict_GetItemString(map, "shared");
    r->geometry.has_shared = shared != NULL;
    r->geometry.shared = shared ? PyLong_AsUnsignedLongLong(shared) : 0;
    r->call.geometry = &r->geometry;
    return !PyErr_Occurred();
}

/* ---- the calls ---- */

/* launch(arguments, geometry, stream, timed): None, or True where tell() should be called; with `timed` microseconds;
 * NotImplemented for arguments of other kinds. `stream` None: torch's current stream of the tensors' device. */
static PyObject *launch(PyObject *self, PyObject *arguments)
{
    PyObject *tuple, *geometry, *stream;
    struct here_read r;
    struct kops_error e;
    enum kops_code code;
    double us = 0;
    bool due = false;
    int timed;

    if (!PyArg_ParseTuple(arguments, "O!OOp", &PyTuple_Type, &tuple, &geometry, &stream, &timed))
        return NULL;
    if (!read_arguments(&r, tuple) || !read_geometry(geometry, &r))
        return native_decline();
    if (!array_stream(stream, r.call.device, &r.call.stream))
        return NULL;
    WITHOUT_GIL(code = timed ? here_launch_timed(((struct here *)self)->kernel, &r.call, &us, &e)
                             : here_launch(((struct here *)self)->kernel, &r.call, &due, &e));
    if (code)
        return native_raise(&e);
    if (timed)
        return PyFloat_FromDouble(us);
    if (due)
        Py_RETURN_TRUE;
    Py_RETURN_NONE;
}

/* tell(module): the params of the notification `launched`, packed; None where there is nothing to tell. */
static PyObject *tell(PyObject *self, PyObject *module)
{
    const unsigned long long id = PyLong_AsUnsignedLongLong(module);
    struct bytes params = {.data = NULL};
    PyObject *made = NULL;
    PyThreadState *thread;
    bool any;

    if (PyErr_Occurred())
        return NULL;
    thread = PyEval_SaveThread();
    here_kernel_read(((struct here *)self)->kernel);
    any = here_kernel_tell(((struct here *)self)->kernel, id, &params);
    PyEval_RestoreThread(thread);
    if (any && !params.failed)
        made = PyBytes_FromStringAndSize(params.data, (Py_ssize_t)params.length);
    bytes_free(&params);
    if (made || PyErr_Occurred())
        return made;
    Py_RETURN_NONE;
}

static bool read_sizes(PyObject *tuple, uint32_t *into, unsigned n)
{
    if ((unsigned)PyTuple_Size(tuple) != n) {
        PyErr_SetString(PyExc_ValueError, "as many offsets as sizes are expected");
        return false;
    }
    for (unsigned i = 0; i < n; i++)
        into[i] = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GetItem(tuple, i));
    return !PyErr_Occurred();
}

static int initialise(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    enum { MOST = 64 };
    uint32_t offsets[MOST], sizes[MOST];
    PyObject *offset_tuple, *size_tuple;
    struct here_declaration d = {.offsets = offsets, .sizes = sizes};
    const char *key, *params;
    struct kops_error e;
    Py_ssize_t length;
    enum kops_code r;
    int fd, size;

    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "siissO!O!y#", &key, &fd, &size, &d.entry, &d.symbol, &PyTuple_Type, &offset_tuple,
                          &PyTuple_Type, &size_tuple, &params, &length))
        return -1;
    if (PyTuple_Size(size_tuple) > MOST) {
        PyErr_SetString(PyExc_ValueError, "a kernel has at most 64 parameters");
        return -1;
    }
    d.n_params = (unsigned)PyTuple_Size(size_tuple);
    if (!read_sizes(offset_tuple, offsets, d.n_params) || !read_sizes(size_tuple, sizes, d.n_params))
        return -1;
    d.params = params;
    d.length = (size_t)length;
    d.code = here_code_find(key);
    r = d.code ? KOPS_OK : here_code_keep(key, fd, (size_t)size, &d.code, &e);
    if (!r)
        r = here_kernel_new(&d, &((struct here *)self)->kernel, &e);
    if (!r)
        return 0;
    native_raise(&e);
    return -1;
}

static void deallocate(PyObject *self)
{
    here_kernel_free(((struct here *)self)->kernel);
    native_free(self);
}

struct here_kernel *here_kernel_of(PyObject *here)
{
    return ((struct here *)here)->kernel;
}

/* kept(key): whether the binary is in this process already. */
PyObject *here_kept(PyObject *module, PyObject *key)
{
    const char *text = PyUnicode_AsUTF8AndSize(key, NULL);

    (void)module;
    return text ? PyBool_FromLong(here_code_find(text) != NULL) : NULL;
}

static PyMethodDef methods[] = {
    {"launch", launch, METH_VARARGS, "launch(arguments, geometry, stream, timed): see here.c."},
    {"tell", tell, METH_O, "tell(module): see here.c."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Here(key, fd, size, entry, symbol, offsets, sizes, params): a kernel whose binary is the first bytes of "
     "the file; fd -1 where kept(key). params: those of the request `kernel`, packed."},
    {Py_tp_init, initialise},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, deallocate},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec here_spec = {"kops._native.Here", sizeof(struct here), 0, Py_TPFLAGS_DEFAULT, slots};

/* ---- built-in ops ---- */

/* A call, read from Python's objects. */
struct ops_read {
    struct operands tensors;
    struct here_op_call call;
};

static bool read_tensors(struct ops_read *r, PyObject *tuple, int n_inputs)
{
    const Py_ssize_t n = PyTuple_Size(tuple);

    if (n > FAST_OPERANDS || n_inputs < 0 || n_inputs > n) {
        PyErr_SetString(PyExc_ValueError, "op: at most 16 tensors, the inputs among them");
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (!array_read(PyTuple_GetItem(tuple, i), &r->tensors))
            return false;
    r->call.tensors = r->tensors.at;
    r->call.device = r->tensors.device;
    r->call.n_inputs = (unsigned)n_inputs;
    r->call.n_outputs = (unsigned)(n - n_inputs);
    return true;
}

PyTypeObject *ops_type;

static PyObject *answer(const struct here_op_call *call, const struct here_op_result *result)
{
    if (result->missing)
        return PyUnicode_FromString(result->missing);
    if (call->timed)
        return Py_BuildValue("ds", result->us, result->variant);
    return PyBool_FromLong(result->due);
}

/* launch(name, tensors, n_inputs, attrs, stream, timed). `attrs` is packed, or None; `stream` None: torch's current
 * stream of the tensors' device. Returns whether tell() should be called; with `timed` microseconds and the variant;
 * the name of a binary that must be kept first; NotImplemented for arrays of other kinds. */
static PyObject *ops_launch(PyObject *self, PyObject *arguments)
{
    PyObject *tuple, *attrs, *stream;
    struct ops_read r = {.tensors = {.device = -1}};
    struct here_op_result result;
    struct kops_error e;
    enum kops_code code;
    int n_inputs, timed;
    Py_ssize_t length;
    char *packed;

    if (!PyArg_ParseTuple(arguments, "sO!iOOp", &r.call.op, &PyTuple_Type, &tuple, &n_inputs, &attrs, &stream, &timed))
        return NULL;
    if (!read_tensors(&r, tuple, n_inputs))
        return native_decline();
    if (attrs != Py_None) {
        if (PyBytes_AsStringAndSize(attrs, &packed, &length))
            return NULL;
        r.call.attrs = packed;
        r.call.attrs_length = (size_t)length;
    }
    if (!array_stream(stream, r.call.device, &r.call.stream))
        return NULL;
    r.call.timed = timed;
    r.call.ops = ((struct ops *)self)->counts;
    WITHOUT_GIL(code = here_op(&r.call, &result, &e));
    return code ? native_raise(&e) : answer(&r.call, &result);
}

/* Packed params, collected without the interpreter's lock. */
struct telling {
    struct bytes all; /* each with its length before it */
};

static void tell_one(void *to, const void *params, size_t length)
{
    struct telling *t = to;

    bytes_append(&t->all, &length, sizeof(length));
    bytes_append(&t->all, params, length);
}

static PyObject *list_of(const struct bytes *all)
{
    PyObject *list = PyList_New(0);

    for (size_t at = 0; list && at < all->length;) {
        PyObject *made;
        size_t length;

        memcpy(&length, all->data + at, sizeof(length));
        at += sizeof(length);
        made = PyBytes_FromStringAndSize(all->data + at, (Py_ssize_t)length);
        at += length;
        if (!made || PyList_Append(list, made)) {
            Py_DECREF(list);
            list = NULL;
        }
        Py_XDECREF(made);
    }
    return list;
}

/* tell(): the params of notifications `launched`, packed. */
static PyObject *ops_tell(PyObject *self, PyObject *unused)
{
    struct here_ops *counts = ((struct ops *)self)->counts;
    struct telling t = {.all = {.data = NULL}};
    PyThreadState *thread;
    PyObject *list;

    (void)unused;
    thread = PyEval_SaveThread();
    here_ops_read(counts);
    here_ops_tell(counts, tell_one, &t);
    PyEval_RestoreThread(thread);
    list = t.all.failed ? PyErr_NoMemory() : list_of(&t.all);
    bytes_free(&t.all);
    return list;
}

/* attach(scopes, batches, submitted, place): the client's dicts, and the place of calls that name none: 0 the daemon, 1
 * this process, 2 the decision of "auto". */
static PyObject *attach(PyObject *self, PyObject *arguments)
{
    struct ops *o = (struct ops *)self;
    PyObject *scopes, *batches, *submitted;
    int place;

    if (!PyArg_ParseTuple(arguments, "O!O!O!i", &PyDict_Type, &scopes, &PyDict_Type, &batches, &PyDict_Type, &submitted,
                          &place))
        return NULL;
    native_replace(&o->scopes, scopes);
    native_replace(&o->batches, batches);
    native_replace(&o->submitted, submitted);
    o->place = (enum place)place;
    Py_RETURN_NONE;
}

/* decide(op, device, here): the meaning of "auto" from now on. */
static PyObject *decide(PyObject *self, PyObject *arguments)
{
    int op, device, here;

    if (!PyArg_ParseTuple(arguments, "iip", &op, &device, &here))
        return NULL;
    if (op >= 0 && op < OPS_MOST && device >= 0 && device < OPS_DEVICES)
        ((struct ops *)self)->decided[op][device] = here ? DECISION_HERE : DECISION_DAEMON;
    Py_RETURN_NONE;
}

/* forget(): makes "auto" decide anew. */
static PyObject *forget(PyObject *self, PyObject *unused)
{
    struct ops *o = (struct ops *)self;

    (void)unused;
    memset(o->decided, DECISION_NONE, sizeof(o->decided));
    Py_RETURN_NONE;
}

static int ops_initialise(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    struct ops *ops = (struct ops *)self;

    (void)keywords;
    if (!PyArg_ParseTuple(arguments, ""))
        return -1;
    if (!ops->counts && !(ops->counts = here_ops_new())) {
        PyErr_NoMemory();
        return -1;
    }
    ops_type = Py_TYPE(self);
    return 0;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    const struct ops *o = (struct ops *)self;

    Py_VISIT(o->scopes);
    Py_VISIT(o->batches);
    Py_VISIT(o->submitted);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int clear(PyObject *self)
{
    struct ops *o = (struct ops *)self;

    native_replace(&o->scopes, NULL);
    native_replace(&o->batches, NULL);
    native_replace(&o->submitted, NULL);
    return 0;
}

static void ops_deallocate(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    clear(self);
    here_ops_free(((struct ops *)self)->counts);
    native_free(self);
}

static PyMethodDef ops_methods[] = {
    {"launch", ops_launch, METH_VARARGS, "launch(name, tensors, n_inputs, attrs, stream, timed): see here.c."},
    {"tell", ops_tell, METH_NOARGS, "tell(): the params of notifications `launched`, packed."},
    {"attach", attach, METH_VARARGS, "attach(scopes, batches, submitted, place): see here.c."},
    {"decide", decide, METH_VARARGS, "decide(op, device, here): what \"auto\" means for an op by its number."},
    {"forget", forget, METH_NOARGS, "forget(): \"auto\" is to be decided anew."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ops_slots[] = {
    {Py_tp_doc, "Ops(): launches of built-in ops in this process's contexts, and their counts."},
    {Py_tp_init, ops_initialise},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, ops_deallocate},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_methods, ops_methods},
    {0, NULL},
};

PyType_Spec ops_spec = {"kops._native.Ops", sizeof(struct ops), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, ops_slots};

/* check_layout(number): raises Unsupported where the daemon's kernels lay out their parameters differently from this
 * library's. */
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
