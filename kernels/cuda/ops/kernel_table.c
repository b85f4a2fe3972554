/* The table of kernels and of the binaries that hold them, apart from the binaries: a client has the table alone. */
#include "launch.h"

#include "kernel_list.h"

enum binary {
#define X(name) BINARY_##name,
    CUDA_OPS_BINARIES(X)
#undef X
        BINARY_COUNT
};

const unsigned cuda_ops_binary_count = BINARY_COUNT;

const char *const cuda_ops_binary_names[] = {
#define X(name) [BINARY_##name] = #name,
    CUDA_OPS_BINARIES(X)
#undef X
};

const struct cuda_ops_kernel cuda_ops_kernels[] = {
#define X(binary, symbol) {#symbol, BINARY_##binary, CUDA_OPS_ANY},
    CUDA_OPS_KERNELS(X)
#undef X
#define X(binary, symbol) {#symbol, BINARY_##binary, CUDA_OPS_SM80},
        CUDA_OPS_KERNELS_SM80(X)
#undef X
#define X(binary, symbol) {#symbol, BINARY_##binary, CUDA_OPS_SM90},
            CUDA_OPS_KERNELS_SM90(X)
#undef X
#define X(binary, symbol) {#symbol, BINARY_##binary, CUDA_OPS_SM90A},
                CUDA_OPS_KERNELS_SM90A(X)
#undef X
                    {NULL, 0, CUDA_OPS_ANY},
};
