/* The backend's table of functions: what the server sees. */
#include "backend/backend.h"

#include "abandon.h"
#include "code.h"
#include "device.h"
#include "graph.h"
#include "job.h"
#include "memory.h"
#include "peer.h"
#include "pin.h"
#include "stream.h"
#include "variants.h"
#include "waiter.h"

const struct backend cuda_backend = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .execution_key = "gpu_us",
    .spin = true,
    .open = cuda_open,
    .close = cuda_close,
    .variants = cuda_variants,
    .memory_import = cuda_memory_import,
    .memory_alloc = cuda_memory_alloc,
    .memory_close = cuda_memory_close,
    .memory_detach = cuda_memory_detach,
    .memory_attach = cuda_memory_attach,
    .stream_new = cuda_stream_new,
    .stream_free = cuda_stream_free,
    .check = cuda_check_step,
    .needs_prepare = cuda_needs_prepare,
    .prepare = cuda_prepare,
    .submit = cuda_submit,
    .program_free = cuda_program_free,
    .poll = cuda_poll,
    .arm = cuda_arm,
    .memory_kinds = cuda_memory_kinds,
    .memory_extend = cuda_memory_extend,
    .can_access = cuda_can_access,
    .code_load = cuda_code_load,
    .code_unload = cuda_code_unload,
    .code_function = cuda_code_function,
    .kernel_limits = cuda_kernel_limits,
    .abandon = cuda_abandon,
    .memory_free = cuda_memory_free,
};
