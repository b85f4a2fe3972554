/* Modules, functions and launches. Any image will do: every kernel that kernels.c knows is in each of them. */
#include <stdlib.h>
#include <string.h>

#include "standin.h"

enum { SHARED_DEFAULT = 48 << 10, SHARED_MAX = 232448, SHARED_PER_PROCESSOR = 233472, SHARED_RESERVED = 1024 };

struct function {
    struct function *next;
    CUfunction handle;
    const struct kernel *kernel;
    unsigned shared_limit;
};

struct module {
    CUmodule handle;
    struct context *context;
    struct function *functions;
};

static CUresult module_load(const char *name, CUmodule *ret_module, const void *image)
{
    struct context *context;
    CUresult r = enter_context(name, &context);
    struct module *module;

    if (r != CUDA_SUCCESS)
        return r;
    if (!image)
        return leave(CUDA_ERROR_INVALID_VALUE);
    gate_pass_call(STANDIN_GATE_module_load);
    module = calloc(1, sizeof(*module));
    if (!module)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    module->context = context;
    module->handle = handle_new(HANDLE_MODULE, module);
    count(STANDIN_COUNTER_live_modules, 1);
    *ret_module = module->handle;
    return leave(CUDA_SUCCESS);
}

API cuModuleLoadData(CUmodule *ret_module, const void *image)
{
    return module_load("cuModuleLoadData", ret_module, image);
}

API cuModuleLoadFatBinary(CUmodule *ret_module, const void *image)
{
    return module_load("cuModuleLoadFatBinary", ret_module, image);
}

API cuModuleLoadDataEx(CUmodule *ret_module, const void *image, unsigned n, CUjit_option *options, void **values)
{
    (void)n;
    (void)options;
    (void)values;
    return module_load("cuModuleLoadDataEx", ret_module, image);
}

API cuModuleUnload(CUmodule handle)
{
    struct context *context;
    CUresult r = enter_context("cuModuleUnload", &context);
    struct module *module;

    if (r != CUDA_SUCCESS)
        return r;
    module = handle_get(HANDLE_MODULE, handle);
    if (!module)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    handle_free(handle);
    streams_wait_context(context);
    while (module->functions) {
        struct function *f = module->functions;

        module->functions = f->next;
        handle_free(f->handle);
        free(f);
    }
    free(module);
    count(STANDIN_COUNTER_live_modules, -1);
    return leave(CUDA_SUCCESS);
}

API cuModuleGetFunction(CUfunction *ret_function, CUmodule handle, const char *name)
{
    struct context *context;
    CUresult r = enter_context("cuModuleGetFunction", &context);
    const struct kernel *kernel;
    struct function *function;
    struct module *module;

    if (r != CUDA_SUCCESS)
        return r;
    module = handle_get(HANDLE_MODULE, handle);
    if (!module)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    kernel = kernel_find(name);
    if (!kernel)
        return leave(CUDA_ERROR_NOT_FOUND);
    function = module->functions;
    while (function && function->kernel != kernel)
        function = function->next;
    if (!function) {
        function = calloc(1, sizeof(*function));
        if (!function)
            return leave(CUDA_ERROR_OUT_OF_MEMORY);
        function->kernel = kernel;
        function->shared_limit = SHARED_DEFAULT;
        function->handle = handle_new(HANDLE_FUNCTION, function);
        function->next = module->functions;
        module->functions = function;
    }
    *ret_function = function->handle;
    return leave(CUDA_SUCCESS);
}

static CUresult enter_function(const char *name, CUfunction handle, struct context **ret_context,
                               struct function **ret_function)
{
    CUresult r = enter_context(name, ret_context);

    if (r != CUDA_SUCCESS)
        return r;
    *ret_function = handle_get(HANDLE_FUNCTION, handle);
    return *ret_function ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_HANDLE);
}

API cuFuncGetAttribute(int *ret_value, CUfunction_attribute attribute, CUfunction handle)
{
    struct function *function;
    struct context *context;
    CUresult r = enter_function("cuFuncGetAttribute", handle, &context, &function);

    if (r != CUDA_SUCCESS)
        return r;
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *ret_value = 1024;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *ret_value = 32;
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *ret_value = 90;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *ret_value = (int)function->shared_limit;
        break;
    default:
        if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
            return leave(CUDA_ERROR_INVALID_VALUE);
        *ret_value = 0;
    }
    return leave(CUDA_SUCCESS);
}

API cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value)
{
    struct function *function;
    struct context *context;
    CUresult r = enter_function("cuFuncSetAttribute", handle, &context, &function);

    if (r != CUDA_SUCCESS)
        return r;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || value > SHARED_MAX)
            return leave(CUDA_ERROR_INVALID_VALUE);
        function->shared_limit = (unsigned)value;
    } else if (attribute != CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    return leave(CUDA_SUCCESS);
}

