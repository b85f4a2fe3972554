/* Stamps: the times that embedded kernels write themselves. Each stream has places for as many executions as it has in
 * flight, on one page-locked allocation, and a word of kops_stamp_counts. Thread:
 * loop; the context is current. */
#ifndef KOPS_CUDA_STAMPS_H
#define KOPS_CUDA_STAMPS_H

#include <stdatomic.h>

#include "compute/kernels.h"
#include "flags.h"
#include "times/records.h"

enum { STAMPS_WINDOW = 32 /* places of a stream */ };

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

/* The kernel's own time in microseconds, once it has ended; NaN: it wrote none. */
double cuda_stamps_us(const atomic_ullong *place);
/* When its last block read the GPU's clock, which is before the kernel's end; 0: it wrote nothing. */
uint64_t cuda_stamps_end_ns(const atomic_ullong *place);
/* When it began and ended, by the GPU's clock. False: it wrote nothing. */
bool cuda_stamps_span(const atomic_ullong *place, struct cuda_span *ret);

#endif
