/**
 * @file kernel.h
 * @brief Kernels of your own: CUDA C++ source that the daemon compiles once for everybody, and launches like its own
 * ops. <kops/kops.h> includes it.
 *
 * @code
 * static const char text[] = "extern \"C\" __global__ void scale(float *y, const float *x, float a, int n) {"
 *                            "    int i = blockIdx.x * blockDim.x + threadIdx.x;"
 *                            "    if (i < n) y[i] = a * x[i]; }";
 * const struct kops_param params[] = {
 *     {.name = "y", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .elements = "n"},
 *     {.name = "x", .kind = KOPS_PARAM_IN, .dtype = KOPS_F32, .elements = "n"},
 *     {.name = "a", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_F32},
 *     {.name = "n", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_I32},
 * };
 * const struct kops_source source = {.text = text, .name = "scale.cu"};
 * const struct kops_signature signature = {
 *     .entry = "scale", .params = params, .n_params = 4, .geometry = {.grid = {"ceil_div(n, 256)"}, .block = {"256"}}};
 * kops_kernel *scale;
 * char *log;
 *
 * if (kops_kernel_compile(client, &source, &signature, &scale, &log, &error))
 *     errx(1, "%s\n%s", error.message, log ? log : "");
 * const struct kops_argument args[] = {kops_arg_tensor(&y), kops_arg_tensor(&x), kops_arg_float(2), kops_arg_int(n)};
 * kops_kernel_launch(scale, args, 4, NULL, NULL, &error);
 * @endcode
 *
 * **Words.** A *source* is compiled into a *module*; a *kernel* is one of its entries with its parameter list and
 * launch geometry, which every launch is checked against. The daemon keeps compiled code, in memory and on disk: the
 * same source is not compiled again, for any client.
 *
 * **Expressions** (texts in kops_param and kops_geometry) are numbers or formulas such as "ceil_div(n, 256)": 64-bit
 * integers, `+ - * / %`, parentheses, `ceil_div(a, b)`, `min(…)`, `max(…)`, `next_pow2(a)`; names are the scalar
 * integer parameters, `x.numel`, `x.rank`, `x.shape[0]` of the tensor parameters, and `multiprocessors` of the device.
 *
 * **Trust.** By default a kernel runs in a process of its user's, an executor, and can reach all memory that the
 * executor has mapped. Where the daemon is configured to have one executor for all users, the kernel can reach the
 * memory of other clients, too. The daemon's configuration says which users may launch kernels: kops_info.kernels has
 * it.
 *
 * **Launch here.** With options.where = KOPS_WHERE_HERE a launch runs in this process, in the calling thread's current
 * CUDA context, on the stream of kops_kernel_enqueue(), or with kops_kernel_launch() on the legacy default stream, and
 * waited for. The code is what the daemon compiled, the checks are the daemon's; the tensors must be device memory. No
 * other context takes turns on the GPU, no MPS is needed, and a fault breaks this context alone. The
 * daemon's quotas, deadlines and traces know nothing of such launches; its statistics have them with the variant
 * "here", about once a second, with the time of one in 61 between two events. By default (KOPS_WHERE_DEFAULT) a launch
 * is the daemon's, but one that is enqueued on a stream under capture is here: a node of the graph, which needs neither
 * client nor daemon afterwards. KOPS_WHERE_DAEMON refuses it. The binary stays loaded as long as the context. Errors
 * besides the usual ones: unsupported (the daemon hands out no code), no_cuda (no context is current).
 *
 * **Threads, fork, reconnection.** As for clients and buffers: modules and kernels may be used from any number of
 * threads, kops_module_free() and kops_kernel_free() are the last use of their object. After a reconnection or fork
 * they are made known anew at their next use, from a copy of the source kept here.
 */
#ifndef KOPS_KERNEL_H
#define KOPS_KERNEL_H

#include <kops/kops.h>

