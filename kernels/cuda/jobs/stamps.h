/* How kernels tell the time: stamps that embedded kernels write themselves, the clock that they read, gates that hold
 * work back until all of it is on the stream, and what events add to times. Thread: loop; the context is current. */
#ifndef KOPS_CUDA_STAMPS_H
#define KOPS_CUDA_STAMPS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "compute/embedded.h"
#include "flags.h"
#include "times/records.h"

/* ---- the GPU's clock beside CLOCK_MONOTONIC ----
 *
 * What the host saw before and after something on the GPU bounds how far the two are apart: by the time that a launch
 * takes on one side, and that until an end is seen on the other. Earlier bounds count too, less what the clocks may
 * have drifted since. */

struct cuda_clock {
    int64_t least, most;        /* of host time less GPU time, ns */
    uint64_t least_ns, most_ns; /* when the host learned it; 0: not yet */
};

/* Work was given to the GPU after `before_ns`, and there began at `begin`, ended at `end`; the host saw that end at
 * `seen_ns`. */
void cuda_clock_learn(struct cuda_clock *c, uint64_t before_ns, uint64_t begin, uint64_t end, uint64_t seen_ns);

/* The host's time of `gpu`; 0: not known yet. */
uint64_t cuda_clock_host_ns(const struct cuda_clock *c, uint64_t gpu);

/* ---- stamps ---- */

enum { STAMPS_WINDOW = 32 /* places of a stream: as many as it has executions in flight */ };

/* The places of all streams, in one page-locked allocation, and a word of kops_stamp_counts for each stream. */
struct cuda_stamps {
    atomic_ullong *host; /* three words a place; NULL: the GPU's clock is too coarse */
    CUdeviceptr on_device, counts;
};

/* Leaves `stamps` empty where kernels cannot tell their times well. */
int cuda_stamps_open(struct cuda_device *d, const struct cuda_embedded *kernels, struct cuda_stamps *stamps,
                     struct error *e);
void cuda_stamps_close(struct cuda_device *d, struct cuda_stamps *stamps);

/* Has an embedded kernel write its times into a place of the stream with that flag, number `turn` modulo STAMPS_WINDOW:
 * no launch in flight has the same. Returns the place. */
const atomic_ullong *cuda_stamps_take(const struct cuda_stamps *stamps, unsigned flag, uint64_t turn,
                                      struct cuda_launch *launch);

/* When the kernel began and ended, by the GPU's clock. False: it wrote nothing. */
bool cuda_stamps_span(const atomic_ullong *place, struct cuda_span *ret);

/* ---- gates ----
 *
 * Two events around work say what the work takes only if all three are on the stream before the GPU begins with them:
 * else the first event happens while the host still launches the work, and the launch is in the time. So a kernel of
 * one thread goes before them, a gate, which ends once the host has enqueued the rest, or soon by itself. On an H200
 * events were 2.2 us over CUPTI's records then, within 0.15 us, and 3 to 11 us without, for work of 1 us to 1 ms; the
 * gate costs a single call 6 us. */

struct cuda_gates {
    const struct cuda_stamps *stamps;
    CUfunction function; /* NULL: there are no gates */
};

/* Of one execution. */
struct cuda_gate {
    const atomic_ullong *times; /* of the kernel; NULL: there is no gate */
    atomic_ullong *go;          /* the host's word; NULL: it was given */
    uint64_t value, issued_ns;
    bool in_time; /* the host's word came before the kernel's patience can have ended */
};

void cuda_gates_init(struct cuda_gates *h, const struct cuda_stamps *stamps, const struct cuda_embedded *kernels);

/* Enqueues the kernel. `number` is that of the stream's flag; `turn` rises from one of its gates to the next, and no
 * kernel in flight has the same place for its stamps. */
int cuda_gate_close(const struct cuda_gates *h, const struct cuda_queue *queue, const struct cuda_flags *flags,
                    unsigned number, uint64_t turn, struct cuda_gate *ret, struct error *e);
/* Lets the GPU go on. Harmless where it was called before, and where there is no gate. */
void cuda_gate_open(struct cuda_gate *h);

/* When the work behind it could begin, by the GPU's clock. 0: not known. */
uint64_t cuda_gate_opened_ns(const struct cuda_gate *h);

/* ---- what events add ----
 *
 * Two events say too much of an execution between them: the front end of the GPU takes time to begin and end it. That
 * is measured on kernels on nothing that also stamp their own times, when the context opens. */

struct cuda_overhead {
    double settled_us; /* where all was on the stream before the GPU began with it */
    double first_us; /* of an execution that a stream without work gets, and that is launched meanwhile; not smaller */
    double least_us; /* what a kernel on nothing takes */
    double lead_us;  /* from a gate's opening, by its stamp, until what is behind it and an event begins */
};

/* Leaves all zero where kernels cannot tell their times, or the device did not answer: events are then believed. The
 * service stream is used, and flags that no stream has yet. */
void cuda_overhead_measure(struct cuda_device *d, const struct cuda_embedded *kernels, const struct cuda_flags *flags,
                           const struct cuda_gates *gates, struct cuda_overhead *ret_overhead);

/* What an execution took by itself, of the time between its events; NaN stays. Never less than a kernel on nothing
 * takes, nor more than the events say. */
double cuda_overhead_off(const struct cuda_overhead *o, double between_events_us, bool settled);

#endif
