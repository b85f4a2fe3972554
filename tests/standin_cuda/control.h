/* The page through which a test watches and drives the stand-in driver in another process.
 *
 * The test makes the file (control.py, or by hand: an empty file will do) and names it in KOPS_STANDIN_CONTROL of
 * the processes that it starts. Every process that calls cuInit() takes a row for its counters; switches apply to all
 * of them. Rows outlive their process, so that what a process left behind can be read after it. Once all are taken, a
 * new process gets the oldest of those whose process has ended; those that tell of misuse go last.
 *
 * All members are accessed atomically. control.py mirrors these structs and reads the X lists from this file. */
#ifndef KOPS_STANDIN_CONTROL_H
#define KOPS_STANDIN_CONTROL_H

#include <stdatomic.h>
#include <stdint.h>

#define STANDIN_MAGIC 0x4b53494eU

enum {
    STANDIN_VERSION = 1,
    STANDIN_ROWS = 64,
    STANDIN_FAULTS = 16,
    STANDIN_CALLS = 256,
    STANDIN_NAME = 56,
    STANDIN_TEXT = 200,
    STANDIN_CRASH = -1 /* in place of an error: the process ends there, by a signal */
};

/* Where work can be held. Kernels and copies wait in their stream's turn; the others wait inside the call. */
#define STANDIN_GATES(X)                                                                                               \
    X(kernel)        /* before a kernel runs */                                                                        \
    X(copy)          /* before a copy or memset on a stream runs */                                                    \
    X(init)          /* in cuInit */                                                                                   \
    X(context)       /* in cuDevicePrimaryCtxRetain */                                                                 \
    X(ipc_open)      /* in cuIpcOpenMemHandle, when it truly maps */                                                   \
    X(vmm_map)       /* in cuMemMap */                                                                                 \
    X(module_load)   /* in cuModuleLoadData and its kin */                                                             \
    X(memory_info)   /* in cuMemGetInfo */                                                                             \
    X(stream_create) /* in cuStreamCreate and its kin */

/* Counters of one process. The first ones go down again when the thing ends. */
#define STANDIN_COUNTERS(X)                                                                                            \
    X(live_contexts)                                                                                                   \
    X(live_streams)                                                                                                    \
    X(live_events)                                                                                                     \
    X(live_modules)                                                                                                    \
    X(live_allocations) /* cuMemAlloc and cuMemAllocAsync */                                                           \
    X(live_allocation_bytes)                                                                                           \
    X(live_pinned)       /* cuMemHostAlloc and cuMemAllocHost */                                                       \
    X(live_ipc_mappings) /* distinct ones, however often each was opened */                                            \
    X(live_vmm_handles)                                                                                                \
    X(live_vmm_reservations)                                                                                           \
    X(live_vmm_maps)                                                                                                   \
    X(live_host_registrations)                                                                                         \
    X(live_pools)        /* made or imported */                                                                        \
    X(live_pool_imports) /* pointers of other processes' pools */                                                      \
    X(live_graphs)                                                                                                     \
    X(live_graph_execs)                                                                                                \
    X(live_captures)                                                                                                   \
    X(queued)           /* operations on streams that have not ended */                                                \
    X(blocked_launches) /* calls that wait now for room in a channel */                                                \
    X(contexts)                                                                                                        \
    X(streams)                                                                                                         \
    X(events)                                                                                                          \
    X(allocations)                                                                                                     \
    X(ipc_maps) /* opens that truly mapped */                                                                          \
    X(host_registrations)                                                                                              \
    X(ipc_hits) /* opens of a handle that was open already */                                                          \
    X(graph_launches)                                                                                                  \
    X(launches)                                                                                                        \
    X(cooperative_launches)                                                                                            \
    X(early_launches) /* that may begin before the kernel before them has ended */                                     \
    X(copies_d2d)                                                                                                      \
    X(copies_h2d)                                                                                                      \
    X(copies_d2h)                                                                                                      \
    X(stream_gates)                                                                                                    \
    X(kernels_run)                                                                                                     \
    X(value_writes)    /* cuStreamWriteValue, also of batches, that ran */                                             \
    X(pageable_copies) /* asynchronous copies that blocked, because the host memory was not registered */              \
    X(blocking_waits)  /* calls that had to wait for a stream, an event or the device */                               \
    X(faults)          /* switches of this page that fired */                                                          \
    X(sticky)          /* 1: a context is broken */                                                                    \
    X(misuse)          /* calls that a correct program does not make; see last_misuse */

enum standin_gate_id {
#define X(name) STANDIN_GATE_##name,
    STANDIN_GATES(X)
#undef X
        STANDIN_N_GATES
};

enum standin_counter_id {
#define X(name) STANDIN_COUNTER_##name,
    STANDIN_COUNTERS(X)
#undef X
        STANDIN_N_COUNTERS
};

/* While `closed` is not 0, what arrives waits; each ticket lets one pass. */
struct standin_gate {
    _Atomic uint32_t closed;
    _Atomic uint32_t tickets;
    _Atomic int32_t pid; /* only what this process does waits; 0: what any does */
};

/* The `countdown`-th next call of `function` (1: the next one) fails with CUresult `error`. `function` is the
 * plain name ("cuMemAlloc", no _v2), or "kernel" or "copy" for work on a stream, whose failure is always sticky, or
 * "kernel_end" or "copy_end" right behind it. With `sticky` the context is broken from then on. `times` of them fail in
 * a row. A slot is free while armed is 0. */
struct standin_fault {
    _Atomic uint32_t armed; /* written last; the stand-in clears it when the last of `times` has fired */
    _Atomic uint32_t countdown;
    _Atomic uint32_t times;
    _Atomic int32_t error;
    _Atomic uint32_t sticky;
    _Atomic int32_t pid; /* 0: whoever calls */
    char function[STANDIN_NAME];
};

struct standin_calls {
    char function[STANDIN_NAME]; /* "": the end of the list */
    _Atomic uint64_t count;
};

struct standin_row {
    _Atomic int32_t pid; /* 0: free */
    _Atomic uint32_t order;
    char command[32];
    _Atomic int64_t counters[STANDIN_N_COUNTERS];
    _Atomic uint64_t gate_waiting[STANDIN_N_GATES]; /* at the gate now */
    _Atomic uint64_t gate_passed[STANDIN_N_GATES];  /* have passed it, closed or not */
    struct standin_calls calls[STANDIN_CALLS];
    char last_misuse[STANDIN_TEXT];
};

struct standin_control {
    _Atomic uint32_t magic; /* STANDIN_MAGIC once initialised */
    _Atomic uint32_t version;
    _Atomic uint32_t row_order;       /* rows taken so far */
    _Atomic uint64_t memory_limit;    /* bytes a process may allocate on one device; 0: KOPS_STANDIN_MEMORY */
    _Atomic uint32_t channels;        /* 1: streams share channels, as many as CUDA_DEVICE_MAX_CONNECTIONS says */
    _Atomic uint32_t channel_entries; /* operations that a channel has room for; 0: 1024 */
    struct standin_gate gates[STANDIN_N_GATES];
    struct standin_fault faults[STANDIN_FAULTS];
    struct standin_row rows[STANDIN_ROWS];
};

/* Exported by the library: sizeof(struct standin_control), so that a mirror in another language can be checked. */
uint64_t standin_control_size(void);

#endif
