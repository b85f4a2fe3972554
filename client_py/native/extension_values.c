/* Values of compiled extensions (KopsValue) from Python's objects, and back. */
#include <stdlib.h>
#include <string.h>

#include "extension.h"

struct extension_python extension_python;

/* ---- memory ---- */

struct block {
    struct block *before;
    max_align_t data[];
};

void *host_memory_take(struct host_memory *m, size_t size)
{
    struct block *block = calloc(1, sizeof(*block) + size);

    if (!block)
        return PyErr_NoMemory();
    block->before = m->last;
    m->last = block;
    return block->data;
}

void host_memory_free(struct host_memory *m)
{
    while (m->last) {
        struct block *const before = m->last->before;

        free(m->last);
        m->last = before;
    }
}

/* ---- to C++ ---- */

struct writing {
    struct host_call *call;
    struct host_memory *memory;
    struct tensors *tensors;
};

static bool write_any(KopsValue *into, PyObject *given, const struct writing *w);

static bool is_tensor(PyObject *value, const struct writing *w)
{
    PyObject *told;
    bool is;

    if (!w->tensors)
        return false;
    if (w->call->framework == extension_python.torch && tensor_is(value))
        return true;
    if (PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value) || value == Py_None)
        return false;
    told = PyObject_CallMethod(w->call->framework, "is_tensor", "(O)", value);
    is = told == Py_True;
    Py_XDECREF(told);
    return is;
}

/* Adds a tensor. Its index; -1 with an exception set. */
static int64_t add_tensor(PyObject *value, const struct writing *w)
{
    struct tensors *t = w->tensors;
    KopsTensor *made;

    if (t->n == t->room) {
        const size_t room = t->room ? 2 * t->room : 8;
        KopsTensor **grown = realloc(t->at, room * sizeof(KopsTensor *));

        if (!grown) {
            PyErr_NoMemory();
            return -1;
        }
        t->at = grown;
        t->room = room;
    }
    made = host_memory_take(w->memory, sizeof(*made));
    if (!made || !held_describe(w->call, value, -1, made))
        return -1;
    t->at[t->n] = made;
    return (int64_t)t->n++;
}

static bool write_integer(KopsValue *into, PyObject *given)
{
    int overflow;
    const long long value = PyLong_AsLongLongAndOverflow(given, &overflow);

    into->tag = KOPS_IS_INT;
    into->d = PyLong_AsDouble(given);
    into->i = value;
    if (!overflow || PyErr_Occurred())
        return !PyErr_Occurred();
    into->i = 0;
    into->n = 2;
    if (overflow > 0) {
        const unsigned long long natural = PyLong_AsUnsignedLongLong(given);

        if (!PyErr_Occurred()) {
            into->i = (int64_t)natural;
            into->n = 1;
        }
        PyErr_Clear();
    }
    return true;
}

static bool write_text(KopsValue *into, PyObject *given, const struct writing *w)
{
    Py_ssize_t n;
    const char *text = PyUnicode_AsUTF8AndSize(given, &n);
    char *copy = text ? host_memory_take(w->memory, (size_t)n + 1) : NULL;

    if (!copy)
        return false;
    memcpy(copy, text, (size_t)n);
    *into = (KopsValue){.tag = KOPS_IS_STRING, .n = (int32_t)n, .p = copy};
    return true;
}

static bool write_device(KopsValue *into, PyObject *given)
{
    long type, number;

    into->tag = KOPS_IS_DEVICE;
    if (!PyArg_ParseTuple(given, "ll", &type, &number))
        return false;
    into->i = type;
    into->d = (double)number;
    return true;
}

static bool write_complex(KopsValue *into, PyObject *given, const struct writing *w)
{
    double *parts = host_memory_take(w->memory, 2 * sizeof(*parts));

    if (!parts)
        return false;
    parts[0] = PyComplex_RealAsDouble(given);
    parts[1] = PyComplex_ImagAsDouble(given);
    *into = (KopsValue){.tag = KOPS_IS_COMPLEX, .p = parts};
    return true;
}

/* Kinds of lists, by what all of their items are. */
enum kind { INTEGERS = 1, FLOATS = 2, TENSORS = 4 };

static int kinds_of(PyObject *list, Py_ssize_t n, const struct writing *w)
{
    int kinds = INTEGERS | FLOATS | TENSORS;

    for (Py_ssize_t i = 0; i < n && kinds; i++) {
        PyObject *one = PyList_GetItem(list, i);
        int overflow = 0;

        if (PyLong_CheckExact(one))
            PyLong_AsLongLongAndOverflow(one, &overflow);
        if (!PyLong_CheckExact(one) || overflow)
            kinds &= ~INTEGERS;
        if (!PyFloat_CheckExact(one))
            kinds &= ~FLOATS;
        if (one != Py_None && !is_tensor(one, w))
            kinds &= ~TENSORS;
    }
    return kinds;
}

