/* Launches of kernels by host code. The first launch of a kernel is Python's; where that was made in this process, the
 * next ones with arguments of the same types go from here to the driver, as long as all is plain: pointers into torch
 * CUDA tensors, numbers, a usual grid. All others go to Python, which takes everything and names errors. */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "extension.h"
#include "here/kernel.h"

enum { ARGUMENTS = FAST_OPERANDS, PLANS_MOST = 64, MOST_THREADS = 1024, MOST_BLOCK_Z = 64, MOST_GRID_YZ = 65535 };

/* ---- plans ---- */

static void plan_free(struct host_plan *p)
{
    Py_XDECREF(p->form);
    Py_XDECREF(p->here);
    Py_XDECREF(p->devices);
    Py_XDECREF(p->scopes);
    Py_XDECREF(p->batches);
    Py_XDECREF(p->tell);
    free(p->kernel);
    free(p->types);
    free(p->dtypes);
    free(p);
}

void extension_forget_plans(struct host_function *f)
{
    struct host_plan *p = f->plans;

    f->plans = NULL; /* first: objects that are freed may run Python, and that other launches */
    f->n_plans = 0;
    while (p) {
        struct host_plan *const next = p->next;

        plan_free(p);
        p = next;
    }
}

static bool is_of(const struct host_plan *p, const char *kernel, const KopsArg *args, int n)
{
    if (p->n != (unsigned)n || strcmp(p->kernel, kernel) != 0)
        return false;
    for (int i = 0; i < n; i++)
        if (p->types[i] != args[i].type)
            return false;
    return true;
}

static struct host_plan *find_plan(const struct host_function *f, const char *kernel, const KopsArg *args, int n)
{
    for (struct host_plan *p = f->plans; p; p = p->next)
        if (is_of(p, kernel, args, n))
            return p;
    return NULL;
}

static bool read_dtypes(struct host_plan *p, PyObject *names)
{
    for (unsigned i = 0; i < p->n; i++) {
        PyObject *name = PySequence_GetItem(names, (Py_ssize_t)i);
        const char *text = name && name != Py_None ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
        const bool ok = name && (name == Py_None || (text && kops_dtype_parse(text, &p->dtypes[i])));

        Py_XDECREF(name);
        if (!ok)
            return false;
    }
    return true;
}

/* Keeps a launch that Python has made: (kernel, its Here, devices on which launches are here or None for all, what the
 * client records, what waits to be sent, what tells the daemon, dtypes of the arguments that are pointers). */
static bool keep_plan(struct host_function *f, PyObject *told, const char *kernel, const KopsArg *args, int n)
{
    struct host_plan *p = calloc(1, sizeof(*p));
    PyObject *form, *here, *devices, *scopes, *batches, *tell, *dtypes;

    if (!p) {
        PyErr_NoMemory();
        return false;
    }
    p->n = (unsigned)n;
    p->kernel = strdup(kernel);
    p->types = calloc((size_t)n + 1, sizeof(p->types[0]));
    p->dtypes = calloc((size_t)n + 1, sizeof(p->dtypes[0]));
    if (!p->kernel || !p->types || !p->dtypes) {
        plan_free(p);
        PyErr_NoMemory();
        return false;
    }
    if (!PyArg_ParseTuple(told, "OOOO!O!OO", &form, &here, &devices, &PyDict_Type, &scopes, &PyDict_Type, &batches,
                          &tell, &dtypes) ||
        !read_dtypes(p, dtypes)) {
        plan_free(p);
        return false;
    }
    for (int i = 0; i < n; i++)
        p->types[i] = args[i].type;
    native_replace(&p->form, form);
    native_replace(&p->here, here);
    native_replace(&p->devices, devices);
    native_replace(&p->scopes, scopes);
    native_replace(&p->batches, batches);
    native_replace(&p->tell, tell);
    if (f->n_plans == PLANS_MOST)
        extension_forget_plans(f);
    p->next = f->plans;
    f->plans = p;
    f->n_plans++;
    return true;
}

/* ---- a launch without Python ---- */

/* A call, as libkops takes it. */
struct reading_launch {
    struct operands tensors; /* `at` alone is used */
    struct kops_argument args[ARGUMENTS];
    struct kops_launch_geometry geometry;
    struct here_call call;
};

