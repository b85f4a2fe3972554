/* Ops and launches of users' kernels on torch CUDA tensors whose memory is registered: from the tensors to the request
 * without Python in between. A kernel's parameters are prepared once, in a kops._native.Kernel. All other arguments are
 * left to the slow path, which takes everything and names errors. Device memory that the daemon knows is found by
 * address. */
#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "jobs/job.h"
#include "python_native.h"

/* Ways to send a request: put on the stream; waited for; waited for, with its times. */
enum fast_way { FAST_ENQUEUED, FAST_WAITS, FAST_TIMED };

/* A request that is being made, see fast_begin(). */
struct fast {
    struct link *link;
    uint32_t generation; /* generation of the connection that the ids belong to */
    const struct cuda_driver *driver;
    PyObject *inputs; /* a tuple, borrowed */
    PyObject *out;    /* owned */
    struct operands tensors;
    void *context, *stream;
    struct kops_options options;
    struct wire_run run;
    struct kops_result result;
};

/* ---- the driver ---- */

static int (*fast_stream_synchronize)(void *stream); /* the driver's function, once the driver is loaded */

const struct cuda_driver *native_driver(void)
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

static void fast_begin(struct fast *f, struct link *link, PyObject *inputs)
{
    /* Leave the arrays, which are large, uninitialised. */
    f->link = link;
    f->generation = link->generation;
    f->driver = NULL;
    f->inputs = inputs;
    f->out = NULL;
    f->tensors.n = 0;
    f->tensors.device = -1;
    f->context = f->stream = NULL;
    f->options = (struct kops_options){.no_timing = true};
}

/* Reads the bytes of a packed map; None leaves them alone. False with an exception set. */
static bool fast_packed(PyObject *value, const char **ret_data, size_t *ret_length)
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

/* Finds the buffer of a tensor that was read. False: its memory is not registered, or in another context than that of
 * earlier tensors. */
static bool fast_resolve(struct fast *f, struct native_tensor *t)
{
    const struct region *r;

    if (!f->driver && !(f->driver = native_driver()))
        return false;
    r = fast_region(f->link, f->driver, t->offset);
    if (!r || (t != f->tensors.at && r->context != f->context))
        return false;
    f->context = r->context;
    t->buffer = r->buffer;
    t->offset -= r->base;
    return true;
}

/* Tells whether the calling thread is on the operands' device, and finds the current stream. */
static bool fast_place(struct fast *f)
{
    void *context = NULL;

    return !f->driver->context_get(&context) && context == f->context && tensor_stream(f->tensors.device, &f->stream);
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

    WITHOUT_GIL(r = (int)native_enqueue(f->link->client, f->generation, &f->run, f->stream, e));
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
    if (!r && (r = native_submit_run(f->link->client, f->generation, &f->run, &ticket, e)))
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

static enum fast_way fast_way_of(PyObject *number)
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

/* Returns the times of a timed request that has ended: eight numbers or None in the order of kops.Timings, device,
 * variant, timer. */
static PyObject *fast_timings(const struct fast *f)
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

/* Sends the request; `inputs` and `out` live until it has ended. 0, a code in *e, or -1 with an exception set. */
static int fast_send(struct fast *f, enum fast_way way, struct kops_error *e)
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

static bool same_shape(const struct native_tensor *a, const struct native_tensor *b)
{
    return a->rank == b->rank && !memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0]));
}

PyObject *fast_result(PyObject *first, const struct native_tensor *inputs, unsigned n_inputs, int rule)
{
    const struct native_tensor *a = &inputs[0], *b = &inputs[1];
    int64_t shape[2];

    for (unsigned i = 1; i < n_inputs; i++)
        if (inputs[i].dtype != a->dtype)
            return NULL;
    if (rule == RULE_GEMM && n_inputs >= 2 && a->rank == 2 && b->rank == 2 && a->shape[1] == b->shape[0]) {
        shape[0] = a->shape[0];
        shape[1] = b->shape[1];
        return tensor_of(first, shape, 2);
    }
    if (rule != RULE_ELEMENTWISE)
        return NULL;
    for (unsigned i = 1; i < n_inputs; i++)
        if (!same_shape(a, &inputs[i]))
            return NULL;
    return a->strides ? tensor_of(first, a->shape, a->rank) : tensor_like(first);
}

static bool read_operand(struct fast *f, PyObject *value)
{
    struct native_tensor *t = &f->tensors.at[f->tensors.n];

    return tensor_read(value, &f->tensors) && t->dtype <= KOPS_BF16 && fast_resolve(f, t);
}

