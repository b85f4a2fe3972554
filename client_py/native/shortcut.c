/* What a call of an op that is registered with torch begins with: kops._native.Shortcut, the `__call__` of such ops
 * (kops.torch._dispatch says when the dispatcher is passed by). It asks torch the same questions as Python would, in a
 * third of the time, which is most of what such a call costs. */
#include "python_native.h"

/* The members are as __init__ has them. */
struct shortcut {
    PyObject ob_base;
    PyObject *plain;
    Py_ssize_t count;
    PyObject *questions, *forward_ad, *run, *otherwise;
};

static PyObject *name_is_cuda, *name_is_cpu, *name_requires_grad, *name_current_level;

static bool intern_names(void)
{
    return (name_is_cuda || (name_is_cuda = PyUnicode_InternFromString("is_cuda"))) &&
           (name_is_cpu || (name_is_cpu = PyUnicode_InternFromString("is_cpu"))) &&
           (name_requires_grad || (name_requires_grad = PyUnicode_InternFromString("requires_grad"))) &&
           (name_current_level || (name_current_level = PyUnicode_InternFromString("_current_level")));
}

/* Whether an answer of torch's, which is dropped, is true. -1 with an exception set. */
static int is_true(PyObject *answer)
{
    int made;

    if (!answer)
        return -1;
    made = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return made;
}

/* A tensor, and no subclass's, on a device that the op has a kernel for, which wants no gradient. */
static int is_plain(const struct shortcut *s, PyObject *value)
{
    int made;

    if ((PyObject *)Py_TYPE(value) != s->plain)
        return 0;
    made = is_true(PyObject_GetAttr(value, name_is_cuda));
    if (!made)
        made = is_true(PyObject_GetAttr(value, name_is_cpu));
    if (made <= 0)
        return made;
    made = is_true(PyObject_GetAttr(value, name_requires_grad));
    return made < 0 ? made : !made;
}

static int differentiates_forward(const struct shortcut *s)
{
    PyObject *level = PyObject_GetAttr(s->forward_ad, name_current_level);
    long number;

    if (!level)
        return -1;
    number = PyLong_AsLong(level);
    Py_DECREF(level);
    return PyErr_Occurred() ? -1 : number >= 0;
}

/* Whether nothing in the dispatcher would see the call. -1 with an exception set. */
static int is_unseen(const struct shortcut *s, PyObject *arguments)
{
    const Py_ssize_t n_questions = PyTuple_Size(s->questions);
    int seen = 0;

    if (PyTuple_Size(arguments) != s->count)
        return 0;
    for (Py_ssize_t i = 0; i < s->count; i++) {
        const int plain = is_plain(s, PyTuple_GetItem(arguments, i));

        if (plain <= 0)
            return plain;
    }
    for (Py_ssize_t i = 0; !seen && i < n_questions; i++)
        seen = is_true(PyObject_CallNoArgs(PyTuple_GetItem(s->questions, i)));
    if (!seen)
        seen = differentiates_forward(s);
    return seen < 0 ? seen : !seen;
}

static PyObject *call(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    const struct shortcut *s = (struct shortcut *)self;
    int unseen;

    if (!s->run) {
        PyErr_SetString(PyExc_TypeError, "the shortcut was not initialised");
        return NULL;
    }
    unseen = keywords && PyDict_Size(keywords) ? 0 : is_unseen(s, arguments);
    if (unseen < 0)
        return NULL;
    return unseen ? PyObject_Call(s->run, arguments, NULL) : PyObject_Call(s->otherwise, arguments, keywords);
}

static int initialise(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    PyObject *plain, *questions, *forward_ad, *run, *otherwise;
    struct shortcut *s = (struct shortcut *)self;
    Py_ssize_t count;

    (void)keywords;
    if (!intern_names() || !PyArg_ParseTuple(arguments, "OnO!OOO", &plain, &count, &PyTuple_Type, &questions,
                                             &forward_ad, &run, &otherwise))
        return -1;
    s->count = count;
    native_replace(&s->plain, plain);
    native_replace(&s->questions, questions);
    native_replace(&s->forward_ad, forward_ad);
    native_replace(&s->otherwise, otherwise);
    native_replace(&s->run, run);
    return 0;
}

static void deallocate(PyObject *self)
{
    struct shortcut *s = (struct shortcut *)self;
    PyTypeObject *type = Py_TYPE(self);

    Py_XDECREF(s->plain);
    Py_XDECREF(s->questions);
    Py_XDECREF(s->forward_ad);
    Py_XDECREF(s->run);
    Py_XDECREF(s->otherwise);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Shortcut(plain, count, questions, forward_ad, run, otherwise): calls run(*arguments) for `count` arguments of "
     "type "
     "`plain` on the CPU or CUDA that want no gradient, where each of the questions, called, says no and no level of "
     "forward_ad is open; else otherwise(*arguments, **keywords)."},
    {Py_tp_init, initialise},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, deallocate},
    {Py_tp_call, call},
    {0, NULL},
};

PyType_Spec shortcut_spec = {"kops._native.Shortcut", sizeof(struct shortcut), 0, Py_TPFLAGS_DEFAULT, slots};
