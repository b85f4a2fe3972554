/* kops._native: the Python client's connection in C. One kops_client carries every request of a link: MessagePack that
 * Python made (link.c), and ops and kernels on torch CUDA tensors, straight from the tensors (fast.c,
 * tensor.c).
 *
 * Built against Python's stable ABI, so one file serves every version from 3.10 on. All state is guarded by the GIL,
 * which is released around everything that may block. */
#ifndef KOPS_PYTHON_NATIVE_H
#define KOPS_PYTHON_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "api/native.h"
#include "here/code.h"

enum {
    FAST_OPERANDS = 16,
    FAST_RANK = 8,
    LINK_SLICE_MS = 50, /* between looks for signals: the main thread must notice Ctrl-C */
    FIRST_MS = 1        /* a wait's first part, before Python is asked anything */
};

/* Device memory that this connection has registered. */
struct region {
    uint64_t base, end;
    uint64_t alloc_id; /* the driver's id of the allocation: another id means that the memory was freed */
    uint64_t buffer;
    void *context;
};

/* References that are kept until an op ends. */
struct kept {
    uint64_t number; /* number of the op on a stream, or the ticket */
    PyObject *references;
};

struct kept_list { /* a ring */
    struct kept *items;
    size_t first, count, capacity;
};

struct link {
    PyObject ob_base;
    kops_client *client;    /* NULL: closed */
    unsigned users;         /* calls that may have given up the GIL */
    bool closing;           /* the last user closes the client */
    uint32_t generation;    /* generation of the connection that the regions and ids belong to */
    PyObject *wake;         /* called when references are kept and no thread collects them */
    bool awake;             /* a thread collects them */
    struct region *regions; /* by address */
    size_t n_regions, regions_room, last_region;
    struct kept_list enqueued;
    size_t collect_at;        /* number of kept references at which to collect */
    struct kept_list orphans; /* references of requests that their caller gave up */
};

/* Carries out a statement that may block. */
#define WITHOUT_GIL(statement)                                                                                         \
    do {                                                                                                               \
        PyThreadState *thread = PyEval_SaveThread();                                                                   \
                                                                                                                       \
        statement;                                                                                                     \
        PyEval_RestoreThread(thread);                                                                                  \
    } while (0)

static inline void native_replace(PyObject **at, PyObject *value)
{
    PyObject *before = *at;

    Py_XINCREF(value);
    *at = value;
    Py_XDECREF(before);
}

/* ---- module.c ---- */

extern bool native_leaving;         /* the interpreter is ending */
extern PyObject *native_make_error; /* (code, message, detail) → exception; NULL: not set yet */

/* Raises the package's exception for an error. Returns NULL. */
PyObject *native_raise(const struct kops_error *e);
/* Returns None, or raises. */
PyObject *native_outcome(enum kops_code r, const struct kops_error *e);
/* Returns the result of a short way that cannot be taken: NotImplemented, or NULL with the exception that is set. */
PyObject *native_decline(void);
/* Frees an object of a type of this module: the end of its tp_dealloc. */
void native_free(PyObject *self);

/* Names of attributes, as interned texts. */
struct native_name {
    PyObject **at;
    const char *text;
};
/* Makes those that are not there yet. False with an exception set. */
bool native_intern(const struct native_name *names, size_t n);

/* Converts seconds, or None, to milliseconds for libkops. False with an exception set. */
bool native_milliseconds(PyObject *seconds, int64_t *ret_ms);

/* ---- link.c ---- */

extern PyType_Spec link_spec;

/* Ends a use of the client, which began with users++. */
void link_leave(struct link *link);

/* Waits for a ticket with the GIL released, and handles signals. `reply` NULL: the ticket of a run. 1: it has ended,
 * with *e; 0: the time is over; -1: an exception is set. The ticket stays valid after 0 and -1. */
int link_wait(struct link *link, kops_ticket ticket, int64_t timeout_ms, struct native_reply *reply,
              struct kops_result *result, struct kops_error *e);

/* Gives up the ticket of a running request; `references` (borrowed) live until it has ended. */
void link_abandon(struct link *link, kops_ticket ticket, bool cancel, PyObject *references);

/* Keeps references until the op that was enqueued last has ended. */
int link_keep(struct link *link, PyObject *references);

/* ---- fast.c ---- */

extern PyType_Spec kernel_spec;

/* Returns the driver; NULL: there is none. */
const struct cuda_driver *native_driver(void);

