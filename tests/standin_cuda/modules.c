/* Modules, their functions, and launches. In an image of code for one architecture are the kernels that the daemon's
 * own reader finds, of which those of user_kernels.c can be launched. Any other image will do, too: every kernel that
 * kernels.c knows is in each. What no device takes is refused, the parameters are copied, the rest is the streams'. */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "compile/cubin.h"
#include "kernels/cuda/ops/params.h"
#include "standin.h"

enum { FATBIN_MAGIC = (int)0xba55ed50, CLUSTER_PORTABLE = 8, CLUSTER_MAX = 16 };
enum { SHARED_DEFAULT = 48 << 10, SHARED_MAX = 232448 };
enum { MAX_IMAGE = 64 << 20, MAX_KERNELS = 256, ONE_ARCH = 0x09 /* a record of .nv.compat */ };

struct function {
    struct function *next;
    CUfunction handle;
    const struct kernel *kernel;       /* ours; or, of a module with an image that was read: */
    const struct compiled_entry *code; /* what it says of the function */
    const struct user_kernel *user;    /* NULL: nobody here can compute it */
    unsigned shared_limit, cluster_limit;
};

struct module {
    CUmodule handle;
    struct context *context;
    struct function *functions;
    unsigned char *image; /* a copy; NULL: it has no code for one architecture */
    struct compiled_entry *kernels;
    unsigned n_kernels;
};

/* ---- images ---- */

/* The image's length is not known: the kernel copies, and says when there is nothing. It does so by way of a file,
 * since a sandbox has no process_vm_readv(). */
static bool copy(void *to, const void *from, size_t size)
{
    const int fd = memfd_create("standin-image", MFD_CLOEXEC);
    bool copied;

    if (fd < 0)
        return false;
    copied = pwrite(fd, from, size, 0) == (ssize_t)size && pread(fd, to, size, 0) == (ssize_t)size;
    close(fd);
    return copied;
}

/* Up to the end of the last section, and of the section table; 0: broken. */
static size_t image_size(const void *image)
{
    Elf64_Ehdr h;
    Elf64_Shdr *sections;
    size_t table, size = 0;

    if (!copy(&h, image, sizeof(h)) || h.e_shoff > MAX_IMAGE)
        return 0;
    table = (size_t)h.e_shnum * sizeof(Elf64_Shdr);
    sections = malloc(table + 1);
    if (sections && copy(sections, (const char *)image + h.e_shoff, table))
        size = h.e_shoff + table;
    for (unsigned i = 0; size && i < h.e_shnum; i++) {
        const Elf64_Shdr *s = &sections[i];

        if (s->sh_type == SHT_NOBITS || s->sh_type == SHT_NULL)
            continue;
        if (s->sh_offset > MAX_IMAGE || s->sh_size > MAX_IMAGE)
            size = 0;
        else if (s->sh_offset + s->sh_size > size)
            size = s->sh_offset + s->sh_size;
    }
    free(sections);
    return size;
}

/* Whether the code is for its very architecture only, as sm_90a. The image was opened: its sections lie within it. */
static bool is_accelerated(const struct cubin *c)
{
    const Elf64_Shdr *s = (const Elf64_Shdr *)(const void *)(c->bytes + c->sections_at), *names = &s[c->names];

    for (unsigned i = 0; i < c->n_sections; i++, s++) {
        const unsigned char *p = c->bytes + s->sh_offset, *end = p + s->sh_size;

        if (s->sh_name >= names->sh_size ||
            strcmp((const char *)c->bytes + names->sh_offset + s->sh_name, ".nv.compat"))
            continue;
        for (; end - p >= 4; p += 4 + (p[0] == 4 ? p[2] : 0)) /* sized records have their value behind them */
            if (p[1] == ONE_ARCH)
                return p[2] != 0;
    }
    return false;
}

