/**
 * @file kops.h
 * @brief libkops: runs compiled kernels in a kopsd daemon, on tensors that are handed over by reference.
 *
 * A program connects, makes its memory known (or lets libkops make shared memory), describes tensors as views of
 * it, and runs ops. The daemon works on that very memory: nothing is copied through the socket.
 *
 * @code
 * kops_client *client;
 * kops_buffer *memory;
 * struct kops_error error;
 *
 * if (kops_connect(NULL, &client, &error) || kops_buffer_alloc_shared(client, 3 * n * sizeof(float), &memory, &error))
 *     errx(1, "%s", error.message);
 * struct kops_tensor a = kops_vector(memory, KOPS_F32, n);
 * struct kops_tensor b = a, c = a;
 * b.offset = n * sizeof(float);
 * c.offset = 2 * n * sizeof(float);
 * // ... write a and b through kops_buffer_data(memory) ...
 * if (kops_add(client, &a, &b, &c, NULL, NULL, &error))
 *     errx(1, "%s", error.message);
 * @endcode
 *
 * **Errors.** Every function that can fail returns an enum kops_code, KOPS_OK (0) on success, and fills the optional
 * struct kops_error with a message that says the next step. Outputs named `ret_…` are set only on success.
 *
 * **Structs** that a caller fills are zero-initialised first; zero means the documented default everywhere, and the
 * reserved members stay zero. The structs that libkops returns pointers to may get more members at their end.
 *
 * **Readiness.** A call's inputs must be ready when the call is made, and its outputs are ready when it returns. With
 * CUDA, synchronise the stream that writes an input first (cuStreamSynchronize); after the call, every stream sees
 * the output. The calls of <kops/ordered.h> need no such care: they are part of a CUDA stream, as launches are.
 *
 * **Threads.** A client and its buffers may be used from any number of threads at once: a call that waits for its
 * reply lets others send and receive. kops_close(), and kops_buffer_release() of one buffer, must be the last use of
 * their object. Ops of one client take effect in the order sent unless kops_options.stream differs.
 *
 * **Fork.** A child may go on with the client that it inherited: the first call there notices, leaves the parent's
 * connection alone and makes one of its own. Inherited buffers in shared memory are registered anew at their next use.
 * Inherited CUDA buffers are not usable (CUDA itself does not survive fork): KOPS_ERR_NOT_EXPORTABLE. Tickets
 * of the parent end with KOPS_ERR_CONNECTION_LOST in the child. Buffers and clients that the child does not need
 * are released there as usual, without an effect on the parent.
 *
 * **A daemon that ends**: the client waits for its successor, since a service manager starts one. Calls connect to its
 * successor at the same socket, wait for it as long as kops_connect_options.reconnect_timeout_ms (then
 * KOPS_ERR_CONNECT_FAILED), and make known what they need there: buffers (what kops_buffer_alloc() gave keeps its
 * contents), programs, modules, kernels. A buffer that the new daemon does not take is KOPS_ERR_BUFFER_LOST at every
 * use.
 * - A blocking call that an ending daemon refused (KOPS_ERR_SHUTTING_DOWN) is made again until a daemon takes it.
 * - A blocking call whose reply did not come, or was KOPS_ERR_DEVICE_LOST, is made again once where that does no harm:
 *   a built-in op whose outputs overlap no input and are not read (beta = 0), a sequence or program of such ops in
 *   which no op reads another's output, and calls that only ask or define. The second try reads the inputs again, so
 *   nobody may write them while the call is under way.
 * - KOPS_ERR_DEVICE_LOST or KOPS_ERR_JOB_TIMEOUT with the detail `daemon` = "goes_on" is a different case: the process
 *   that did the work was lost, and the daemon goes on with another one. Nothing is repeated or connected anew.
 * - Every other call fails with KOPS_ERR_DEVICE_LOST when the daemon said that (an op may have done it: suspect kernels
 *   of your own first), else with KOPS_ERR_CONNECTION_LOST: it may or may not have run (where it surely did not, the
 *   error has the detail `ran`: 0). So do launches, calls on a CUDA stream (<kops/ordered.h>), and submitted work
 *   (kops_wait() returns the error). The next call is fine.
 */
