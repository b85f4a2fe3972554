/* Ops on torch CUDA tensors whose memory is registered: from the tensors to the request without Python in between. All
 * other arguments are left to the slow path, which takes everything and names errors. Device memory that the daemon
 * knows is found by address. */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "fast.h"

/* ---- the driver ---- */

int (*fast_stream_synchronize)(void *stream);

/* Returns the driver; NULL: there is none. */
static const struct cuda_driver *fast_driver(void)
{
    static const struct cuda_driver *loaded;
    struct kops_error unwanted;

    if (!loaded) {
        const char *path = getenv("KOPS_CUDA_DRIVER");
        void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);

        if (library)
            fast_stream_synchronize = (int (*)(void *))(uintptr_t)dlsym(library, "cuStreamSynchronize");
        if (fast_stream_synchronize)
            loaded = cuda_load(&unwanted);
    }
    return loaded;
}

/* ---- registered memory ---- */

/* Finds the first region whose end lies beyond the address. */
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

/* Finds the region that the address is registered in, if it still is. */
static const struct region *fast_region(struct link *link, const struct cuda_driver *d, uint64_t pointer)
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
        remove_region(link, i); /* the earlier allocation there is gone */
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

/* ---- from operands to a request that was sent: the common part of ops and launches of kernels ---- */

void fast_begin(struct fast *f, struct link *link, PyObject *inputs)
{
    /* Leave the arrays, which are large, uninitialised. */
    f->link = link;
    f->driver = NULL;
    f->op = NULL;
    f->inputs = inputs;
    f->out = NULL;
    f->n_inputs = 0;
    f->context = f->stream = NULL;
    f->options = (struct kops_options){.no_timing = true};
}

PyObject *fast_decline(void)
{
    if (PyErr_Occurred())
        return NULL;
    Py_INCREF(Py_NotImplemented);
    return Py_NotImplemented;
}

bool fast_packed(PyObject *value, const char **ret_data, size_t *ret_length)
{
    Py_ssize_t length;
    char *data;

    if (value == Py_None)
        return true;
    if (PyBytes_AsStringAndSize(value, &data, &length))
        return false;
    *ret_data = data;
    *ret_length = (size_t)length;
    return true;
}

bool fast_resolve(struct fast *f, unsigned i)
{
    const struct operand *o = &f->operands[i];
    const struct region *r;

    if (!f->driver && !(f->driver = fast_driver()))
        return false;
    r = fast_region(f->link, f->driver, o->pointer);
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

bool fast_place(struct fast *f)
{
    void *context = NULL;

    return !f->driver->context_get(&context) && context == f->context &&
           tensor_stream(f->operands[0].device, &f->stream);
}

/* Collects the references that must live until the request has ended. */
static PyObject *references(const struct fast *f)
{
    if (f->out)
        return PyTuple_Pack(2, f->inputs, f->out);
    Py_INCREF(f->inputs);
    return f->inputs;
}

static int enqueue(struct fast *f, struct kops_error *e)
{
    PyObject *kept;
    int r;

    WITHOUT_GIL(r = (int)native_enqueue(f->link->client, &f->request, f->stream, e));
    if (!r) {
        kept = references(f);
        r = kept ? link_keep(f->link, kept) : -1;
        Py_XDECREF(kept);
    }
    return r;
}

/* Waits for the stream, without the GIL. Under capture a wait would spoil the graph. */
static enum kops_code wait_for_stream(const struct fast *f, struct kops_error *e)
{
    int capturing = 0, status;

    if (f->driver->stream_is_capturing && !f->driver->stream_is_capturing(f->stream, &capturing) && capturing)
        return fail(e, KOPS_ERR_CAPTURING,
                    "the current CUDA stream is being captured, and a call that waits cannot be part of a graph: leave "
                    "blocking and timing out");
    status = fast_stream_synchronize(f->stream);
    return status ? cuda_fail(f->driver, e, KOPS_ERR_DEVICE_ERROR, status, "cuStreamSynchronize") : KOPS_OK;
}

/* Waits for the stream, and then for the op. */
static int run(struct fast *f, struct kops_error *e)
{
    PyObject *kept;
    PyThreadState *thread;
    kops_ticket ticket = 0;
    int ended;
    enum kops_code r;

    thread = PyEval_SaveThread();
    r = wait_for_stream(f, e);
    if (!r && (r = native_submit_run(f->link->client, &f->request, &ticket, e)))
        ticket = 0;
    else if (!r)
        r = kops_wait(f->link->client, ticket, FIRST_MS, &f->result, e);
    PyEval_RestoreThread(thread);
    if (!ticket || r != KOPS_ERR_TIMEOUT)
        return (int)r;
    ended = link_wait(f->link, ticket, f->options.timeout_ms, NULL, &f->result, e);
    if (ended > 0)
        return (int)e->code;
    kept = references(f);
    link_abandon(f->link, ticket, true, kept);
    Py_XDECREF(kept);
    if (ended == 0)
        return (int)fail(e, KOPS_ERR_TIMEOUT, "the run did not end in time; it was asked to stop");
    return -1;
}

enum fast_way fast_way_of(PyObject *number)
{
    const long way = PyLong_AsLong(number);

    return way == FAST_TIMED ? FAST_TIMED : way ? FAST_WAITS : FAST_ENQUEUED;
}

static PyObject *us_or_none(double us)
{
    if (isnan(us))
        Py_RETURN_NONE;
    return PyFloat_FromDouble(us);
}

static PyObject *ns_or_none(uint64_t ns)
{
    if (!ns)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(ns);
}

PyObject *fast_timings(const struct fast *f)
{
    const struct kops_result *r = &f->result;
    const double times[] = {r->recv_to_start_us, r->map_us,  r->queue_us, r->wait_us,  r->h2d_us, r->d2h_us,
                            r->gpu_us,           r->host_us, r->end_us,   r->total_us, r->wall_us};
    enum { TIMES = sizeof(times) / sizeof(times[0]) };
    const char *const texts[] = {r->device, r->variant, r->timer};
    enum { TEXTS = sizeof(texts) / sizeof(texts[0]) };
    PyObject *made = PyTuple_New(TIMES + TEXTS + 1);

    for (Py_ssize_t i = 0; made && i <= TIMES + TEXTS; i++) {
        PyObject *item = i < TIMES           ? us_or_none(times[i])
                         : i < TIMES + TEXTS ? PyUnicode_FromString(texts[i - TIMES])
                                             : ns_or_none(r->received_ns);

        if (!item || PyTuple_SetItem(made, i, item) < 0)
            Py_CLEAR(made);
    }
    return made;
}

int fast_send(struct fast *f, enum fast_way way, struct kops_error *e)
{
    int r;

    f->options.no_timing = way != FAST_TIMED;
    f->link->users++;
    r = way == FAST_ENQUEUED ? enqueue(f, e) : run(f, e);
    link_leave(f->link);
    if (r > 0 && e->code == KOPS_ERR_CONNECTION_LOST)
        f->link->n_regions = 0;
    return r;
}

/* ---- ops ---- */

enum rule { RULE_NONE, RULE_ELEMENTWISE, RULE_GEMM /* the first two inputs are matrices */ };

static bool same_shape(const struct operand *a, const struct operand *b)
{
    return a->rank == b->rank && !memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0]));
}

