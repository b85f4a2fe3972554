/* kops._native.OpMethod: a client's method for an op, `k.add`. A call on torch CUDA tensors that is to run in this
 * process goes from here to the launch without Python in between. All other calls, and calls that fail here, go to the
 * Python function, which takes everything and names errors. So this file must check or compare everything that the
 * Python function checks. */
#include "here/op.h"
#include "python_native.h"

/* Needs Python.h before it. */
#include <structmember.h>

/* Flags that Py_LIMITED_API has from 3.12 on; their values are older. */
#define HAVE_VECTORCALL  (1UL << 11)
#define ARGUMENTS_OFFSET ((size_t)1 << (8 * sizeof(size_t) - 1))

typedef PyObject *vectorcall_fn(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);

enum {
    ATTRS = 16, /* attributes of an op, the variant among them */
    PACKED = 8, /* kept sets of attributes */
    KEYWORDS = 24
};

/* Attributes of an earlier call, of types whose values do not change. */
struct packed {
    PyObject *names; /* the keywords of the call, a tuple; NULL: the slot is empty */
    PyObject *values[ATTRS];
    PyObject *bytes; /* packed attributes, or None: all are as declared */
};

struct op_method {
    PyObject ob_base;
    vectorcall_fn *vectorcall;
    PyObject *function, *name;
    const char *op; /* UTF-8 of `name` */
    int index, n_inputs, rule;
    int matrices;     /* true: vectors among the first two inputs are left to the function */
    PyObject *attrs;  /* attribute names that pack() takes, a tuple */
    PyObject *pack;   /* a dict → bytes or None */
    PyObject *daemon; /* the `where` of a call that "auto" gave to the daemon */
    PyObject *bind;   /* types.MethodType */
    struct packed packed[PACKED];
    unsigned next;
};

static PyObject *name_ops, *name_where, *name_out, *name_here, *name_auto, *name_tell;

static bool intern_names(void)
{
    static const struct native_name names[] = {
        {&name_ops, "_ops_here"}, {&name_where, "where"}, {&name_out, "out"},
        {&name_here, "here"},     {&name_auto, "auto"},   {&name_tell, "_tell_ops"},
    };

    return native_intern(names, sizeof(names) / sizeof(names[0]));
}

/* ---- keywords ---- */

struct given {
    PyObject *out, *where;   /* borrowed; NULL: not given */
    PyObject *names;         /* the tuple, NULL where there are none */
    PyObject *const *values; /* in the order of the names */
    unsigned n_attrs;
    unsigned char attrs[ATTRS]; /* indices of the names that are attributes */
};

static bool is_attribute(const struct op_method *m, PyObject *name)
{
    const Py_ssize_t n = PyTuple_Size(m->attrs);

    for (Py_ssize_t i = 0; i < n; i++)
        if (PyTuple_GetItem(m->attrs, i) == name)
            return true;
    return false;
}

/* Reads the keywords. False: there are others than out, where and attributes. Names in code are interned; other names
 * are left to the function. */
static bool read_keywords(const struct op_method *m, struct given *g)
{
    const Py_ssize_t n = g->names ? PyTuple_Size(g->names) : 0;

    if (n > KEYWORDS)
        return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *name = PyTuple_GetItem(g->names, i);

        if (name == name_where)
            g->where = g->values[i];
        else if (name == name_out)
            g->out = g->values[i];
        else if (g->n_attrs < ATTRS && is_attribute(m, name))
            g->attrs[g->n_attrs++] = (unsigned char)i;
        else
            return false;
    }
    if (g->out == Py_None)
        g->out = NULL;
    return true;
}

static bool is_text(PyObject *value, PyObject *interned, const char *text)
{
    return value == interned || (PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, text) == 0);
}

/* Returns the place that `where` names. Other values are left to the function, so they count as the daemon. */
static enum place place_of(const struct ops *o, PyObject *where)
{
    if (!where || where == Py_None)
        return o->place;
    return is_text(where, name_here, "here")   ? PLACE_HERE
           : is_text(where, name_auto, "auto") ? PLACE_AUTO
                                               : PLACE_DAEMON;
}

/* ---- attributes ---- */

static bool is_constant(PyObject *value)
{
    return value == Py_None || PyBool_Check(value) || PyFloat_CheckExact(value) || PyLong_CheckExact(value) ||
           PyUnicode_CheckExact(value);
}

