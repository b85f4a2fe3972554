/* kops._native.Link: one kops_client, shared with threads that released the GIL, and the references that Python keeps
 * alive for the daemon. */
#include "python_native.h"

#include <stdlib.h>

#include "base/fail.h"

enum {
    GRACE_MS = 250, /* time that Ctrl-C waits for the cancelled request's reply */
    COLLECT = 16    /* calls between searches for references that may go */
};

/* ---- the client ---- */

static bool link_enter(struct link *link)
{
    struct kops_error e;

    if (link->client && !link->closing) {
        link->users++;
        return true;
    }
    fail_clear(&e);
    fail(&e, KOPS_ERR_CONNECTION_LOST, "the client was closed");
    native_raise(&e);
    return false;
}

/* ---- references that are kept ---- */

static int kept_append(struct kept_list *list, uint64_t number, PyObject *references)
{
    if (list->count == list->capacity) {
        size_t room = list->capacity ? 2 * list->capacity : 64;
        struct kept *grown = malloc(room * sizeof(*grown));

        if (!grown) {
            PyErr_NoMemory();
            return -1;
        }
        for (size_t i = 0; i < list->count; i++)
            grown[i] = list->items[(list->first + i) % list->capacity];
        free(list->items);
        *list = (struct kept_list){grown, 0, list->count, room};
    }
    Py_XINCREF(references);
    list->items[(list->first + list->count++) % list->capacity] = (struct kept){number, references};
    return 0;
}

static struct kept kept_pop(struct kept_list *list)
{
    struct kept k = list->items[list->first];

    list->first = (list->first + 1) % list->capacity;
    list->count--;
    return k;
}

/* Gives a ticket of either kind back if its request ends in time. */
static bool take_end(struct link *link, kops_ticket ticket, int64_t timeout_ms)
{
    struct native_reply reply = {.data = NULL};
    enum kops_code r = native_wait(link->client, ticket, timeout_ms, &reply, NULL);

    if (r == KOPS_ERR_BAD_ARGUMENT) /* the ticket of a run */
        r = kops_wait(link->client, ticket, timeout_ms, NULL, NULL);
    native_reply_free(&reply);
    return r != KOPS_ERR_TIMEOUT;
}

static void collect_orphans(struct link *link)
{
    for (size_t n = link->orphans.count; n > 0; n--) {
        struct kept k = kept_pop(&link->orphans);
        bool ended = false;

        if (!kops_poll(link->client, k.number, &ended, NULL) && !ended) {
            link->orphans.items[(link->orphans.first + link->orphans.count++) % link->orphans.capacity] = k;
            continue;
        }
        take_end(link, k.number, 1);
        Py_XDECREF(k.references);
    }
}

static size_t link_collect(struct link *link)
{
    if (!link->client)
        return 0;
    if (link->orphans.count)
        collect_orphans(link);
    /* Dropping references may run any code, this function included. */
    while (link->enqueued.count && native_completed(link->client, link->enqueued.items[link->enqueued.first].number)) {
        struct kept k = kept_pop(&link->enqueued);

        Py_XDECREF(k.references);
    }
    return link->enqueued.count + link->orphans.count;
}

static void wake(struct link *link)
{
    PyObject *ignored;

    if (link->awake || !link->wake)
        return;
    link->awake = true;
    ignored = PyObject_CallFunctionObjArgs(link->wake, NULL);
    if (!ignored)
        PyErr_Clear();
    Py_XDECREF(ignored);
}

int link_keep(struct link *link, PyObject *references)
{
    if (link->enqueued.count >= link->collect_at) {
        link_collect(link);
        link->collect_at = link->enqueued.count + COLLECT;
    }
    if (kept_append(&link->enqueued, native_enqueued(link->client), references))
        return -1;
    wake(link);
    return 0;
}

void link_abandon(struct link *link, kops_ticket ticket, bool cancel, PyObject *references)
{
    PyThreadState *thread;
    PyObject *type, *value, *traceback;
    bool ended = false;

    PyErr_Fetch(&type, &value, &traceback);
    if (cancel) {
        thread = PyEval_SaveThread();
        kops_cancel(link->client, ticket, NULL);
        ended = take_end(link, ticket, GRACE_MS);
        PyEval_RestoreThread(thread);
    }
    if (!ended && kept_append(&link->orphans, ticket, references))
        PyErr_Clear();
    if (!ended)
        wake(link);
    PyErr_Restore(type, value, traceback);
}

static void drop_all(struct kept_list *list)
{
    while (list->count) {
        struct kept k = kept_pop(list);

        Py_XDECREF(k.references);
    }
    free(list->items);
    *list = (struct kept_list){NULL, 0, 0, 0};
}

