/* The runtime of compiled extensions, of which kops.extension has the part in Python: the table of functions that their
 * host code calls (kops/abi.h), the tensors that it holds, and values from Python and back.
 *
 * A thread has the interpreter's lock while host code runs in it, as under pybind11, unless that gives it up; no other
 * one runs host code meanwhile. Threads that C++ has started may only copy and drop tensors. */
#ifndef KOPS_PYTHON_EXTENSION_H
#define KOPS_PYTHON_EXTENSION_H

#include <kops/abi.h>

#include "python_native.h"

/* What the runtime calls in Python, see extension_configure(). */
struct extension_python {
    PyObject *torch; /* the module with torch's functions, kops.extension._torch */
    PyObject *plain; /* a number of NumPy's as one of Python's; anything else as it is */
    PyObject *dtype, *device, *format, *slice, *option; /* make objects of numbers */
    PyObject *value;                                    /* any other argument as one that write_value() knows */
    PyObject *prepare;                                  /* (framework, name of an op) → tuple, see struct prepared */
    PyObject *choose;  /* (arguments, kernels) → framework, whether tensors of the CPU count as a GPU's */
    PyObject *call;    /* (kernels, framework, on_cpu) → the object for a call, see call_object() */
    PyObject *launch;  /* launches a kernel, see extension_launch.c */
    PyObject *cuda;    /* (call, name, arguments) → error, value */
    PyObject *finish;  /* (call): raises what C++ has not looked at */
    PyObject *failure; /* (type, message, exception or None, its text): raises */
};
extern struct extension_python extension_python;

/* ---- tensors that C++ holds: the id is the address ---- */

struct held {
    struct held *next, *previous;
    PyObject *value, *framework;
    int64_t count;           /* atomic; references of C++ */
    bool host;               /* C++ is told that it is in the memory of the CPU */
    bool has_storage;        /* that was looked up */
    uint64_t storage, bytes; /* its address and size */
    uint64_t used;           /* number of the op that read it last */
    struct held *dead;       /* next of those that a thread without the lock has dropped */
    /* As the tensor was when C++ got it last: enough for a launch in this process. */
    bool is_plain; /* a torch tensor with elements of a dtype of kops; false: nothing below is set */
    bool is_whole; /* its elements lie in row-major order without gaps */
    struct native_tensor tensor;
    int64_t shape[FAST_RANK];
    uint64_t end; /* behind its last element */
    int device;   /* number of the GPU; -1: in the memory of the CPU */
};

enum { EXTENSION_RECENT = 16 };

/* Memory of values; its blocks are freed together. */
struct host_memory {
    struct block *last;
};

struct host_function;

/* One call of a function of C++. */
struct host_call {
    struct host_call *before; /* the thread's call that this one is in */
    struct host_function *function;
    PyObject *framework; /* borrowed */
    bool on_cpu; /* tensors in the memory of the CPU are told to be on a GPU: the interpreter launches on them */
    bool has_attributes;              /* of the next launch */
    PyObject *object;                 /* what Python knows of it; NULL: nothing yet */
    PyThreadState *without;           /* the thread's state while C++ has given up the interpreter's lock; else NULL */
    bool had_turn;                    /* before it gave that up */
    PyObject *failure;                /* of the last callback that failed */
    PyObject *failure_text;           /* and what C++ was told */
    PyObject *refused;                /* the last failure of CUDA's runtime: C++ may not look at its error */
    void *answer;                     /* the last op's tensors, where they are many */
    struct host_memory answer_memory; /* and its number or text */
    /* Tensors that C++ has dropped, the latest: a pointer into one may be on its way to a launch. */
    struct held *recent[EXTENSION_RECENT];
    unsigned n_recent;
};

/* Describes a tensor to C++, and gives C++ a reference. `host` -1: as its framework says. False with an exception set.
 */
bool held_describe(struct host_call *call, PyObject *value, int host, KopsTensor *into);
struct held *held_of(int64_t id);
void held_retain(struct held *h);
/* Takes a reference back. Needs the lock. */
void held_release(struct held *h);
/* Takes a reference back, with or without the lock. `call`, the thread's own, remembers the tensor where it was the
 * last reference. NULL: the thread is in no call. */