/* Compares values: numbers and texts that torch's dispatcher passes on are new objects in every call. */
static bool is_same(PyObject *a, PyObject *b)
{
    double x, y;

    if (a == b)
        return true;
    if (PyUnicode_CheckExact(a) && PyUnicode_CheckExact(b))
        return PyUnicode_Compare(a, b) == 0;
    if (!PyFloat_CheckExact(a) || !PyFloat_CheckExact(b))
        return false;
    x = PyFloat_AsDouble(a);
    y = PyFloat_AsDouble(b);
    return !memcmp(&x, &y, sizeof(x)); /* 0.0 is not -0.0 */
}

static bool is_packed(const struct packed *p, const struct given *g)
{
    if (p->names != g->names)
        return false;
    for (unsigned i = 0; i < g->n_attrs; i++)
        if (!is_same(p->values[i], g->values[g->attrs[i]]))
            return false;
    return true;
}

static void keep(struct op_method *m, const struct given *g, PyObject *bytes)
{
    struct packed *p = &m->packed[m->next++ % PACKED];

    native_replace(&p->names, NULL); /* the slot is empty while it changes */
    for (unsigned i = 0; i < ATTRS; i++)
        native_replace(&p->values[i], i < g->n_attrs ? g->values[g->attrs[i]] : NULL);
    native_replace(&p->bytes, bytes);
    native_replace(&p->names, g->names);
}

/* Returns the attributes as they are sent, a new reference; None: as declared. NULL: left to the function. */
static PyObject *pack(struct op_method *m, const struct given *g)
{
    PyObject *dict, *bytes;

    for (unsigned i = 0; i < PACKED; i++)
        if (is_packed(&m->packed[i], g)) {
            Py_INCREF(m->packed[i].bytes);
            return m->packed[i].bytes;
        }
    dict = PyDict_New();
    for (unsigned i = 0; dict && i < g->n_attrs; i++) {
        PyObject *value = g->values[g->attrs[i]];

        if (!is_constant(value) || PyDict_SetItem(dict, PyTuple_GetItem(g->names, g->attrs[i]), value))
            Py_CLEAR(dict);
    }
    bytes = dict ? PyObject_CallFunctionObjArgs(m->pack, dict, NULL) : NULL;
    Py_XDECREF(dict);
    PyErr_Clear();
    if (bytes)
        keep(m, g, bytes);
    return bytes;
}

/* ---- the short way ---- */

struct op_launch {
    struct operands tensors;
    struct here_op_call op;
};

static bool read_inputs(const struct op_method *m, struct op_launch *c, PyObject *const *inputs)
{
    for (int i = 1; i < m->n_inputs; i++)
        if (!tensor_read(inputs[i], &c->tensors))
            return false;
    return !m->matrices || (c->tensors.at[0].rank >= 2 && (m->n_inputs < 2 || c->tensors.at[1].rank >= 2));
}

/* Finds or makes the output, a new reference. NULL: left to the function, or an exception is set. */
static PyObject *find_output(const struct op_method *m, struct op_launch *c, const struct given *g, PyObject *first)
{
    PyObject *out = g->out;

    if (out)
        Py_INCREF(out);
    else if (!c->op.attrs)
        out = fast_result(first, c->tensors.at, (unsigned)m->n_inputs, m->rule);
    if (out && !tensor_read(out, &c->tensors))
        Py_CLEAR(out);
    return out;
}

/* Puts the op on torch's current stream. -1: an exception is set; 0: left to the function. */
static int launch(const struct op_method *m, struct ops *o, PyObject *client, struct op_launch *c)
{
    struct here_op_result result;
    struct kops_error e;
    enum kops_code code;
    PyObject *told;

    c->op.tensors = c->tensors.at;
    c->op.device = c->tensors.device;
    c->op.n_inputs = (unsigned)m->n_inputs;
    c->op.n_outputs = 1;
    c->op.ops = o->counts;
    if (!tensor_stream(c->op.device, &c->op.stream))
        return 0;
    Py_INCREF(o); /* the client's owner may drop it while the GIL is released */
    WITHOUT_GIL(code = here_op(&c->op, &result, &e));
    Py_DECREF(o);
    if (code || result.missing)
        return 0;
    if (!result.due)
        return 1;
    told = PyObject_CallMethodObjArgs(client, name_tell, NULL);
    Py_XDECREF(told);
    return told ? 1 : -1;
}

/* `packed`: the packed attributes, or None. */
static PyObject *run(const struct op_method *m, struct ops *o, PyObject *const *args, const struct given *g,
                     struct op_launch *c, PyObject *packed)
{
    PyObject *out;
    char *bytes;
    Py_ssize_t length;
    int made;