static void link_end(struct link *link)
{
    kops_client *client = link->client;

    link->client = NULL;
    if (client) {
        WITHOUT_GIL(kops_close(client));
    }
    drop_all(&link->enqueued);
    drop_all(&link->orphans);
}

void link_leave(struct link *link)
{
    PyObject *type, *value, *traceback;

    if (--link->users || !link->closing)
        return;
    PyErr_Fetch(&type, &value, &traceback);
    link_end(link);
    PyErr_Restore(type, value, traceback);
}

int link_wait(struct link *link, kops_ticket ticket, int64_t timeout_ms, struct native_reply *reply,
              struct kops_result *result, struct kops_error *e)
{
    enum kops_code r;

    for (int64_t left = timeout_ms; timeout_ms < 0 || left > 0; left -= LINK_SLICE_MS) {
        const int64_t slice = timeout_ms < 0 || left > LINK_SLICE_MS ? LINK_SLICE_MS : left;

        WITHOUT_GIL(r = reply ? native_wait(link->client, ticket, slice, reply, e)
                              : kops_wait(link->client, ticket, slice, result, e));
        if (r != KOPS_ERR_TIMEOUT)
            return 1;
        if (PyErr_CheckSignals())
            return -1;
        if (link->closing) {
            fail(e, KOPS_ERR_CONNECTION_LOST, "the client was closed");
            return 1;
        }
    }
    return 0;
}

/* ---- methods ---- */

/* Asked while libkops waits for a daemon: a signal's handler may raise, another thread may close the link. */
static bool is_over(void *context)
{
    const struct link *link = context;
    const PyGILState_STATE gil = PyGILState_Ensure();
    const bool over = link->closing || PyErr_CheckSignals();

    PyGILState_Release(gil);
    return over;
}

/* Reads the seconds that a daemon is waited for, 0 being none. */
static bool patience_of(struct link *link, PyObject *seconds, struct patience *ret)
{
    const double value = PyFloat_AsDouble(seconds);

    *ret = (struct patience){.strict = value > 0, .is_over = is_over, .context = link};
    return value == 0 || native_milliseconds(seconds, &ret->ms);
}

/* generation(patience): the present connection's generation, and its answer to hello; connects when there is none, for
 * so many seconds. */
static PyObject *generation(PyObject *self, PyObject *seconds)
{
    struct patience patience;
    PyThreadState *thread;
    struct link *link = (struct link *)self;
    struct bytes hello = {0};
    struct kops_error e;
    PyObject *made;
    uint32_t now;

    if (!patience_of(link, seconds, &patience) || !link_enter(link))
        return NULL;
    thread = PyEval_SaveThread();
    now = native_generation(link->client, &patience, &e);
    if (now && !native_hello(link->client, &hello))
        now = 0, fail(&e, KOPS_ERR_NO_MEMORY, "there is no memory to connect");
    PyEval_RestoreThread(thread);
    if (!now && link->closing)
        fail(&e, KOPS_ERR_CONNECTION_LOST, "the client was closed");
    link_leave(link);
    if (now && now != link->generation) {
        link->generation = now;
        link->n_regions = 0;
    }
    if (now)
        made = Py_BuildValue("(Iy#)", now, (const char *)hello.data, (Py_ssize_t)hello.length);
    else
        made = PyErr_Occurred() ? NULL : native_raise(&e);
    bytes_free(&hello);
    return made;
}

static bool put_fds(struct native_raw *request, PyObject *fds)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(fds) && i < NATIVE_MAX_FDS; i++)
        request->fds[request->n_fds++] = (int)PyLong_AsLong(PyTuple_GetItem(fds, i));
    return !PyErr_Occurred();
}

/* Reads (generation, method, params, fds, timeout, cancel, references), the last two of call(), and enters the link. */
static bool begin(struct link *link, PyObject *arguments, struct native_raw *request, int *ret_cancels,
                  PyObject **ret_references)
{
    PyObject *fds, *timeout;
    Py_ssize_t length;
    unsigned wanted;

    if (!PyArg_ParseTuple(arguments, "Isy#O!O|pO", &wanted, &request->method, &request->params, &length, &PyTuple_Type,
                          &fds, &timeout, ret_cancels, ret_references) ||
        !native_milliseconds(timeout, &request->timeout_ms) || !put_fds(request, fds) || !link_enter(link))
        return false;
    request->generation = wanted;
    request->length = (size_t)length;
    if (link->orphans.count)
        link_collect(link);
    return true;
}