void held_release_in(struct held *h, struct host_call *call);
/* Frees the tensors that threads have dropped without the lock. */
void held_collect(void);
/* At the end of a call no pointer is on its way. */
void held_forget(struct host_call *call);
/* The host flag of a tensor that this op has read; -1: it has not. */
int held_is_host(PyObject *value, uint64_t used);
/* The plain tensor among whose elements an address is; NULL: there is none. */
struct held *held_at(uint64_t address);

/* ---- values ---- */

/* Memory that is zeroed; NULL with an exception set. */
void *host_memory_take(struct host_memory *m, size_t size);
void host_memory_free(struct host_memory *m);

/* Tensors among the arguments of a call, which C++ gets by index. */
struct tensors {
    KopsTensor **at;
    size_t n, room;
};

/* Fills a value with a Python object; tensors only where `tensors` is not NULL. False with an exception set. */
bool write_value(KopsValue *into, PyObject *given, struct host_call *call, struct host_memory *memory,
                 struct tensors *tensors);

/* How values become objects. */
struct reading {
    const KopsTensor *results; /* tensors are indices into these, and their references end; NULL: they are ids */
    uint64_t used;             /* number of the op that reads them */
    bool any_device;           /* a tensor was read that is not the host's */
    bool for_torch;            /* dtypes and devices are torch's, lists are tuples */
    bool on_cpu;               /* a GPU is to be the CPU */
};
PyObject *read_value(const KopsValue *v, struct reading *r);
/* The object of KOPS_IS_OPTIONS; for torch keywords, whether a gradient is wanted, whether there is a device. */
PyObject *read_options(const KopsValue *v, const struct reading *r);

/* ---- functions of a library ---- */

/* Arguments of a kernel's launch that was made by Python in this process, so that such launches need no Python. */
struct host_plan {
    struct host_plan *next;
    char *kernel;
    unsigned n;
    const char **types;                   /* texts of the arguments' types, which stay where they are */
    enum kops_dtype *dtypes;              /* of pointers */
    PyObject *form, *here;                /* the kernel, and its kops._native.Here */
    PyObject *devices, *scopes, *batches; /* the client's: see Calls */
    PyObject *tell;
};

/* kops._native.HostFunction */
struct host_function {
    PyObject ob_base;
    const struct library *library;
    int number;
    int shape; /* 1: a tuple of the result is a list; 2: the reverse */
    PyObject *kernels;
    int interprets; /* its kernels may be the interpreter's */
    int is_cpus;    /* an implementation for the CPU: it is told where tensors are */
    struct host_plan *plans;
    unsigned n_plans;
};

/* The call that this thread is in; NULL: C++ has started the thread. */
extern _Thread_local struct host_call *extension_current;

extern KopsTable extension_table;
/* Waits until no other thread runs host code with the interpreter's lock. Returns whether the thread did not yet. */
bool extension_begin_turn(void);
/* After host code. `began`: what extension_begin_turn() has returned. */
void extension_end_turn(struct host_call *call, bool began);
/* Frees the turn in children. Idempotent; false: there is no memory. */
bool extension_watch_forks(void);
/* Frees the memory of the last op's answer. */
void extension_drop_answer(struct host_call *call);

/* What Python knows of a call; a borrowed reference, NULL with an exception set. */
PyObject *call_object(struct host_call *call);

/* Launches a kernel. False with an exception set. */
bool extension_launch(struct host_call *call, const char *kernel, const uint32_t dims[6], uint64_t shared, void *stream,
                      const KopsArg *args, int n);
void extension_forget_plans(struct host_function *f);

/* ---- for module.c ---- */

extern PyType_Spec host_function_spec;

PyObject *extension_configure(PyObject *module, PyObject *dict);
PyObject *extension_open(PyObject *module, PyObject *path);
PyObject *extension_find(PyObject *module, PyObject *arguments);
PyObject *extension_allocate(PyObject *module, PyObject *arguments);
PyObject *extension_release(PyObject *module, PyObject *id);

#endif
