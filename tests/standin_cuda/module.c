/* Modules and functions. In an image of code for one architecture are the kernels that it says, of which those
 * of user_kernels.c can be launched. Any other image will do, too: every kernel that kernels.c knows is in each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cubin.h"
#include "function.h"
#include "kernels/cuda/ops/params.h"
#include "standin.h"
#include "user_kernels.h"

enum { FATBIN_MAGIC = (int)0xba55ed50, CLUSTER_PORTABLE = 8, CLUSTER_MAX = 16 };
enum { SHARED_DEFAULT = 48 << 10, SHARED_MAX = 232448 };

struct module {
    CUmodule handle;
    struct context *context;
    struct function *functions;
    bool has_cubin;
    struct cubin cubin;
};

/* Code runs on later architectures of the same generation, but for what only one of them can. */
static CUresult cubin_check(const struct cubin *c, int device)
{
    unsigned major = (unsigned)device_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    unsigned minor = (unsigned)device_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);

    if (c->arch / 10 != major || c->arch % 10 > minor || (c->accelerated && c->arch % 10 != minor)) {
        fprintf(stderr, "cuda_standin: code for sm_%u%s on sm_%u%u\n", c->arch, c->accelerated ? "a" : "", major,
                minor);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    return CUDA_SUCCESS;
}

static CUresult image_read(struct module *module, const void *image)
{
    CUresult r;

    if (!cubin_is_elf(image)) {
        uint32_t magic;

        memcpy(&magic, image, sizeof(magic));
        /* A fat binary, or PTX: `.version`. */
        return magic == (uint32_t)FATBIN_MAGIC || *(const char *)image == '.' ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
    }
    switch (cubin_read(image, &module->cubin)) {
    case CUBIN_OK:
        break;
    case CUBIN_NO_MEMORY:
        return CUDA_ERROR_OUT_OF_MEMORY;
    default:
        return CUDA_ERROR_INVALID_IMAGE;
    }
    module->has_cubin = true;
    r = cubin_check(&module->cubin, module->context->device);
    if (r != CUDA_SUCCESS)
        cubin_free(&module->cubin);
    return r;
}

/* The profiler is asked as it was before: it may begin meanwhile. */
static void load_takes_time(void)
{
    const struct standin_profiler *profiler = standin_profiler;

    if (profiler)
        profiler->loading(true);
    gate_pass_call(STANDIN_GATE_module_load);
    if (profiler)
        profiler->loading(false);
}

void standin_load_takes_time(void)
{
    pthread_mutex_lock(&standin_lock);
    load_takes_time();
    pthread_mutex_unlock(&standin_lock);
}

static CUresult module_load(const char *name, CUmodule *ret_module, const void *image)
{
    struct context *context;
    CUresult r;
    struct module *module;

    ENTER(enter_context(name, &context));
    if (!image)
        return leave(CUDA_ERROR_INVALID_VALUE);
    load_takes_time();
    module = calloc(1, sizeof(*module));
    if (!module)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    module->context = context;
    r = image_read(module, image);
    if (r != CUDA_SUCCESS) {
        free(module);
        return leave(r);
    }
    module->handle = handle_new(HANDLE_MODULE, module);
    count(STANDIN_COUNTER_live_modules, 1);
    *ret_module = module->handle;
    return leave(CUDA_SUCCESS);
}

API cuModuleLoadData(CUmodule *ret_module, const void *image)
{
    return module_load("cuModuleLoadData", ret_module, image);
}

API cuModuleUnload(CUmodule handle)
{
    struct context *context;
    struct module *module;

    ENTER(enter_context("cuModuleUnload", &context));
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
    if (module->has_cubin)
        cubin_free(&module->cubin);
    free(module);
    count(STANDIN_COUNTER_live_modules, -1);
    return leave(CUDA_SUCCESS);
}

