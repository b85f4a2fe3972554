/* From operands to a request that was sent: the common part of ops and launches of kernels. */
#include <math.h>

#include "base/fail.h"
#include "fast.h"

void fast_begin(struct fast *f, struct link *link, PyObject *inputs)
{
    /* Not the arrays, which are large. */
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

/* References that must live until the request has ended. */
static PyObject *references(const struct fast *f)
{
    if (f->out)
        return PyTuple_Pack(2, f->inputs, f->out);
    Py_INCREF(f->inputs);
    return f->inputs;
}

static int enqueue(struct fast *f, struct kops_error *e)
{
    PyThreadState *thread;
    PyObject *kept;
    int r;

    thread = PyEval_SaveThread();
    r = (int)native_enqueue(f->link->client, &f->request, f->stream, e);
    PyEval_RestoreThread(thread);
    if (!r) {
        kept = references(f);
        r = kept ? link_keep(f->link, kept) : -1;
        Py_XDECREF(kept);
    }
    return r;
}

/* Under capture a wait would spoil the graph. Without the GIL. */
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

/* Waits for the stream, then for the op. */
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
