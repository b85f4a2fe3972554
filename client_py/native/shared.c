/* What the module's parts have in common: errors as exceptions, waits in milliseconds, names, objects. */
#include "python_native.h"

#include <math.h>

bool native_leaving;

PyObject *native_make_error;

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
    if (detail && native_make_error)
        made = PyObject_CallFunction(native_make_error, "ssO", kops_code_name(e->code), e->message, detail);
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

PyObject *native_decline(void)
{
    if (PyErr_Occurred())
        return NULL;
    Py_INCREF(Py_NotImplemented);
    return Py_NotImplemented;
}

void native_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

bool native_intern(const struct native_name *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!*names[i].at && !(*names[i].at = PyUnicode_InternFromString(names[i].text)))
            return false;
    return true;
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
