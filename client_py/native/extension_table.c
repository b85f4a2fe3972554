/* The table of functions that the host code of a compiled extension calls (kops/abi.h). */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_driver.h"
#include "extension.h"

_Thread_local struct host_call *extension_current;

/* ---- errors: an exception becomes the text that C++ asks for next ---- */

static _Thread_local char *message; /* of the thread's last call of the table that failed */

static void say(const char *text)
{
    free(message);
    message = strdup(text);
}

static PyObject *text_of(PyObject *exception)
{
    PyObject *text = PyObject_Str(exception);
    Py_ssize_t n = 0;

    if (text && PyUnicode_AsUTF8AndSize(text, &n) && n)
        return text;
    Py_XDECREF(text);
    PyErr_Clear();
    return PyObject_GetAttrString((PyObject *)Py_TYPE(exception), "__name__");
}

/* Keeps the exception that is set. */
static void failed(struct host_call *call)
{
    PyObject *type, *value, *trace, *text;
    const char *told;

    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace)
        PyException_SetTraceback(value, trace);
    text = value ? text_of(value) : NULL;
    told = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    PyErr_Clear(); /* of a text that is no UTF-8 */
    say(told ? told : "an exception without a text");
    native_replace(&call->failure, value);
    native_replace(&call->failure_text, text ? text : Py_None);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

static const char *table_error(void)
{
    return message ? message : "no error";
}

/* ---- the interpreter's lock ---- */

/* Returns the thread's call, with the lock. NULL: there is none, and the message says so. */
static struct host_call *enter(bool *ret_taken)
{
    struct host_call *call = extension_current;

    *ret_taken = call && call->without;
    if (!call)
        say("a thread that C++ has started called torch or CUDA: only the thread that Python calls from may");
    else if (*ret_taken) {
        PyEval_RestoreThread(call->without);
        call->without = NULL;
    }
    return call;
}

static void leave(struct host_call *call, bool taken)
{
    if (taken)
        call->without = PyEval_SaveThread();
}

/* Host code runs in the thread that has the turn, but where it has given up the lock. A callback's Python may let other
 * threads of Python run, which torch's functions do not do under pybind11: a call of theirs would wait, with the lock,
 * for a mutex that host code has around the callback. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool has_turn;

static void end_turn(void)
{
    has_turn = false;
    pthread_mutex_unlock(&turn);
}

bool extension_begin_turn(void)
{
    if (has_turn)
        return false;
    if (pthread_mutex_trylock(&turn))
        WITHOUT_GIL(pthread_mutex_lock(&turn));
    return has_turn = true;
}

static void give_up_lock(struct host_call *call)
{
    call->had_turn = has_turn;
    if (has_turn)
        end_turn();
    call->without = PyEval_SaveThread();
}

static void take_lock(struct host_call *call)
{
    if (call->had_turn)
        pthread_mutex_lock(&turn);
    has_turn = call->had_turn;
    PyEval_RestoreThread(call->without);
    call->without = NULL;
}

void extension_end_turn(struct host_call *call, bool began)
{
    if (call->without) /* C++ gave up the lock and did not take it again */
        take_lock(call);
    if (began)
        end_turn();
}

/* The thread that has the turn may be none of a child. */
static void begin_child(void)
{
    turn = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    if (has_turn)
        pthread_mutex_lock(&turn);
}

bool extension_watch_forks(void)
{
    static bool done;

    return done || (done = !pthread_atfork(NULL, NULL, begin_child));
}

static int table_lock(int taken)
{
    struct host_call *call = extension_current;

    if (!call || !call->without != !taken)
        return 0;
    taken ? take_lock(call) : give_up_lock(call);
    return 1;
}

static void table_retain(int64_t id)
{
    held_retain(held_of(id));
}

static void table_release(int64_t id)
{
    if (!native_leaving) /* C++ frees its global tensors when the process ends */
        held_release_in(held_of(id), extension_current);
}

/* ---- functions of torch ---- */

/* How an op is called, as kops.extension._runtime._prepared() tells. */
struct prepared {
    PyObject *function;
    PyObject *sooner; /* for calls with a device; None: the same */
    int is_torch;     /* a function that takes torch's objects: dtypes, tuples, keywords of options */
    int is_like;      /* one tensor tells the device: `sooner` always */
    int device;       /* type of the device that the name says; -1: none */
    PyObject *keywords;
};

/* Ops that were prepared, by the addresses of their names, which are mostly constants. */
enum { PREPARED = 64 };
static struct {
    const char *at;
    char *name;
    PyObject *framework, *told; /* the references of `prepared` are `told`'s */
    struct prepared prepared;
} ops[PREPARED];

