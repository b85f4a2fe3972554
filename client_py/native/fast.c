/* Ops on torch CUDA tensors whose memory is registered: from the tensors to the request without Python in between.
 * Whatever is not as expected is left to the slow path, which knows everything and says what is wrong. */
#include "python_native.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "enqueue.h"
#include "fail.h"

enum rule { RULE_NONE, RULE_ELEMENTWISE, RULE_GEMM };

/* ---- the driver ---- */

static int (*stream_synchronize)(void *stream);

static const struct cuda_driver *driver(void)
{
    static const struct cuda_driver *loaded;
    struct kops_error unwanted;

    if (!loaded) {
        const char *path = getenv("KOPS_CUDA_DRIVER");
        void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);

        if (library)
            stream_synchronize = (int (*)(void *))(uintptr_t)dlsym(library, "cuStreamSynchronize");
        if (stream_synchronize)
            loaded = cuda_load(&unwanted);
    }
    return loaded;
}

/* ---- registered memory ---- */

/* The first region whose end lies beyond the address. */
static size_t place_of(const struct link *link, uint64_t address)
{
    size_t low = 0, high = link->n_regions;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (link->regions[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const struct region *find_region(struct link *link, const struct cuda_driver *d, uint64_t pointer)
{
    size_t i = link->last_region;
    unsigned long long id = 0;

    if (i >= link->n_regions || pointer < link->regions[i].base || pointer >= link->regions[i].end) {
        i = place_of(link, pointer);
        if (i == link->n_regions || pointer < link->regions[i].base)
            return NULL;
        link->last_region = i;
    }
    if (d->pointer_attribute(&id, CUDA_ATTRIBUTE_BUFFER_ID, pointer) || id != link->regions[i].alloc_id)
        return NULL;
    return &link->regions[i];
}

static void remove_region(struct link *link, size_t i)
{
    memmove(&link->regions[i], &link->regions[i + 1], (link->n_regions - i - 1) * sizeof(link->regions[0]));
    link->n_regions--;
}

PyObject *link_remember(PyObject *self, PyObject *arguments)
{
    struct link *link = (struct link *)self;
    unsigned long long base, size, id, buffer, context;
    size_t i;

    if (!PyArg_ParseTuple(arguments, "KKKKK", &base, &size, &id, &buffer, &context))
        return NULL;
    for (i = place_of(link, base); i < link->n_regions && link->regions[i].base < base + size;)
        remove_region(link, i); /* what lay there is gone */
    if (link->n_regions == link->regions_room) {
        size_t room = link->regions_room ? 2 * link->regions_room : 16;
        struct region *grown = realloc(link->regions, room * sizeof(*grown));

        if (!grown)
            return PyErr_NoMemory();
        link->regions = grown;
        link->regions_room = room;
    }
    memmove(&link->regions[i + 1], &link->regions[i], (link->n_regions - i) * sizeof(link->regions[0]));
    link->regions[i] = (struct region){base, base + size, id, buffer, (void *)(uintptr_t)context};
    link->n_regions++;
    Py_RETURN_NONE;
}

PyObject *link_forget(PyObject *self, PyObject *arguments)
{
    struct link *link = (struct link *)self;
    unsigned long long buffer;

    if (!PyArg_ParseTuple(arguments, "K", &buffer))
        return NULL;
    for (size_t i = 0; i < link->n_regions; i++)
        if (link->regions[i].buffer == buffer) {
            remove_region(link, i);
            break;
        }
    Py_RETURN_NONE;
}

/* ---- one op ---- */

struct fast {
    struct link *link;
    const struct cuda_driver *driver;
    const char *op;
    PyObject *inputs; /* a tuple */
    PyObject *out;    /* owned */
    unsigned n_inputs;
    struct operand operands[FAST_OPERANDS];
    struct native_tensor tensors[FAST_OPERANDS];
    void *context, *stream;
    struct kops_options options;
    struct native_request request;
};

static bool same_shape(const struct operand *a, const struct operand *b)
{
    return a->rank == b->rank && !memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0]));
}

/* The output, where its shape is easily told. NULL: it is not, or an exception is set. */
static PyObject *allocate(const struct fast *f, enum rule rule)
{
    const struct operand *a = &f->operands[0], *b = &f->operands[1];
    PyObject *first = PyTuple_GetItem(f->inputs, 0);
    int64_t shape[2];

    for (unsigned i = 1; i < f->n_inputs; i++)
        if (f->operands[i].dtype != a->dtype)
            return NULL;
    if (rule == RULE_GEMM && f->n_inputs == 2 && a->rank == 2 && b->rank == 2 && a->shape[1] == b->shape[0]) {
        shape[0] = a->shape[0];
        shape[1] = b->shape[1];
        return tensor_of(first, shape, 2);
    }
    if (rule != RULE_ELEMENTWISE)
        return NULL;
    for (unsigned i = 1; i < f->n_inputs; i++)
        if (!same_shape(a, &f->operands[i]))
            return NULL;
    return a->contiguous ? tensor_like(first) : tensor_of(first, a->shape, a->rank);
}

