/* Figures of the hardware's counters for one kernel: filled by a backend for a job that asks for them, judged and
 * written into the reply by the server. Plain values, which cross from an executor to the daemon unchanged. */
#ifndef KOPS_CORE_COUNTERS_H
#define KOPS_CORE_COUNTERS_H

#include <stdbool.h>
#include <stdint.h>

/* Keys in the reply, by which users know the figures. */
#define COUNTERS(X)                                                                                                    \
    X(DURATION, duration_us)                                                                                           \
    X(CYCLES, sm_cycles)                                                                                               \
    X(SM, sm_pct)         /* the busiest pipeline of the multiprocessors, of its peak */                               \
    X(MEMORY, memory_pct) /* the busiest part of the way to memory, of its peak */                                     \
    X(DRAM, dram_pct)                                                                                                  \
    X(L2, l2_pct)                                                                                                      \
    X(L1, l1_pct)                                                                                                      \
    X(L2_HIT, l2_hit_pct)                                                                                              \
    X(L1_HIT, l1_hit_pct)                                                                                              \
    X(DRAM_READ, dram_read_bytes)                                                                                      \
    X(DRAM_WRITE, dram_write_bytes)                                                                                    \
    X(TENSOR, tensor_pct) /* cycles in which the tensor cores work */                                                  \
    X(ISSUE, issue_pct)   /* cycles in which an instruction is issued */                                               \
    X(OCCUPANCY, occupancy_pct)                                                                                        \
    X(INSTRUCTIONS, instructions)                                                                                      \
    X(BANK_CONFLICTS, bank_conflicts)                                                                                  \
    X(SHARED_WAVEFRONTS, shared_wavefronts)

/* Reasons for which warps wait: key in the reply, and a description of the thing that is waited for. */
#define COUNTER_STALLS(X)                                                                                              \
    X(BARRIER, barrier, "the other warps of the block, at a barrier")                                                  \
    X(BRANCH_RESOLVING, branch_resolving, "the target of a branch")                                                    \
    X(DISPATCH_STALL, dispatch_stall, "the dispatcher")                                                                \
    X(DRAIN, drain, "stores to leave, at the end of the kernel")                                                       \
    X(GMMA, gmma, "matrix instructions of a warp group")                                                               \
    X(IMC_MISS, imc_miss, "constants that are not in the cache")                                                       \
    X(LG_THROTTLE, lg_throttle, "room in the queue for global and local memory")                                       \
    X(LONG_SCOREBOARD, long_scoreboard, "data of global or local memory")                                              \
    X(MATH_PIPE_THROTTLE, math_pipe_throttle, "a busy arithmetic pipeline")                                            \
    X(MEMBAR, membar, "a memory fence")                                                                                \
    X(MIO_THROTTLE, mio_throttle, "room in the queue for shared memory and special functions")                         \
    X(MISC, misc, "something else")                                                                                    \
    X(NO_INSTRUCTION, no_instruction, "instructions to be fetched")                                                    \
    X(NOT_SELECTED, not_selected, "nothing: another warp was chosen")                                                  \
    X(SELECTED, selected, "nothing: it was chosen")                                                                    \
    X(SHORT_SCOREBOARD, short_scoreboard, "data of shared memory or a special function")                               \
    X(SLEEPING, sleeping, "the end of its sleep")                                                                      \
    X(TEX_THROTTLE, tex_throttle, "room in the queue for textures")                                                    \
    X(WAIT, wait, "a fixed number of cycles between dependent instructions")

enum counter {
#define X(NAME, key) COUNTER_##NAME,
    COUNTERS(X)
#undef X
        COUNTER_COUNT
};

enum counter_stall {
#define X(NAME, key, what) STALL_##NAME,
    COUNTER_STALLS(X)
#undef X
        STALL_COUNT
};

/* Resource that keeps more warps from a multiprocessor. */
enum counter_limiter { LIMITED_BY_WARPS, LIMITED_BY_BLOCKS, LIMITED_BY_REGISTERS, LIMITED_BY_SHARED, LIMITED_COUNT };

/* Launch geometry of a kernel, and the resources that it takes. */
struct counter_launch {
    uint32_t grid[3], block[3];
    uint32_t registers, static_shared, dynamic_shared;
    uint32_t local_bytes; /* local memory of a thread: spilled registers, and arrays */
    uint32_t limiter;     /* enum counter_limiter */
    double occupancy_pct; /* occupancy that the launch allows; NAN: not known */
};

enum {
    COUNTER_NAME_BYTES = 160,
    COUNTER_RANGES_MAX = 16 /* kernels that one execution may launch */
};

struct backend_counters {
    /* Set by the server. */
    bool warm; /* keep the execution before's data in the caches; otherwise flush them */

    /* Set by the backend. */
    char kernel[COUNTER_NAME_BYTES]; /* name of the longest launched kernel; "": not known */
    uint32_t kernels, passes;
    uint32_t multiprocessors;
    /* Processes with a context on the device now; in the server only processes that are not the daemon's. */
    uint32_t others;
    bool knows_others; /* `others` is known */
    bool has_launch;   /* `launch` is known */
    uint64_t copied_bytes;
    struct counter_launch launch;
    double values[COUNTER_COUNT]; /* NAN: the device does not count it */
    double stalls[STALL_COUNT];   /* warps that wait for this reason in the mean, for each instruction issued */
};

enum counter_verdict { BOUND_BY_MEMORY, BOUND_BY_COMPUTE, BOUND_BY_LATENCY };
enum { COUNTER_WHY_BYTES = 320 };

/* Return the names in replies. `counter` < COUNTER_COUNT, and so on. */
const char *counter_name(unsigned counter);
const char *counter_stall_name(unsigned stall);
const char *counter_limiter_name(unsigned limiter);
const char *counter_verdict_name(enum counter_verdict verdict);

/* Sets everything to unknown. `warm` stays. */
void counters_clear(struct backend_counters *c);

/* Sanitises values from another process: names end and are printable, numbers are finite and ≥ 0, or NAN. */
void counters_accept(struct backend_counters *c);

/* A stall's share of the time of all warps, in percent; NAN: not known. */
double counters_stall_pct(const struct backend_counters *c, unsigned stall);

/* Returns the bound of the kernel, and in *ret_why the reason, a sentence. */
enum counter_verdict counters_judge(const struct backend_counters *c, char ret_why[COUNTER_WHY_BYTES]);

#endif
