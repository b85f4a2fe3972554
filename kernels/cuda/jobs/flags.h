/* Flags: words of page-locked host memory that the GPU writes and the loop reads, the cheapest way to detect the end of
 * work. Each stream has a flag, on a cache line of its own, followed by a word that the loop writes and a gate reads.
 * Thread: loop. */
#ifndef KOPS_CUDA_FLAGS_H
#define KOPS_CUDA_FLAGS_H

#include <stdatomic.h>

#include "driver/device.h"

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
/* Returns the word behind the flag. */
atomic_ullong *cuda_flag_go(const struct cuda_flags *flags, unsigned number, CUdeviceptr *ret_address);
/* NULL is allowed. */
void cuda_flag_give(struct cuda_flags *flags, atomic_ullong *flag);

#endif