/* The operand's registration. */
static bool resolve(struct fast *f, unsigned i)
{
    const struct operand *o = &f->operands[i];
    const struct region *r = find_region(f->link, f->driver, o->pointer);

    if (!r || o->device != f->operands[0].device || (i && r->context != f->context))
        return false;
    f->context = r->context;
    f->tensors[i] = (struct native_tensor){.buffer = r->buffer,
                                           .offset = o->pointer - r->base,
                                           .shape = o->shape,
                                           .strides = o->contiguous ? NULL : o->strides,
                                           .rank = o->rank,
                                           .dtype = o->dtype};
    return true;
}

/* Everything that is known before the op is sent. False: for the slow path, or an exception is set. */
static bool prepare(struct fast *f, PyObject *out, enum rule rule)
{
    void *context = NULL;

    for (unsigned i = 0; i < f->n_inputs; i++) {
        if (!tensor_read(PyTuple_GetItem(f->inputs, i), &f->operands[i]))
            return false;
        if (!f->driver && !(f->driver = driver()))
            return false;
        if (!resolve(f, i))
            return false;
    }
    if (f->driver->context_get(&context) || context != f->context)
        return false;
    if (out == Py_None) {
        f->out = allocate(f, rule);
    } else {
        Py_INCREF(out);
        f->out = out;
    }
    return f->out && tensor_read(f->out, &f->operands[f->n_inputs]) && resolve(f, f->n_inputs) &&
           tensor_stream(f->operands[0].device, &f->stream);
}

static enum kops_code enqueue(struct fast *f, struct kops_error *e)
{
    PyThreadState *thread;
    enum kops_code r;

    thread = PyEval_SaveThread();
    r = native_enqueue(f->link->client, &f->request, f->stream, e);
    PyEval_RestoreThread(thread);
    return r;
}

/* Waits for the stream, then for the op. 0, a code in *e, or -1 with an exception set. */
static int run(struct fast *f, struct kops_error *e)
{
    PyObject *references;
    PyThreadState *thread;
    kops_ticket ticket = 0;
    int status, ended;
    enum kops_code r;

    thread = PyEval_SaveThread();
    status = stream_synchronize(f->stream);
    if (status)
        r = cuda_fail(f->driver, e, KOPS_ERR_DEVICE_ERROR, status, "cuStreamSynchronize");
    else if ((r = submit_run(f->link->client, &f->request, &ticket, e)))
        ticket = 0;
    else
        r = kops_wait(f->link->client, ticket, FIRST_MS, NULL, e);
    PyEval_RestoreThread(thread);
    if (!ticket || r != KOPS_ERR_TIMEOUT)
        return (int)r;
    ended = link_wait(f->link, ticket, f->options.timeout_ms, NULL, e);
    if (ended > 0)
        return (int)e->code;
    references = PyTuple_Pack(2, f->inputs, f->out);
    link_abandon(f->link, ticket, true, references);
    Py_XDECREF(references);
    if (ended == 0)
        return (int)fail(e, KOPS_ERR_TIMEOUT, "the run did not end in time; it was asked to stop");
    return -1;
}

/* run(op, inputs, out, attrs, rule, blocking, timeout): the output, or NotImplemented. */
PyObject *link_run(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    struct fast f = {.link = (struct link *)self, .options = {.no_timing = true}};
    struct kops_error e;
    PyObject *attrs, *references;
    enum rule rule;
    int blocking, r;

    if (count != 7 || !PyTuple_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "run(op, inputs, out, attrs, rule, blocking, timeout)");
        return NULL;
    }
    f.inputs = arguments[1];
    f.n_inputs = (unsigned)PyTuple_Size(f.inputs);
    attrs = arguments[3];
    rule = (enum rule)PyLong_AsLong(arguments[4]);
    blocking = PyObject_IsTrue(arguments[5]);
    f.op = PyUnicode_AsUTF8AndSize(arguments[0], NULL);
    if (!f.op || !native_milliseconds(arguments[6], &f.options.timeout_ms))
        return NULL;
    if (!f.link->client || f.link->closing || f.n_inputs == 0 || f.n_inputs >= FAST_OPERANDS ||
        !prepare(&f, arguments[2], rule)) {
        Py_XDECREF(f.out);
        if (PyErr_Occurred())
            return NULL;
        Py_INCREF(Py_NotImplemented);
        return Py_NotImplemented;
    }
    f.request = (struct native_request){.generation = f.link->generation,
                                        .op = f.op,
                                        .n_inputs = f.n_inputs,
                                        .n_outputs = 1,
                                        .tensors = f.tensors,
                                        .options = &f.options};
    if (attrs != Py_None) {
        Py_ssize_t length;
        char *data;

        if (PyBytes_AsStringAndSize(attrs, &data, &length)) {
            Py_DECREF(f.out);
            return NULL;
        }
        f.request.attrs = data;
        f.request.attrs_length = (size_t)length;
    }
    f.link->users++;
    r = blocking ? run(&f, &e) : (int)enqueue(&f, &e);
    if (!r && !blocking) {
        references = PyTuple_Pack(2, f.inputs, f.out);
        r = references ? link_keep(f.link, references) : -1;
        Py_XDECREF(references);
    }
    link_leave(f.link);
    if (!r)
        return f.out;
    Py_DECREF(f.out);
    if (r < 0)
        return NULL;
    if (e.code == KOPS_ERR_CONNECTION_LOST)
        f.link->n_regions = 0;
    return native_raise(&e);
}
