/* What a compiled image tells of its kernels: an ELF file of a GPU's machine code, as nvcc -cubin and NVRTC write it.
 */
#ifndef KOPS_STANDIN_CUBIN_H
#define KOPS_STANDIN_CUBIN_H

#include <stdbool.h>
#include <stdint.h>

enum { CUBIN_MAX_PARAMS = 64, CUBIN_MAX_KERNELS = 256 };

struct cubin_kernel {
    char *name;
    unsigned registers, static_shared, local_bytes, const_bytes, max_threads; /* 0 threads: no bound given */
    unsigned n_params, param_bytes;
    uint16_t offsets[CUBIN_MAX_PARAMS], sizes[CUBIN_MAX_PARAMS];
};

struct cubin {
    unsigned arch;    /* 90: sm_90 */
    bool accelerated; /* for this very architecture only: sm_90a */
    unsigned n_kernels;
    struct cubin_kernel *kernels;
};

enum cubin_result { CUBIN_OK, CUBIN_BROKEN, CUBIN_NO_MEMORY };

/* True when the bytes there begin like an ELF file. */
bool cubin_is_elf(const void *image);
/* Reads no byte of the image that is not mapped, however broken it is. Its size is what its headers say. */
enum cubin_result cubin_read(const void *image, struct cubin *ret);
void cubin_free(struct cubin *cubin);

#endif