/* Finds how an op is called. Returns what holds its references; NULL with an exception set. */
static PyObject *prepare(struct host_call *call, const char *name, struct prepared *ret)
{
    const size_t i = ((uintptr_t)name >> 3 ^ (uintptr_t)name >> 9) % PREPARED;
    struct prepared p;
    PyObject *told;

    if (ops[i].at == name && ops[i].framework == call->framework && !strcmp(ops[i].name, name))
        goto found;
    told = PyObject_CallFunction(extension_python.prepare, "Os", call->framework, name);
    if (!told || !PyArg_ParseTuple(told, "OOppiO!", &p.function, &p.sooner, &p.is_torch, &p.is_like, &p.device,
                                   &PyTuple_Type, &p.keywords)) {
        Py_XDECREF(told);
        return NULL;
    }
    Py_XDECREF(ops[i].told);
    free(ops[i].name);
    ops[i].at = name;
    ops[i].name = strdup(name);
    ops[i].framework = call->framework;
    ops[i].told = told;
    ops[i].prepared = p;
    if (!ops[i].name)
        ops[i].at = NULL;
found:
    *ret = ops[i].prepared;
    Py_INCREF(ops[i].told);
    return ops[i].told;
}

/* The type of the device that a call asks for; -1: its result is where its arguments are. */
static int device_of(const KopsValue *args, int n, const struct prepared *p)
{
    enum { NOT_GIVEN = 255 };

    for (int i = 0; p->device < 0 && i < n; i++) {
        if (args[i].tag == KOPS_IS_DEVICE)
            return (int)args[i].i;
        if (args[i].tag == KOPS_IS_OPTIONS && (args[i].i >> 8 & 0xFF) != NOT_GIVEN)
            return (int)(args[i].i >> 8 & 0xFF);
    }
    return p->device;
}

/* Arguments of a call, as they are read. */
struct arguments {
    PyObject *tuple, *named;
    bool is_shared; /* `named` is not to be changed */
    bool wants_gradient, has_device;
};

/* Options that were read for torch. */
enum { OPTIONS = 16 };
static struct options {
    int64_t bits;
    double number;
    int32_t more;
    PyObject *told, *keywords; /* the latter is the former's; NULL: none */
    bool wants_gradient, has_device;
} read_before[OPTIONS];

static const struct options *options_of(const KopsValue *v, const struct reading *r)
{
    struct options *o = &read_before[((uint64_t)v->i ^ (uint64_t)v->i >> 8 ^ (uint64_t)v->n) % OPTIONS];
    PyObject *told, *keywords;
    int wants, has_device;

    if (o->told && o->bits == v->i && o->number == v->d && o->more == v->n && !r->on_cpu)
        return o;
    told = read_options(v, r);
    if (!told || !PyArg_ParseTuple(told, "O!pp", &PyDict_Type, &keywords, &wants, &has_device)) {
        Py_XDECREF(told);
        return NULL;
    }
    Py_XDECREF(o->told);
    *o = (struct options){.bits = r->on_cpu ? -1 : v->i,
                          .number = v->d,
                          .more = v->n,
                          .told = told,
                          .keywords = PyDict_Size(keywords) ? keywords : NULL,
                          .wants_gradient = wants,
                          .has_device = has_device};
    return o;
}

/* Takes the keywords of options. */
static bool add_options(struct arguments *to, const KopsValue *v, const struct reading *r)
{
    const struct options *o = options_of(v, r);

    if (!o)
        return false;
    to->wants_gradient |= o->wants_gradient;
    to->has_device |= o->has_device;
    if (!o->keywords)
        return true;
    if (to->named)
        return !PyDict_Update(to->named, o->keywords);
    native_replace(&to->named, o->keywords);
    to->is_shared = true;
    return true;
}

static bool add_named(struct arguments *to, PyObject *name, const KopsValue *v, struct reading *r)
{
    PyObject *one = read_value(v, r), *copy;
    bool ok;

    if (one && (!to->named || to->is_shared)) {
        copy = to->named ? PyDict_Copy(to->named) : PyDict_New();
        native_replace(&to->named, copy);
        Py_XDECREF(copy);
        to->is_shared = false;
    }
    ok = one && to->named && !PyDict_SetItem(to->named, name, one);
    Py_XDECREF(one);
    return ok;
}

static bool read_arguments(const struct prepared *p, const KopsValue *args, int n, struct reading *r,
                           struct arguments *to)
{
    const int plain = n - (int)PyTuple_Size(p->keywords);
    int positions = 0, at = 0;