    if (packed != Py_None) {
        if (PyBytes_AsStringAndSize(packed, &bytes, &length))
            return NULL;
        c->op.attrs = bytes;
        c->op.attrs_length = (size_t)length;
    }
    if (!read_inputs(m, c, args + 1))
        return NULL;
    out = find_output(m, c, g, args[1]);
    if (!out)
        return NULL;
    made = launch(m, o, args[0], c);
    if (made <= 0)
        Py_CLEAR(out);
    return out;
}

/* Tells whether the client has nothing open that gathers calls. */
static bool is_free(const struct ops *o)
{
    return o->scopes && PyDict_Size(o->scopes) == 0 && PyDict_Size(o->batches) == 0;
}

/* Returns the decision of "auto" for the first tensor's device. */
static enum decision decide(const struct op_method *m, const struct ops *o, int device)
{
    if (device < 0 || device >= OPS_DEVICES || PyDict_Size(o->submitted))
        return DECISION_NONE;
    return (enum decision)o->decided[m->index][device];
}

/* Runs a call here. NULL: left to the function, or an exception is set. *ret_daemon: "auto" chose the daemon. */
static PyObject *short_way(struct op_method *m, struct ops *o, PyObject *const *args, const struct given *g,
                           bool *ret_daemon)
{
    const enum place place = place_of(o, g->where);
    PyObject *packed = Py_None, *made;
    enum decision decided = DECISION_HERE;
    struct op_launch c;

    if (place == PLACE_DAEMON || !is_free(o))
        return NULL;
    c.op = (struct here_op_call){.op = m->op};
    c.tensors.n = 0;
    c.tensors.device = -1;
    if (!tensor_read(args[1], &c.tensors))
        return NULL;
    if (place == PLACE_AUTO)
        decided = decide(m, o, c.tensors.device);
    *ret_daemon = decided == DECISION_DAEMON;
    if (decided != DECISION_HERE)
        return NULL;
    if (g->n_attrs)
        packed = pack(m, g);
    else
        Py_INCREF(packed);
    if (!packed)
        return NULL;
    made = run(m, o, args, g, &c, packed);
    Py_DECREF(packed);
    return made;
}

/* ---- the function ---- */

static PyObject *by_python(const struct op_method *m, PyObject *const *args, Py_ssize_t n, PyObject *names, bool daemon)
{
    const Py_ssize_t n_names = names ? PyTuple_Size(names) : 0;
    PyObject *tuple = PyTuple_New(n), *keywords = n_names || daemon ? PyDict_New() : NULL, *made = NULL;
    bool ok = tuple && (keywords || !(n_names || daemon));

    for (Py_ssize_t i = 0; ok && i < n; i++) {
        Py_INCREF(args[i]);
        ok = !PyTuple_SetItem(tuple, i, args[i]);
    }
    for (Py_ssize_t i = 0; ok && i < n_names; i++)
        ok = !PyDict_SetItem(keywords, PyTuple_GetItem(names, i), args[n + i]);
    if (ok && daemon)
        ok = !PyDict_SetItem(keywords, name_where, m->daemon);
    if (ok)
        made = PyObject_Call(m->function, tuple, keywords);
    Py_XDECREF(tuple);
    Py_XDECREF(keywords);
    return made;
}

static PyObject *vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    struct op_method *m = (struct op_method *)self;
    const Py_ssize_t n = (Py_ssize_t)(nargsf & ~ARGUMENTS_OFFSET);
    struct given g = {.names = names, .values = args + n};
    PyObject *ops, *made = NULL;
    bool daemon = false;

    if (n != m->n_inputs + 1 || !read_keywords(m, &g))
        return by_python(m, args, n, names, false);
    ops = PyObject_GetAttr(args[0], name_ops);
    if (ops && Py_TYPE(ops) == ops_type)
        made = short_way(m, (struct ops *)ops, args, &g, &daemon);
    else
        PyErr_Clear(); /* no client at all: the function says so */
    Py_XDECREF(ops);
    if (made || PyErr_Occurred())
        return made;
    return by_python(m, args, n, names, daemon);
}

