/* Owns the modules of users' kernels. */
#include "module.h"

#include <stdlib.h>

#include "binary.h"
#include "limits.h"
#include "times/records.h"

struct backend_code {
    CUmodule module;
};

/* ---- loading ---- */

static int refuse_arch(const struct cuda_device *d, const struct cuda_binary *about, struct error *e)
{
    error_set(e, ERROR_UNSUPPORTED, "the code is for %s and does not run on %s, which is %s: compile it for that",
              about->arch, d->base.info.name, d->base.info.arch);
    error_detail_text(e, "arch", about->arch);
    return error_detail_text(e, "device_arch", d->base.info.arch);
}

static int refuse(struct cuda_device *d, CUresult r, const struct cuda_binary *about, struct error *e)
{
    switch (r) {
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
        return refuse_arch(d, about, e);
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_INVALID_SOURCE:
    case CUDA_ERROR_INVALID_VALUE:
        error_set(e, ERROR_INVALID_ARGUMENT, "the driver cannot read the code for %s: compile it again", about->arch);
        return error_detail_text(e, "driver", cuda_result_name(r));
    case CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND:
    case CUDA_ERROR_NOT_FOUND:
        error_set(e, ERROR_INVALID_ARGUMENT, "the code uses a function that it neither has nor finds on the device");
        return error_detail_text(e, "driver", cuda_result_name(r));
    default:
        return cuda_fail(d, r, "cuModuleLoadData", e);
    }
}

int cuda_module_load(struct backend_device *base, uint64_t domain, const void *binary, size_t size,
                     struct backend_code **ret_code, struct error *e)
{
    struct cuda_device *d = cuda_device(base);
    struct backend_code *code;
    struct cuda_binary about;
    CUresult r;

    (void)domain; /* one process does the work of all */
    if (cuda_binary_read(binary, size, &about, e) < 0 || cuda_enter(d, e) < 0)
        return -1;
    code = calloc(1, sizeof(*code));
    if (!code)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a module's record");
    cuda_records_load_begin(false);
    r = cuda_on(d)->ModuleLoadData(&code->module, binary);
    cuda_records_load_end();
    if (r != CUDA_SUCCESS) {
        free(code);
        return refuse(d, r, &about, e);
    }
    *ret_code = code;
    return 0;
}

void cuda_module_unload(struct backend_device *base, struct backend_code *code)
{
    struct cuda_device *d = cuda_device(base);
    struct error ignored;

    /* On a broken context the call does nothing; behind a kernel that never ends it would not return. */
    if (cuda_enter(d, &ignored) == 0) {
        cuda_records_load_begin(true);
        cuda_on(d)->ModuleUnload(code->module);
        cuda_records_load_end();
    }
    free(code);
}

/* ---- functions ---- */

static int attribute(struct cuda_device *d, CUfunction function, CUfunction_attribute which, unsigned *ret_value,
                     struct error *e)
{
    int value;

    if (CUDA_CALL(d, e, FuncGetAttribute, &value, which, function) < 0)
        return -1;
    *ret_value = value > 0 ? (unsigned)value : 0;
    return 0;
}

static int describe(struct cuda_device *d, CUfunction function, struct backend_function *f, struct error *e)
{
    const struct {
        CUfunction_attribute which;
        unsigned *into;
    } wanted[] = {{CU_FUNC_ATTRIBUTE_NUM_REGS, &f->registers},
                  {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &f->static_shared},
                  {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &f->local_bytes},
                  {CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, &f->const_bytes},
                  {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &f->max_threads}};

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (attribute(d, function, wanted[i].which, wanted[i].into, e) < 0)
            return -1;
    return 0;
}

/* Lets launches ask for all the shared memory of the device. By itself this changes nothing. */
static int allow_all(struct cuda_device *d, const struct kernel_limits *limits, CUfunction function,
                     const struct backend_function *f, struct error *e)
{
    const unsigned most = limits->max_shared;

    if (f->static_shared > most)
        return error_set(e, ERROR_OUT_OF_RANGE, "the kernel has %u bytes of static shared memory, %s has %u a block",
                         f->static_shared, d->base.info.name, most);
    if (CUDA_CALL(d, e, FuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                  (int)(most - f->static_shared)) < 0)
        return -1;
    if (limits->max_cluster > CLUSTER_PORTABLE)
        return CUDA_CALL(d, e, FuncSetAttribute, function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    return 0;
}

/* Loads it, too, even where the environment asks for lazy loading: the first launch must not wait for the device. */
static int find(struct cuda_device *d, const struct backend_code *code, const char *lowered, CUfunction *ret,
                struct error *e)
{
    const CUresult r = cuda_on(d)->ModuleGetFunction(ret, code->module, lowered);

    if (r == CUDA_ERROR_NOT_FOUND)
        return error_set(e, ERROR_INVALID_ARGUMENT, "the code has no kernel %.128s", lowered);
    if (cuda_check(d, r, "cuModuleGetFunction", e) < 0)
        return -1;
    return CUDA_HAS(FuncLoad) ? CUDA_CALL(d, e, FuncLoad, *ret) : 0;
}

int cuda_module_function(struct cuda_device *d, const struct kernel_limits *limits, struct backend_code *code,
                         const char *lowered, struct backend_function *ret_function, struct error *e)
{
    struct backend_function f = {0};
    CUfunction function;
    int r;

    if (cuda_enter(d, e) < 0)
        return -1;
    cuda_records_load_begin(false);
    r = find(d, code, lowered, &function, e);
    cuda_records_load_end();
    if (r < 0 || describe(d, function, &f, e) < 0 || allow_all(d, limits, function, &f, e) < 0)
        return -1;
    f.id = (uint64_t)(uintptr_t)function;
    *ret_function = f;
    return 0;
}
