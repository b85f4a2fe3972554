/* Launches the kernel that is a gate, and ends it. */
#include "gate.h"

#include "util/clock.h"

enum { MOST_NS = 100 * 1000 /* that a gate stays closed: many times what it takes to enqueue a launch */ };

void cuda_gates_init(struct cuda_gates *h, const struct cuda_stamps *stamps, const struct cuda_embedded *kernels)
{
    *h = (struct cuda_gates){.stamps = stamps,
                             .function = stamps->host ? cuda_embedded_find(kernels, "kops_gate") : NULL};
}

int cuda_gate_close(const struct cuda_gates *h, const struct cuda_queue *queue, const struct cuda_flags *flags,
                    unsigned number, uint64_t turn, struct cuda_gate *ret, struct error *e)
{
    struct cuda_launch launch;
    CUdeviceptr address;

    *ret = (struct cuda_gate){.value = turn + 1, .issued_ns = clock_now_ns()};
    ret->go = cuda_flag_go(flags, number, &address);
    cuda_ops_gate(&launch, address, ret->value, MOST_NS);
    ret->times = cuda_stamps_take(h->stamps, number, turn, &launch);
    if (cuda_embedded_launch(queue, h->function, &launch, e) == 0)
        return 0;
    ret->times = NULL;
    ret->go = NULL;
    return -1;
}

void cuda_gate_open(struct cuda_gate *h)
{
    if (!h->go)
        return;
    atomic_store_explicit(h->go, h->value, memory_order_release);
    h->go = NULL;
    h->in_time = clock_now_ns() - h->issued_ns < MOST_NS;
}

uint64_t cuda_gate_opened_ns(const struct cuda_gate *h)
{
    return h->times && h->in_time ? cuda_stamps_end_ns(h->times) : 0;
}