#ifdef __cplusplus
extern "C" {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a function and a struct of one name, as C has them */
#endif

/** A compiled source. */
typedef struct kops_module kops_module;

/** An entry of a module that can be launched. */
typedef struct kops_kernel kops_kernel;

/** A daemon's policy and tools for users' kernels: part of kops_info. */
struct kops_kernels_info {
    const char *compiler;    /**< "NVRTC 13.0"; NULL when there is none. */
    const char *policy;      /**< Users that may launch kernels: "off" (nobody), "owner", "group", "all". */
    bool allowed;            /**< True if this client may launch kernels. */
    const char *const *arch; /**< Target architectures, one for each of kops_info.devices; "" for the host. */
    const char *const
        *include_extra; /**< Folders beside the toolkit's whose headers a source may include. NULL-terminated. */
    /** The compile cache that several machines share: "starting", "serving", "resting", "down"; NULL: there is none. */
    const char *remote;
    const char *remote_why;   /**< Last failure of the remote cache; NULL: none so far. */
    const char *compiler_why; /**< Reason why there is no compiler; NULL where there is one, and from older daemons. */
};

enum {
    KOPS_MAX_PARAMS = 32,        /**< Parameters of a kernel. */
    KOPS_MAX_KERNEL_TENSORS = 16 /**< Tensors among them. */
};

/* ---- compiling ----------------------------------------------------------------------------------------------- */

/** A text that the source may `#include` by that name. */
struct kops_file {
    const char *name, *text;
};

/** A source to compile. The call that takes it copies it all; zero members are the defaults. */
struct kops_source {
    const char *text; /**< CUDA C++. */
    const char *name; /**< For messages. NULL: "kernel.cu". */
    /** Further files. Of the machine's own, only the CUDA toolkit's headers are found. */
    const struct kops_file *files;
    size_t n_files;
    const char *const *options; /**< Compiler options from the daemon's allow-list: "-DN=4", "-std=c++17",
                                     "--use_fast_math", "--maxrregcount=64" … */
    size_t n_options;
    const char *const *entries; /**< Names of `__global__` functions, or instantiations: "scale<float, 4>". */
    size_t n_entries;
    const char *arch;   /**< "sm_90a". NULL: the device's; required where there is no GPU. */
    const char *device; /**< UUID or index of the device to launch on. NULL: the first GPU. */
    int64_t timeout_ms; /**< Limit of the call. 0: the client's. KOPS_FOREVER: none. */
    uint64_t reserved[4];
};

/** A compiled entry. */
struct kops_entry {
    const char *name;                                /**< As in kops_source.entries. */
    const char *lowered;                             /**< Mangled name in the binary. */
    unsigned registers;                              /**< Registers of a thread. */
    unsigned shared_bytes, local_bytes, const_bytes; /**< Static shared memory of a block; memory of a thread for
                                                          spilled registers and arrays; constants. */
    unsigned max_threads;                            /**< Most threads that a block can have. */
    size_t n_params;
    const uint32_t *params; /**< Bytes of each parameter. */
    /** Offset of each parameter among the bytes of all; NULL where the daemon does not tell. */
    const uint32_t *offsets;
};

/** Facts about a module. */
struct kops_module_info {
    const char *key;      /**< Key of the binary in the daemon's cache: 64 hexadecimal digits. */
    const char *arch;     /**< "sm_90a" */
    const char *compiler; /**< "NVRTC 13.0" */
    const char *cached;   /**< Where the binary was found: "no" (compiled just now), "memory", "disk", "remote". */
    const char *log;      /**< The compiler's warnings; "" when there are none. */
    double compile_us;    /**< Time that compiling took, also where the binary was cached. */
    uint64_t image_bytes;
    const struct kops_entry *const *entries; /**< NULL-terminated, in the order asked for. */
};

/** Compiles a source, or finds it compiled.
 *
 * `log` may be NULL. Otherwise *log is set in every case: to the compiler's full output when it refused the source
 * (free it with kops_log_free()), else to NULL. The message has the first error only. Errors: compile_failed (detail
 * `reason`: "source", "entry", "time", "memory", "crash"), invalid_argument, limit_exceeded, permission_denied (the
 * daemon's policy), unsupported (it has no compiler, or is older than this). */
KOPS_API enum kops_code kops_compile(kops_client *client, const struct kops_source *source, kops_module **ret_module,
                                     char **log, struct kops_error *ret_error);

/** Valid as long as the module. Describes the first compilation, also after a reconnection. */
KOPS_API const struct kops_module_info *kops_module_info(const kops_module *module);

/** The entry of that name; NULL when there is none. */
KOPS_API const struct kops_entry *kops_module_entry(const kops_module *module, const char *name);

/** Lets go of the module; its kernels stay usable. Does not wait. NULL is allowed. Returns NULL. */
KOPS_API kops_module *kops_module_free(kops_module *module);

/** Frees the *log of kops_compile(). NULL is allowed. */
KOPS_API void kops_log_free(char *log);

/* ---- kernels ------------------------------------------------------------------------------------------------- */

enum kops_param_kind {
    KOPS_PARAM_IN = 1,    /**< A tensor that is read. */
    KOPS_PARAM_OUT = 2,   /**< A tensor that is written. */
    KOPS_PARAM_INOUT = 3, /**< A tensor that is both; excludes warm-up and repeats. */
    KOPS_PARAM_SCALAR = 4 /**< A number, or a structure by value. */
};

enum {
    KOPS_MAX_MAP_RANK = 5 /**< Dimensions of a tensor map. */
};

/** A tensor map (CUtensorMap) that a kernel takes by value, `const __grid_constant__ CUtensorMap`, in place of a
 * pointer. Each launch encodes it for its tensor. Dimensions are in the order of the tensor's shape: the contiguous
 * one, which cuTensorMapEncodeTiled() has first, is the last. Needs a device of compute capability 9.0 or newer. */
struct kops_tensor_map {
    unsigned rank;                      /**< The tensor's dimensions, 1 to 5. */
    const char *box[KOPS_MAX_MAP_RANK]; /**< Expressions: elements of a box, 1 to 256. */
    unsigned steps[KOPS_MAX_MAP_RANK];  /**< Elements from one to the next, 1 to 8. 0: 1. */
    unsigned swizzle;                   /**< Bytes: 0 (none), 32, 64, 128. */
    unsigned interleave;                /**< Bytes: 0 (none), 16, 32. */
    unsigned l2;                        /**< Bytes that the L2 cache gets at once: 0 (no promotion), 64, 128, 256. */
    bool nan;                           /**< Elements outside of the tensor are read as NaN; otherwise as 0. */
    bool tf32;                          /**< f32 elements are rounded to tf32 as they are read. */
    uint64_t reserved[4];
};

/** A parameter of the kernel, in C's order. */
struct kops_param {
    const char *name; /**< For expressions and messages. */
    enum kops_param_kind kind;
    enum kops_dtype dtype;            /**< Type of the elements, or of the scalar. */
    unsigned rank;                    /**< Dimensions that a tensor must have. 0: any number. */
    const char *shape[KOPS_MAX_RANK]; /**< Expressions for the dimensions, `rank` many. NULL: any size. */
    const char *elements;             /**< Expression: least number of elements. NULL: any. */
    unsigned align;                   /**< Alignment of the address in bytes. 0: an element's. */
    bool strided; /**< Any strides are allowed; otherwise a tensor must be row-major without gaps. */
    const struct kops_tensor_map *map; /**< A tensor map of the tensor, not a pointer to it. NULL: a pointer. */
    /** Numbers of the dtype side by side in a scalar: a structure by value, whose argument is kops_arg_bytes(). Take 16
     * of KOPS_U8 for any structure of 16 bytes. 0: one number. */
    uint32_t lanes;
    uint32_t reserved[1];
};

/** Numbers of blocks and threads: expressions, NULL from the first unused dimension on. */
struct kops_geometry {
    const char *grid[3], *block[3]; /**< NULL in all dimensions: every launch gives them. */
    const char *cluster[3];         /**< Blocks of a cluster. NULL in all dimensions: no clusters. */
    const char *shared;             /**< Dynamic shared memory of a block in bytes. NULL: 0. */
};

/** An entry's declaration, checked against the binary as far as the binary tells. */
struct kops_signature {
    const char *entry; /**< An entry of the source. */
    const struct kops_param *params;
    size_t n_params;
    struct kops_geometry geometry;
    bool alias;       /**< Outputs may overlap other tensors. */
    bool cooperative; /**< All blocks run at one time, as grid.sync() needs. More blocks than fit: out_of_range. */
    bool pdl; /**< Programmatic dependent launch: the kernel may begin before the previous kernel of the sequence or
                   program has ended, and must call `griddepcontrol.wait` before it reads what that kernel writes. */
    uint64_t reserved[4];
};

/** Declares a kernel. The members of `signature` are copied, with all that they point to.
 * Errors: signature_mismatch (the binary has another number of parameters, or other sizes), unsupported (the device
 * runs no kernels), invalid_argument (an expression), permission_denied. */
KOPS_API enum kops_code kops_kernel_define(kops_module *module, const struct kops_signature *signature,
                                           kops_kernel **ret_kernel, struct kops_error *ret_error);

/** kops_compile() and kops_kernel_define() in one; without source->entries, the entry is the signature's. */
KOPS_API enum kops_code kops_kernel_compile(kops_client *client, const struct kops_source *source,
                                            const struct kops_signature *signature, kops_kernel **ret_kernel,
                                            char **log, struct kops_error *ret_error);

/** The kernel's module, which stays the kernel's. */
KOPS_API const kops_module *kops_kernel_module(const kops_kernel *kernel);

/** Name of the kernel's entry. */
KOPS_API const char *kops_kernel_entry(const kops_kernel *kernel);

/** Lets go of the kernel; launches sent before still run, programs with it go on. Does not wait. NULL is allowed.
 * Returns NULL. */
KOPS_API kops_kernel *kops_kernel_free(kops_kernel *kernel);

/* ---- launching ----------------------------------------------------------------------------------------------- */

enum kops_argument_kind {
    KOPS_ARG_NULL = 0, /**< A null pointer for a tensor. */
    KOPS_ARG_TENSOR = 1,
    KOPS_ARG_INT = 2,
    KOPS_ARG_UINT = 3, /**< For numbers above INT64_MAX. */
    KOPS_ARG_FLOAT = 4,
    KOPS_ARG_BOOL = 5,
    KOPS_ARG_INDEX = 6, /**< In a kops_step: a tensor of the sequence. */
    KOPS_ARG_BYTES = 7  /**< A structure. */
};

/** An argument. Make one with kops_arg_tensor() and its like. */
struct kops_argument {
    enum kops_argument_kind kind;
    uint32_t size; /**< Size of a KOPS_ARG_BYTES. */
    union {
        const struct kops_tensor *tensor; /**< Not owned, read by the call that takes it. */
        int64_t integer;
        uint64_t natural;
        double real;
        bool boolean;
        uint32_t index;
        const void *bytes; /**< Not owned, read by the call that takes it. */
    } value;
};

static inline struct kops_argument kops_arg_null(void)
{
    struct kops_argument a;

    a.kind = KOPS_ARG_NULL;
    a.value.natural = 0;
    return a;
}

static inline struct kops_argument kops_arg_tensor(const struct kops_tensor *tensor)
{
    struct kops_argument a;

    a.kind = KOPS_ARG_TENSOR;
    a.value.tensor = tensor;
    return a;
}

static inline struct kops_argument kops_arg_int(int64_t value)
{
    struct kops_argument a;

    a.kind = KOPS_ARG_INT;
    a.value.integer = value;
    return a;
}

static inline struct kops_argument kops_arg_uint(uint64_t value)
{
    struct kops_argument a;

    a.kind = KOPS_ARG_UINT;
    a.value.natural = value;
    return a;
}

static inline struct kops_argument kops_arg_float(double value)
{
    struct kops_argument a;

    a.kind = KOPS_ARG_FLOAT;
    a.value.real = value;
    return a;
}

static inline struct kops_argument kops_arg_bool(bool value)
{
    struct kops_argument a;

    a.kind = KOPS_ARG_BOOL;
    a.value.natural = 0;
    a.value.boolean = value;
    return a;
}

/** A structure by value: `kops_arg_bytes(&s, sizeof(s))`. */
static inline struct kops_argument kops_arg_bytes(const void *bytes, uint32_t size)
{
    struct kops_argument a;

    a.kind = KOPS_ARG_BYTES;
    a.size = size;
    a.value.bytes = bytes;
    return a;
}

static inline struct kops_argument kops_arg_index(uint32_t tensor)
{
    struct kops_argument a;

    a.kind = KOPS_ARG_INDEX;
    a.value.natural = 0;
    a.value.index = tensor;
    return a;
}

/** Sizes in up to three dimensions, x first; n 0: as the kernel was declared. */
struct kops_dims {
    unsigned n;
    int64_t size[3];
};

/** A launch's own geometry, in place of the kernel's. Zero: the kernel's. */
struct kops_launch_geometry {
    struct kops_dims grid, block, cluster;
    bool has_shared;
    uint64_t shared; /**< Bytes, where has_shared. */
};

/** How to launch. `options.device` and `variant` must be NULL: the device is the module's. */
struct kops_launch_options {
    struct kops_launch_geometry geometry;
    struct kops_options options;
};

/** Launches the kernel and waits, as kops_run() does. One argument a parameter. `how` (NULL: the defaults) and
 * `ret_result` may be NULL; the result's variant is "user".
 * Errors: as kops_run(); dtype_mismatch, shape_mismatch, out_of_bounds, misaligned, overlap, out_of_range (a scalar,
 * the geometry), their detail `key` naming the place: "args[2]", "grid[0]". */
KOPS_API enum kops_code kops_kernel_launch(kops_kernel *kernel, const struct kops_argument *args, size_t n_args,
                                           const struct kops_launch_options *how, struct kops_result *ret_result,
                                           struct kops_error *ret_error);

/** Sends a launch without waiting: the ticket is for kops_wait(). */
KOPS_API enum kops_code kops_kernel_submit(kops_kernel *kernel, const struct kops_argument *args, size_t n_args,
                                           const struct kops_launch_options *how, kops_ticket *ret_ticket,
                                           struct kops_error *ret_error);

/** Puts a launch on a CUDA stream, as kops_enqueue() does an op; in a batch it is gathered with the others. */
KOPS_API enum kops_code kops_kernel_enqueue(kops_kernel *kernel, const struct kops_argument *args, size_t n_args,
                                            const struct kops_launch_options *how, void *cuda_stream,
                                            struct kops_error *ret_error);

#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif

#endif
