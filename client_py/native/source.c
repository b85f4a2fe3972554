/* Rules about kernel source that the daemon has, too: its own functions, for Python's objects. */
#include <stdlib.h>
#include <string.h>

#include "core/expr.h"
#include "here/kernel.h"
#include "python_native.h"
#include "source/hostcode.h"
#include "source/hostcxx.h"

/* ---- host code ---- */

/* blank(texts): the texts of one program without host code, all as bytes. */
PyObject *source_blank(PyObject *module, PyObject *list)
{
    const Py_ssize_t n = PyList_Size(list);
    struct hostcode_text *texts = n < 0 ? NULL : calloc((size_t)n + 1, sizeof(*texts));
    PyObject *made = NULL;

    (void)module;
    for (Py_ssize_t i = 0; texts && i < n; i++) {
        PyObject *text = PyList_GetItem(list, i);

        texts[i].text = PyBytes_AsString(text);
        texts[i].length = texts[i].text ? (size_t)PyBytes_Size(text) : 0;
    }
    if (PyErr_Occurred())
        goto done;
    if (!texts || hostcode_blank(texts, (unsigned)n) < 0) {
        PyErr_NoMemory();
        goto done;
    }
    made = PyList_New(n);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *text = made ? PyBytes_FromStringAndSize(texts[i].blanked, (Py_ssize_t)texts[i].length) : NULL;

        if (text)
            PyList_SetItem(made, i, text);
        else
            Py_CLEAR(made);
        free(texts[i].blanked);
    }
done:
    free(texts);
    return made;
}

/* host_cxx(text): a CUDA source as plain C++ for the host, both as bytes. */
PyObject *source_host_cxx(PyObject *module, PyObject *bytes)
{
    const char *text = PyBytes_AsString(bytes);
    PyObject *made = NULL;
    size_t length = 0;
    char *cxx;

    (void)module;
    if (!text)
        return NULL;
    cxx = hostcxx_of(text, (size_t)PyBytes_Size(bytes), &length);
    made = cxx ? PyBytes_FromStringAndSize(cxx, (Py_ssize_t)length) : PyErr_NoMemory();
    free(cxx);
    return made;
}

/* ---- expressions ---- */

enum {
    NAMES_MAX = EXPR_MAX_NAMES,
    NAMES_SHOWN = 8, /* names that are listed, used or not, where an expression uses an unknown one */
};

/* The names of an expression, with their values. A value that cannot be used is an error only where the expression
 * names it. */
struct values {
    struct expr_name names[NAMES_MAX];
    PyObject *given[NAMES_MAX]; /* borrowed */
    int64_t integers[NAMES_MAX];
    struct tensor tensors[NAMES_MAX];
    const struct tensor *pointers[NAMES_MAX];
    unsigned n;
    /* A bit each: values that expressions cannot use, since they do not fit 64 bits; that are not known as numbers. */
    uint32_t too_large, symbolic;
};

static int read_shape(struct values *v, const char *name, PyObject *shape)
{
    struct tensor *t = &v->tensors[v->n];
    bool known = true, fits = true;
    struct error e;

    for (unsigned i = 0; i < t->rank; i++) {
        PyObject *size = PyTuple_GetItem(shape, i);
        int overflow = 0;

        known = known && PyLong_Check(size);
        t->shape[i] = known ? PyLong_AsLongLongAndOverflow(size, &overflow) : 0;
        fits = fits && !overflow;
    }
    v->pointers[v->n] = t;
    if (PyErr_Occurred())
        return -1;
    if (fits && known) {
        tensor_set_contiguous(t);
        fits = tensor_measure(t, name, &e) == 0;
    }
    v->symbolic |= (uint32_t)!known << v->n;
    v->too_large |= (uint32_t)!fits << v->n;
    return 0;
}