/* submit(generation, method, params, fds, timeout): a ticket. */
static PyObject *submit(PyObject *self, PyObject *arguments)
{
    struct link *link = (struct link *)self;
    struct native_raw request = {.generation = 0};
    PyObject *references;
    kops_ticket ticket;
    struct kops_error e;
    enum kops_code r;
    int cancels;

    if (!begin(link, arguments, &request, &cancels, &references))
        return NULL;
    WITHOUT_GIL(r = native_submit(link->client, &request, &ticket, &e));
    link_leave(link);
    return r ? native_raise(&e) : PyLong_FromUnsignedLongLong(ticket);
}

/* Returns the reply, whose descriptors are the caller's from then on. */
static PyObject *reply_tuple(struct native_reply *reply)
{
    PyObject *fds = PyTuple_New((Py_ssize_t)reply->n_fds), *made;

    for (unsigned i = 0; fds && i < reply->n_fds; i++) {
        PyObject *fd = PyLong_FromLong(reply->fds[i]);

        if (!fd || PyTuple_SetItem(fds, (Py_ssize_t)i, fd) < 0)
            Py_CLEAR(fds);
    }
    if (!fds)
        return NULL;
    made = Py_BuildValue("(Oy#N)", reply->is_error ? Py_True : Py_False, reply->data, (Py_ssize_t)reply->length, fds);
    if (made)
        reply->n_fds = 0;
    return made;
}

/* wait(ticket, timeout): (is an error, bytes of the error or result, descriptors), or None when the time is over. The
 * ticket then stays valid, as it does after an exception from a signal. */
static PyObject *wait_for(PyObject *self, PyObject *arguments)
{
    struct link *link = (struct link *)self;
    struct native_reply reply = {.data = NULL};
    unsigned long long ticket;
    PyObject *timeout, *made = NULL;
    struct kops_error e;
    int64_t ms;
    int ended;

    if (!PyArg_ParseTuple(arguments, "KO", &ticket, &timeout) || !native_milliseconds(timeout, &ms) ||
        !link_enter(link))
        return NULL;
    ended = link_wait(link, ticket, ms, &reply, NULL, &e);
    link_leave(link);
    if (ended == 0) {
        made = Py_None;
        Py_INCREF(made);
    } else if (ended > 0) {
        made = e.code ? native_raise(&e) : reply_tuple(&reply);
    }
    native_reply_free(&reply);
    return made;
}

/* call(generation, method, params, fds, timeout, cancel, references): submit() and wait() in one. When the time is
 * over, or a signal raises, the request is given up, and cancelled if it can be; the references live until it has
 * ended. */
static PyObject *call(PyObject *self, PyObject *arguments)
{
    PyThreadState *thread;
    struct link *link = (struct link *)self;
    struct native_raw request = {.generation = 0};
    struct native_reply reply = {.data = NULL};
    PyObject *references = Py_None, *made = NULL;
    kops_ticket ticket;
    struct kops_error e;
    enum kops_code r;
    int ended = 1, cancels = 0;

    if (!begin(link, arguments, &request, &cancels, &references))
        return NULL;
    thread = PyEval_SaveThread();
    r = native_submit(link->client, &request, &ticket, &e);
    if (!r)
        r = native_wait(link->client, ticket, FIRST_MS, &reply, &e);
    else
        ticket = 0;
    PyEval_RestoreThread(thread);
    if (ticket && r == KOPS_ERR_TIMEOUT) {
        ended = link_wait(link, ticket, request.timeout_ms, &reply, NULL, &e);
        if (ended <= 0)
            link_abandon(link, ticket, cancels, references);
    }
    link_leave(link);
    if (ended > 0)
        made = e.code ? native_raise(&e) : reply_tuple(&reply);
    else if (ended == 0)
        made = (Py_INCREF(Py_None), Py_None);
    native_reply_free(&reply);
    return made;
}

/* has_ended(ticket): whether the reply was read. */
static PyObject *has_ended(PyObject *self, PyObject *number)
{
    struct link *link = (struct link *)self;
    kops_ticket ticket = PyLong_AsUnsignedLongLong(number);
    bool ended;

    if (PyErr_Occurred() || !link_enter(link))
        return NULL;
    ended = native_has_ended(link->client, ticket);
    link_leave(link);
    return PyBool_FromLong(ended);
}

/* look(): reads the replies that have arrived. Raises where the connection is over. */
static PyObject *look(PyObject *self, PyObject *unused)
{
    struct link *link = (struct link *)self;
    struct kops_error e;
    enum kops_code r;

    (void)unused;
    if (!link_enter(link))
        return NULL;
    WITHOUT_GIL(r = native_look(link->client, link->generation, &e));
    link_leave(link);
    return native_outcome(r, &e);
}

