/* The stand-in driver's own state, shared by its files.
 *
 * One mutex guards everything here. An exported function enters (which takes the mutex, counts the call and answers
 * injected faults), works, and leaves. Work on streams runs on one thread a stream, outside the mutex while it touches
 * data. Waits sleep on `progress`, which is broadcast whenever an operation ends. */
#ifndef KOPS_STANDIN_STANDIN_H
#define KOPS_STANDIN_STANDIN_H

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "control.h"
#include "profiler.h"

#define API __attribute__((visibility("default"))) CUresult CUDAAPI

enum {
    PAGE = 4096,
    GRANULARITY = 2 << 20,
    MAX_DEVICES = 16,
    MAX_SLOTS = 1 << 14, /* live cuMemAllocs of one process */
    MAX_USES = 33,
    MAX_CHANNELS = 32,
    CHANNEL_ENTRIES = 1024,
    PRIORITY_LEAST = 0,
    PRIORITY_GREATEST = -5, /* the less, the sooner */
    MAX_PARAMS = 1024
};

/* ---- control.c: the mutex, calls, misuse, the control page, handles that know when they are stale ---- */

struct context;
struct stream;
struct event;
struct region;
struct capture;
struct pool;

extern pthread_mutex_t standin_lock;
extern pthread_cond_t standin_progress;

/* Enter with the mutex held on CUDA_SUCCESS only. `name` is a literal without _v2. */
CUresult enter_uninitialised(const char *name);
CUresult enter(const char *name);
/* Needs a current, unbroken context. `ret_context` may be NULL. */
CUresult enter_context(const char *name, struct context **ret_context);
CUresult leave(CUresult result);
/* First of all in a function: what enter() and its kin refuse is its answer. */
#define ENTER(call)                                                                                                    \
    do {                                                                                                               \
        const CUresult refused = (call);                                                                               \
        if (refused != CUDA_SUCCESS)                                                                                   \
            return refused;                                                                                            \
    } while (0)

/* The profiler; NULL: none. With the mutex held. */
extern const struct standin_profiler *standin_profiler;

/* cuInit's part: remembers the process. */
void state_initialised(void);
bool state_is_initialised(void);

