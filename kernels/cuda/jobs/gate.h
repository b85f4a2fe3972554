/* Gates of streams. Two events around work say what the work takes only if all three are on the stream before the GPU
 * begins with them: else the first event happens while the host still launches the work, and the launch is in the time.
 * So a kernel of one thread goes before them, a gate, which ends once the host has enqueued the rest, or soon by
 * itself. On an H200 events were 2.2 us over CUPTI's records then, within 0.15 us, and 3 to 11 us without, for work of
 * 1 us to 1 ms; the gate costs a single call 6 us. Thread: loop; the context is current. */
#ifndef KOPS_CUDA_GATE_H
#define KOPS_CUDA_GATE_H

#include "flags.h"
#include "stamps.h"

/* The kernel, and where it finds what it needs. */
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
/* Lets the GPU go on. Harmless where it was called before, and where there is none. */
void cuda_gate_open(struct cuda_gate *h);

/* When the work behind it could begin, by the GPU's clock. 0: not known. */
uint64_t cuda_gate_opened_ns(const struct cuda_gate *h);

#endif
