/* kops._native.Shortcut: the `__call__` of ops that are registered with torch. It asks torch the questions that decide
 * whether to bypass the dispatcher (kops.torch._dispatch), in less than a third of the time that Python takes. */
#include "python_native.h"

enum { SHORTCUT_QUESTIONS = 8, SHORTCUT_TYPES = 4 };

/* A function of torch with at most one argument, whose answer is true or false. Most are C functions, and these are
 * called directly: Python's way to them costs as much as some of the answers. */
struct question {
    PyObject *function;
    PyCFunction direct; /* NULL: call it through Python */
    PyObject *of;       /* first argument of `direct`, borrowed from the function */
    int flags;
};

/* The members are as __init__ has them. */
struct shortcut {
    PyObject ob_base;
    PyObject *types[SHORTCUT_TYPES];
    Py_ssize_t count;
    struct question questions[SHORTCUT_QUESTIONS], watched, grad;
    PyObject *state; /* a module's dict */
    PyObject *quick, *run, *otherwise;
};

static PyObject *name_is_cuda, *name_is_cpu, *name_requires_grad, *name_current_level, *no_arguments;

static bool intern_names(void)
{
    static const struct native_name names[] = {
        {&name_is_cuda, "is_cuda"},
        {&name_is_cpu, "is_cpu"},
        {&name_requires_grad, "requires_grad"},
        {&name_current_level, "_current_level"},
    };

    return native_intern(names, sizeof(names) / sizeof(names[0])) && (no_arguments || (no_arguments = PyTuple_New(0)));
}

/* Tells whether an answer of torch is true, and drops it. -1 with an exception set. */
static int is_true(PyObject *answer)
{
    int made;

    if (!answer)
        return -1;
    made = answer == Py_True ? 1 : answer == Py_False ? 0 : PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return made;
}

/* ---- questions ---- */

static void question_set(struct question *q, PyObject *function)
{
    native_replace(&q->function, function);
    q->direct = NULL;
    if (!function || !PyCFunction_CheckExact(function))
        return;
    q->direct = PyCFunction_GetFunction(function);
    q->of = PyCFunction_GetSelf(function);
    q->flags = PyCFunction_GetFlags(function);
    PyErr_Clear();
}

static int ask(const struct question *q)
{
    if (q->direct && q->flags == METH_NOARGS)
        return is_true(q->direct(q->of, NULL));
    if (q->direct && q->flags == (METH_VARARGS | METH_KEYWORDS))
        return is_true(((PyCFunctionWithKeywords)(void (*)(void))q->direct)(q->of, no_arguments, NULL));
    return is_true(PyObject_CallNoArgs(q->function));
}

static int ask_of(const struct question *q, PyObject *value)
{
    if (q->direct && q->flags == METH_O)
        return is_true(q->direct(q->of, value));
    return is_true(PyObject_CallFunctionObjArgs(q->function, value, NULL));
}

/* ---- whether the dispatcher has nothing to do for a call; -1 with an exception set ---- */

/* Tells whether the value is a tensor of no subclass, which needs no gradient now. */
static int is_plain(const struct shortcut *s, PyObject *value)
{
    PyObject *const type = (PyObject *)Py_TYPE(value);
    int made = 0;

    for (int i = 0; i < SHORTCUT_TYPES && !made; i++)
        made = s->types[i] == type;
    if (!made)
        return 0;
    made = is_true(PyObject_GetAttr(value, name_requires_grad));
    if (made > 0)
        made = ask(&s->grad);
    return made < 0 ? made : !made;
}

static int differentiates_forward(const struct shortcut *s)
{
    PyObject *const level = PyDict_GetItemWithError(s->state, name_current_level);
    long number;

    if (!level && !PyErr_Occurred())
        PyErr_SetObject(PyExc_AttributeError, name_current_level);
    if (!level)
        return -1;
    number = PyLong_AsLong(level);
    return number == -1 && PyErr_Occurred() ? -1 : number >= 0;
}

static int is_unseen(const struct shortcut *s, PyObject *arguments)
{
    int seen;

    if (PyTuple_Size(arguments) != s->count)
        return 0;
    for (Py_ssize_t i = 0; i < s->count; i++) {
        const int plain = is_plain(s, PyTuple_GetItem(arguments, i));

        if (plain <= 0)
            return plain;
    }
    seen = ask_of(&s->watched, PyTuple_GetItem(arguments, 0));
    for (int i = 0; !seen && i < SHORTCUT_QUESTIONS && s->questions[i].function; i++)
        seen = ask(&s->questions[i]);
    if (!seen)
        seen = differentiates_forward(s);
    return seen < 0 ? seen : !seen;
}