/* Code runs on later architectures of the same generation, but for what only one of them can. */
static CUresult arch_check(const struct cubin *c, int device)
{
    unsigned major = (unsigned)device_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    unsigned minor = (unsigned)device_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    const bool one = is_accelerated(c);

    if (c->sm / 10 != major || c->sm % 10 > minor || (one && c->sm % 10 != minor)) {
        fprintf(stderr, "cuda_standin: code for sm_%u%s on sm_%u%u\n", c->sm, one ? "a" : "", major, minor);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    return CUDA_SUCCESS;
}

static void image_free(struct module *module)
{
    free(module->kernels);
    free(module->image);
}

static CUresult code_read(struct module *module, const void *image)
{
    const size_t size = image_size(image);
    struct cubin cubin;
    struct error e;
    uint32_t at = 0;
    const char *name;

    if (!size)
        return CUDA_ERROR_INVALID_IMAGE;
    module->image = malloc(size);
    module->kernels = calloc(MAX_KERNELS, sizeof(*module->kernels));
    if (!module->image || !module->kernels)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!copy(module->image, image, size) || cubin_open(&cubin, module->image, size, &e) < 0)
        return CUDA_ERROR_INVALID_IMAGE;
    while ((name = cubin_next_kernel(&cubin, &at))) {
        struct compiled_entry *kernel = &module->kernels[module->n_kernels];

        if (module->n_kernels++ == MAX_KERNELS)
            return CUDA_ERROR_INVALID_IMAGE;
        kernel->lowered = (char *)(uintptr_t)name;
        if (cubin_describe(&cubin, kernel, &e) < 0)
            return CUDA_ERROR_INVALID_IMAGE;
    }
    return arch_check(&cubin, module->context->device);
}

static CUresult image_read(struct module *module, const void *image)
{
    unsigned char begin[SELFMAG];
    uint32_t magic;

    if (!copy(begin, image, sizeof(begin)))
        return CUDA_ERROR_INVALID_IMAGE;
    if (memcmp(begin, ELFMAG, SELFMAG) == 0)
        return code_read(module, image);
    memcpy(&magic, begin, sizeof(magic));
    /* A fat binary, or PTX: `.version`. */
    return magic == (uint32_t)FATBIN_MAGIC || begin[0] == '.' ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

/* ---- modules ---- */

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
        image_free(module);
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
    image_free(module);
    free(module);
    count(STANDIN_COUNTER_live_modules, -1);
    return leave(CUDA_SUCCESS);
}

static const struct compiled_entry *code_named(const struct module *module, const char *name)
{
    for (unsigned i = 0; i < module->n_kernels; i++)
        if (strcmp(module->kernels[i].lowered, name) == 0)
            return &module->kernels[i];
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
    const struct compiled_entry *code = NULL;
    const struct kernel *kernel = NULL;
    struct function *function;
    struct module *module;

    ENTER(enter_context("cuModuleGetFunction", NULL));
    module = handle_get(HANDLE_MODULE, handle);
    if (!module)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    if (module->image)
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
    return f->code ? f->code->shared_bytes : 0;
}

/* Of a block. */
static unsigned max_threads(const struct function *f)
{
    return f->code ? f->code->max_threads : 1024;
}

API cuFuncGetAttribute(int *ret_value, CUfunction_attribute attribute, CUfunction handle)
{
    struct function *function;

    ENTER(enter_function("cuFuncGetAttribute", handle, &function));
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *ret_value = (int)max_threads(function);
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

/* ---- launches ---- */

static bool geometry_is_valid(const unsigned grid[3], const unsigned block[3])
{
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2])
        return false;
    if (grid[0] > 2147483647U || grid[1] > 65535 || grid[2] > 65535)
        return false;
    return block[0] <= 1024 && block[1] <= 1024 && block[2] <= 64 && (uint64_t)block[0] * block[1] * block[2] <= 1024;
}

/* Of the first parameter, of which ours have no other, where a launch gives pointers; all of them where it gives a
 * buffer. */
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

static CUresult own_op_fill(const struct function *function, const CUDA_KERNEL_NODE_PARAMS *p, struct op *op)
{
    size_t size = kernel_params_size(function->kernel);
    const void *params = params_find(size, p->kernelParams, p->extra);

    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    op->launch.kernel = function->kernel;
    memcpy(op->launch.params, params, size);
    if (!kernel_uses(function->kernel, params, op))
        return misuse(CUDA_ERROR_INVALID_VALUE, "the kernel's parameters make no sense");
    return CUDA_SUCCESS;
}