static bool write_number_list(KopsValue *into, PyObject *list, Py_ssize_t n, int kinds, const struct writing *w)
{
    int64_t *numbers = host_memory_take(w->memory, (size_t)n * sizeof(*numbers));

    if (!numbers)
        return false;
    *into = (KopsValue){.tag = kinds & INTEGERS ? KOPS_IS_INTS
                               : kinds & FLOATS ? KOPS_IS_FLOATS
                                                : KOPS_IS_TENSORS,
                        .n = (int32_t)n,
                        .p = numbers};
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *one = PyList_GetItem(list, i);

        if (kinds & INTEGERS)
            numbers[i] = PyLong_AsLongLong(one);
        else if (kinds & FLOATS)
            memcpy(&numbers[i], &(double){PyFloat_AsDouble(one)}, sizeof(double));
        else if (one == Py_None)
            numbers[i] = -1;
        else if ((numbers[i] = add_tensor(one, w)) < 0)
            return false;
    }
    return true;
}

static bool write_items(KopsValue *into, PyObject *list, Py_ssize_t n, const struct writing *w)
{
    KopsValue *items = host_memory_take(w->memory, (size_t)n * sizeof(*items));

    if (!items)
        return false;
    *into = (KopsValue){.tag = KOPS_IS_TUPLE, .n = (int32_t)n, .p = items};
    for (Py_ssize_t i = 0; i < n; i++)
        if (!write_any(&items[i], PyList_GetItem(list, i), w))
            return false;
    return true;
}

/* Lists of numbers may have NumPy's among them. */
static PyObject *plain_items(PyObject *given)
{
    PyObject *list = PySequence_List(given);
    const Py_ssize_t n = list ? PyList_Size(list) : 0;

    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *one = PyList_GetItem(list, i), *plain;

        if (PyLong_CheckExact(one) || PyFloat_CheckExact(one) || tensor_is(one))
            continue;
        plain = PyObject_CallFunctionObjArgs(extension_python.plain, one, NULL);
        if (!plain || PyList_SetItem(list, i, plain)) {
            Py_CLEAR(list);
            break;
        }
    }
    return list;
}

static bool write_list(KopsValue *into, PyObject *given, const struct writing *w)
{
    PyObject *list = plain_items(given);
    Py_ssize_t n;
    int kinds;
    bool ok;

    if (!list)
        return false;
    n = PyList_Size(list);
    kinds = kinds_of(list, n, w);
    ok = !PyErr_Occurred() && !Py_EnterRecursiveCall(" in a list for an extension"); /* a list may have itself */
    if (ok) {
        ok = kinds ? write_number_list(into, list, n, kinds, w) : write_items(into, list, n, w);
        Py_LeaveRecursiveCall();
    }
    Py_DECREF(list);
    return ok;
}

static bool write_known(KopsValue *into, PyObject *given, const struct writing *w, bool *ret_known)
{
    PyObject *const type = (PyObject *)Py_TYPE(given);

    *ret_known = true;
    *into = (KopsValue){.tag = KOPS_IS_NONE};
    if (given == Py_None)
        return true;
    if (PyBool_Check(given)) {
        into->tag = KOPS_IS_BOOL;
        into->i = given == Py_True;
        return true;
    }
    if (type == extension_python.dtype) {
        into->tag = KOPS_IS_DTYPE;
        into->i = PyLong_AsLongLong(given);
        return !PyErr_Occurred();
    }
    if (type == extension_python.device)
        return write_device(into, given);
    if (PyLong_Check(given))
        return write_integer(into, given);
    if (PyFloat_Check(given)) {
        into->tag = KOPS_IS_FLOAT;
        into->d = PyFloat_AsDouble(given);
        return true;
    }
    if (PyUnicode_Check(given))
        return write_text(into, given, w);
    if (PyComplex_Check(given))
        return write_complex(into, given, w);
    if (PyList_Check(given) || PyTuple_Check(given) || Py_TYPE(given) == &PyRange_Type)
        return write_list(into, given, w);
    *ret_known = false;
    return true;
}

static bool write_any(KopsValue *into, PyObject *given, const struct writing *w)
{
    PyObject *plain;
    bool known, ok;

    if (is_tensor(given, w)) {
        *into = (KopsValue){.tag = KOPS_IS_TENSOR};
        return (into->i = add_tensor(given, w)) >= 0;
    }
    if (PyErr_Occurred() || !write_known(into, given, w, &known))
        return false;
    if (known)
        return true;
    plain = PyObject_CallFunctionObjArgs(extension_python.value, given, NULL);
    ok = plain && write_known(into, plain, w, &known);
    if (ok && !known) {
        PyErr_SetString(PyExc_TypeError, "an extension takes tensors, numbers, texts, lists of these, dtypes and None");
        ok = false;
    }
    Py_XDECREF(plain);
    return ok;
}

bool write_value(KopsValue *into, PyObject *given, struct host_call *call, struct host_memory *memory,
                 struct tensors *tensors)
{
    const struct writing w = {call, memory, tensors};

    return write_any(into, given, &w);
}

/* ---- from C++ ---- */

