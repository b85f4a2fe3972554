/* Every kernel as architectures from sm_80 on compile it. */
#include "emulator.hpp"

#define __CUDA_ARCH__ 800
#include "ops/add.cu"
#include "ops/add_square.cu"
#include "ops/copy.cu"
#include "ops/gelu.cu"
#include "ops/gemm_bf16.cu"
#include "ops/gemm_f16.cu"
#include "ops/gemm_f32.cu"
#include "ops/gemm_f64.cu"
#include "ops/gemm_f8.cu"
#include "ops/move.cu"
#include "ops/repack.cu"
#include "ops/gemm_short.cu"
#include "ops/linear_short.cu"
#include "ops/square.cu"
#include "ops/stamp.cu"
#include "ops/sub_square.cu"

#include "ops/kernel_list.h"

const emulated_kernel emulated_sm80[] = {
#define X(image, symbol) emulated_entry(#symbol, symbol),
    CUDA_OPS_KERNELS(X) CUDA_OPS_KERNELS_SM80(X)
#undef X
        {nullptr, 0, nullptr, nullptr},
};