#ifndef KOPS_KOPS_H
#define KOPS_KOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kops/declarations.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef KOPS_API
#define KOPS_API __attribute__((visibility("default")))
#endif

/** A connection to a daemon, with this process's knowledge about it. */
typedef struct kops_client kops_client;

/** Memory that the daemon can use: registered, or made by it. */
typedef struct kops_buffer kops_buffer;

/** A submitted run that was not waited for yet. 0 is none. */
typedef uint64_t kops_ticket;

enum {
    KOPS_MAX_RANK = 8,      /**< Dimensions of a tensor. */
    KOPS_MAX_OPERANDS = 16, /**< Inputs and outputs of one run together. */
    KOPS_FOREVER = -1       /**< A timeout: no limit. */
};

/* ---- errors -------------------------------------------------------------------------------------------------- */

/** A fact about an error, for programs: the offending key, a limit, a size. */
struct kops_detail {
    char key[32];
    bool is_text; /**< `text` is set, otherwise `number`. */
    int64_t number;
    char text[128]; /**< Cut to fit. */
};

/** Why a call failed. After success, `code` is KOPS_OK and the rest is empty. */
struct kops_error {
    enum kops_code code;
    unsigned n_details;
    char message[512]; /**< For people, with the next step. Never empty after a failure. */
    struct kops_detail details[6];
};

/** The code's name, as on the wire: "shape_mismatch". "ok" for KOPS_OK. Never NULL. */
KOPS_API const char *kops_code_name(enum kops_code code);

/** The text of a detail; NULL when the error has none of that key. Belongs to the error. */
KOPS_API const char *kops_error_text(const struct kops_error *error, const char *key);

/** The number of a detail; false when the error has none of that key. */
KOPS_API bool kops_error_number(const struct kops_error *error, const char *key, int64_t *ret_number);

/* ---- connection ---------------------------------------------------------------------------------------------- */

/** Transport of the messages. KOPS_TRANSPORT_AUTO takes shared memory where that pays: the daemon offers and polls it
 * (kops_limits.spin_us), and the machine has at least 4 processors. Both sides then poll before they sleep; the client
 * polls for a shorter time while polling does not help. On the socket neither side polls. `KOPS_TRANSPORT` in the
 * environment ("socket", "shm") decides where the program says AUTO. */
enum kops_transport {
    KOPS_TRANSPORT_AUTO = 0,
    KOPS_TRANSPORT_SOCKET = 1, /**< The socket alone. */
    KOPS_TRANSPORT_SHM = 2     /**< Shared memory; kops_connect() fails with unsupported where there is none. */
};

/** Place where an op (<kops/ordered.h>, "Ops here") or a user's kernel (<kops/kernel.h>, "Launch here") runs. */
enum kops_where { KOPS_WHERE_DEFAULT = 0, KOPS_WHERE_DAEMON = 1, KOPS_WHERE_HERE = 2 };

#define KOPS_NO_SPIN (~0U)

/** Value of kops_connect_options.reconnect_timeout_ms: a call under way when the daemon ends fails at once and is never
 * repeated; the next call connects anew, without waiting. */
#define KOPS_NO_RECONNECT (-2)