static CUresult user_params_copy(const struct compiled_entry *code, const CUDA_KERNEL_NODE_PARAMS *p, unsigned char *to)
{
    const uint32_t last = code->n_params - 1;
    const uint32_t bytes = code->n_params ? code->param_offsets[last] + code->param_sizes[last] : 0;
    const void *buffer;

    if (bytes > MAX_PARAMS)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (code->n_params && p->kernelParams && !p->extra) {
        for (unsigned i = 0; i < code->n_params; i++)
            memcpy(to + code->param_offsets[i], p->kernelParams[i], code->param_sizes[i]);
        return CUDA_SUCCESS;
    }
    buffer = code->n_params ? params_find(bytes, NULL, p->extra) : to;
    if (!buffer || p->kernelParams)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%s takes %u bytes of parameters", code->lowered, bytes);
    memmove(to, buffer, bytes);
    return CUDA_SUCCESS;
}

static CUresult user_op_fill(const struct function *function, const CUDA_KERNEL_NODE_PARAMS *p, struct op *op)
{
    CUresult r;

    if ((uint64_t)p->blockDimX * p->blockDimY * p->blockDimZ > max_threads(function))
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    if (!function->user) {
        fprintf(stderr, "cuda_standin: nobody has told how to compute the kernel %s\n", function->code->lowered);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    r = user_params_copy(function->code, p, op->launch.params);
    if (r != CUDA_SUCCESS)
        return r;
    op->launch.user = function->user;
    user_kernel_uses(function->user, p, op->launch.params, op);
    return CUDA_SUCCESS;
}

static CUresult kernel_op_new(const CUDA_KERNEL_NODE_PARAMS *p, struct op **ret_op)
{
    const unsigned grid[3] = {p->gridDimX, p->gridDimY, p->gridDimZ};
    const unsigned block[3] = {p->blockDimX, p->blockDimY, p->blockDimZ};
    const struct function *function = handle_get(HANDLE_FUNCTION, p->func);
    struct op *op;
    CUresult r;

    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!geometry_is_valid(grid, block) || p->sharedMemBytes > function->shared_limit)
        return misuse(CUDA_ERROR_INVALID_VALUE, "grid %u×%u×%u, block %u×%u×%u, %u bytes shared (limit %u)", grid[0],
                      grid[1], grid[2], block[0], block[1], block[2], p->sharedMemBytes, function->shared_limit);
    op = op_new(OP_KERNEL);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->launch.given = *p;
    op->launch.given.kernelParams = op->launch.given.extra = NULL;
    r = function->code ? user_op_fill(function, p, op) : own_op_fill(function, p, op);
    if (r != CUDA_SUCCESS) {
        free(op);
        return r;
    }
    *ret_op = op;
    return CUDA_SUCCESS;
}

static CUresult launch(const char *name, CUstream handle, const CUDA_KERNEL_NODE_PARAMS *params)
{
    struct stream *stream;
    CUresult r;
    struct op *op = NULL;

    ENTER(enter_stream(name, handle, &stream));
    r = kernel_op_new(params, &op);
    if (r != CUDA_SUCCESS)
        return leave(r);
    if (!stream->capture) {
        count(op->launch.kernel && kernel_is_gate(op->launch.kernel) ? STANDIN_COUNTER_stream_gates
                                                                     : STANDIN_COUNTER_launches,
              1);
        if (standin_profiler)
            op->call = standin_profiler->launching(STANDIN_LAUNCH_KERNEL);
        op->last = true;
    }
    return leave(stream_enqueue(stream, op));
}

API cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **params, void **extra)
{
    return launch("cuLaunchKernel", stream,
                  &(CUDA_KERNEL_NODE_PARAMS){function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
                                             params, extra, NULL, NULL});
}