/* Prepares everything that is known before the op is sent. False: use the slow path, or an exception is set. */
static bool prepare(struct fast *f, PyObject *out, enum rule rule)
{
    for (unsigned i = 0; i < f->run.n_inputs; i++)
        if (!read_operand(f, PyTuple_GetItem(f->inputs, i)))
            return false;
    if (!fast_place(f))
        return false;
    if (out == Py_None) {
        f->out = fast_result(PyTuple_GetItem(f->inputs, 0), f->tensors.at, f->run.n_inputs, rule);
    } else {
        Py_INCREF(out);
        f->out = out;
    }
    return f->out && read_operand(f, f->out);
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
    enum fast_way way;
    enum rule rule;
    int r;

    if (count != 7 || !PyTuple_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "run(op, inputs, out, attrs, rule, way, timeout)");
        return NULL;
    }
    fast_begin(&f, (struct link *)self, arguments[1]);
    f.run = (struct wire_run){.op = PyUnicode_AsUTF8AndSize(arguments[0], NULL),
                              .n_inputs = (unsigned)PyTuple_Size(f.inputs),
                              .n_outputs = 1,
                              .tensors = f.tensors.at,
                              .how = {.options = &f.options}};
    rule = (enum rule)PyLong_AsLong(arguments[4]);
    way = fast_way_of(arguments[5]);
    if (!f.run.op || !native_milliseconds(arguments[6], &f.options.timeout_ms))
        return NULL;
    if (!f.link->client || f.link->closing || f.run.n_inputs == 0 || f.run.n_inputs >= FAST_OPERANDS ||
        !prepare(&f, arguments[2], rule)) {
        Py_XDECREF(f.out);
        return native_decline();
    }
    if (!fast_packed(arguments[3], &f.run.packed_attrs, &f.run.packed_attrs_length)) {
        Py_DECREF(f.out);
        return NULL;
    }
    r = fast_send(&f, way, &e);
    if (!r)
        return answer(&f, way);
    Py_DECREF(f.out);
    return r < 0 ? NULL : native_raise(&e);
}

/* ---- launches: arguments ---- */

enum { LAUNCH_PARAMS = 32, ANY_RANK = -1, ANY_LAYOUT = -2 };

struct parameter {
    signed char dtype; /* enum kops_dtype; negative for a scalar, 0 for a structure */
    signed char rank;  /* rank of a tensor, or one of the two values above */
};

struct kernel {
    PyObject ob_base;
    PyObject *name;
    unsigned n;
    struct parameter params[LAUNCH_PARAMS];
};

static PyTypeObject *kernel_type; /* the module's, for checks */

static bool integer_fits(enum kops_dtype dtype, int64_t value)
{
    switch (dtype) {
    case KOPS_I8:
        return value >= INT8_MIN && value <= INT8_MAX;
    case KOPS_U8:
        return value >= 0 && value <= UINT8_MAX;
    case KOPS_I16:
        return value >= INT16_MIN && value <= INT16_MAX;
    case KOPS_U16:
        return value >= 0 && value <= UINT16_MAX;
    case KOPS_I32:
        return value >= INT32_MIN && value <= INT32_MAX;
    case KOPS_U32:
        return value >= 0 && value <= UINT32_MAX;
    case KOPS_I64:
        return true;
    case KOPS_U64: /* larger ones are rare */
        return value >= 0;
    default:
        return false;
    }
}

static bool real_fits(enum kops_dtype dtype, double value)
{
    const double size = fabs(value);

    if (dtype == KOPS_F64 || !isfinite(value))
        return true;
    /* The limit is below the largest bfloat16, so that no rounding can carry over. */
    return size <= (dtype == KOPS_F16 ? 65504.0 : 3.3e38);
}

/* Reads a Python number as the parameter's type. */
static bool read_scalar(enum kops_dtype dtype, PyObject *value, struct kops_argument *ret)
{
    long long integer;
    double real;

    if (dtype <= KOPS_BF16) {
        if (!PyFloat_Check(value) && !PyLong_Check(value))
            return false;
        real = PyFloat_AsDouble(value);
        *ret = kops_arg_float(real);
        return !(real == -1 && PyErr_Occurred()) && real_fits(dtype, real);
    }
    if (dtype == KOPS_BOOL) {
        *ret = kops_arg_bool(value == Py_True);
        return PyBool_Check(value);
    }
    if (!PyLong_Check(value))
        return false;
    integer = PyLong_AsLongLong(value);
    *ret = kops_arg_int(integer);
    return !(integer == -1 && PyErr_Occurred()) && integer_fits(dtype, integer);
}

/* Reads bytes, as the rest of the client has made them. */
static bool read_structure(PyObject *value, struct kops_argument *ret)
{
    Py_ssize_t size;
    char *bytes;

    if (!PyBytes_Check(value) || PyBytes_AsStringAndSize(value, &bytes, &size) < 0)
        return false;
    *ret = kops_arg_bytes(bytes, (uint32_t)size);
    return true;
}