PyObject *link_run(PyObject *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *link_launch(PyObject *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *link_remember(PyObject *self, PyObject *arguments);
PyObject *link_forget(PyObject *self, PyObject *arguments);

/* ---- compare.c ---- */

PyObject *compare_floats(PyObject *module, PyObject *args);
PyObject *compare_bytes(PyObject *module, PyObject *args);

/* ---- source.c ---- */

PyObject *source_blank(PyObject *module, PyObject *list);
PyObject *source_host_cxx(PyObject *module, PyObject *bytes);
PyObject *source_expression(PyObject *module, PyObject *arguments);
PyObject *source_check_declaration(PyObject *module, PyObject *params);

/* ---- here.c ---- */

extern PyType_Spec here_spec, ops_spec;

/* The kernel of a kops._native.Here. */
struct here_kernel *here_kernel_of(PyObject *here);
PyObject *here_kept(PyObject *module, PyObject *key);
PyObject *here_check_layout(PyObject *module, PyObject *number);
PyObject *here_keep_image(PyObject *module, PyObject *arguments);

/* kops._native.Ops: launches of built-in ops in this process, for one client. op_method.c launches without Python in
 * between. */
enum { OPS_MOST = 128, OPS_DEVICES = 16 };

/* Places where calls run. */
enum place { PLACE_DAEMON, PLACE_HERE, PLACE_AUTO };

/* Decisions of "auto". */
enum decision { DECISION_NONE, DECISION_DAEMON, DECISION_HERE };

struct ops {
    PyObject ob_base;
    struct here_ops *counts;
    PyObject *scopes, *batches, *submitted;       /* the client's dicts: see Calls; NULL: not attached */
    enum place place;                             /* place of a call that names none */
    unsigned char decided[OPS_MOST][OPS_DEVICES]; /* enum decision; by an op's number and a device's */
};

extern PyTypeObject *ops_type; /* the module's, for checks */

/* ---- op_method.c ---- */

extern PyType_Spec op_method_spec;

/* ---- shortcut.c ---- */

extern PyType_Spec shortcut_spec;

/* ---- tensor.c ---- */

/* Of dlpack.h. */
struct dl_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

enum { DL_CPU = 1, DL_CUDA = 2 };

/* Whether a value is a tensor of exactly one of torch's own types. */
bool tensor_is(PyObject *value);
/* Describes such a tensor on any device. False: it is none, or torch has no exchange functions. `shape` and `strides`
 * are the tensor's own. */
bool tensor_dl(PyObject *value, struct dl_tensor *ret);
bool tensor_dtype(const struct dl_tensor *t, enum kops_dtype *ret);

/* Tensors of one call by their addresses, and their sizes. Begins with `n` 0 and `device` -1. */
struct operands {
    struct native_tensor at[FAST_OPERANDS];
    int64_t shapes[FAST_OPERANDS][FAST_RANK], strides[FAST_OPERANDS][FAST_RANK];
    unsigned n;
    int device; /* number of the device of all; -1: none tells it */
};

/* configure(types, dtypes, exchange, current_stream, empty_like, empty): sets torch's types and functions. */
PyObject *tensor_configure(PyObject *module, PyObject *arguments);

/* Adds a torch CUDA tensor with elements. False, without an exception: there is no room, it is on another device than
 * the others, or another value, which the slow path takes. */
bool tensor_read(PyObject *value, struct operands *o);

/* Finds torch's current stream of a device. */
bool tensor_stream(int device, void **ret_stream);

/* Make tensors; NULL with an exception set. */
PyObject *tensor_like(PyObject *value);
PyObject *tensor_of(PyObject *like, const int64_t *shape, unsigned rank);

/* ---- fast.c: results of ops ---- */

/* Makes a tensor for an op's result, where its shape and dtype follow simply from the inputs by a rule of FAST_RULES.
 * NULL: they do not, or an exception is set. */
PyObject *fast_result(PyObject *first, const struct native_tensor *inputs, unsigned n_inputs, int rule);

/* ---- tensor.c: device arrays of launches in this process's own contexts ---- */

/* Adds a torch CUDA tensor, or a Layout of another array. False:
 * `value` is neither, there is no room, or, with an exception set, it is on another device than the others. */
bool array_read(PyObject *value, struct operands *o);

/* Finds the stream of a launch: the number given, or for None torch's current stream of the device (-1: the default
 * stream). False with an exception set. */
bool array_stream(PyObject *given, int device, void **ret_stream);

#endif
