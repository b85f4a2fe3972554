/* Words that the GPU writes: flags at the end of work, and times of kernels: stamps that embedded kernels write, the
 * GPU's clock, gates, and the overhead of events. Thread: loop; the context is current. */
#ifndef KOPS_CUDA_STAMPS_H
#define KOPS_CUDA_STAMPS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "compute/kernels.h"
#include "driver/device.h"
#include "times/records.h"

/* ---- flags ----
 *
 * Words of page-locked host memory that the GPU writes and the loop reads, the cheapest way to detect the end of work.
 * Each stream has a flag, on a cache line of its own, followed by a word that the loop writes and a gate reads. */

enum { CUDA_FLAGS_MAX = 1024 };

struct cuda_flags {
    unsigned char *host; /* NULL: the device cannot write flags */
    CUdeviceptr on_device;
    unsigned n_free;
    uint16_t free[CUDA_FLAGS_MAX];
};

/* Whether device and driver have 64-bit stream memory operations. The device need not be active. */
bool cuda_flags_are_supported(const struct cuda_device *d);

/* Leaves `flags` empty where the device cannot write them. The context is current. */
int cuda_flags_open(struct cuda_device *d, struct cuda_flags *flags, struct error *e);
void cuda_flags_close(struct cuda_device *d, struct cuda_flags *flags);

/* Returns an unused flag, which is 0, like the word behind it; NULL: none is left. */
atomic_ullong *cuda_flag_take(struct cuda_flags *flags, CUdeviceptr *ret_address);
/* Returns a number below CUDA_FLAGS_MAX. */
unsigned cuda_flag_number(const struct cuda_flags *flags, const atomic_ullong *flag);
/* NULL is allowed. */
void cuda_flag_give(struct cuda_flags *flags, atomic_ullong *flag);

/* ---- the GPU's clock beside CLOCK_MONOTONIC ----
 *
 * The host's times before a launch and after the detected end bound the difference of the clocks from both sides.
 * Earlier bounds still count, less the drift since. */

struct cuda_clock {
    int64_t least, most;        /* bounds of host time less GPU time, ns */
    uint64_t least_ns, most_ns; /* host times when they were measured; 0: not yet */
};

/* Learns from work that was launched after `before_ns`, ran from `begin` to `end` by the GPU's clock, and whose end the
 * host saw at `seen_ns`. */
void cuda_clock_learn(struct cuda_clock *c, uint64_t before_ns, uint64_t begin, uint64_t end, uint64_t seen_ns);

/* Converts a time of the GPU to the host's; 0: not known yet. */
uint64_t cuda_clock_host_ns(const struct cuda_clock *c, uint64_t gpu);

/* ---- stamps ---- */

enum { STAMPS_WINDOW = 32 /* stamps of a stream: as many as it has executions in flight */ };

/* The stamps of all streams, in one page-locked allocation, and a word of kops_stamp_counts for each stream. */
struct cuda_stamps {
    atomic_ullong *host; /* three words for each stamp; NULL: the GPU's clock is too coarse */
    CUdeviceptr on_device, counts;
};

/* Leaves `stamps` empty where the GPU's clock is too coarse. */
int cuda_stamps_open(struct cuda_device *d, const struct cuda_embedded *kernels, struct cuda_stamps *stamps,
                     struct error *e);
void cuda_stamps_close(struct cuda_device *d, struct cuda_stamps *stamps);

/* Makes an embedded kernel write its stamp, for the stream with flag `flag`, at place `turn` modulo STAMPS_WINDOW,
 * which no other launch in flight uses. Returns the stamp's address. */
const atomic_ullong *cuda_stamps_take(const struct cuda_stamps *stamps, unsigned flag, uint64_t turn,
                                      struct cuda_launch *launch);

/* Reads the stamp: begin and end by the GPU's clock. False: the kernel wrote nothing. */
bool cuda_stamps_span(const atomic_ullong *place, struct cuda_span *ret);

/* ---- gates ----
 *
 * Events around work measure its time only if all are on the stream before the GPU begins: otherwise the first event
 * happens while the host still launches, and the time includes the launch. So a gate comes before them: a kernel of one
 * thread that ends when the host has enqueued the rest, or soon by itself. For work of 1 us to 1 ms on an H200, events
 * with a gate were 2.2 us over CUPTI's records, within 0.15 us, and 3 to 11 us without. A gate costs a call 6 us. */

struct cuda_gates {
    const struct cuda_stamps *stamps;
    CUfunction function; /* NULL: there are no gates */
};

/* The gate before an execution. */
struct cuda_gate {
    const atomic_ullong *times; /* stamp of the gate's kernel; NULL: there is no gate */
    atomic_ullong *go;          /* the word to write; NULL: the gate was opened */
    uint64_t value, issued_ns;
    bool in_time; /* the gate was opened before it could open by itself */
};

void cuda_gates_init(struct cuda_gates *h, const struct cuda_stamps *stamps, const struct cuda_embedded *kernels);

/* Enqueues the gate. `number`: the stream's flag. `turn` rises from gate to gate of a stream, and gives the stamp its
 * place, as for cuda_stamps_take(). */
int cuda_gate_close(const struct cuda_gates *h, const struct cuda_queue *queue, const struct cuda_flags *flags,
                    unsigned number, uint64_t turn, struct cuda_gate *ret, struct error *e);
/* Opens the gate. Harmless on an open gate and without one. */
void cuda_gate_open(struct cuda_gate *h);

/* Returns when the gate opened, by the GPU's clock. 0: not known. */
uint64_t cuda_gate_opened_ns(const struct cuda_gate *h);

/* ---- overhead of events ----
 *
 * The time between two events is longer than the execution between them, since the GPU's front end takes time to begin
 * and end it. The difference is measured when the context opens, with empty kernels that write stamps. */

struct cuda_overhead {
    double settled_us; /* overhead if work and events were on the stream before the GPU began with them */
    double first_us;   /* overhead if an idle stream gets the execution while it is launched; at least settled_us */
    double least_us;   /* time of an empty kernel */
    double lead_us;    /* from a gate's opening, by its stamp, until the kernel behind it and an event begins */
};

/* Measures on the service stream, with flags that no stream has yet. All is zero, so that events are not corrected,
 * where there are no stamps or the device did not answer. */
void cuda_overhead_measure(struct cuda_device *d, const struct cuda_embedded *kernels, const struct cuda_flags *flags,
                           const struct cuda_gates *gates, struct cuda_overhead *ret_overhead);

/* Subtracts the overhead from the time between events. The result is at least an empty kernel's time, and at most the
 * time between events; NaN stays NaN. */
double cuda_overhead_off(const struct cuda_overhead *o, double between_events_us, bool settled);

#endif