/** How to connect. Zero: the defaults. Strings are copied. */
struct kops_connect_options {
    /** Path of the daemon's socket. NULL: `KOPS_SOCKET` when that is set, and nothing else; otherwise the sockets of
     * "Where clients look" in deploy/README.md, then a daemon that is started: see `no_autostart`. The client trusts a
     * server that runs as this user, root or kops, or as a user that `KOPS_TRUST_USER` lists, separated by commas. */
    const char *socket;
    const char *name; /**< Name and version of the program, for the daemon's log. NULL: "libkops <version>". */
    /** Limit of every call that names none. 0 and KOPS_FOREVER: no limit, as in the Python client, since most of a
     * call's time may be other clients' work before it, and a call that times out is cancelled. The daemon ends work
     * that hangs (`server.job_timeout_s`, the watchdog), and a lost daemon is an error. */
    int64_t timeout_ms;
    int64_t connect_timeout_ms; /**< Limit of connecting. 0: 30 s, and more while a daemon is started. */
    unsigned spin_us; /**< Longest time to busy-wait for a reply before sleeping: lower latency, a busy core. 0: as long
                           as it pays, see KOPS_TRANSPORT_AUTO. KOPS_NO_SPIN: never. */
    enum kops_transport transport;
    /** Time that a call waits for a daemon that ended and is started anew (see "A daemon that ends" above). 0:
     * `KOPS_RECONNECT_TIMEOUT` in the environment (seconds, 0 is KOPS_NO_RECONNECT), or 10 s without that.
     * KOPS_FOREVER: as long as the call may take. */
    int64_t reconnect_timeout_ms;
    /** "connection": the kernels of this client run in a process that no other client's kernels share; unsupported
     * where the daemon has none for users' kernels. NULL: as the daemon is configured (kops_info.isolation). */
    const char *isolate;
    /** Do not start a daemon. Otherwise, where no path is named and no daemon answers, kops_connect() starts one for
     * this user: the `kopsd` named by `KOPSD`, or beside this library, or in `PATH`. It serves all processes of the
     * user, and ends by itself when none has been connected for 5 minutes. `KOPS_AUTOSTART=0` in the environment: as
     * true. */
    bool no_autostart;
    /** Place of calls that name none. KOPS_WHERE_HERE: a call runs in this process where it waits or is enqueued, all
     * its tensors lie in device memory of this process, and its options need no daemon; other calls run in the daemon.
     * KOPS_WHERE_DAEMON: all calls run in the daemon. A call here shares the process's faults, and is in the daemon's
     * statistics as a count with samples. A call here is not ordered with a ticket that was not waited for. While a
     * batch is open on a stream, calls enqueued there run in the daemon. KOPS_WHERE_DEFAULT: `KOPS_WHERE` in the
     * environment ("daemon", "here"; "auto", for which the Python client measures, is the daemon here), and the daemon
     * without that. */
    enum kops_where where;
    uint64_t reserved[5];
};

/** Connects and asks for the daemon's devices, ops and limits. `options` may be NULL.
 *
 * Errors: connect_failed (the message lists the paths tried), protocol_mismatch, timeout; unsupported and
 * invalid_argument, see `isolate`; bad_argument for a `KOPS_WHERE` that is no place. */
KOPS_API enum kops_code kops_connect(const struct kops_connect_options *options, kops_client **ret_client,
                                     struct kops_error *ret_error);

/** Ends the connection; the daemon then drops everything that it holds for the connection. Buffers that were not
 * released stay valid as host memory until they are released. NULL is allowed. Returns NULL. */
KOPS_API kops_client *kops_close(kops_client *client);

/** Sends a request that does nothing, and waits for its reply. */
KOPS_API enum kops_code kops_ping(kops_client *client, int64_t timeout_ms, struct kops_error *ret_error);

/** The library's version: "0.1.0". */
KOPS_API const char *kops_version(void);

/* ---- attributes ---------------------------------------------------------------------------------------------- */

/** An attribute's type. */
enum kops_attr_type { KOPS_ATTR_BOOL = 1, KOPS_ATTR_INT = 2, KOPS_ATTR_FLOAT = 3, KOPS_ATTR_TEXT = 4 };

/** A named value for an op. Make one with kops_attr_bool() and its like. */
struct kops_attr {
    const char *name;
    enum kops_attr_type type;
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *text;
    } value;
};

/* ---- memory -------------------------------------------------------------------------------------------------- */

/** The daemon's rights to registered memory. */
enum kops_access {
    KOPS_ACCESS_RW = 0, /**< Read and write. */
    KOPS_ACCESS_R = 1   /**< Read only: never an output. */
};