static PyObject *read_tensor(int64_t id, struct reading *r)
{
    struct held *h;
    PyObject *value;

    if (r->results) {
        if (id < 0)
            Py_RETURN_NONE;
        h = held_of(r->results[id].id);
        value = h->value;
        Py_INCREF(value);
        held_release_in(h, extension_current);
        return value;
    }
    if (!id)
        Py_RETURN_NONE;
    h = held_of(id);
    h->used = r->used;
    r->any_device |= !h->host;
    Py_INCREF(h->value);
    return h->value;
}

static PyObject *read_item(const KopsValue *v, Py_ssize_t i, struct reading *r)
{
    switch (v->tag) {
    case KOPS_IS_INTS:
        return PyLong_FromLongLong(((const int64_t *)v->p)[i]);
    case KOPS_IS_FLOATS:
        return PyFloat_FromDouble(((const double *)v->p)[i]);
    case KOPS_IS_TENSORS:
        return read_tensor(((const int64_t *)v->p)[i], r);
    default:
        return read_value(&((const KopsValue *)v->p)[i], r);
    }
}

static PyObject *read_list(const KopsValue *v, struct reading *r)
{
    const bool is_tuple = r->for_torch || v->tag == KOPS_IS_TUPLE;
    PyObject *made = is_tuple ? PyTuple_New(v->n) : PyList_New(v->n);

    for (Py_ssize_t i = 0; made && i < v->n; i++) {
        PyObject *one = read_item(v, i, r);

        if (!one || (is_tuple ? PyTuple_SetItem(made, i, one) : PyList_SetItem(made, i, one)))
            Py_CLEAR(made);
    }
    return made;
}

static PyObject *bound(int64_t number)
{
    if (number == INT64_MIN) /* None */
        Py_RETURN_NONE;
    return PyLong_FromLongLong(number);
}

static PyObject *read_slice(const int64_t *at)
{
    PyObject *start = bound(at[0]), *stop = bound(at[1]), *step = bound(at[2]), *made = NULL;

    if (start && stop && step)
        made = PyObject_CallFunctionObjArgs(extension_python.slice, start, stop, step, NULL);
    Py_XDECREF(start);
    Py_XDECREF(stop);
    Py_XDECREF(step);
    return made;
}

/* An object of a dtype, device or format: torch's where torch is to take it. */
static PyObject *for_whom(PyObject *made, const struct reading *r)
{
    PyObject *converted;

    if (!made || !r->for_torch)
        return made;
    converted = PyObject_CallMethod(extension_python.torch, "converted", "(O)", made);
    Py_DECREF(made);
    return converted;
}

static PyObject *read_device(const KopsValue *v, const struct reading *r)
{
    const bool moves = r->on_cpu && v->i;

    return for_whom(
        PyObject_CallFunction(extension_python.device, "Li", moves ? 0LL : (long long)v->i, moves ? -1 : (int)v->d), r);
}

PyObject *read_options(const KopsValue *v, const struct reading *r)
{
    enum { DEVICE = 0xFFFF00, NOT_GIVEN = 0xFF, CPU = 0xFF0000 };
    const int64_t type = v->i >> 8 & 0xFF;
    const int64_t bits = r->on_cpu && type && type != NOT_GIVEN ? (v->i & ~(int64_t)DEVICE) | CPU : v->i;

    if (r->for_torch)
        return PyObject_CallMethod(extension_python.torch, "options", "Ldi", (long long)bits, v->d, v->n);
    return PyObject_CallFunction(extension_python.option, "Ldi", (long long)bits, v->d, v->n);
}

PyObject *read_value(const KopsValue *v, struct reading *r)
{
    switch (v->tag) {
    case KOPS_IS_TENSOR:
        return read_tensor(v->i, r);
    case KOPS_IS_INT:
        return v->n == 1 ? PyLong_FromUnsignedLongLong((uint64_t)v->i) : PyLong_FromLongLong(v->i);
    case KOPS_IS_FLOAT:
        return PyFloat_FromDouble(v->d);
    case KOPS_IS_BOOL:
        return PyBool_FromLong(v->i != 0);
    case KOPS_IS_DTYPE:
        return for_whom(PyObject_CallFunction(extension_python.dtype, "L", (long long)v->i), r);
    case KOPS_IS_FORMAT:
        return for_whom(PyObject_CallFunction(extension_python.format, "L", (long long)v->i), r);
    case KOPS_IS_DEVICE:
        return read_device(v, r);
    case KOPS_IS_STRING:
        return PyUnicode_DecodeUTF8(v->n ? v->p : "", v->n, "replace");
    case KOPS_IS_INTS:
    case KOPS_IS_FLOATS:
    case KOPS_IS_TENSORS:
    case KOPS_IS_TUPLE:
        return read_list(v, r);
    case KOPS_IS_OPTIONS:
        return read_options(v, r);
    case KOPS_IS_SLICE:
        return read_slice(v->p);
    case KOPS_IS_COMPLEX:
        return PyComplex_FromDoubles(((const double *)v->p)[0], ((const double *)v->p)[1]);
    default:
        Py_RETURN_NONE;
    }
}