/* Tells whether all tensors are on devices that the op has kernels for. */
static int is_reachable(PyObject *arguments)
{
    const Py_ssize_t n = PyTuple_Size(arguments);
    int made = 1;

    for (Py_ssize_t i = 0; made > 0 && i < n; i++) {
        PyObject *const value = PyTuple_GetItem(arguments, i);

        made = is_true(PyObject_GetAttr(value, name_is_cuda));
        if (!made)
            made = is_true(PyObject_GetAttr(value, name_is_cpu));
    }
    return made;
}

static PyObject *call(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    const struct shortcut *s = (struct shortcut *)self;
    PyObject *made;
    int short_way;

    if (!s->run) {
        PyErr_SetString(PyExc_TypeError, "the shortcut was not initialised");
        return NULL;
    }
    short_way = keywords && PyDict_Size(keywords) ? 0 : is_unseen(s, arguments);
    if (short_way > 0 && s->quick != Py_None) {
        made = PyObject_Call(s->quick, arguments, NULL);
        if (made != Py_NotImplemented)
            return made;
        Py_DECREF(made);
    }
    if (short_way > 0)
        short_way = is_reachable(arguments);
    if (short_way < 0)
        return NULL;
    return short_way ? PyObject_Call(s->run, arguments, NULL) : PyObject_Call(s->otherwise, arguments, keywords);
}

/* ---- making and calling ---- */

static int initialise(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    PyObject *types, *questions, *watched, *grad, *state, *quick, *run, *otherwise;
    struct shortcut *s = (struct shortcut *)self;
    Py_ssize_t count;

    (void)keywords;
    if (!intern_names() ||
        !PyArg_ParseTuple(arguments, "O!nO!OOO!OOO", &PyTuple_Type, &types, &count, &PyTuple_Type, &questions, &watched,
                          &grad, &PyDict_Type, &state, &quick, &run, &otherwise))
        return -1;
    if (count < 1 || PyTuple_Size(types) > SHORTCUT_TYPES || PyTuple_Size(questions) > SHORTCUT_QUESTIONS) {
        PyErr_SetString(PyExc_ValueError, "a shortcut takes an argument or more, 4 types and 8 questions at most");
        return -1;
    }
    s->count = count;
    for (Py_ssize_t i = 0; i < SHORTCUT_TYPES; i++)
        native_replace(&s->types[i], i < PyTuple_Size(types) ? PyTuple_GetItem(types, i) : NULL);
    for (Py_ssize_t i = 0; i < SHORTCUT_QUESTIONS; i++)
        question_set(&s->questions[i], i < PyTuple_Size(questions) ? PyTuple_GetItem(questions, i) : NULL);
    question_set(&s->watched, watched);
    question_set(&s->grad, grad);
    native_replace(&s->state, state);
    native_replace(&s->quick, quick);
    native_replace(&s->otherwise, otherwise);
    native_replace(&s->run, run);
    return 0;
}

static void deallocate(PyObject *self)
{
    struct shortcut *s = (struct shortcut *)self;

    for (int i = 0; i < SHORTCUT_TYPES; i++)
        Py_XDECREF(s->types[i]);
    for (int i = 0; i < SHORTCUT_QUESTIONS; i++)
        Py_XDECREF(s->questions[i].function);
    Py_XDECREF(s->watched.function);
    Py_XDECREF(s->grad.function);
    Py_XDECREF(s->state);
    Py_XDECREF(s->quick);
    Py_XDECREF(s->run);
    Py_XDECREF(s->otherwise);
    native_free(self);
}

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Shortcut(types, count, questions, watched, grad, state, quick, run, otherwise): for `count` arguments of exactly "
     "these types that want no gradient while grad() says yes, where watched(the first) and each of the questions, "
     "called, say no and no level of forward differentiation is open in `state`, a module's dict: quick(*arguments), "
     "or, where that is None or returns NotImplemented and all are on the CPU or CUDA, run(*arguments). Else "
     "otherwise(*arguments, **keywords)."},
    {Py_tp_init, initialise},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, deallocate},
    {Py_tp_call, call},
    {0, NULL},
};

PyType_Spec shortcut_spec = {"kops._native.Shortcut", sizeof(struct shortcut), 0, Py_TPFLAGS_DEFAULT, slots};