/** Makes shared memory in this process and registers it. Zeroed, mapped (kops_buffer_data()), sealed against resizing.
 *
 * Works with every daemon, with or without GPU, and needs no CUDA in this process; a GPU's runs copy it there and
 * back. All of its pages are taken at once, and are charged to this process and its control group. A size beyond
 * what the machine, the control group or a resource limit has left is refused with out_of_memory before anything is
 * allocated; the details are `asked`, `available` (bytes) and `limit` (which bound it was).
 * Errors: out_of_memory, os_error, no_memory, quota_exceeded, and those of a connection. */
KOPS_API enum kops_code kops_buffer_alloc_shared(kops_client *client, size_t size, kops_buffer **ret_buffer,
                                                 struct kops_error *ret_error);

/** Asks the daemon for zeroed memory on a device (UUID or index; NULL: its default).
 *
 * On the host that is kops_buffer_alloc_shared(). On a GPU it is device memory that belongs to the daemon's connection:
 * kops_buffer_map_cuda() gives a device pointer to it; kops_buffer_read() and kops_buffer_write() copy, also in a
 * process without CUDA. This process holds it by a descriptor, so that it outlives a daemon: a new one (or a child's
 * connection) is given it at its next use, with its contents. Errors: unknown_device, out_of_memory, quota_exceeded. */
KOPS_API enum kops_code kops_buffer_alloc(kops_client *client, size_t size, const char *device,
                                          kops_buffer **ret_buffer, struct kops_error *ret_error);

/** Registers `size` bytes of a memfd, and maps them here (read-only with KOPS_ACCESS_R).
 *
 * The memfd must carry F_SEAL_SHRINK and be at least `size` long. `fd` stays the caller's (it is duplicated).
 * Errors: invalid_fd, read_only. */
KOPS_API enum kops_code kops_buffer_register_memfd(kops_client *client, int fd, size_t size, enum kops_access access,
                                                   kops_buffer **ret_buffer, struct kops_error *ret_error);

/** Registers CUDA device memory of this process, made by cuMemAlloc or cudaMalloc; where the daemon lists `cuda_vmm`,
 * also by cuMemCreate (PyTorch's expandable segments); where it lists `cuda_pool`, also by cudaMallocAsync from a pool
 * that can be exported.
 *
 * `pointer` (a CUdeviceptr) may point anywhere into an allocation, as a framework's tensors do: the buffer starts at
 * `pointer` and reaches to the end of the allocation, tensor offsets count from `pointer`. The memory stays the
 * caller's: release the buffer before or soon after freeing it, since the daemon's mapping keeps it from being
 * reused.
 * Errors: no_cuda, not_exportable (the message names the allocator setting at fault), unknown_device. */
KOPS_API enum kops_code kops_buffer_register_cuda(kops_client *client, uint64_t pointer, enum kops_access access,
                                                  kops_buffer **ret_buffer, struct kops_error *ret_error);

/** The daemon forgets the buffer (runs sent before still finish on it), mappings and descriptors made for it here are
 * closed. Does not wait. NULL is allowed. Returns NULL. */
KOPS_API kops_buffer *kops_buffer_release(kops_buffer *buffer);

/** Where the buffer is mapped in this process; NULL for device memory. */
KOPS_API void *kops_buffer_data(const kops_buffer *buffer);

/** Usable bytes. */
KOPS_API size_t kops_buffer_size(const kops_buffer *buffer);

/** Bytes from the start of the CUDA allocation to the registered pointer; 0 for every other buffer. For information:
 * tensor offsets count from the pointer. */
KOPS_API uint64_t kops_buffer_base_offset(const kops_buffer *buffer);

/** The UUID of the device that holds the memory; NULL for shared memory, which belongs to none. */
KOPS_API const char *kops_buffer_device(const kops_buffer *buffer);

/** A device pointer (CUdeviceptr) for device memory: the registered one, or a mapping of memory of kops_buffer_alloc(),
 * valid until release. It is mapped at the first call, for the device that holds the memory.
 * Errors: no_cuda, bad_argument (the buffer is not device memory), device_error. */