    for (int i = 0; i < plain; i++)
        positions += !(p->is_torch && args[i].tag == KOPS_IS_OPTIONS);
    if (!(to->tuple = PyTuple_New(positions)))
        return false;
    for (int i = 0; i < n; i++) {
        PyObject *one;

        if (p->is_torch && args[i].tag == KOPS_IS_OPTIONS) {
            if (!add_options(to, &args[i], r))
                return false;
        } else if (i < plain) {
            if (!(one = read_value(&args[i], r)) || PyTuple_SetItem(to->tuple, at++, one))
                return false;
        } else if (!p->is_torch || args[i].tag != KOPS_IS_NONE) {
            if (!add_named(to, PyTuple_GetItem(p->keywords, i - plain), &args[i], r))
                return false;
        }
    }
    return true;
}

/* Returns the result of the function. */
static PyObject *compute(const struct prepared *p, const KopsValue *args, int n, struct reading *r)
{
    struct arguments a = {.tuple = NULL};
    PyObject *made = NULL;

    if (read_arguments(p, args, n, r, &a)) {
        const bool sooner = p->sooner != Py_None && (p->is_like || a.has_device);

        made = PyObject_Call(sooner ? p->sooner : p->function, a.tuple, a.named);
    }
    if (made && a.wants_gradient) {
        PyObject *same = PyObject_CallMethod(made, "requires_grad_", NULL);

        Py_DECREF(made);
        made = same;
    }
    Py_XDECREF(a.tuple);
    Py_XDECREF(a.named);
    return made;
}

/* ---- what a function of torch returned ---- */

static bool is_tensor(const struct host_call *call, PyObject *made)
{
    PyObject *told;
    bool is;

    if (call->framework == extension_python.torch && tensor_is(made))
        return true;
    told = PyObject_CallMethod(call->framework, "is_tensor", "(O)", made);
    is = told == Py_True;
    Py_XDECREF(told);
    return is;
}

/* `host`: where the op's device is the CPU; -1: as the framework says. `used`: the op's number; 0: the call gave a
 * device, which the result is on. */
static bool answer_tensor(struct host_call *call, PyObject *one, int host, uint64_t used, KopsTensor *out)
{
    const int known = used ? held_is_host(one, used) : -1; /* an argument stays the host's, or does not */

    out->id = 0;
    if (one == Py_None) /* an undefined tensor */
        return true;
    return held_describe(call, one, known >= 0 ? known : host, out);
}

static bool answer_several(struct host_call *call, PyObject *made, int host, uint64_t used, KopsTensor *out, int *nout,
                           KopsValue *scalar)
{
    const Py_ssize_t n = PySequence_Size(made);

    if (n > KOPS_RESULTS) {
        out = call->answer = calloc((size_t)n, sizeof(*out));
        if (!out) {
            PyErr_NoMemory();
            return false;
        }
        scalar->p = out;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *one = PySequence_GetItem(made, i);
        const bool ok = one && answer_tensor(call, one, host, used, &out[i]);

        Py_XDECREF(one);
        if (!ok) {
            while (i--)
                if (out[i].id)
                    held_release(held_of(out[i].id));
            return false;
        }
    }
    *nout = (int)n;
    return true;
}

static bool answer_number(struct host_call *call, PyObject *made, KopsValue *scalar)
{
    struct host_memory memory = {NULL};
    const bool ok = write_value(scalar, made, call, &memory, NULL);

    call->answer_memory = memory;
    return ok;
}

static bool op(struct host_call *call, const char *name, const KopsValue *args, int n, KopsTensor *out, int *nout,
               KopsValue *scalar)
{
    static uint64_t number;
    struct reading r = {.used = ++number};
    struct prepared p;
    const bool stays = call->on_cpu && !strcmp(name, "cuda"); /* and counts as moved */
    PyObject *prepared = prepare(call, stays ? "cpu" : name, &p), *made;
    int device, host;
    bool ok;

    if (!prepared)
        return false;
    if (stays)
        p.device = 1;
    device = device_of(args, n, &p);
    r.on_cpu = call->on_cpu && device;
    r.for_torch = p.is_torch;
    made = compute(&p, args, n, &r);
    Py_DECREF(prepared);
    if (!made)
        return false;
    /* As torch: without a device and tensors it is the CPU. */
    host = device >= 0 ? device == 0 : !r.any_device;
    if (!host)
        host = call->on_cpu ? 0 : -1;
    if (made == Py_None)
        ok = true;
    else if (is_tensor(call, made))
        *nout = ok = answer_tensor(call, made, host, device < 0 ? r.used : 0, out);
    else if (!PyErr_Occurred() && (PyTuple_Check(made) || PyList_Check(made)))
        ok = answer_several(call, made, host, device < 0 ? r.used : 0, out, nout, scalar);
    else
        ok = !PyErr_Occurred() && answer_number(call, made, scalar);
    Py_DECREF(made);
    return ok;
}

