/* Owns the modules of users' kernels, and launches these. */
#include "user_kernel.h"

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/kernel.h"
#include "kernels.h"
#include "ops/limits.h"
#include "times/records.h"
#include "util/error.h"

/* The driver gets no length of a binary and reads as far as its headers say, so binaries whose headers point outside
 * are refused before. A cubin is an ELF file whose flags tell the architecture. Source: output of nvcc 12 and 13. */

struct cuda_binary {
    char arch[16]; /* "sm_90a" */
};

/* ---- the headers of a cubin ---- */

enum {
    MACHINE_CUDA = 190,
    ABI_WIDE_ARCH = 8,      /* since this version the flags' second byte is the architecture */
    COMPAT_ONE_ARCH = 0x09, /* in .nv.compat: 1 for code that runs on this architecture alone */
    RECORD_SIZED = 4        /* the only form of record with bytes behind its first four */
};

struct reader {
    const unsigned char *data;
    size_t size;
    Elf64_Ehdr header;
};

static bool is_inside(const struct reader *r, uint64_t offset, uint64_t size)
{
    return offset <= r->size && size <= r->size - offset;
}

static Elf64_Shdr section(const struct reader *r, unsigned index)
{
    Elf64_Shdr s;

    memcpy(&s, r->data + r->header.e_shoff + index * sizeof(s), sizeof(s));
    return s;
}

static bool header_is_sound(const struct reader *r)
{
    const Elf64_Ehdr *h = &r->header;

    return h->e_ident[EI_CLASS] == ELFCLASS64 && h->e_ident[EI_DATA] == ELFDATA2LSB && h->e_machine == MACHINE_CUDA &&
           h->e_shentsize == sizeof(Elf64_Shdr) && h->e_shnum > 0 && h->e_shstrndx < h->e_shnum &&
           is_inside(r, h->e_shoff, (uint64_t)h->e_shnum * sizeof(Elf64_Shdr)) &&
           (h->e_phnum == 0 || (h->e_phentsize == sizeof(Elf64_Phdr) &&
                                is_inside(r, h->e_phoff, (uint64_t)h->e_phnum * sizeof(Elf64_Phdr))));
}

static bool sections_are_inside(const struct reader *r)
{
    for (unsigned i = 0; i < r->header.e_shnum; i++) {
        Elf64_Shdr s = section(r, i);

        if (s.sh_type != SHT_NOBITS && s.sh_type != SHT_NULL && !is_inside(r, s.sh_offset, s.sh_size))
            return false;
    }
    return true;
}

static bool segments_are_inside(const struct reader *r)
{
    for (unsigned i = 0; i < r->header.e_phnum; i++) {
        Elf64_Phdr p;

        memcpy(&p, r->data + r->header.e_phoff + i * sizeof(p), sizeof(p));
        if (!is_inside(r, p.p_offset, p.p_filesz))
            return false;
    }
    return true;
}

static bool is_named(const struct reader *r, const Elf64_Shdr *s, const char *name)
{
    Elf64_Shdr names = section(r, r->header.e_shstrndx);
    size_t length = strlen(name) + 1;

    return names.sh_type == SHT_STRTAB && s->sh_name < names.sh_size && length <= names.sh_size - s->sh_name &&
           memcmp(r->data + names.sh_offset + s->sh_name, name, length) == 0;
}

static bool says_one_arch(const unsigned char *p, size_t size)
{
    while (size >= 4) {
        size_t bytes = p[0] == RECORD_SIZED ? (size_t)(p[2] | p[3] << 8) + 4 : 4;

        if (p[0] != RECORD_SIZED && p[1] == COMPAT_ONE_ARCH)
            return (p[2] | p[3] << 8) == 1;
        if (bytes > size)
            break;
        p += bytes;
        size -= bytes;
    }
    return false;
}

static bool runs_on_one_arch(const struct reader *r)
{
    for (unsigned i = 0; i < r->header.e_shnum; i++) {
        Elf64_Shdr s = section(r, i);

        if (s.sh_type != SHT_NOBITS && is_named(r, &s, ".nv.compat"))
            return says_one_arch(r->data + s.sh_offset, s.sh_size);
    }
    return false;
}

