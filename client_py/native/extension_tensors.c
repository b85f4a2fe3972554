/* The tensors that C++ holds, and the memory behind its pointers. */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "extension.h"

static struct held *first;     /* all, those among a call's recent ones, too */
static struct held *dead_list; /* atomic: what threads without the lock have dropped */

struct held *held_of(int64_t id)
{
    return (struct held *)(uintptr_t)id;
}

void held_retain(struct held *h)
{
    __atomic_add_fetch(&h->count, 1, __ATOMIC_RELAXED);
}

static void held_free(struct held *h)
{
    if (h->previous)
        h->previous->next = h->next;
    else
        first = h->next;
    if (h->next)
        h->next->previous = h->previous;
    Py_DECREF(h->value);
    Py_DECREF(h->framework);
    free(h);
}

/* Without the lock: held_collect() frees it. */
static void free_later(struct held *h)
{
    h->dead = __atomic_load_n(&dead_list, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&dead_list, &h->dead, h, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        ;
}

static void remember(struct host_call *call, struct held *h)
{
    struct held **slot = &call->recent[call->n_recent++ % EXTENSION_RECENT], *const before = *slot;

    *slot = h;
    if (call->n_recent > EXTENSION_RECENT)
        call->without ? free_later(before) : held_free(before);
}

static bool drop_reference(struct held *h)
{
    return !__atomic_sub_fetch(&h->count, 1, __ATOMIC_ACQ_REL);
}

void held_release(struct held *h)
{
    if (drop_reference(h))
        held_free(h);
}

void held_release_in(struct held *h, struct host_call *call)
{
    if (drop_reference(h))
        call ? remember(call, h) : free_later(h);
}

void held_collect(void)
{
    struct held *h;

    if (!__atomic_load_n(&dead_list, __ATOMIC_RELAXED))
        return;
    h = __atomic_exchange_n(&dead_list, NULL, __ATOMIC_ACQUIRE);
    while (h) {
        struct held *const next = h->dead;

        held_free(h);
        h = next;
    }
}

void held_forget(struct host_call *call)
{
    const unsigned n = call->n_recent < EXTENSION_RECENT ? call->n_recent : EXTENSION_RECENT;

    for (unsigned i = 0; i < n; i++)
        held_free(call->recent[i]);
    call->n_recent = 0;
}

int held_is_host(PyObject *value, uint64_t used)
{
    for (const struct held *h = first; h; h = h->next)
        if (h->value == value && h->used == used)
            return h->host;
    return -1;
}

/* Takes a reference of a tensor that C++ holds: one tensor has one id, however often C++ gets it. */
static struct held *take_again(PyObject *value, bool host)
{
    for (struct held *h = first; h; h = h->next) {
        int64_t count = __atomic_load_n(&h->count, __ATOMIC_RELAXED);

        if (h->value != value || h->host != host)
            continue;
        while (count) /* 0: it is on its way out */
            if (__atomic_compare_exchange_n(&h->count, &count, count + 1, true, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
                return h;
    }
    return NULL;
}

static struct held *hold(PyObject *value, PyObject *framework, bool host)
{
    struct held *h = take_again(value, host);

    if (!h) {
        if (!(h = calloc(1, sizeof(*h)))) {
            PyErr_NoMemory();
            return NULL;
        }
        Py_INCREF(value);
        Py_INCREF(framework);
        h->value = value;
        h->framework = framework;
        h->host = host;
        h->count = 1;
        h->next = first;
        if (first)
            first->previous = h;
        first = h;
    }
    h->has_storage = false; /* a function may have changed it */
    h->is_plain = false;
    return h;
}

/* ---- describing ---- */

/* The number of c10::ScalarType; -1: another type. */
static int scalar_type(const struct dl_tensor *t)
{
    enum { INT, UINT, FLOAT, BFLOAT = 4, COMPLEX, BOOL, F8_E4M3 = 10, F8_E5M2 = 12 };
    static const struct {
        unsigned char code, bits;
        signed char type;
    } known[] = {
        {FLOAT, 32, 6}, {INT, 64, 4},     {INT, 32, 3},       {FLOAT, 16, 5},   {BFLOAT, 16, 15}, {FLOAT, 64, 7},
        {BOOL, 8, 11},  {UINT, 8, 0},     {INT, 8, 1},        {INT, 16, 2},     {UINT, 16, 27},   {UINT, 32, 28},
        {UINT, 64, 29}, {COMPLEX, 64, 9}, {COMPLEX, 128, 10}, {F8_E4M3, 8, 24}, {F8_E5M2, 8, 23},
    };

    for (size_t i = 0; t->dtype.lanes == 1 && i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].code == t->dtype.code && known[i].bits == t->dtype.bits)
            return known[i].type;
    return -1;
}

static bool wants_gradient(PyObject *value, bool *ret)
{
    static PyObject *name;
    const struct native_name names[] = {{&name, "requires_grad"}};
    PyObject *wanted = native_intern(names, 1) ? PyObject_GetAttr(value, name) : NULL;

    if (!wanted)
        return false;
    *ret = wanted == Py_True;
    Py_DECREF(wanted);
    return true;
}

/* Keeps what launches in this process need to know of a tensor of torch's. */
static void keep_plain(struct held *h, const struct dl_tensor *t)
{
    int64_t last = 0, step = 1;

    h->is_whole = true;
    if (!tensor_dtype(t, &h->tensor.dtype) || t->ndim > FAST_RANK)
        return;
    for (int i = t->ndim; i-- > 0;) {
        if (t->shape[i] == 0)
            return;
        h->is_whole = h->is_whole && (t->shape[i] == 1 || t->strides[i] == step);
        step *= t->shape[i];
        last += (t->shape[i] - 1) * t->strides[i];
        h->shape[i] = t->shape[i];
    }
    h->tensor.offset = (uint64_t)(uintptr_t)t->data + t->byte_offset;
    h->tensor.shape = h->shape;
    h->tensor.rank = (unsigned)t->ndim;
    h->end = h->tensor.offset + (uint64_t)(last + 1) * (t->dtype.bits / 8U);
    h->device = t->device.type == DL_CUDA && !h->host ? t->device.id : -1;
    h->is_plain = true;
}

/* 0: the tensor is not one that torch's exchange functions tell of. */
static int describe_torch(struct host_call *call, PyObject *value, int host, KopsTensor *into)
{
    struct dl_tensor t;
    struct held *h;
    bool wanted = false;
    int type;

    if (!tensor_dl(value, &t) || t.ndim > KOPS_DIMS || (type = scalar_type(&t)) < 0 || (t.ndim && !t.strides) ||
        (t.device.type != DL_CUDA && t.device.type != DL_CPU))
        return 0;
    if (host < 0)
        host = !call->on_cpu && t.device.type == DL_CPU;
    if (!wants_gradient(value, &wanted) || !(h = hold(value, call->framework, host)))
        return -1;
    keep_plain(h, &t);
    into->id = (int64_t)(uintptr_t)h;
    into->dtype = type;
    into->device_type = !host;
    into->device_index = host ? -1 : t.device.type == DL_CUDA ? t.device.id : 0;
    into->ndim = t.ndim;
    into->requires_grad = wanted;
    into->flags = host || call->on_cpu ? KOPS_READABLE : 0;
    into->data = (uint64_t)(uintptr_t)t.data + t.byte_offset;
    memcpy(into->sizes, t.shape, (size_t)t.ndim * sizeof(t.shape[0]));
    memcpy(into->strides, t.strides, (size_t)t.ndim * sizeof(t.strides[0]));
    return 1;
}

static bool copy_numbers(PyObject *sequence, int64_t *into, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *one = PySequence_GetItem(sequence, i);

        into[i] = one ? PyLong_AsLongLong(one) : 0;
        Py_XDECREF(one);
    }
    return !PyErr_Occurred();
}

static bool on_cpu(PyObject *framework, PyObject *value, int *ret)
{
    PyObject *told = PyObject_CallMethod(framework, "on_cpu", "(O)", value);

    *ret = told ? PyObject_IsTrue(told) : -1;
    Py_XDECREF(told);
    return *ret >= 0;
}

static bool describe_slowly(struct host_call *call, PyObject *value, int host, KopsTensor *into)
{
    PyObject *told, *sizes, *strides;
    unsigned long long address;
    struct held *h = NULL;
    Py_ssize_t n;
    int index, wanted, dtype;
    bool ok;

    if (host < 0 && (call->on_cpu ? (host = 0, false) : !on_cpu(call->framework, value, &host)))
        return false;
    told = PyObject_CallMethod(call->framework, "described", "(O)", value);
    ok = told && PyArg_ParseTuple(told, "iiKOOp", &dtype, &index, &address, &sizes, &strides, &wanted);
    if (ok && (n = PySequence_Size(sizes)) > KOPS_DIMS) {
        struct kops_error e;

        fail(&e, KOPS_ERR_INVALID_ARGUMENT, "a tensor of %zd dimensions; an extension takes %d", n, KOPS_DIMS);
        native_raise(&e);
        ok = false;
    }
    ok = ok && copy_numbers(sizes, into->sizes, n) && copy_numbers(strides, into->strides, n) &&
         (h = hold(value, call->framework, host));
    Py_XDECREF(told);
    if (!ok)
        return false;
    into->id = (int64_t)(uintptr_t)h;
    into->dtype = dtype;
    into->device_type = !host;
    into->device_index = host ? -1 : index;
    into->ndim = (int32_t)n;
    into->requires_grad = wanted;
    into->flags = host || call->on_cpu ? KOPS_READABLE : 0;
    into->data = address;
    return true;
}

bool held_describe(struct host_call *call, PyObject *value, int host, KopsTensor *into)
{
    const int made = call->framework == extension_python.torch ? describe_torch(call, value, host, into) : 0;

    return made ? made > 0 : describe_slowly(call, value, host, into);
}

/* ---- the memory behind a pointer ---- */

struct held *held_at(uint64_t address)
{
    for (struct held *h = first; h; h = h->next)
        if (h->is_plain && address >= h->tensor.offset && address < h->end)
            return h;
    return NULL;
}

/* Tensors may come and go meanwhile, since Python is asked. */
static bool look_up_storage(struct held *h)
{
    PyObject *const value = h->value;
    unsigned long long start, size;
    PyObject *told;
    bool ok;

    Py_INCREF(value);
    told = PyObject_CallMethod(h->framework, "storage", "(O)", value);
    ok = told && PyArg_ParseTuple(told, "KK", &start, &size);
    for (h = first; ok && h; h = h->next)
        if (h->value == value) {
            h->has_storage = true;
            h->storage = start;
            h->bytes = size;
        }
    Py_XDECREF(told);
    Py_DECREF(value);
    return ok;
}

static bool look_up_storages(void)
{
    struct held *h = first;

    while (h)
        if (h->has_storage)
            h = h->next;
        else if (look_up_storage(h))
            h = first;
        else
            return false;
    return true;
}

static PyObject *place(const struct held *h, uint64_t address)
{
    return Py_BuildValue("OOOKKK", h->value, h->framework, h->host ? Py_True : Py_False, (unsigned long long)h->storage,
                         (unsigned long long)(address - h->storage), (unsigned long long)h->bytes);
}

/* find(address, inside): the tensor whose storage an address is in, or, unless it has to be inside, right behind:
 * tensor, framework, whether it is the host's, address of the storage, offset, bytes of the storage. None: there is
 * none. Of tensors in the same memory, one that is the host's comes last: where the CPU's tensors count as a GPU's, a
 * copy for the CPU is the tensor itself. */
PyObject *extension_find(PyObject *module, PyObject *arguments)
{
    const struct held *best = NULL;
    unsigned long long address;
    int inside, least = 0;

    (void)module;
    if (!PyArg_ParseTuple(arguments, "Kp", &address, &inside) || !look_up_storages())
        return NULL;
    for (const struct held *h = first; h; h = h->next) {
        const bool is_in = address >= h->storage && address - h->storage < h->bytes;
        const bool is_behind = !inside && address == h->storage + h->bytes;
        const int rank = is_in ? 3 + !h->host : is_behind ? 1 + !h->host : 0;

        if (rank > least) {
            best = h;
            least = rank;
        }
    }
    if (best)
        return place(best, address);
    Py_RETURN_NONE;
}

/* allocate(tensor, framework): memory of C++'s own, which no call ends: its id and address. */
PyObject *extension_allocate(PyObject *module, PyObject *arguments)
{
    PyObject *value, *framework;
    struct held *h;

    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO", &value, &framework) || !(h = hold(value, framework, false)))
        return NULL;
    if (!look_up_storage(h)) {
        held_release(h);
        return NULL;
    }
    return Py_BuildValue("LK", (long long)(uintptr_t)h, (unsigned long long)h->storage);
}

/* release(id): of allocate(). */
PyObject *extension_release(PyObject *module, PyObject *id)
{
    const long long number = PyLong_AsLongLong(id);

    (void)module;
    if (PyErr_Occurred())
        return NULL;
    held_release(held_of(number));
    Py_RETURN_NONE;
}