void extension_drop_answer(struct host_call *call)
{
    free(call->answer);
    call->answer = NULL;
    host_memory_free(&call->answer_memory);
}

static int table_op(const char *name, const KopsValue *args, int n, KopsTensor *out, int *nout, KopsValue *scalar)
{
    bool taken, ok;
    struct host_call *call = enter(&taken);

    if (!call)
        return 1;
    extension_drop_answer(call);
    ok = op(call, name, args, n, out, nout, scalar);
    if (!ok)
        failed(call);
    leave(call, taken);
    return !ok;
}

/* ---- CUDA ---- */

PyObject *call_object(struct host_call *call)
{
    if (!call->object)
        call->object = PyObject_CallFunction(extension_python.call, "OOO", call->function->kernels, call->framework,
                                             call->on_cpu ? Py_True : Py_False);
    return call->object;
}

static int table_launch(const char *kernel, const uint32_t *dims, uint64_t shared, void *stream, const KopsArg *args,
                        int n)
{
    bool taken, ok;
    struct host_call *call = enter(&taken);

    if (!call)
        return 1;
    ok = extension_launch(call, kernel, dims, shared, stream, args, n);
    if (!ok)
        failed(call);
    leave(call, taken);
    return !ok;
}

static PyObject *ask_cuda(struct host_call *call, const char *name, const KopsValue *args, int n)
{
    struct reading r = {.used = 0};
    PyObject *list = PyList_New(n), *object = call_object(call), *made = NULL;

    for (int i = 0; list && i < n; i++) {
        PyObject *one = read_value(&args[i], &r);

        if (!one || PyList_SetItem(list, i, one))
            Py_CLEAR(list);
    }
    if (list && object)
        made = PyObject_CallFunction(extension_python.cuda, "OsO", object, name, list);
    Py_XDECREF(list);
    return made;
}

/* Finds the device that is current in the thread. False: no context is. */
static bool current_device(int *ret)
{
    const struct cuda_driver *d = native_driver();

    return d && d->context_device && !d->context_device(ret);
}

/* Answers the functions that wrappers call around each launch, without Python. *ret_answer goes to the function's first
 * pointer. False: the function is Python's. */
static bool cuda_quickly(const struct host_call *call, const char *name, const KopsValue *args, int n,
                         int64_t *ret_answer)
{
    void *stream;
    int device;

    if (!strcmp(name, "cudaGetLastError") || !strcmp(name, "cudaPeekAtLastError"))
        return !call->object; /* nothing can have failed */
    if (call->framework != extension_python.torch || call->on_cpu)
        return false;
    if (!strcmp(name, "setCurrentCUDAStream"))
        return true; /* all work is on the caller's stream */
    if (!strcmp(name, "cudaGetDevice") && current_device(&device)) {
        *ret_answer = device;
        return true;
    }
    if (!strcmp(name, "cudaSetDevice"))
        return n == 1 && current_device(&device) && args[0].i == device;
    if (!strcmp(name, "getCurrentCUDAStream") && current_device(&device) && tensor_stream(device, &stream)) {
        *ret_answer = (int64_t)(uintptr_t)stream;
        return true;
    }
    return false;
}

static bool cuda(struct host_call *call, const char *name, const KopsValue *args, int n, int64_t *out, int *ret)
{
    PyObject *made, *value;
    int64_t answer = 0;
    bool ok;

    *ret = 0;
    if (cuda_quickly(call, name, args, n, &answer)) {
        if (out)
            *out = answer;
        return true;
    }
    call->has_attributes |= !strcmp(name, "cudaLaunchAttribute");
    made = ask_cuda(call, name, args, n);
    ok = made && PyArg_ParseTuple(made, "iO", ret, &value);
    if (ok && value != Py_None && out) {
        *out = (int64_t)PyLong_AsUnsignedLongLongMask(value);
        ok = !PyErr_Occurred();
    }
    Py_XDECREF(made);
    return ok;
}

static int table_cuda(const char *name, const KopsValue *args, int n, int64_t *out)
{
    enum { UNKNOWN = 999 };
    bool taken;
    struct host_call *call = enter(&taken);
    int error = UNKNOWN;

    if (!call)
        return UNKNOWN;
    if (!cuda(call, name, args, n, out, &error)) {
        failed(call);
        native_replace(&call->refused, call->failure);
        error = UNKNOWN;
    }
    leave(call, taken);
    return error;
}

KopsTable extension_table = {.op = table_op,
                             .release = table_release,
                             .launch = table_launch,
                             .cuda = table_cuda,
                             .error = table_error,
                             .retain = table_retain,
                             .lock = table_lock};