/* Reports a call that a correct program does not make; returns `result`. */
CUresult misuse(CUresult result, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sleeps until an operation ends somewhere; counts one blocking wait where *counted is false. */
void wait_for_progress(bool *counted);

uint64_t now_ns(void);

void control_attach(void);
void count(enum standin_counter_id id, int64_t by);
void count_call(const char *function);
/* The error that a switch asks for this call, or CUDA_SUCCESS. */
CUresult control_fault(const char *function, bool *ret_sticky);
/* Whether streams share channels, and how much one holds. */
bool control_channels(uint32_t *ret_entries);
uint64_t control_memory_limit(void);
/* Waits until the gate lets one pass, or until *give_up is true. Called without the mutex. */
void gate_pass(enum standin_gate_id gate, const _Atomic bool *give_up);
/* The same from inside a call: gives the mutex up meanwhile. */
void gate_pass_call(enum standin_gate_id gate);

enum handle_kind {
    HANDLE_CONTEXT = 1,
    HANDLE_STREAM,
    HANDLE_EVENT,
    HANDLE_MODULE,
    HANDLE_FUNCTION,
    HANDLE_VMM,
    HANDLE_GRAPH,
    HANDLE_NODE,
    HANDLE_EXEC,
    HANDLE_POOL
};

void *handle_new(enum handle_kind kind, void *object);
/* NULL, and a misuse report, when it is no live handle of that kind. */
void *handle_get(enum handle_kind kind, const void *handle);
void handle_free(const void *handle);

/* ---- device.c ---- */

struct device {
    CUuuid uuid;
    struct context *primary;
    unsigned retained;
    uint64_t used;
    struct pool *default_pool; /* of cuMemAllocAsync; NULL: not made yet */
};

extern struct device standin_devices[MAX_DEVICES];
extern int standin_device_count;

bool device_is_valid(CUdevice device);
CUresult enter_device(const char *name, CUdevice device);
int device_attribute(CUdevice device, CUdevice_attribute attribute);
/* Ordinal here of a device by its UUID, or -1. */
int device_by_uuid(const CUuuid *uuid);
CUresult device_charge(int device, uint64_t bytes);
void device_refund(int device, uint64_t bytes);

struct channel {
    uint64_t places;        /* given out so far */
    unsigned queued, waits; /* operations in it, and those of them that wait for something */
};

struct context {
    CUcontext handle;
    int device;
    _Atomic bool broken;
    CUresult error; /* what broke it */
    struct stream *default_stream;
    struct channel channels[MAX_CHANNELS];
    unsigned streams_made;
};

CUresult context_current(struct context **ret_context);
struct context *context_any(int device); /* the device's primary context, or NULL */
void context_break(struct context *context, CUresult error);

/* ---- segment.c: device memory as shared memory ---- */

/* Behind the data, in a page of its own: tells what the segment is to whoever opens it. */
struct segment_tail {
    char magic[16];
    unsigned char token[16]; /* of the process that made it */
    uint32_t slot;           /* of a cuMemAlloc */
    uint32_t vmm;            /* 1: made by cuMemCreate */
    uint32_t handle_types;
    uint32_t reserved;
    CUuuid device;
    uint64_t buffer_id;
    uint64_t size;
    uint64_t data_bytes;
};

const unsigned char *process_token(void);
uint64_t buffer_id_next(void);
size_t round_up(size_t size, size_t unit);
enum segment_kind {
    SEGMENT_PASSED, /* as a descriptor, if at all */
    SEGMENT_POOLED, /* the same, of a pool */
    SEGMENT_NAMED,  /* by bytes: of tail->slot */
};

/* A descriptor, or -1. */
int segment_new(struct segment_tail *tail, size_t size, enum segment_kind kind);
bool segment_read_tail(int fd, struct segment_tail *ret_tail);
/* The named memory of this process's slot has no name from now on. */
void segment_forget(uint32_t slot);
/* What the process with that token has in that slot now: a descriptor, or -1 where it has freed it or has ended.
 * `buffer_id`: that memory only; 0: whichever. */
int segment_open(const unsigned char *token, uint32_t slot, uint64_t buffer_id, struct segment_tail *ret_tail);
/* Reserves aligned, inaccessible address space with an inaccessible granule behind it. 0 on failure. */
uint64_t address_reserve(size_t size);
bool segment_map(uint64_t address, int fd, size_t size, int protection);
void address_clear(uint64_t address, size_t size);
void address_free(uint64_t address, size_t size);

/* ---- memory.c: every range that the device may touch ---- */

enum region_kind {
    REGION_ALLOCATION,
    REGION_ASYNC,  /* of a pool */
    REGION_POOLED, /* of another process's pool */
    REGION_IPC,
    REGION_VMM,
    REGION_HOST
};

struct region {
    struct region *next;
    enum region_kind kind;
    uint64_t address, size;
    bool readable, writable;   /* not of VMM and pools */
    uint32_t readers, writers; /* VMM: a bit a device */
    bool freeing;              /* ASYNC: a free is queued */
    struct context *context;
    int device;
    uint64_t buffer_id;
    unsigned slot;            /* ALLOCATION, ASYNC */
    bool pinned;              /* HOST: cuMemHostAlloc's own memory */
    unsigned host_flags;      /* HOST */
    unsigned opens;           /* IPC */
    unsigned char handle[64]; /* IPC */
    struct vmm_handle *vmm;   /* VMM */
    struct pool *pool;        /* ASYNC, POOLED */
};

extern struct region *standin_regions;

struct region *region_find(uint64_t address);
struct region *region_find_range(uint64_t address, uint64_t size);
void region_add(struct region *region);
void region_remove(struct region *region); /* from the list; the struct stays the caller's */
/* Memory of a pool, or cuMemAlloc's own where that is NULL. */
CUresult allocation_new(struct context *context, struct pool *pool, size_t size, CUdeviceptr *ret_address);
/* The live region that starts at `address` and that cuMemFree and its kin may free, or NULL after a report. */
struct region *region_freeable(uint64_t address);
/* Ends a cuMemAlloc, a cuMemAllocAsync or an imported pointer. */
void allocation_end(struct region *region);

/* Slots keep their address and their place in the export table, so that handle bytes repeat. */
struct slot {
    bool live, named;
    int fd;
    uint64_t address;
    size_t mapped;
    uint64_t freed_order;
    int device;
};

extern struct slot standin_slots[MAX_SLOTS];

/* ---- vmm.c ---- */

unsigned vmm_handle_types(const struct vmm_handle *vmm);

/* Whether work of the context may touch the region; with `copies` as copy engines do. */
bool region_allows(const struct region *region, const struct context *context, bool write, bool copies);
bool devices_are_peers(int device, int other);

/* ---- stream.c ---- */

enum op_kind { OP_KERNEL, OP_COPY, OP_FILL, OP_RECORD, OP_AFTER, OP_FREE, OP_WRITE_VALUE, OP_WAIT_VALUE, OP_HOST };

struct use {
    uint64_t address, size;
    bool write;
};

struct op {
    struct op *next;
    enum op_kind kind;
    uint64_t number;
    uint64_t place; /* in the stream's channel, or 0 */
    uint32_t call;  /* of a kernel: the profiler's number of its launch; 0: it wants no record */
    enum standin_launch what;
    bool last; /* kernel of the launch */
    unsigned n_uses;
    struct use uses[MAX_USES];
    union {
        struct {
            const struct kernel *kernel;    /* ours, or NULL */
            const struct user_kernel *user; /* a user's, or NULL */
            unsigned char params[MAX_PARAMS];
            CUDA_KERNEL_NODE_PARAMS given; /* but for its pointers */
            void *pointers[1];
        } launch;
        struct {
            void *to;
            const void *from;
            size_t size;
        } copy;
        struct {
            void *to;
            size_t count;
            unsigned width;
            uint32_t value;
        } fill;
        struct {
            struct event *event;
            uint64_t generation;
        } mark;
        struct {
            struct stream *stream;
            uint64_t number;
        } after;
        struct {
            uint64_t address, value;
        } word;
        struct {
            CUhostFn function;
            void *data;
        } host;
        struct region *region;
    };
};

struct stream {
    struct stream *next;
    CUstream handle;
    uint64_t id; /* unlike handles never used again */
    struct context *context;
    unsigned flags;
    int priority;
    unsigned channel;
    unsigned references; /* handle, thread, barriers */
    bool destroyed, has_thread;
    struct op *head, **tail; /* the head stays in the list while it runs */
    uint64_t enqueued, completed;
    uint64_t last_time;
    pthread_cond_t work;
    struct capture *capture; /* NULL: it works */
};

CUresult stream_get(CUstream handle, struct context *context, struct stream **ret_stream);
CUresult enter_stream(const char *name, CUstream handle, struct stream **ret_stream); /* of the current context */
/* What is queued goes on to its end, then the thread and the struct go. */
void stream_end(struct stream *stream);
struct op *op_new(enum op_kind kind);
void op_use(struct op *op, uint64_t address, uint64_t size, bool write);
/* Takes the op. */
CUresult stream_enqueue(struct stream *stream, struct op *op);
CUresult stream_wait(struct stream *stream, uint64_t number);
CUresult streams_wait_context(struct context *context);
/* Reports misuse when queued work uses the range, then waits for that work; waits for all of the context where frees do
 * so. Needs no current context. */
void range_retire(struct context *context, uint64_t address, uint64_t size);
void stream_unref(struct stream *stream);
/* What is queued on `stream` from now on waits for what is queued on `other` now. */
void stream_order_after(struct stream *stream, struct stream *other);

/* Enters with any context's stream, or with none current; the default stream is the current context's. */
CUresult enter_stream_any(const char *name, CUstream handle, struct stream **ret_stream);

/* A device works on the pages that were pinned, also when a process that ends has unmapped them: no signal comes. */
void bytes_copy(unsigned char *to, const unsigned char *from, size_t size);

/* ---- work.c ---- */

struct event {
    CUevent handle;
    struct context *context;
    unsigned flags;
    unsigned references;
    uint64_t recorded, done; /* generations */
    uint64_t time;
    bool captured; /* its last record was in a capture */
};

void event_unref(struct event *event);

/* ---- graphs.c ---- */

/* Whether a capture forbids the call; used by enter_context(). */
CUresult capture_check_call(const char *name, const struct context *context);
/* Whether the stream may be waited for or asked. */
CUresult capture_check_wait(struct stream *stream);
/* Records the op where the stream is being captured. With *ret_taken it has been dealt with. */
CUresult capture_enqueue(struct stream *stream, struct op *op, bool *ret_taken);
/* An operation that no graph of this driver can have. */
CUresult capture_refuse(struct stream *stream);
CUresult capture_record_event(struct stream *stream, struct event *event);
void capture_stream_destroyed(struct stream *stream);

/* ---- kernels.c ---- */

struct kernel;
const struct kernel *kernel_find(const char *symbol); /* NULL: no such kernel; it lives as long as the process */
size_t kernel_params_size(const struct kernel *kernel);
/* What it will touch; false when the parameters make no sense (a real kernel would fault). */
bool kernel_uses(const struct kernel *kernel, const void *params, struct op *op);
/* Whether it only waits for the host. */
bool kernel_is_gate(const struct kernel *kernel);
const char *kernel_symbol(const struct kernel *kernel); /* stays */
/* Whether it only tells the time. */
bool kernel_is_idle(const struct kernel *kernel, const void *params);
void kernel_run(const struct kernel *kernel, const void *params);

/* ---- user_kernels.c: kernels of users that this driver can compute, by name; what the code says is not looked at ----
 */

struct compiled_entry;
struct user_kernel;
/* By the name in an image, plain or mangled, where the parameters are as large as they must be; or NULL. It lives as
 * long as the process. */
const struct user_kernel *user_kernel_find(const struct compiled_entry *kernel);
const char *user_kernel_name(const struct user_kernel *kernel);
/* What a launch will touch. */
void user_kernel_uses(const struct user_kernel *kernel, const CUDA_KERNEL_NODE_PARAMS *geometry, const void *params,
                      struct op *op);
/* CUDA_SUCCESS, or the fault that it ends with. Returns early, whatever it does, once the context is broken. */
CUresult user_kernel_run(const struct user_kernel *kernel, const CUDA_KERNEL_NODE_PARAMS *geometry, const void *params,
                         const struct context *context);

/* ---- maps.c: tensor maps, which cuTensorMapEncodeTiled() writes as it was given them, and kernels read ---- */

struct cuda_ops_gemm;
struct cuda_ops_gemm_mapped;
/* The product that a kernel of that symbol computes by its maps; false where they are none, or of another shape than
 * the rest of the parameters says. */
bool maps_read(const struct cuda_ops_gemm_mapped *p, const char *symbol, struct cuda_ops_gemm *ret);

struct cuda_ops_repack;

void repack_run(unsigned size, unsigned pieces, const struct cuda_ops_repack *p);

enum { MAPS_RANK = 5 };

/* The tensor that a map of a user's kernel describes; dimensions from the innermost, those that it has not are 0. */
struct maps_tensor {
    uint64_t address, count, bytes; /* elements; from the first byte to the last */
    unsigned size;                  /* of an element */
    uint64_t extents[MAPS_RANK], strides[MAPS_RANK];
};

/* False: these 128 bytes are no map. */
bool maps_find(const void *map, struct maps_tensor *ret);

/* Where the next map from `at` on lies among parameters; 0: there is none. */
size_t maps_next(const unsigned char *params, size_t at, size_t size);

/* The address of the i-th element, in row-major order. */
uint64_t maps_element(const struct maps_tensor *t, uint64_t i);

#endif