KOPS_API enum kops_code kops_buffer_map_cuda(kops_buffer *buffer, uint64_t *ret_pointer, struct kops_error *ret_error);

/** Copies between the buffer, from byte `offset` on, and host memory of the caller. Blocking. Device memory goes
 * through this process's CUDA driver where the process uses that GPU by CUDA, or has registered the memory; memory of
 * kops_buffer_alloc() otherwise through the daemon and shared memory, as runs of the op `copy`, and needs no CUDA here.
 * Runs that use the range must have ended. Errors: bad_argument (outside the buffer), read_only, no_cuda, device_error,
 * and those of kops_run(). */
KOPS_API enum kops_code kops_buffer_read(kops_buffer *buffer, uint64_t offset, void *into, size_t size,
                                         struct kops_error *ret_error);
KOPS_API enum kops_code kops_buffer_write(kops_buffer *buffer, uint64_t offset, const void *from, size_t size,
                                          struct kops_error *ret_error);

/** Closes this connection's idle mappings in the daemon, so that memory freed by its owner goes back to the driver.
 * `ret_bytes` may be NULL. */
KOPS_API enum kops_code kops_trim(kops_client *client, uint64_t *ret_bytes, struct kops_error *ret_error);

/* ---- tensors ------------------------------------------------------------------------------------------------- */

/** A view of a buffer. Plain data: copy it, change it, drop it. */
struct kops_tensor {
    kops_buffer *buffer; /**< Not owned. May be NULL where a dimension is 0. */
    uint64_t offset; /**< Bytes from the start of the buffer to the first element; a multiple of the element size. */
    enum kops_dtype dtype;
    unsigned rank;                  /**< Dimensions; 0 is one element. */
    int64_t shape[KOPS_MAX_RANK];   /**< Elements in each dimension, outermost first, ≥ 0. */
    bool has_strides;               /**< false: contiguous, row-major; `strides` is not read. */
    int64_t strides[KOPS_MAX_RANK]; /**< Elements (not bytes) between neighbours, ≥ 0; 0 repeats (inputs only). */
};

/** A contiguous vector, matrix, or tensor of any rank at the start of a buffer. */
static inline struct kops_tensor kops_tensor_of(kops_buffer *buffer, enum kops_dtype dtype, unsigned rank,
                                                const int64_t *shape)
{
    struct kops_tensor t;

    t.buffer = buffer;
    t.offset = 0;
    t.dtype = dtype;
    t.rank = rank;
    t.has_strides = false;
    for (unsigned i = 0; i < KOPS_MAX_RANK; i++) {
        t.shape[i] = i < rank ? shape[i] : 0;
        t.strides[i] = 0;
    }
    return t;
}

static inline struct kops_tensor kops_vector(kops_buffer *buffer, enum kops_dtype dtype, int64_t length)
{
    return kops_tensor_of(buffer, dtype, 1, &length);
}

static inline struct kops_tensor kops_matrix(kops_buffer *buffer, enum kops_dtype dtype, int64_t rows, int64_t columns)
{
    const int64_t shape[2] = {rows, columns};

    return kops_tensor_of(buffer, dtype, 2, shape);
}

/** Bytes of an element; 0 for no dtype. */
KOPS_API size_t kops_dtype_size(enum kops_dtype dtype);

/** "f32"; "?" for no dtype. */
KOPS_API const char *kops_dtype_name(enum kops_dtype dtype);

/** From a dtype's name, "bf16", or a type of C or CUDA, "__nv_bfloat16" or "unsigned long long"; false when it is
 * neither. */
KOPS_API bool kops_dtype_parse(const char *name, enum kops_dtype *ret_dtype);

/** Elements: the product of the shape. -1 when it does not fit, or a dimension is negative. */
KOPS_API int64_t kops_tensor_count(const struct kops_tensor *tensor);

/* ---- running ops --------------------------------------------------------------------------------------------- */

static inline struct kops_attr kops_attr_bool(const char *name, bool value)
{
    struct kops_attr a;

    a.name = name;
    a.type = KOPS_ATTR_BOOL;
    a.value.integer = 0;
    a.value.boolean = value;
    return a;
}