static bool read_tensor(struct fast *f, const struct parameter *p, PyObject *value)
{
    struct native_tensor *t = &f->tensors.at[f->tensors.n];

    if (!tensor_read(value, &f->tensors) || t->dtype != (enum kops_dtype)p->dtype)
        return false;
    if ((p->rank >= 0 && t->rank != (unsigned)p->rank) || (p->rank != ANY_LAYOUT && t->strides))
        return false;
    return fast_resolve(f, t);
}

static bool read_arguments(struct fast *f, const struct kernel *k, struct kops_argument *args)
{
    for (unsigned i = 0; i < k->n; i++) {
        const struct parameter *p = &k->params[i];
        PyObject *value = PyTuple_GetItem(f->inputs, i);

        if (p->dtype == 0) {
            if (!read_structure(value, &args[i]))
                return false;
        } else if (p->dtype < 0) {
            if (!read_scalar((enum kops_dtype) - p->dtype, value, &args[i]))
                return false;
        } else if (value == Py_None) {
            args[i] = kops_arg_null();
        } else {
            if (!read_tensor(f, p, value))
                return false;
            args[i] = kops_arg_tensor(NULL);
        }
    }
    f->run.n_inputs = f->tensors.n;
    return f->tensors.n > 0;
}

/* launch(kernel, id, arguments, geometry, blocking, timeout): None, or NotImplemented. */
PyObject *link_launch(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    struct kops_argument args[LAUNCH_PARAMS];
    const struct kernel *k;
    struct kops_error e;
    struct fast f;
    enum fast_way way;
    int r;

    if (count != 6 || Py_TYPE(arguments[0]) != kernel_type || !PyTuple_Check(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "launch(kernel, id, arguments, geometry, way, timeout)");
        return NULL;
    }
    k = (const struct kernel *)(const void *)arguments[0];
    fast_begin(&f, (struct link *)self, arguments[2]);
    f.run = (struct wire_run){.op = PyUnicode_AsUTF8AndSize(k->name, NULL),
                              .kernel = PyLong_AsUnsignedLongLong(arguments[1]),
                              .tensors = f.tensors.at,
                              .args = args,
                              .n_args = k->n,
                              .how = {.options = &f.options}};
    way = fast_way_of(arguments[4]);
    if (!f.run.op || PyErr_Occurred() || !native_milliseconds(arguments[5], &f.options.timeout_ms) ||
        !fast_packed(arguments[3], &f.run.geometry, &f.run.geometry_length))
        return NULL;
    if (!f.link->client || f.link->closing || PyTuple_Size(f.inputs) != (Py_ssize_t)k->n ||
        !read_arguments(&f, k, args) || !fast_place(&f)) {
        PyErr_Clear(); /* a number too large: the slow path says so */
        return native_decline();
    }
    r = fast_send(&f, way, &e);
    if (r < 0)
        return NULL;
    if (r)
        return native_raise(&e);
    if (way == FAST_TIMED)
        return fast_timings(&f);
    Py_RETURN_NONE;
}

/* ---- launches: kernels ---- */

static bool fill(struct kernel *k, PyObject *dtypes, PyObject *ranks)
{
    const Py_ssize_t n = PyTuple_Size(dtypes);

    if (n > LAUNCH_PARAMS || PyTuple_Size(ranks) != n) {
        PyErr_SetString(PyExc_ValueError, "a kernel has at most 32 parameters");
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        k->params[i] = (struct parameter){(signed char)PyLong_AsLong(PyTuple_GetItem(dtypes, i)),
                                          (signed char)PyLong_AsLong(PyTuple_GetItem(ranks, i))};
    k->n = (unsigned)n;
    return !PyErr_Occurred();
}

static int initialise(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    struct kernel *k = (struct kernel *)self;
    PyObject *name, *dtypes, *ranks;

    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "UO!O!", &name, &PyTuple_Type, &dtypes, &PyTuple_Type, &ranks) ||
        !fill(k, dtypes, ranks))
        return -1;
    native_replace(&k->name, name);
    kernel_type = Py_TYPE(self);
    return 0;
}

static void deallocate(PyObject *self)
{

    Py_CLEAR(((struct kernel *)self)->name);
    native_free(self);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "Kernel(name, dtypes, ranks): what a kernel takes. dtypes are those of enum kops_dtype, negative of "
                "scalars, 0 of structures; ranks of tensors, -1 for any, -2 for any layout as well."},
    {Py_tp_init, initialise},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, deallocate},
    {0, NULL},
};

PyType_Spec kernel_spec = {"kops._native.Kernel", sizeof(struct kernel), 0, Py_TPFLAGS_DEFAULT, slots};