static bool read_pointer(struct reading_launch *r, uint64_t address, enum kops_dtype dtype, struct kops_argument *ret)
{
    struct native_tensor *to = &r->tensors.at[r->tensors.n];
    const uint64_t size = kops_dtype_size(dtype);
    const struct held *h;

    if (!address) {
        *ret = kops_arg_null();
        return true;
    }
    h = held_at(address);
    if (!h || h->device < 0 || address % size || (r->tensors.device >= 0 && r->tensors.device != h->device))
        return false;
    r->tensors.device = h->device;
    if (h->is_whole && address == h->tensor.offset && dtype == h->tensor.dtype) {
        *to = h->tensor;
    } else {
        int64_t *shape = r->tensors.shapes[r->tensors.n];

        shape[0] = (int64_t)((h->end - address) / size);
        *to = (struct native_tensor){.offset = address, .dtype = dtype, .rank = 1, .shape = shape};
        if (!shape[0])
            return false;
    }
    r->tensors.n++;
    *ret = kops_arg_tensor(NULL);
    return true;
}

static bool read_integer(const KopsArg *a, struct kops_argument *ret)
{
    uint64_t bits = 0;

    if (a->size > sizeof(bits))
        return false;
    memcpy(&bits, a->data, a->size);
    if (a->kind == 'i') {
        const unsigned unused = 64 - 8 * (unsigned)a->size;

        *ret = kops_arg_int((int64_t)(bits << unused) >> unused);
    } else {
        *ret = kops_arg_uint(bits);
    }
    return true;
}

static bool read_float(const KopsArg *a, struct kops_argument *ret)
{
    double real;
    float single;

    if (a->size == sizeof(real)) {
        memcpy(&real, a->data, sizeof(real));
    } else if (a->size == sizeof(single)) {
        memcpy(&single, a->data, sizeof(single));
        real = (double)single;
    } else {
        return false;
    }
    *ret = kops_arg_float(real);
    return true;
}

static bool is_bool(const char *type)
{
    static const char text[] = "T = bool";
    const char *found = strstr(type, text);

    return found && (found[sizeof(text) - 1] == ']' || found[sizeof(text) - 1] == ';');
}

/* Tells whether a structure holds the address of a tensor in the memory of the CPU. */
static bool has_host_address(const KopsArg *a)
{
    for (uint64_t at = 0; at + sizeof(uint64_t) <= a->size; at += sizeof(uint64_t)) {
        const struct held *h;
        uint64_t word;

        memcpy(&word, (const char *)a->data + at, sizeof(word));
        if (word && (h = held_at(word)) && h->device < 0)
            return true;
    }
    return false;
}

static bool read_argument(struct reading_launch *r, const KopsArg *a, enum kops_dtype dtype, struct kops_argument *ret)
{
    uint64_t address;

    if (dtype) {
        memcpy(&address, a->data, sizeof(address));
        return read_pointer(r, address, dtype, ret);
    }
    switch (a->kind) {
    case 'i':
        return read_integer(a, ret);
    case 'u':
        if (a->size == 1 && is_bool(a->type)) {
            *ret = kops_arg_bool(*(const unsigned char *)a->data != 0);
            return true;
        }
        return read_integer(a, ret);
    case 'f':
        return read_float(a, ret);
    case 's':
        if (a->size > UINT32_MAX || a->size < 2 || has_host_address(a))
            return false;
        *ret = kops_arg_bytes(a->data, (uint32_t)a->size);
        return true;
    default:
        return false;
    }
}

static bool is_usual(const uint32_t dims[6])
{
    const uint64_t threads = (uint64_t)dims[3] * dims[4] * dims[5];

    return dims[0] && dims[0] <= INT32_MAX && dims[1] && dims[1] <= MOST_GRID_YZ && dims[2] &&
           dims[2] <= MOST_GRID_YZ && threads && threads <= MOST_THREADS && dims[5] <= MOST_BLOCK_Z;
}

/* Tells whether calls of the client on this device are known to be launched here, and nothing is recorded or waits. */
static bool is_here(const struct host_plan *p, int device)
{
    PyObject *number;
    int found;

    if (device < 0 || PyDict_Size(p->scopes) || PyDict_Size(p->batches))
        return false;
    if (p->devices == Py_None)
        return true;
    number = PyLong_FromLong(device);
    found = number ? PySet_Contains(p->devices, number) : -1;
    Py_XDECREF(number);
    PyErr_Clear();
    return found > 0;
}