/* CUDA_SUCCESS where the blocks can be grouped so. */
static CUresult cluster_check(CUfunction handle, const CUlaunchConfig *c, const unsigned cluster[3])
{
    const unsigned grid[3] = {c->gridDimX, c->gridDimY, c->gridDimZ};
    const struct function *function;
    uint64_t blocks = 1;
    bool fits = true;

    for (unsigned i = 0; i < 3; i++) {
        fits = fits && cluster[i] && grid[i] % cluster[i] == 0;
        blocks *= cluster[i];
    }
    pthread_mutex_lock(&standin_lock);
    function = handle_get(HANDLE_FUNCTION, handle);
    fits = fits && function && blocks <= function->cluster_limit;
    pthread_mutex_unlock(&standin_lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

enum { MULTIPROCESSORS = 4, MOST_THREADS = 2048, MOST_BLOCKS = 32, MOST_SHARED = 228 << 10, RESERVED_SHARED = 1024 };

/* As if registers were no limit. Under the mutex. */
static unsigned blocks_at_one_time(const struct function *f, uint64_t threads, uint64_t shared)
{
    const uint64_t own = shared + RESERVED_SHARED + static_shared(f);
    const uint64_t by_threads = threads ? MOST_THREADS / threads : 0, by_shared = MOST_SHARED / own;
    const uint64_t least = by_threads < by_shared ? by_threads : by_shared;

    return (unsigned)(least < MOST_BLOCKS ? least : MOST_BLOCKS);
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *ret_blocks, CUfunction handle, int threads, size_t shared)
{
    const struct function *f;

    ENTER(enter("cuOccupancyMaxActiveBlocksPerMultiprocessor"));
    f = handle_get(HANDLE_FUNCTION, handle);
    if (!f || !ret_blocks || threads < 1)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_blocks = (int)blocks_at_one_time(f, (uint64_t)threads, shared);
    return leave(CUDA_SUCCESS);
}

static uint64_t cluster_of(const CUlaunchConfig *c)
{
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            return (uint64_t)c->attrs[i].value.clusterDim.x * c->attrs[i].value.clusterDim.y *
                   c->attrs[i].value.clusterDim.z;
    return 1;
}

static uint64_t all_at_one_time(const struct function *f, const CUlaunchConfig *c)
{
    return MULTIPROCESSORS *
           (uint64_t)blocks_at_one_time(f, (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ, c->sharedMemBytes);
}

API cuOccupancyMaxActiveClusters(int *ret_clusters, CUfunction handle, const CUlaunchConfig *c)
{
    const struct function *f;

    ENTER(enter("cuOccupancyMaxActiveClusters"));
    f = handle_get(HANDLE_FUNCTION, handle);
    if (!f || !ret_clusters || !c)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_clusters = (int)(all_at_one_time(f, c) / cluster_of(c));
    return leave(CUDA_SUCCESS);
}

static CUresult cooperative_check(CUfunction handle, const CUlaunchConfig *c)
{
    const struct function *f;
    bool fits;

    pthread_mutex_lock(&standin_lock);
    f = handle_get(HANDLE_FUNCTION, handle);
    fits = f && (uint64_t)c->gridDimX * c->gridDimY * c->gridDimZ <= all_at_one_time(f, c);
    count(STANDIN_COUNTER_cooperative_launches, fits);
    pthread_mutex_unlock(&standin_lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

static void note_early(void)
{
    pthread_mutex_lock(&standin_lock);
    count(STANDIN_COUNTER_early_launches, 1);
    pthread_mutex_unlock(&standin_lock);
}

/* Other attributes say how a device goes about it: accepted as they are. What may begin early begins in order. */
API cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **params, void **extra)
{
    if (!c || (c->numAttrs && !c->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const unsigned cluster[3] = {c->attrs[i].value.clusterDim.x, c->attrs[i].value.clusterDim.y,
                                         c->attrs[i].value.clusterDim.z};
            CUresult r = cluster_check(function, c, cluster);

            if (r != CUDA_SUCCESS)
                return r;
        } else if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && c->attrs[i].value.cooperative) {
            CUresult r = cooperative_check(function, c);

            if (r != CUDA_SUCCESS)
                return r;
        } else if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
                   c->attrs[i].value.programmaticStreamSerializationAllowed) {
            note_early();
        }
    return launch("cuLaunchKernel", c->hStream,
                  &(CUDA_KERNEL_NODE_PARAMS){function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
                                             c->blockDimY, c->blockDimZ, c->sharedMemBytes, params, extra, NULL, NULL});
}