static inline struct kops_attr kops_attr_int(const char *name, int64_t value)
{
    struct kops_attr a;

    a.name = name;
    a.type = KOPS_ATTR_INT;
    a.value.integer = value;
    return a;
}

static inline struct kops_attr kops_attr_float(const char *name, double value)
{
    struct kops_attr a;

    a.name = name;
    a.type = KOPS_ATTR_FLOAT;
    a.value.real = value;
    return a;
}

static inline struct kops_attr kops_attr_text(const char *name, const char *value)
{
    struct kops_attr a;

    a.name = name;
    a.type = KOPS_ATTR_TEXT;
    a.value.text = value;
    return a;
}

/** A class of work. On a GPU a higher one runs first at the next free multiprocessor; nothing that runs is stopped. */
enum kops_priority { KOPS_PRIORITY_NORMAL = 0, KOPS_PRIORITY_HIGH = 1, KOPS_PRIORITY_LOW = 2 };

/** How to run. Zero: once, with timing, on the tensors' own device, with the best kernel. */
struct kops_options {
    const char *device;   /**< UUID or index; only for tensors that all lie in shared memory. NULL: the tensors' device,
                               or the default. */
    const char *variant;  /**< Forces one kernel, see kops_op.variants. NULL: the best. */
    unsigned stream;      /**< Runs of one stream keep their order, different streams may overlap. */
    bool no_timing;       /**< Do not time on the device: gpu_us, h2d_us, d2h_us and the samples of repeated executions
                               are then absent. host_us is always there. */
    uint32_t warmup;      /**< Untimed executions first. */
    uint32_t repeat;      /**< Timed executions. 0: 1. */
    uint32_t deadline_ms; /**< The daemon answers KOPS_ERR_DEADLINE_EXCEEDED this long after the run's arrival. Its
                               detail "ended" is 0 while a kernel that could not be stopped still uses the run's memory:
                               do not reuse the buffers until kops_trim() has returned. 0: never. */
    int64_t timeout_ms;   /**< Limit of the call. 0: the client's. KOPS_FOREVER: none. */
    double *samples;      /**< Room for execution times in µs (with repeat > 1), in order; NULL: not wanted. With
                               kops_submit() it stays in use until kops_wait(). */
    size_t samples_room;  /**< Elements of `samples`; more are dropped. */
    enum kops_priority priority; /**< Priority among queued work, where the device has priorities. */
    bool exact;     /**< gpu_us and the samples are the driver's records of the kernels, where CUPTI is there:
                         kops_result.timer is "cupti". The reply comes some 20 us later. Ignored where the daemon lacks
                         the feature "exact". */
    bool exclusive; /**< Run alone on the GPU, or report kops_result.exclusive as false. Not for enqueued work. */
    enum kops_where where; /**< With KOPS_WHERE_HERE all other options but variant, no_timing and timeout_ms must be
                                zero; gpu_us is then between two events (timer "events"). Not for tickets. */
    uint64_t reserved[4];
};

/** A run. */
struct kops_request {
    const char *op;
    const struct kops_tensor *inputs;
    size_t n_inputs;
    const struct kops_tensor *outputs;
    size_t n_outputs;
    const struct kops_attr *attrs;
    size_t n_attrs;
    struct kops_options options;
};

