/* Compiled extensions: libraries and calls of their functions. */
#include "extension.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* ---- the configuration ---- */

PyObject *extension_configure(PyObject *module, PyObject *dict)
{
    struct extension_python *p = &extension_python;
    const struct {
        const char *name;
        PyObject **at;
    } members[] = {
        {"torch", &p->torch},     {"plain", &p->plain},   {"dtype", &p->dtype},     {"device", &p->device},
        {"format", &p->format},   {"slice", &p->slice},   {"option", &p->option},   {"value", &p->value},
        {"prepare", &p->prepare}, {"choose", &p->choose}, {"call", &p->call},       {"launch", &p->launch},
        {"cuda", &p->cuda},       {"finish", &p->finish}, {"failure", &p->failure},
    };

    (void)module;
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        PyObject *value = PyDict_GetItemString(dict, members[i].name);

        if (!value)
            return PyErr_Format(PyExc_KeyError, "%s", members[i].name);
        native_replace(members[i].at, value);
    }
    Py_RETURN_NONE;
}

/* ---- libraries: they stay loaded ---- */

struct library {
    __typeof__(&kops_open) open;
    __typeof__(&kops_count) count;
    __typeof__(&kops_def_name) name, signature, doc;
    __typeof__(&kops_def_arguments) arguments;
    __typeof__(&kops_def_argument) argument;
    __typeof__(&kops_strict) strict;
    __typeof__(&kops_call) call;
    __typeof__(&kops_error_type) error_type;
};

static bool find_functions(void *handle, struct library *l)
{
    const struct {
        const char *name;
        void *at;
    } wanted[] = {
        {"kops_open", &l->open},
        {"kops_count", &l->count},
        {"kops_def_name", &l->name},
        {"kops_def_signature", &l->signature},
        {"kops_def_doc", &l->doc},
        {"kops_def_arguments", &l->arguments},
        {"kops_def_argument", &l->argument},
        {"kops_strict", &l->strict},
        {"kops_call", &l->call},
        {"kops_error_type", &l->error_type},
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *found = dlsym(handle, wanted[i].name);

        if (!found)
            return false;
        memcpy(wanted[i].at, &found, sizeof(found));
    }
    return true;
}

static PyObject *parameter(const struct library *l, int def, int i)
{
    KopsValue value = {.tag = KOPS_IS_NONE};
    const char *name = l->argument(def, i, &value);
    const bool has_default = value.tag >= 0;
    struct reading r = {.used = 0};
    PyObject *given = has_default ? read_value(&value, &r) : (Py_INCREF(Py_None), Py_None);

    return given ? Py_BuildValue("zON", name, has_default ? Py_True : Py_False, given) : NULL;
}