/* Reads an integer, a shape, None for a null pointer, or anything else that no expression can use. */
static int read_value(struct values *v, const char *name, PyObject *value, PyObject *integers)
{
    struct expr_name *made = &v->names[v->n];
    int overflow, is_integer = PyObject_IsInstance(value, integers);

    *made = (struct expr_name){.name = name, .kind = EXPR_UNUSABLE, .index = v->n, .rank = -1};
    v->given[v->n] = value;
    v->tensors[v->n] = (struct tensor){.dtype = DTYPE_U8};
    v->pointers[v->n] = NULL;
    if (is_integer < 0)
        return -1;
    if (is_integer) {
        made->kind = EXPR_INTEGER;
        if (!PyLong_Check(value)) {
            v->symbolic |= 1U << v->n;
            return 0;
        }
        v->integers[v->n] = PyLong_AsLongLongAndOverflow(value, &overflow);
        v->too_large |= (uint32_t)(overflow != 0) << v->n;
    } else if (value == Py_None) {
        made->kind = EXPR_TENSOR;
    } else if (PyTuple_Check(value) && PyTuple_Size(value) <= TENSOR_MAX_RANK) {
        made->kind = EXPR_TENSOR;
        made->rank = (int)PyTuple_Size(value);
        v->tensors[v->n].rank = (unsigned)made->rank;
        return read_shape(v, name, value);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* Reads the values whose names the text has; there is no room for others. */
static int read_values(struct values *v, const char *text, PyObject *map, PyObject *integers, struct error *e)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;

    while (PyDict_Next(map, &at, &key, &value)) {
        const char *name = PyUnicode_AsUTF8AndSize(key, NULL);

        if (!name)
            return -1;
        if (v->n >= NAMES_SHOWN && !strstr(text, name))
            continue;
        if (v->n == NAMES_MAX) {
            error_set(e, ERROR_LIMIT_EXCEEDED, "an expression has at most %d names", NAMES_MAX);
            return -1;
        }
        if (read_value(v, name, value, integers) < 0)
            return -1;
        v->n++;
    }
    return 0;
}

static bool is_of_name(const struct expr_op *op)
{
    return op->code <= EXPR_LOAD_SIZE && op->code != EXPR_NUMBER && op->code != EXPR_LOAD_MULTIPROCESSORS;
}

/* A bit for each name whose value the expression uses. */
static uint32_t names_used(const struct expr *x)
{
    uint32_t used = 0;

    for (unsigned i = 0; i < x->n_ops; i++)
        used |= is_of_name(&x->ops[i]) ? 1U << x->ops[i].index : 0;
    return used;
}

/* The postfix program as a list of tuples: what to do, the value of the name, and a number. */
static PyObject *program_of(const struct expr *x, const struct values *v)
{
    static const char *const codes[] = {[EXPR_NUMBER] = "number",
                                        [EXPR_LOAD_INTEGER] = "integer",
                                        [EXPR_LOAD_MULTIPROCESSORS] = "multiprocessors",
                                        [EXPR_LOAD_NUMEL] = "numel",
                                        [EXPR_LOAD_RANK] = "rank",
                                        [EXPR_LOAD_SIZE] = "size",
                                        [EXPR_NEGATE] = "negate",
                                        [EXPR_NEXT_POW2] = "next_pow2",
                                        [EXPR_ADD] = "add",
                                        [EXPR_SUB] = "sub",
                                        [EXPR_MUL] = "mul",
                                        [EXPR_DIV] = "div",
                                        [EXPR_MOD] = "mod",
                                        [EXPR_CEIL_DIV] = "ceil_div",
                                        [EXPR_MIN] = "min",
                                        [EXPR_MAX] = "max"};
    PyObject *list = PyList_New(x->n_ops);

    for (unsigned i = 0; list && i < x->n_ops; i++) {
        const struct expr_op *op = &x->ops[i];
        PyObject *item =
            Py_BuildValue("sOL", codes[op->code], is_of_name(op) ? v->given[op->index] : Py_None, (long long)op->value);

        if (item)
            PyList_SetItem(list, i, item);
        else
            Py_CLEAR(list);
    }
    return list;
}

static int evaluate(const struct expr *x, const struct values *v, int64_t multiprocessors, int64_t *ret,
                    struct error *e)
{
    const struct expr_inputs inputs = {v->integers, v->pointers, multiprocessors};
    const uint32_t wrong = names_used(x) & v->too_large;

    if (!wrong)
        return expr_evaluate(x, &inputs, ret, e);
    error_set(e, ERROR_OUT_OF_RANGE, "`%.60s`: %s does not fit 64 bits", expr_text(x),
              v->names[__builtin_ctz(wrong)].name);
    return -1;
}

/* expression(text, names, integers, multiprocessors): the value of a text of bytes; the program where a value is
 * symbolic. `names` maps to values, `integers` are the types of integers. Raises ValueError for a wrong text. */
PyObject *source_expression(PyObject *module, PyObject *arguments)
{
    PyObject *names, *integers, *made = NULL;
    struct values v = {.n = 0};
    struct expr *x = NULL;
    struct error e;
    const char *text;
    Py_ssize_t length;
    long long multiprocessors;
    int64_t value = 0;

    (void)module;
    if (!PyArg_ParseTuple(arguments, "y#O!OL", &text, &length, &PyDict_Type, &names, &integers, &multiprocessors))
        return NULL;
    if (read_values(&v, text, names, integers, &e) == 0 &&
        expr_parse(text, (size_t)length, &(struct expr_scope){v.names, v.n}, &x, &e) == 0) {
        if (v.symbolic & names_used(x))
            made = program_of(x, &v);
        else if (evaluate(x, &v, multiprocessors, &value, &e) == 0)
            made = PyLong_FromLongLong(value);
    }
    expr_free(x);
    if (!made && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%s", e.message);
    return made;
}

/* ---- parameter lists ---- */

/* check_declaration(params): raises ValueError with the daemon's text for wrong params of the request `kernel`, packed.
 */
PyObject *source_check_declaration(PyObject *module, PyObject *params)
{
    const char *bytes = PyBytes_AsString(params);
    struct kops_error e;

    (void)module;
    if (!bytes)
        return NULL;
    if (here_check_declaration(bytes, (size_t)PyBytes_Size(params), &e))
        return PyErr_Format(PyExc_ValueError, "%s", e.message);
    Py_RETURN_NONE;
}