PyObject *fast_result(PyObject *first, const struct operand *operands, unsigned n_inputs, int rule)
{
    const struct operand *a = &operands[0], *b = &operands[1];
    int64_t shape[2];

    for (unsigned i = 1; i < n_inputs; i++)
        if (operands[i].dtype != a->dtype)
            return NULL;
    if (rule == RULE_GEMM && n_inputs >= 2 && a->rank == 2 && b->rank == 2 && a->shape[1] == b->shape[0]) {
        shape[0] = a->shape[0];
        shape[1] = b->shape[1];
        return tensor_of(first, shape, 2);
    }
    if (rule != RULE_ELEMENTWISE)
        return NULL;
    for (unsigned i = 1; i < n_inputs; i++)
        if (!same_shape(a, &operands[i]))
            return NULL;
    return a->contiguous ? tensor_like(first) : tensor_of(first, a->shape, a->rank);
}

/* Prepares everything that is known before the op is sent. False: use the slow path, or an exception is set. */
static bool prepare(struct fast *f, PyObject *out, enum rule rule)
{
    for (unsigned i = 0; i < f->n_inputs; i++)
        if (!tensor_read(PyTuple_GetItem(f->inputs, i), &f->operands[i]) || f->operands[i].dtype > KOPS_BF16 ||
            !fast_resolve(f, i))
            return false;
    if (!fast_place(f))
        return false;
    if (out == Py_None) {
        f->out = fast_result(PyTuple_GetItem(f->inputs, 0), f->operands, f->n_inputs, rule);
    } else {
        Py_INCREF(out);
        f->out = out;
    }
    return f->out && tensor_read(f->out, &f->operands[f->n_inputs]) && f->operands[f->n_inputs].dtype <= KOPS_BF16 &&
           fast_resolve(f, f->n_inputs);
}

/* Returns the output, with the times where they were asked for. Takes the reference to the output. */
static PyObject *answer(struct fast *f, enum fast_way way)
{
    PyObject *times = way == FAST_TIMED ? fast_timings(f) : NULL, *both;

    if (way != FAST_TIMED)
        return f->out;
    both = times ? PyTuple_Pack(2, f->out, times) : NULL;
    Py_XDECREF(times);
    Py_DECREF(f->out);
    return both;
}

/* run(op, inputs, out, attrs, rule, way, timeout): the output, or NotImplemented. `way` 0: put on the current stream;
 * 1: wait; 2: wait, and return (output, times). */
PyObject *link_run(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    struct kops_error e;
    struct fast f;
    PyObject *attrs;
    enum fast_way way;
    enum rule rule;
    int r;

    if (count != 7 || !PyTuple_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "run(op, inputs, out, attrs, rule, way, timeout)");
        return NULL;
    }
    fast_begin(&f, (struct link *)self, arguments[1]);
    f.n_inputs = (unsigned)PyTuple_Size(f.inputs);
    attrs = arguments[3];
    rule = (enum rule)PyLong_AsLong(arguments[4]);
    way = fast_way_of(arguments[5]);
    f.op = PyUnicode_AsUTF8AndSize(arguments[0], NULL);
    if (!f.op || !native_milliseconds(arguments[6], &f.options.timeout_ms))
        return NULL;
    if (!f.link->client || f.link->closing || f.n_inputs == 0 || f.n_inputs >= FAST_OPERANDS ||
        !prepare(&f, arguments[2], rule)) {
        Py_XDECREF(f.out);
        return fast_decline();
    }
    f.request = (struct native_request){.generation = f.link->generation,
                                        .op = f.op,
                                        .n_inputs = f.n_inputs,
                                        .n_outputs = 1,
                                        .tensors = f.tensors,
                                        .options = &f.options};
    if (!fast_packed(attrs, &f.request.attrs, &f.request.attrs_length)) {
        Py_DECREF(f.out);
        return NULL;
    }
    r = fast_send(&f, way, &e);
    if (!r)
        return answer(&f, way);
    Py_DECREF(f.out);
    return r < 0 ? NULL : native_raise(&e);
}
