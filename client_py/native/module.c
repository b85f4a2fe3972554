/* The module: its functions, and the registration of its types. */
#include "base/fail.h"
#include "extension.h"
#include "memory/available.h"

static PyObject *set_errors(PyObject *module, PyObject *function)
{
    (void)module;
    native_replace(&native_make_error, function);
    Py_RETURN_NONE;
}

static PyObject *leave(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    native_leaving = true;
    Py_RETURN_NONE;
}

static PyObject *available(PyObject *module, PyObject *args)
{
    unsigned long long address_space, file_size;
    struct memory_bound bound;
    const char *root;

    (void)module;
    if (!PyArg_ParseTuple(args, "sKK", &root, &address_space, &file_size))
        return NULL;
    memory_bound(root, UINT64_MAX, address_space, file_size, &bound);
    return Py_BuildValue("Ks", (unsigned long long)bound.size, bound.of);
}

static PyObject *check_memory(PyObject *module, PyObject *number)
{
    const unsigned long long size = PyLong_AsUnsignedLongLong(number);
    struct kops_error e;
    enum kops_code r;

    (void)module;
    if (PyErr_Occurred())
        return NULL;
    fail_clear(&e);
    WITHOUT_GIL(r = memory_check(size, &e));
    return native_outcome(r, &e);
}

static PyObject *last_call(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromUnsignedLong(native_last_call());
}

static PyMethodDef methods[] = {
    {"set_errors", set_errors, METH_O, "Names the function that makes an exception of a code, a message and a map."},
    {"configure", tensor_configure, METH_VARARGS,
     "configure(types, dtypes, exchange, current_stream, empty_like, empty): torch's types and functions."},
    {"available", available, METH_VARARGS,
     "available(root, address_space, file_size): libkops's bound of memory, and of what. For tests."},
    {"check_memory", check_memory, METH_O,
     "Raises OutOfMemory where so many bytes of shared memory are more than there is."},
    {"last_call", last_call, METH_NOARGS, "The number of the last request that this thread made; 0: none."},
    {"kept", here_kept, METH_O, "kept(key): whether the binary of that key is in this process."},
    {"check_layout", here_check_layout, METH_O,
     "check_layout(number): raises Unsupported unless the daemon's kernels take parameters of this layout."},
    {"keep_image", here_keep_image, METH_VARARGS,
     "keep_image(name, fd, size): keeps a binary of the daemon's own kernels, the first bytes of the file."},
    {"compare_floats", compare_floats, METH_VARARGS,
     "compare_floats(dtype, got, want, count, rtol, atol, least): how many are wrong, the sum of the errors' squares, "
     "and "
     "how many of at least `least` `rtol` alone does not allow. Addresses; `want` is of doubles. None: of a dtype that "
     "is "
     "not known here."},
    {"compare_bytes", compare_bytes, METH_VARARGS,
     "compare_bytes(a, b, size): whether the bytes at two addresses are equal."},
    {"blank", source_blank, METH_O, "blank(texts): the texts of one program without host code, all as bytes."},
    {"host_cxx", source_host_cxx, METH_O, "host_cxx(text): a CUDA source, as bytes, as plain C++ for the host."},
    {"expression", source_expression, METH_VARARGS,
     "expression(text, names, integers, multiprocessors): the value, or the program where a value is symbolic."},
    {"check_declaration", source_check_declaration, METH_O,
     "check_declaration(params): raises ValueError for wrong params of the request `kernel`, packed."},
    {"extension_configure", extension_configure, METH_O, "extension_configure(dict): see extension.h."},
    {"extension_open", extension_open, METH_O,
     "extension_open(path): a compiled extension's functions, each (library, number, name, signature, doc, "
     "parameters); "
     "parameters None: a declaration; else each (name or None, whether it has a default, default)."},
    {"extension_find", extension_find, METH_VARARGS, "extension_find(address, inside): see extension_tensors.c."},
    {"extension_allocate", extension_allocate, METH_VARARGS, "extension_allocate(tensor, framework): id and address."},
    {"extension_release", extension_release, METH_O, "extension_release(id): ends what extension_allocate() began."},
    {"leave", leave, METH_NOARGS, "The interpreter ends: links that are dropped from now on are left to the system."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_native",
    "The connection to kopsd in C; see kops._session.native_link.",
    -1,
    methods,
    NULL,
    NULL,
    NULL,
    NULL,
};

static bool add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);

    if (type && !PyModule_AddObject(module, name, type))
        return true;
    Py_XDECREF(type);
    return false;
}

PyMODINIT_FUNC PyInit__native(void);

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);

    if (!module)
        return NULL;
    if (!add_type(module, "Link", &link_spec) || !add_type(module, "Kernel", &kernel_spec) ||
        !add_type(module, "Here", &here_spec) || !add_type(module, "Ops", &ops_spec) ||
        !add_type(module, "OpMethod", &op_method_spec) || !add_type(module, "Shortcut", &shortcut_spec) ||
        !add_type(module, "HostFunction", &host_function_spec) ||
        PyModule_AddStringConstant(module, "version", kops_version())) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
