/* Built-in ops in a context of this process: kops._native.Ops, which counts the ops of one client, and the binaries
 * that they need. */
#include "ops.h"

/* A call, read from Python's objects. */
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
static PyObject *launch(PyObject *self, PyObject *arguments)
{
    PyObject *tuple, *attrs, *stream;
    struct read r = {.call = {.device = -1}};
    struct here_op_result result;
    struct kops_error e;
    enum kops_code code;
    int n_inputs, timed;
    Py_ssize_t length;
    char *packed;

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
static PyObject *tell(PyObject *self, PyObject *unused)
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

static int initialise(PyObject *self, PyObject *arguments, PyObject *keywords)
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

static void deallocate(PyObject *self)
{

    PyObject_GC_UnTrack(self);
    clear(self);
    here_ops_free(((struct ops *)self)->counts);
    native_free(self);
}

static PyMethodDef methods[] = {
    {"launch", launch, METH_VARARGS, "launch(name, tensors, n_inputs, attrs, stream, timed): see here_op.c."},
    {"tell", tell, METH_NOARGS, "tell(): the params of notifications `launched`, packed."},
    {"attach", attach, METH_VARARGS, "attach(scopes, batches, submitted, place): see here_op.c."},
    {"decide", decide, METH_VARARGS, "decide(op, device, here): what \"auto\" means for an op by its number."},
    {"forget", forget, METH_NOARGS, "forget(): \"auto\" is to be decided anew."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Ops(): launches of built-in ops in this process's contexts, and their counts."},
    {Py_tp_init, initialise},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, deallocate},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec ops_spec = {"kops._native.Ops", sizeof(struct ops), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

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
