/* The base of all types: errors as exceptions. The base of a link's methods: sharing the client with threads that
 * released the GIL, keeping references for the daemon, and waiting. */
#include "python_native.h"

#include <math.h>
#include <stdlib.h>

#include "base/fail.h"

enum {
    GRACE_MS = 250, /* time that Ctrl-C waits for the cancelled request's reply */
    COLLECT = 16    /* calls between searches for references that may go */
};

/* ---- errors, numbers, objects ---- */

bool native_leaving;

static PyObject *make_error; /* (code, message, detail) → exception */

PyObject *native_raise(const struct kops_error *e)
{
    PyObject *detail = PyDict_New(), *made = NULL;

    for (unsigned i = 0; detail && i < e->n_details; i++) {
        const struct kops_detail *d = &e->details[i];
        PyObject *value = d->is_text ? PyUnicode_DecodeUTF8(d->text, (Py_ssize_t)strlen(d->text), "replace")
                                     : PyLong_FromLongLong(d->number);

        if (!value || PyDict_SetItemString(detail, d->key, value))
            Py_CLEAR(detail);
        Py_XDECREF(value);
    }
    if (detail && make_error)
        made = PyObject_CallFunction(make_error, "ssO", kops_code_name(e->code), e->message, detail);
    Py_XDECREF(detail);
    if (made)
        PyErr_SetObject((PyObject *)Py_TYPE(made), made);
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, e->message);
    Py_XDECREF(made);
    return NULL;
}

PyObject *native_outcome(enum kops_code r, const struct kops_error *e)
{
    return r ? native_raise(e) : (Py_INCREF(Py_None), Py_None);
}

void native_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

bool native_milliseconds(PyObject *seconds, int64_t *ret_ms)
{
    double value;

    if (seconds == Py_None) {
        *ret_ms = KOPS_FOREVER;
        return true;
    }
    value = PyFloat_AsDouble(seconds);
    if (value == -1 && PyErr_Occurred())
        return false;
    *ret_ms = value > 1e12 ? KOPS_FOREVER : value <= 0.001 ? 1 : (int64_t)ceil(value * 1000);
    return true;
}

void native_raise_by(PyObject *function)
{
    native_replace(&make_error, function);
}

/* ---- the client ---- */

bool link_enter(struct link *link)
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

size_t link_collect(struct link *link)
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

void link_end(struct link *link)
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