static const struct cubin_kernel *code_named(const struct module *module, const char *name)
{
    for (unsigned i = 0; i < module->cubin.n_kernels; i++)
        if (strcmp(module->cubin.kernels[i].name, name) == 0)
            return &module->cubin.kernels[i];
    return NULL;
}

/* The variable of stamp.cu, in which nobody counts here. */
API cuModuleGetGlobal_v2(CUdeviceptr *ret_address, size_t *ret_bytes, CUmodule handle, const char *name)
{
    static _Alignas(CUDA_OPS_COUNT_BYTES) uint32_t counts[CUDA_OPS_COUNTS * CUDA_OPS_COUNT_BYTES / sizeof(uint32_t)];

    ENTER(enter_context("cuModuleGetGlobal_v2", NULL));
    if (!handle_get(HANDLE_MODULE, handle))
        return leave(CUDA_ERROR_INVALID_HANDLE);
    if (strcmp(name, "kops_stamp_counts") != 0)
        return leave(CUDA_ERROR_NOT_FOUND);
    *ret_address = (CUdeviceptr)(uintptr_t)counts;
    *ret_bytes = sizeof(counts);
    return leave(CUDA_SUCCESS);
}

API cuModuleGetFunction(CUfunction *ret_function, CUmodule handle, const char *name)
{
    const struct cubin_kernel *code = NULL;
    const struct kernel *kernel = NULL;
    struct function *function;
    struct module *module;

    ENTER(enter_context("cuModuleGetFunction", NULL));
    module = handle_get(HANDLE_MODULE, handle);
    if (!module)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    if (module->has_cubin)
        code = code_named(module, name);
    else
        kernel = kernel_find(name);
    if (!kernel && !code)
        return leave(CUDA_ERROR_NOT_FOUND);
    function = module->functions;
    while (function && (function->kernel != kernel || function->code != code))
        function = function->next;
    if (!function) {
        function = calloc(1, sizeof(*function));
        if (!function)
            return leave(CUDA_ERROR_OUT_OF_MEMORY);
        function->kernel = kernel;
        function->code = code;
        function->user = code ? user_kernel_find(code) : NULL;
        function->shared_limit = SHARED_DEFAULT;
        function->cluster_limit = CLUSTER_PORTABLE;
        function->handle = handle_new(HANDLE_FUNCTION, function);
        function->next = module->functions;
        module->functions = function;
    }
    *ret_function = function->handle;
    return leave(CUDA_SUCCESS);
}

static CUresult enter_function(const char *name, CUfunction handle, struct function **ret_function)
{
    ENTER(enter_context(name, NULL));
    *ret_function = handle_get(HANDLE_FUNCTION, handle);
    return *ret_function ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_HANDLE);
}

static unsigned static_shared(const struct function *f)
{
    return f->code ? f->code->static_shared : 0;
}

API cuFuncGetAttribute(int *ret_value, CUfunction_attribute attribute, CUfunction handle)
{
    struct function *function;

    ENTER(enter_function("cuFuncGetAttribute", handle, &function));
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *ret_value = (int)function_max_threads(function);
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *ret_value = function->code ? (int)function->code->registers : 32;
        break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *ret_value = (int)static_shared(function);
        break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *ret_value = function->code ? (int)function->code->local_bytes : 0;
        break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        *ret_value = function->code ? (int)function->code->const_bytes : 0;
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

    ENTER(enter_function("cuFuncSetAttribute", handle, &function));
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || (unsigned)value + static_shared(function) > SHARED_MAX)
            return leave(CUDA_ERROR_INVALID_VALUE);
        function->shared_limit = (unsigned)value;
    } else if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) {
        function->cluster_limit = value ? CLUSTER_MAX : CLUSTER_PORTABLE;
    } else if (attribute != CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    return leave(CUDA_SUCCESS);
}

API cuFuncLoad(CUfunction handle)
{
    struct function *function;

    ENTER(enter_function("cuFuncLoad", handle, &function));
    return leave(CUDA_SUCCESS);
}