API cuFuncLoad(CUfunction handle)
{
    struct function *function;
    struct context *context;
    CUresult r = enter_function("cuFuncLoad", handle, &context, &function);

    return r == CUDA_SUCCESS ? leave(r) : r;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *ret_blocks, CUfunction handle, int block, size_t shared)
{
    struct function *function;
    struct context *context;
    CUresult r = enter_function("cuOccupancyMaxActiveBlocksPerMultiprocessor", handle, &context, &function);
    size_t by_shared = SHARED_PER_PROCESSOR / (shared + SHARED_RESERVED);
    int blocks;

    if (r != CUDA_SUCCESS)
        return r;
    if (block <= 0)
        return leave(CUDA_ERROR_INVALID_VALUE);
    blocks = block > 1024 || shared > function->shared_limit ? 0 : 2048 / ((block + 31) / 32 * 32);
    if (blocks > 32)
        blocks = 32;
    *ret_blocks = (size_t)blocks > by_shared ? (int)by_shared : blocks;
    return leave(CUDA_SUCCESS);
}

/* ---- launches ---- */

static bool geometry_is_valid(const unsigned grid[3], const unsigned block[3])
{
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2])
        return false;
    if (grid[0] > 2147483647U || grid[1] > 65535 || grid[2] > 65535)
        return false;
    return block[0] <= 1024 && block[1] <= 1024 && block[2] <= 64 && (uint64_t)block[0] * block[1] * block[2] <= 1024;
}

/* The one parameter's bytes, from either form that a launch may take. */
static const void *params_find(size_t size, void **pointers, void **extra)
{
    const void *data = NULL;
    size_t given = 0;

    if (pointers)
        return extra ? NULL : pointers[0];
    for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            data = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            given = *(const size_t *)extra[1];
    }
    return given == size ? data : NULL;
}

CUresult kernel_op_new(const CUDA_KERNEL_NODE_PARAMS *p, struct op **ret_op)
{
    const unsigned grid[3] = {p->gridDimX, p->gridDimY, p->gridDimZ};
    const unsigned block[3] = {p->blockDimX, p->blockDimY, p->blockDimZ};
    const struct function *function = handle_get(HANDLE_FUNCTION, p->func);
    const void *params;
    struct op *op;
    size_t size;

    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!geometry_is_valid(grid, block) || p->sharedMemBytes > function->shared_limit)
        return misuse(CUDA_ERROR_INVALID_VALUE, "grid %u×%u×%u, block %u×%u×%u, %u bytes shared (limit %u)", grid[0],
                      grid[1], grid[2], block[0], block[1], block[2], p->sharedMemBytes, function->shared_limit);
    size = kernel_params_size(function->kernel);
    params = params_find(size, p->kernelParams, p->extra);
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    op = op_new(OP_KERNEL);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->launch.kernel = function->kernel;
    op->launch.given = *p;
    op->launch.given.kernelParams = op->launch.given.extra = NULL;
    memcpy(op->launch.params, params, size);
    if (!kernel_uses(function->kernel, params, op)) {
        free(op);
        return misuse(CUDA_ERROR_INVALID_VALUE, "the kernel's parameters make no sense");
    }
    *ret_op = op;
    return CUDA_SUCCESS;
}

static CUresult launch(const char *name, CUstream handle, const CUDA_KERNEL_NODE_PARAMS *params)
{
    struct context *context;
    CUresult r = enter_context(name, &context);
    struct stream *stream;
    struct op *op;

    if (r != CUDA_SUCCESS)
        return r;
    r = stream_get(handle, context, &stream);
    if (r == CUDA_SUCCESS)
        r = kernel_op_new(params, &op);
    if (r != CUDA_SUCCESS)
        return leave(r);
    if (!stream->capture)
        count(STANDIN_COUNTER_launches, 1);
    return leave(stream_enqueue(stream, op));
}

API cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **params, void **extra)
{
    return launch("cuLaunchKernel", stream,
                  &(CUDA_KERNEL_NODE_PARAMS){function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
                                             params, extra, NULL, NULL});
}

/* Attributes say how a device goes about it: accepted as they are. */
API cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **params, void **extra)
{
    if (!c || (c->numAttrs && !c->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    return launch("cuLaunchKernel", c->hStream,
                  &(CUDA_KERNEL_NODE_PARAMS){function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
                                             c->blockDimY, c->blockDimZ, c->sharedMemBytes, params, extra, NULL, NULL});
}