static int read_binary(const void *binary, size_t size, struct cuda_binary *ret_binary, struct error *e)
{
    struct reader r = {.data = binary, .size = size};
    unsigned arch;

    if (size < sizeof(r.header) || memcmp(binary, ELFMAG, SELFMAG) != 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "the image is no cubin: compile the source for this device");
    memcpy(&r.header, binary, sizeof(r.header));
    if (!header_is_sound(&r) || !sections_are_inside(&r) || !segments_are_inside(&r))
        return error_set(e, ERROR_INVALID_ARGUMENT, "the image is a cubin that is cut off or broken: compile it again");
    arch = r.header.e_ident[EI_ABIVERSION] >= ABI_WIDE_ARCH ? r.header.e_flags >> 8 & 0xff : r.header.e_flags & 0xff;
    snprintf(ret_binary->arch, sizeof(ret_binary->arch), "sm_%u%s", arch, runs_on_one_arch(&r) ? "a" : "");
    return 0;
}

/* ---- modules ---- */

struct backend_code {
    CUmodule module;
};

static int refuse(struct cuda_device *d, CUresult r, const struct cuda_binary *about, struct error *e)
{
    switch (r) {
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
        error_set(e, ERROR_UNSUPPORTED, "the code is for %s and does not run on %s, which is %s: compile it for that",
                  about->arch, d->base.info.name, d->base.info.arch);
        error_detail_text(e, "arch", about->arch);
        return error_detail_text(e, "device_arch", d->base.info.arch);
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

    (void)domain; /* all domains share this process's context */
    if (read_binary(binary, size, &about, e) < 0 || cuda_enter(d, e) < 0)
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

    /* Fails on a broken context, where there is nothing to unload. */
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

/* Allows launches to ask for all the shared memory of the device. Has no other effect. */
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

/* Finds the function and loads it now, even if the environment asks for lazy loading: the first launch must not wait
 * for the device. */
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

/* ---- launches ---- */

_Static_assert((int)KERNEL_PARAM_BYTES <= (int)CUDA_LAUNCH_PARAMS_MAX, "a launch has room for them");

const char cuda_variant_user[] = "user";

int cuda_user_check(const struct backend_device_info *info, const struct plan *plan, struct error *e)
{
    if (plan->kernel.cluster[0] && !info->clusters)
        return error_set(e, ERROR_UNSUPPORTED, "the driver of %s is too old for clusters", info->name);
    return 0;
}

static int encode(const struct plan_kernel *k, struct cuda_launch *l, struct error *e)
{
    const int status = cuda_ops_encode_params(k, l->params, cuda_embedded_encoder);

    if (!status)
        return 0;
    error_set(e, ERROR_INVALID_ARGUMENT,
              "the driver encodes no tensor map for these tensors (%s): look at their strides and boxes",
              cuda_result_name((CUresult)status));
    return error_detail_text(e, "driver", cuda_result_name((CUresult)status));
}

static void fill(const struct plan_kernel *k, const uint64_t *addresses, struct cuda_launch *l)
{
    l->kernel = l->variant = cuda_variant_user;
    memcpy(l->grid, k->grid, sizeof(l->grid));
    memcpy(l->block, k->block, sizeof(l->block));
    l->shared_bytes = k->shared_bytes;
    l->params_size = k->param_bytes;
    memcpy(l->params, k->params, k->param_bytes);
    for (unsigned i = 0; i < k->n_pointers; i++)
        memcpy(l->params + k->pointers[i], &addresses[i], sizeof(addresses[i]));
}

enum { MAX_ATTRIBUTES = 3 };

static CUlaunchConfig configure(const struct cuda_launch *l, const struct plan_kernel *k, bool early, CUstream stream,
                                CUlaunchAttribute *attributes)
{
    const unsigned *cluster = k->cluster;
    CUlaunchConfig config = {.gridDimX = l->grid[0],
                             .gridDimY = l->grid[1],
                             .gridDimZ = l->grid[2],
                             .blockDimX = l->block[0],
                             .blockDimY = l->block[1],
                             .blockDimZ = l->block[2],
                             .sharedMemBytes = l->shared_bytes,
                             .hStream = stream,
                             .attrs = attributes};

    if (cluster[0])
        attributes[config.numAttrs++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                                            .value.clusterDim = {cluster[0], cluster[1], cluster[2]}};
    if (k->cooperative)
        attributes[config.numAttrs++] =
            (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
    if (early)
        attributes[config.numAttrs++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                                            .value.programmaticStreamSerializationAllowed = 1};
    return config;
}

static int find_room(struct cuda_device *d, const struct plan_kernel *k, const struct cuda_launch *l,
                     uint64_t *ret_blocks, struct error *e)
{
    const CUfunction function = (CUfunction)(uintptr_t)k->function;
    CUlaunchAttribute attributes[MAX_ATTRIBUTES];
    const CUlaunchConfig config = configure(l, k, false, NULL, attributes);
    int n = 0;

    if (k->cluster[0]) {
        if (CUDA_CALL(d, e, OccupancyMaxActiveClusters, &n, function, &config) < 0)
            return -1;
        *ret_blocks = (uint64_t)(n > 0 ? n : 0) * k->cluster[0] * k->cluster[1] * k->cluster[2];
        return 0;
    }
    if (CUDA_CALL(d, e, OccupancyMaxActiveBlocksPerMultiprocessor, &n, function,
                  (int)(l->block[0] * l->block[1] * l->block[2]), l->shared_bytes) < 0)
        return -1;
    *ret_blocks = (uint64_t)(n > 0 ? n : 0) * d->base.info.compute_units;
    return 0;
}

int cuda_user_prepare(struct cuda_device *d, const struct plan_kernel *k, const uint64_t *addresses,
                      struct cuda_launch *ret_launch, struct error *e)
{
    uint64_t room;

    fill(k, addresses, ret_launch);
    if (k->cooperative && (find_room(d, k, ret_launch, &room, e) < 0 || kernel_check_cooperative(k, room, e) < 0))
        return -1;
    return k->maps ? encode(k, ret_launch, e) : 0;
}

static CUresult launch(const struct cuda_queue *q, const struct plan_kernel *k, const struct cuda_launch *l, bool early,
                       void **params, void **extra)
{
    const CUfunction function = (CUfunction)(uintptr_t)k->function;
    CUlaunchAttribute attributes[MAX_ATTRIBUTES];
    CUlaunchConfig config;

    if (!k->cluster[0] && !k->cooperative && !early)
        return cuda_on(q->device)->LaunchKernel(function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1],
                                                l->block[2], l->shared_bytes, q->stream, params, extra);
    config = configure(l, k, early, q->stream, attributes);
    return cuda_on(q->device)->LaunchKernelEx(&config, function, params, extra);
}

/* The server has checked the device's limits. The driver also checks registers, launch bounds and compiled clusters. */
static int refuse_launch(struct cuda_device *d, CUresult r, const struct cuda_launch *l, struct error *e)
{
    switch (r) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case CUDA_ERROR_INVALID_CLUSTER_SIZE:
    case CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: /* with MPS a process may have a part of the device */
    case CUDA_ERROR_NOT_SUPPORTED:
        error_set(e, ERROR_OUT_OF_RANGE,
                  "the driver refuses a grid of %u x %u x %u blocks of %u x %u x %u threads with %u bytes of shared "
                  "memory for this kernel (%s)",
                  l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared_bytes,
                  cuda_result_name(r));
        return error_detail_text(e, "driver", cuda_result_name(r));
    default:
        return cuda_fail(d, r, "cuLaunchKernel", e);
    }
}

int cuda_user_issue(const struct cuda_queue *q, const struct plan_kernel *k, bool early, struct cuda_launch *l,
                    struct error *e)
{
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, l->params, CU_LAUNCH_PARAM_BUFFER_SIZE, &l->params_size,
                     CU_LAUNCH_PARAM_END};
    void *list[KERNELS_PARAMS_MAX], **params = cuda_ops_list_params(k, l->params, list);
    CUresult r = launch(q, k, l, early, params, params || !l->params_size ? NULL : extra);

    return r == CUDA_SUCCESS ? 0 : refuse_launch(q->device, r, l, e);
}