/** Times of a run, in microseconds. NAN: not measured. */
struct kops_result {
    double recv_to_start_us; /**< Request decoded → first work given to the device. */
    double map_us;           /**< Opening mappings that the run had to wait for. */
    double queue_us;         /**< Ready to run → first work given to the device. */
    double h2d_us, d2h_us;   /**< Copies to and from the device, for shared memory on a GPU. */
    double gpu_us;   /**< Kernels of one execution; the median with repeat > 1. `timer` is the source of the time, see
                          also kops_options.exact. */
    double host_us;  /**< Work of one execution on the host device, as gpu_us is a GPU's. */
    double total_us; /**< Request decoded → reply encoded. */
    double wait_us;  /**< Given to the device → begins there: the launch, and other processes' time slices. */
    double end_us;   /**< Ends there → reply encoded. With wait_us and the rest it adds up to total_us. */
    double min_us, median_us, p90_us, max_us; /**< Over the executions, with repeat > 1. */
    size_t n_samples;                         /**< Execution times that the daemon sent. */
    char device[48];                          /**< UUID of the device used. */
    char variant[48];                         /**< The kernel used. */
    char timer[15]; /**< Source of gpu_us or host_us: "cupti" (the driver's records), "kernel" (our own kernel, by the
                         GPU's clock), "events" or "host"; empty where nothing was timed. */
    bool exclusive; /**< With kops_options.exclusive: the run was alone all the time. */
    double send_us, reply_us; /**< send_us: from the call's begin until the daemon got the run. reply_us: from the
                                   daemon's reply until the end of the waiting call. In a blocking call send_us,
                                   total_us and reply_us add up to the whole call. NAN where the daemon does not tell
                                   when it got the request, or has another CLOCK_MONOTONIC. */
    uint64_t received_ns; /**< Request decoded, by CLOCK_MONOTONIC: the other times count from this one. 0: not told. */
    double wall_us;       /**< Work handed to its process → end seen by the daemon; NAN: not told. */
};

/** Runs an op and waits for it. `ret_result` may be NULL.
 *
 * A call that times out cancels its run: KOPS_ERR_TIMEOUT, the connection stays usable. The outputs are then undefined,
 * and a kernel that was already running may write them for as long as it takes.
 * Errors: the daemon's (its message and details are passed on), timeout, bad_argument, buffer_lost, and those of "A
 * daemon that ends" above: connection_lost, device_lost, connect_failed. */
KOPS_API enum kops_code kops_run(kops_client *client, const struct kops_request *request,
                                 struct kops_result *ret_result, struct kops_error *ret_error);

/** Sends a run without waiting. Any number may be under way: at the daemon's limit (kops_limits.inflight) the call
 * first waits for a reply to an earlier one. Each ticket is given to kops_wait() once. The request may be dropped
 * afterwards, options.samples may not. It is never repeated: a daemon that ends is an error of kops_wait(). Errors: as
 * kops_run(), but the run's own come from kops_wait(). */
KOPS_API enum kops_code kops_submit(kops_client *client, const struct kops_request *request, kops_ticket *ret_ticket,
                                    struct kops_error *ret_error);

/** Waits for a submitted run and gives its ticket back. timeout_ms: 0 is the client's, KOPS_FOREVER none.
 *
 * KOPS_ERR_TIMEOUT leaves the run under way and the ticket valid: wait again, or kops_cancel() first. Every other
 * return ends the ticket. */
KOPS_API enum kops_code kops_wait(kops_client *client, kops_ticket ticket, int64_t timeout_ms,
                                  struct kops_result *ret_result, struct kops_error *ret_error);

/** Tells whether kops_wait() would return at once. Never blocks, keeps the ticket. Errors: bad_argument (no such
 * ticket). */
KOPS_API enum kops_code kops_poll(kops_client *client, kops_ticket ticket, bool *ret_done,
                                  struct kops_error *ret_error);

/** Asks the daemon to drop a submitted run, or to stop its work as soon as possible. kops_wait() then returns
 * KOPS_ERR_CANCELLED once the work has ended (a running GPU kernel is not stopped), or the usual result when the
 * cancellation came too late. */
KOPS_API enum kops_code kops_cancel(kops_client *client, kops_ticket ticket, struct kops_error *ret_error);

#ifdef __cplusplus
}
#endif

/* The other parts. */
#include <kops/admin.h>
#include <kops/cache.h>
#include <kops/counters.h>
#include <kops/info.h>
#include <kops/kernel.h>
#include <kops/ops.h>
#include <kops/ordered.h>
#include <kops/program.h>
#include <kops/stats.h>
#include <kops/trace.h>
#include <kops/tune.h>
#endif