/* fileno(): the connection's socket; -1: there is none. */
static PyObject *file_number(PyObject *self, PyObject *unused)
{
    struct link *link = (struct link *)self;
    int fd;

    (void)unused;
    if (!link_enter(link))
        return NULL;
    fd = native_socket(link->client);
    link_leave(link);
    return PyLong_FromLong(fd);
}

/* cancel(ticket): asks the daemon to drop the request, without waiting. */
static PyObject *cancel(PyObject *self, PyObject *number)
{
    struct link *link = (struct link *)self;
    kops_ticket ticket = PyLong_AsUnsignedLongLong(number);

    if (PyErr_Occurred() || !link_enter(link))
        return NULL;
    WITHOUT_GIL(kops_cancel(link->client, ticket, NULL));
    link_leave(link);
    Py_RETURN_NONE;
}

/* notify(method, params, dispensable=False): carried out like a request, never answered. */
static PyObject *notify(PyObject *self, PyObject *arguments)
{
    struct link *link = (struct link *)self;
    const char *method, *params;
    Py_ssize_t length;
    int dispensable = 0;

    if (!PyArg_ParseTuple(arguments, "sy#|p", &method, &params, &length, &dispensable) || !link_enter(link))
        return NULL;
    WITHOUT_GIL(native_notify(link->client, link->generation, method, params, (size_t)length, dispensable));
    link_leave(link);
    Py_RETURN_NONE;
}

/* enqueue(method, name, params, references, stream): on a CUDA stream of the current context. */
static PyObject *enqueue_call(PyObject *self, PyObject *arguments)
{
    struct link *link = (struct link *)self;
    const char *method, *name, *params;
    unsigned long long stream;
    Py_ssize_t length;
    PyObject *references;
    struct kops_error e;
    enum kops_code r;
    int kept;

    if (!PyArg_ParseTuple(arguments, "ssy#OK", &method, &name, &params, &length, &references, &stream) ||
        !link_enter(link))
        return NULL;
    WITHOUT_GIL(r = native_enqueue_call(link->client, link->generation, method, name, params, (size_t)length,
                                        (void *)(uintptr_t)stream, &e));
    kept = r ? 0 : link_keep(link, references);
    link_leave(link);
    if (r)
        return native_raise(&e);
    return kept ? NULL : (Py_INCREF(Py_None), Py_None);
}

/* batch(stream, begin): begins a batch, or ends it. */
static PyObject *batch(PyObject *self, PyObject *arguments)
{
    struct link *link = (struct link *)self;
    unsigned long long stream;
    struct kops_error e;
    enum kops_code r;
    int begins;

    if (!PyArg_ParseTuple(arguments, "Kp", &stream, &begins) || !link_enter(link))
        return NULL;
    WITHOUT_GIL(r = begins ? kops_batch_begin(link->client, (void *)(uintptr_t)stream, &e)
                           : kops_batch_end(link->client, (void *)(uintptr_t)stream, &e));
    link_leave(link);
    return native_outcome(r, &e);
}

/* synchronize(timeout): waits for the enqueued ops; raises the first error since the last report. */
static PyObject *synchronize(PyObject *self, PyObject *timeout)
{
    struct link *link = (struct link *)self;
    struct kops_error e;
    enum kops_code r;
    int64_t ms;

    if (!native_milliseconds(timeout, &ms) || !link_enter(link))
        return NULL;
    for (int64_t left = ms;; left -= LINK_SLICE_MS) {
        const int64_t slice = ms < 0 || left > LINK_SLICE_MS ? LINK_SLICE_MS : left;

        WITHOUT_GIL(r = kops_synchronize(link->client, KOPS_ALL_STREAMS, slice, &e));
        if (r != KOPS_ERR_TIMEOUT || (ms >= 0 && left <= LINK_SLICE_MS))
            break;
        if (PyErr_CheckSignals())
            break;
    }
    link_collect(link);
    link_leave(link);
    if (PyErr_Occurred())
        return NULL;
    return native_outcome(r, &e);
}

/* collect(): drops the references that nothing needs any more. Returns how many are left, None when the link is closed.
 * After 0, the next kept reference wakes the collector. */
static PyObject *collect(PyObject *self, PyObject *unused)
{
    struct link *link = (struct link *)self;
    size_t left;

    (void)unused;
    if (!link->client || link->closing)
        Py_RETURN_NONE;
    link->users++;
    left = link_collect(link);
    link_leave(link);
    link->awake = left > 0;
    return PyLong_FromSize_t(left);
}