/* Calls with a tuple and a dict. */
static PyObject *call(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    const Py_ssize_t n = PyTuple_Size(arguments), n_names = keywords ? PyDict_Size(keywords) : 0;
    PyObject *args[FAST_OPERANDS + KEYWORDS], *names = NULL, *key, *value, *made;
    Py_ssize_t at = 0, next = 0;

    if (n > FAST_OPERANDS || n_names > KEYWORDS)
        return PyObject_Call(((struct op_method *)self)->function, arguments, keywords);
    for (Py_ssize_t i = 0; i < n; i++)
        args[i] = PyTuple_GetItem(arguments, i);
    if (n_names && !(names = PyTuple_New(n_names)))
        return NULL;
    while (n_names && PyDict_Next(keywords, &next, &key, &value)) {
        Py_INCREF(key);
        if (PyTuple_SetItem(names, at, key)) {
            Py_DECREF(names);
            return NULL;
        }
        args[n + at++] = value;
    }
    made = vectorcall(self, args, (size_t)n, names);
    Py_XDECREF(names);
    return made;
}

/* ---- binding and attributes ---- */

static PyObject *get(PyObject *self, PyObject *instance, PyObject *owner)
{
    (void)owner;
    if (!instance || instance == Py_None) {
        Py_INCREF(self);
        return self;
    }
    return PyObject_CallFunctionObjArgs(((struct op_method *)self)->bind, self, instance, NULL);
}

/* Gets attributes from the wrapped function, for `inspect`, `help` and the like. */
static PyObject *get_attribute(PyObject *self, PyObject *name)
{
    static const char *const own[] = {"__class__", "__get__", "__call__", "__init__"};
    const struct op_method *m = (struct op_method *)self;
    PyObject *found;

    if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0) {
        Py_INCREF(m->function);
        return m->function;
    }
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (PyUnicode_CompareWithASCIIString(name, own[i]) == 0)
            return PyObject_GenericGetAttr(self, name);
    found = PyObject_GetAttr(m->function, name);
    if (found || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return found;
    PyErr_Clear();
    return PyObject_GenericGetAttr(self, name);
}

static int initialise(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    PyObject *function, *name, *attrs, *packer, *daemon, *bind;
    struct op_method *m = (struct op_method *)self;
    int index, n_inputs, rule, matrices;

    (void)keywords;
    if (!intern_names() || !PyArg_ParseTuple(arguments, "OUiiipO!OOO", &function, &name, &index, &n_inputs, &rule,
                                             &matrices, &PyTuple_Type, &attrs, &packer, &daemon, &bind))
        return -1;
    if (m->function || index < 0 || index >= OPS_MOST || n_inputs < 1 || n_inputs >= FAST_OPERANDS ||
        PyTuple_Size(attrs) > ATTRS) {
        PyErr_SetString(PyExc_ValueError, "OpMethod: at most 128 ops, 15 inputs and 16 attributes");
        return -1;
    }
    m->vectorcall = vectorcall;
    m->index = index;
    m->n_inputs = n_inputs;
    m->rule = rule;
    m->matrices = matrices;
    native_replace(&m->function, function);
    native_replace(&m->name, name);
    native_replace(&m->attrs, attrs);
    native_replace(&m->pack, packer);
    native_replace(&m->daemon, daemon);
    native_replace(&m->bind, bind);
    m->op = PyUnicode_AsUTF8AndSize(m->name, NULL);
    return m->op ? 0 : -1;
}

static void deallocate(PyObject *self)
{
    struct op_method *m = (struct op_method *)self;
    PyObject *const held[] = {m->function, m->name, m->attrs, m->pack, m->daemon, m->bind};

    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++)
        Py_XDECREF(held[i]);
    for (unsigned i = 0; i < PACKED; i++) {
        Py_XDECREF(m->packed[i].names);
        Py_XDECREF(m->packed[i].bytes);
        for (unsigned v = 0; v < ATTRS; v++)
            Py_XDECREF(m->packed[i].values[v]);
    }
    native_free(self);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(struct op_method, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "OpMethod(function, name, index, n_inputs, rule, matrices, attrs, pack, daemon, bind): the method of an "
     "op with one output. `attrs`: names of keywords that pack() makes bytes, or None, of. `daemon`: the "
     "`where` of a call for which \"auto\" was decided to be the daemon. `bind`: types.MethodType."},
    {Py_tp_init, initialise},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, deallocate},
    {Py_tp_call, call},
    {Py_tp_descr_get, get},
    {Py_tp_getattro, get_attribute},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec op_method_spec = {"kops._native.OpMethod", sizeof(struct op_method), 0,
                              Py_TPFLAGS_DEFAULT | HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};
