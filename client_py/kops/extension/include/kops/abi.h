// The C interface between a compiled extension and the runtime that loads it (kops._native). Both sides are in one
// process.
//
// The runtime gives the module a table of functions by kops_open(). The module lists its functions (kops_count() and
// kops_def_…) and runs one by kops_call(). Structures grow only at their ends.
//
// Tensors are counted by id. The module owns one reference of each tensor that a call of the table's op() returned and
// of each tensor argument of kops_call() that it has marked as taken, and gives it back by release(). Results of
// kops_call() carry a reference that then is the runtime's, taken by retain().
#pragma once
#include <stdint.h>

enum {
    KOPS_DIMS = 16,    // the most dimensions of a tensor
    KOPS_RESULTS = 64, // tensors that fit into the `out` of op()
};

// Kinds of values: members of KopsValue that are not named are 0.
enum {
    KOPS_IS_NONE = 0,
    KOPS_IS_TENSOR = 1,   // i: id in calls of op(); index into the tensors of kops_call()
    KOPS_IS_INT = 2,      // i; a pointer is an int, too. n: 1 where the bits of i are unsigned, 2 where only d has it
    KOPS_IS_FLOAT = 3,    // d
    KOPS_IS_BOOL = 4,     // i
    KOPS_IS_DTYPE = 5,    // i: c10::ScalarType
    KOPS_IS_DEVICE = 6,   // i: c10::DeviceType, d: index or -1
    KOPS_IS_STRING = 7,   // p: n characters
    KOPS_IS_INTS = 8,     // p: n int64_t
    KOPS_IS_TENSORS = 9,  // p: n int64_t as i of KOPS_IS_TENSOR; id 0 and index -1 are None
    KOPS_IS_FLOATS = 10,  // p: n double
    KOPS_IS_OPTIONS = 11, // i: dtype | device type << 8 | device index << 16, where 44, 255 and 255 mean "not given";
                          // d: 1 requires grad; n: 1 pinned memory | (memory format + 1) << 8
    KOPS_IS_SLICE = 12,   // p: 3 int64_t start, stop, step; INT64_MIN is None
    KOPS_IS_TUPLE = 13,   // p: n KopsValue
    KOPS_IS_FORMAT = 14,  // i: c10::MemoryFormat
    KOPS_IS_COMPLEX = 15, // p: 2 double
};

// Flags of a tensor.
enum {
    KOPS_READABLE = 1, // its elements are in memory that the host can read
    KOPS_TAKEN = 2,    // the module has taken over the reference of this argument of kops_call()
};

#ifdef __cplusplus
extern "C" {
#endif
typedef struct KopsTensor {
    int64_t id;
    int32_t dtype, device_type, device_index, ndim, requires_grad, flags;
    uint64_t data; // address of the first element
    int64_t sizes[KOPS_DIMS], strides[KOPS_DIMS];
} KopsTensor;

typedef struct KopsValue {
    int32_t tag, n;
    int64_t i;
    double d;
    const void *p;
} KopsValue;

// An argument of a kernel, as the kernel's stub received it. The bytes of a launch's arguments lie one behind another.
typedef struct KopsArg {
    const void *data;
    uint64_t size;
    int32_t kind, pad; // 'p' pointer, 'i' signed, 'u' unsigned, 'f' float, 's' any other type
    const char *type;  // __PRETTY_FUNCTION__ of a template with the type as T; stays where it is
} KopsArg;

typedef struct KopsTable {
    // Computes on tensors. `name` is the function's in torch, then, each behind a space, the names of the last
    // arguments as far as torch takes them only by name: "add alpha" has the values self, other, alpha. The tensors of
    // the result go to out, or, where they are more than KOPS_RESULTS, lie at scalar->p until the thread's next call; a
    // number or text as result goes to `scalar`. Returns 0, or 1 where error() has a message.
    int (*op)(const char *name, const KopsValue *args, int n, KopsTensor *out, int *nout, KopsValue *scalar);
    void (*release)(int64_t id);
    // `kernel` is the stub's __PRETTY_FUNCTION__; dims: grid x y z, block x y z. Returns as op().
    int (*launch)(const char *kernel, const uint32_t *dims, uint64_t shared, void *stream, const KopsArg *args, int n);
    // A function of the CUDA runtime by its name. Returns a cudaError_t; what the function writes through its first
    // pointer goes to out.
    int (*cuda)(const char *name, const KopsValue *args, int n, int64_t *out);
    // The message of the thread's last call that failed.
    const char *(*error)(void);
    void (*retain)(int64_t id);
    // Gives up (0) or takes (1) the interpreter's lock, which a call of kops_call() has. Returns whether that changed.
    int (*lock)(int taken);
} KopsTable;

// What a module exports; kops/bind.h defines these.
void kops_open(KopsTable *table);
int kops_count(void);
const char *kops_def_name(int def);      // of a TORCH_LIBRARY: "library::op" or "library::op@Key"
const char *kops_def_signature(int def); // a schema of TORCH_LIBRARY, otherwise __PRETTY_FUNCTION__ with the types
const char *kops_def_doc(int def);
int kops_def_arguments(int def); // how many values kops_call() reads; -1 of a declaration without an implementation
// The name of an argument, or NULL for one without a name. *value is its default; tag -1: none.
const char *kops_def_argument(int def, int argument, KopsValue *value);
// With `on`, the thread's next kops_call() takes only arguments of the parameters' own types, and converts no number.
void kops_strict(int on);
// Returns NULL or the message of the exception. `scalar` describes the whole result: KOPS_IS_TENSOR and KOPS_IS_TENSORS
// are indices into *out, KOPS_IS_TUPLE has these in it. All of it is valid until the thread's next call.
const char *kops_call(int def, const KopsValue *args, KopsTensor *const *tensors, KopsTensor **out, int *nout,
                      KopsValue *scalar);
// The Python exception that the thread's last message is for, such as "IndexError"; "NoMatch" for a call that did not
// begin: the next function of the same name may take the arguments.
const char *kops_error_type(void);
#ifdef __cplusplus
}

namespace kops
{
inline KopsTable *table = nullptr;
}
#endif