/* close(): ends the connection, once the enqueued ops have ended. Calls of other threads end first. */
static PyObject *close_link(PyObject *self, PyObject *unused)
{
    struct link *link = (struct link *)self;

    (void)unused;
    link->closing = true;
    if (!link->users)
        link_end(link);
    Py_RETURN_NONE;
}

/* ---- making and closing ---- */

static int initialise(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    struct link *link = (struct link *)self;
    struct kops_connect_options options = {.socket = NULL};
    PyObject *timeout, *seconds, *wake_up;
    struct patience patience;
    double spin_us;
    int autostart, socket_only, follows;
    struct kops_error e;
    enum kops_code r;

    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "zsOOdOpppz", &options.socket, &options.name, &timeout, &seconds, &spin_us,
                          &wake_up, &follows, &autostart, &socket_only, &options.isolate) ||
        !native_milliseconds(timeout, &options.timeout_ms) || !patience_of(link, seconds, &patience))
        return -1;
    patience.follows = follows;
    options.reconnect_timeout_ms = patience.ms ? patience.ms : KOPS_NO_RECONNECT;
    options.connect_timeout_ms = options.timeout_ms == KOPS_FOREVER ? 0 : options.timeout_ms;
    options.no_autostart = !autostart;
    options.transport = socket_only ? KOPS_TRANSPORT_SOCKET : KOPS_TRANSPORT_AUTO;
    options.where = KOPS_WHERE_DAEMON; /* Python has chosen the place */
    options.spin_us = spin_us > 0 ? (unsigned)spin_us : 0;
    if (link->client) {
        PyErr_SetString(PyExc_ValueError, "the link is connected");
        return -1;
    }
    WITHOUT_GIL(r = native_connect(&options, &patience, &link->client, &e));
    if (r) {
        if (link->closing)
            fail(&e, KOPS_ERR_CONNECTION_LOST, "the client was closed");
        if (!PyErr_Occurred())
            native_raise(&e);
        return -1;
    }
    native_replace(&link->wake, wake_up);
    return 0;
}

static void deallocate(PyObject *self)
{
    struct link *link = (struct link *)self;
    PyObject *closed;

    if (native_leaving)
        return; /* closing would wait for the ops under way, whose results nobody needs any more */
    closed = close_link(self, NULL);
    Py_XDECREF(closed);
    Py_CLEAR(link->wake);
    free(link->regions);
    native_free(self);
}

static PyObject *path_of(PyObject *self, void *unused)
{
    struct link *link = (struct link *)self;

    (void)unused;
    return PyUnicode_FromString(link->client ? kops_info(link->client)->socket : "");
}

static PyObject *is_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((struct link *)self)->closing);
}

static PyMethodDef methods[] = {
    {"generation", generation, METH_O, NULL},
    {"call", call, METH_VARARGS, NULL},
    {"submit", submit, METH_VARARGS, NULL},
    {"wait", wait_for, METH_VARARGS, NULL},
    {"has_ended", has_ended, METH_O, NULL},
    {"look", look, METH_NOARGS, NULL},
    {"fileno", file_number, METH_NOARGS, NULL},
    {"cancel", cancel, METH_O, NULL},
    {"notify", notify, METH_VARARGS, NULL},
    {"enqueue", enqueue_call, METH_VARARGS, NULL},
    {"batch", batch, METH_VARARGS, NULL},
    {"synchronize", synchronize, METH_O, NULL},
    {"collect", collect, METH_NOARGS, NULL},
    {"remember", link_remember, METH_VARARGS,
     "remember(base, size, alloc_id, buffer, context): registered device memory."},
    {"forget", link_forget, METH_VARARGS, NULL},
    {"run", (PyCFunction)(void (*)(void))link_run, METH_FASTCALL,
     "run(op, inputs, out, attrs, rule, blocking, timeout): the output, or NotImplemented."},
    {"launch", (PyCFunction)(void (*)(void))link_launch, METH_FASTCALL,
     "launch(kernel, id, arguments, geometry, blocking, timeout): None, or NotImplemented."},
    {"close", close_link, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"closed", is_closed, NULL, "Whether close() was called.", NULL},
    {"path", path_of, NULL, "The socket that was connected to.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Link(path, name, timeout, patience, spin_us, wake, follows, autostart, socket_only, isolate): a "
                "connection. wake() is called when references are kept."},
    {Py_tp_init, initialise},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, deallocate},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

PyType_Spec link_spec = {"kops._native.Link", sizeof(struct link), 0, Py_TPFLAGS_DEFAULT, slots};