static PyObject *parameters(const struct library *l, int def)
{
    const int n = l->arguments(def);
    PyObject *list;

    if (n < 0)
        Py_RETURN_NONE;
    list = PyList_New(n);
    for (int i = 0; list && i < n; i++) {
        PyObject *one = parameter(l, def, i);

        if (!one || PyList_SetItem(list, i, one))
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *text(const char *given)
{
    return PyUnicode_DecodeUTF8(given, (Py_ssize_t)strlen(given), "replace");
}

static PyObject *definition(const struct library *l, int def)
{
    PyObject *of = PyLong_FromVoidPtr((void *)(uintptr_t)l), *its = of ? parameters(l, def) : NULL;

    if (!its) {
        Py_XDECREF(of);
        return NULL;
    }
    return Py_BuildValue("NiNNNN", of, def, text(l->name(def)), text(l->signature(def)), text(l->doc(def)), its);
}

PyObject *extension_open(PyObject *module, PyObject *path)
{
    const char *file = PyUnicode_AsUTF8AndSize(path, NULL);
    void *handle = file ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    struct library *l;
    PyObject *list;
    int n;

    (void)module;
    if (!handle)
        return file ? PyErr_Format(PyExc_OSError, "%s", dlerror()) : NULL;
    if (!extension_watch_forks() || !(l = calloc(1, sizeof(*l))))
        return PyErr_NoMemory();
    if (!find_functions(handle, l)) {
        free(l);
        return PyErr_Format(PyExc_OSError, "%s is no extension of kops: %s", file, dlerror());
    }
    l->open(&extension_table);
    n = l->count();
    list = PyList_New(n);
    for (int i = 0; list && i < n; i++) {
        PyObject *one = definition(l, i);

        if (!one || PyList_SetItem(list, i, one))
            Py_CLEAR(list);
    }
    return list;
}

/* ---- kops._native.HostFunction ---- */

/* The framework of a call, and whether the CPU's tensors count as a GPU's. */
static bool choose(struct host_call *call, PyObject *values, bool interprets)
{
    const Py_ssize_t n = PyTuple_Size(values);
    PyObject *made;
    int on_cpu;
    bool ok;

    for (Py_ssize_t i = 0; !interprets && i < n; i++)
        if (tensor_is(PyTuple_GetItem(values, i))) {
            call->framework = extension_python.torch;
            return true;
        }
    made = PyObject_CallFunction(extension_python.choose, "OO", values, call->function->kernels);
    ok = made && PyArg_ParseTuple(made, "Op", &call->framework, &on_cpu);
    call->on_cpu = ok && on_cpu && !call->function->is_cpus;
    Py_XDECREF(made); /* the framework is a module, which stays */
    return ok;
}

static PyObject *shaped(const struct host_function *f, PyObject *made)
{
    PyObject *other = NULL;

    if (f->shape == 1 && made && PyTuple_Check(made))
        other = PySequence_List(made);
    else if (f->shape == 2 && made && PyList_Check(made))
        other = PySequence_Tuple(made);
    else
        return made;
    Py_DECREF(made);
    return other;
}

/* Raises the exception of C++: the one of Python that caused it, where its text is in the message. */
static void raise_failure(const struct host_call *call, const char *type, const char *told)
{
    PyObject *decoded = text(told);
    PyObject *made = decoded ? PyObject_CallFunction(extension_python.failure, "sOOO", type, decoded,
                                                     call->failure ? call->failure : Py_None,
                                                     call->failure_text ? call->failure_text : Py_None)
                             : NULL;

    if (made)
        PyErr_SetString(PyExc_RuntimeError, told);
    Py_XDECREF(made);
    Py_XDECREF(decoded);
}

/* Raises what C++ has not looked at. */
static bool finish(struct host_call *call)
{
    PyObject *made;

    if (call->refused) {
        PyErr_SetObject((PyObject *)Py_TYPE(call->refused), call->refused);
        return false;
    }
    if (!call->object)
        return true;
    made = PyObject_CallFunctionObjArgs(extension_python.finish, call->object, NULL);
    Py_XDECREF(made);
    return made != NULL;
}

static PyObject *run(struct host_call *call, const KopsValue *values, const struct tensors *tensors, bool strict)
{
    const struct host_function *f = call->function;
    struct reading r = {.for_torch = false};
    KopsValue result = {.tag = KOPS_IS_NONE};
    KopsTensor *out = NULL;
    const char *told;
    PyObject *made;
    bool began;
    int n = 0;

    began = extension_begin_turn();
    f->library->strict(strict);
    told = f->library->call(f->number, values, tensors->at, &out, &n, &result);
    extension_end_turn(call, began);
    if (told) {
        raise_failure(call, f->library->error_type(), told);
        return NULL;
    }
    r.results = out;
    made = read_value(&result, &r);
    if (made && (result.tag == KOPS_IS_DTYPE || result.tag == KOPS_IS_DEVICE)) {
        PyObject *same = PyObject_CallMethod(call->framework, "returned", "(O)", made);

        Py_DECREF(made);
        made = same;
    }
    made = shaped(f, made);
    if (made && !finish(call))
        Py_CLEAR(made);
    return made;
}

/* Gives back the references that C++ has not taken. */
static void drop(struct tensors *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (!(t->at[i]->flags & KOPS_TAKEN))
            held_release(held_of(t->at[i]->id));
    free(t->at);
}

static PyObject *call_with(struct host_call *call, PyObject *values, bool strict)
{
    const Py_ssize_t n = PyTuple_Size(values);
    struct host_memory memory = {NULL};
    struct tensors tensors = {.n = 0};
    KopsValue *written = host_memory_take(&memory, (size_t)(n + 1) * sizeof(*written));
    PyObject *made = NULL;
    bool ok = written;

    for (Py_ssize_t i = 0; ok && i < n; i++)
        ok = write_value(&written[i], PyTuple_GetItem(values, i), call, &memory, &tensors);
    if (ok) {
        call->before = extension_current;
        extension_current = call;
        made = run(call, written, &tensors, strict);
        extension_current = call->before;
    }
    drop(&tensors);
    host_memory_free(&memory);
    return made;
}

/* call(values, strict): runs it with all arguments in order. */
static PyObject *host_function_call(PyObject *self, PyObject *arguments)
{
    struct host_function *f = (struct host_function *)self;
    struct host_call call = {.function = f};
    PyObject *values, *made = NULL;
    int strict;

    if (!PyArg_ParseTuple(arguments, "O!p", &PyTuple_Type, &values, &strict))
        return NULL;
    held_collect();
    Py_INCREF(self);
    if (choose(&call, values, f->interprets))
        made = call_with(&call, values, strict);
    held_forget(&call);
    extension_drop_answer(&call);
    Py_XDECREF(call.object);
    Py_XDECREF(call.failure);
    Py_XDECREF(call.failure_text);
    Py_XDECREF(call.refused);
    Py_DECREF(self);
    return made;
}

static int initialise(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    struct host_function *f = (struct host_function *)self;
    PyObject *library, *kernels;

    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OiiOpp", &library, &f->number, &f->shape, &kernels, &f->interprets, &f->is_cpus))
        return -1;
    f->library = PyLong_AsVoidPtr(library);
    native_replace(&f->kernels, kernels);
    return PyErr_Occurred() ? -1 : 0;
}

static void deallocate(PyObject *self)
{
    struct host_function *f = (struct host_function *)self;

    extension_forget_plans(f);
    Py_XDECREF(f->kernels);
    native_free(self);
}

static PyMethodDef methods[] = {
    {"call", host_function_call, METH_VARARGS,
     "call(values, strict): runs it. `values`: a tuple of all arguments; `strict`: only of its parameters' own types."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "HostFunction(library, number, shape, kernels, interprets, is_cpus): a function of an extension; see "
                "extension.h."},
    {Py_tp_init, initialise},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, deallocate},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec host_function_spec = {"kops._native.HostFunction", sizeof(struct host_function), 0, Py_TPFLAGS_DEFAULT,
                                  slots};