static bool read_launch(struct reading_launch *r, const struct host_plan *p, const uint32_t dims[6], uint64_t shared,
                        const KopsArg *args, int n)
{
    r->tensors.n = 0;
    r->tensors.device = -1;
    for (int i = 0; i < n; i++)
        if (!read_argument(r, &args[i], p->dtypes[i], &r->args[i]))
            return false;
    r->geometry = (struct kops_launch_geometry){.has_shared = true, .shared = shared};
    r->geometry.grid.n = r->geometry.block.n = 3;
    for (int i = 0; i < 3; i++) {
        r->geometry.grid.size[i] = dims[i];
        r->geometry.block.size[i] = dims[3 + i];
    }
    r->call = (struct here_call){.tensors = r->tensors.at,
                                 .n_tensors = r->tensors.n,
                                 .args = r->args,
                                 .n_args = (unsigned)n,
                                 .geometry = &r->geometry,
                                 .device = r->tensors.device};
    return is_here(p, r->tensors.device);
}

/* Tells the daemon of launches. Another thread may forget the plan meanwhile. */
static int tell(const struct host_plan *p)
{
    PyObject *const function = p->tell, *told;

    Py_INCREF(function);
    told = PyObject_CallNoArgs(function);
    Py_DECREF(function);
    Py_XDECREF(told);
    return told ? 1 : -1;
}

/* 1: launched; 0: it is for Python; -1: an exception is set. The lock is kept, as by torch's launches: another thread
 * that C++ has a mutex from would wait for it with the lock, and plans and descriptions would change. */
static int launch_here(const struct host_plan *p, const uint32_t dims[6], uint64_t shared, void *stream,
                       const KopsArg *args, int n)
{
    struct reading_launch r;
    struct kops_error e;
    enum kops_code code;
    bool due = false;

    if (!is_usual(dims) || !read_launch(&r, p, dims, shared, args, n))
        return 0;
    r.call.stream = stream;
    if (!stream && !tensor_stream(r.tensors.device, &r.call.stream))
        return 0;
    code = here_launch(here_kernel_of(p->here), &r.call, &due, &e);
    if (code) {
        native_raise(&e);
        return -1;
    }
    return due ? tell(p) : 1;
}

/* ---- a launch by Python ---- */

/* (text, kind, size) of each. */
static PyObject *types_of(const KopsArg *args, int n)
{
    PyObject *made = PyTuple_New(n);

    for (int i = 0; made && i < n; i++) {
        PyObject *one = Py_BuildValue("yiK", args[i].type, (int)args[i].kind, (unsigned long long)args[i].size);

        if (!one || PyTuple_SetItem(made, i, one))
            Py_CLEAR(made);
    }
    return made;
}

static PyObject *launch_by_python(struct host_call *call, const char *kernel, const uint32_t dims[6], uint64_t shared,
                                  void *stream, const KopsArg *args, int n)
{
    PyObject *object = call_object(call), *types = object ? types_of(args, n) : NULL;
    Py_ssize_t size = 0;

    if (!types)
        return NULL;
    for (int i = 0; i < n; i++)
        size += (Py_ssize_t)args[i].size;
    return PyObject_CallFunction(extension_python.launch, "OyNy#(III)(III)KK", object, kernel, types,
                                 n ? args[0].data : "", size, dims[0], dims[1], dims[2], dims[3], dims[4], dims[5],
                                 (unsigned long long)shared, (unsigned long long)(uintptr_t)stream);
}

bool extension_launch(struct host_call *call, const char *kernel, const uint32_t dims[6], uint64_t shared, void *stream,
                      const KopsArg *args, int n)
{
    struct host_function *f = call->function;
    const bool is_plain = n <= ARGUMENTS && !call->has_attributes;
    const struct host_plan *p = is_plain ? find_plan(f, kernel, args, n) : NULL;
    const int made = p ? launch_here(p, dims, shared, stream, args, n) : 0;
    PyObject *told;
    bool ok;

    if (made)
        return made > 0;
    told = launch_by_python(call, kernel, dims, shared, stream, args, n);
    call->has_attributes = false;
    ok = told && (told == Py_None || !is_plain || p || keep_plan(f, told, kernel, args, n));
    Py_XDECREF(told);
    return ok;
}
