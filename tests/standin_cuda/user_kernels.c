/* User kernels as plain loops. Each does what one thread an element would do within the launch's grid and block: what
 * lies beyond them is left alone, so that a wrong geometry shows. Those that step by the whole grid do everything. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "compile/compiled.h"
#include "standin.h"

enum { BINS = 256 };

/* Pointers and ints in the order of the parameters. */
struct arguments {
    uint64_t pointers[3];
    int32_t numbers[3];
    const unsigned char *maps[2];
};

struct launch {
    uint64_t threads[3]; /* in each direction, of all blocks together */
    unsigned grid, block, shared;
};

/* Computes, or where `op` is given tells what it will touch. */
#define KERNEL(name)                                                                                                   \
    CUresult name(const struct arguments *a, const struct launch *l, const struct context *context, struct op *op)
typedef KERNEL(kernel_function);

struct user_kernel {
    const char *name;
    const char *parameters; /* p: a pointer or an address, i: an int, m: a tensor map */
    kernel_function *run;
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t positive(int32_t n)
{
    return n > 0 ? (uint64_t)n : 0;
}

static float *f32(uint64_t address)
{
    return (float *)(uintptr_t)address;
}

/* Of as many numbers each, the first of them written. */
static CUresult use_f32(struct op *op, const struct arguments *a, uint64_t out, uint64_t first, uint64_t second)
{
    const uint64_t counts[] = {out, first, second};

    for (unsigned i = 0; i < 3; i++)
        op_use(op, a->pointers[i], counts[i] * sizeof(float), i == 0);
    return CUDA_SUCCESS;
}

/* ---- (float *c, const float *a, const float *b, int n) ---- */

static CUresult add(const struct arguments *a, uint64_t n, struct op *op)
{
    if (op)
        return use_f32(op, a, n, n, n);
    for (uint64_t i = 0; i < n; i++)
        f32(a->pointers[0])[i] = f32(a->pointers[1])[i] + f32(a->pointers[2])[i];
    return CUDA_SUCCESS;
}

/* Each thread steps by the whole grid. */
static KERNEL(add2)
{
    return add(a, positive(a->numbers[0]), op);
}

static KERNEL(vector_add)
{
    return add(a, least(positive(a->numbers[0]), l->threads[0]), op);
}

/* (const float *in, float *out, int width, int height): each element squared. */
static KERNEL(square)
{
    const uint64_t width = positive(a->numbers[0]), columns = least(width, l->threads[0]);
    const uint64_t rows = least(positive(a->numbers[1]), l->threads[1]);
    const uint64_t last = rows && columns ? (rows - 1) * width + columns : 0;

    if (op) {
        op_use(op, a->pointers[0], last * sizeof(float), false);
        op_use(op, a->pointers[1], last * sizeof(float), true);
        return CUDA_SUCCESS;
    }
    for (uint64_t y = 0; y < rows; y++)
        for (uint64_t x = 0; x < columns; x++) {
            const float value = f32(a->pointers[0])[y * width + x];

            f32(a->pointers[1])[y * width + x] = value * value;
        }
    return CUDA_SUCCESS;
}

/* (float *c, const float *a, const float *b, int n, int m, int k): c[n, m] = a[n, k] · b[k, m]. A thread an element, x
 * the column; blocks that are one-dimensional may divide the work as they like. */
static KERNEL(gemm)
{
    const uint64_t n = positive(a->numbers[0]), m = positive(a->numbers[1]), k = positive(a->numbers[2]);
    const bool square = l->threads[1] > 1;
    const uint64_t rows = square ? least(n, l->threads[1]) : n, columns = square ? least(m, l->threads[0]) : m;

    if (op)
        return n && m ? use_f32(op, a, n * m, n * k, k * m) : CUDA_SUCCESS;
    for (uint64_t i = 0; i < rows && !context->broken; i++)
        for (uint64_t j = 0; j < columns; j++) {
            float sum = 0;

            for (uint64_t x = 0; x < k; x++)
                sum += f32(a->pointers[1])[i * k + x] * f32(a->pointers[2])[x * m + j];
            f32(a->pointers[0])[i * m + j] = sum;
        }
    return CUDA_SUCCESS;
}

/* (float *out, const float *in, int n): doubles. */
static KERNEL(custom)
{
    const uint64_t n = least(positive(a->numbers[0]), l->threads[0]);

    if (op)
        return use_f32(op, a, n, n, 0);
    for (uint64_t i = 0; i < n; i++)
        f32(a->pointers[0])[i] = 2 * f32(a->pointers[1])[i];
    return CUDA_SUCCESS;
}

/* (float *out, const float *in, int n): each block's part of the sum, the threads stepping by the whole grid; one float
 * of dynamic shared memory a thread. */
static KERNEL(sum)
{
    const uint64_t n = positive(a->numbers[0]), step = (uint64_t)l->grid * l->block;

    if (op)
        return use_f32(op, a, l->grid, n, 0);
    if (l->shared < l->block * sizeof(float)) {
        fprintf(stderr, "cuda_standin: sum_dynamic_shared has %u bytes of shared memory\n", l->shared);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (uint64_t b = 0; b < l->grid; b++) {
        float total = 0;

        for (uint64_t t = 0; t < l->block; t++)
            for (uint64_t i = b * l->block + t; i < n; i += step)
                total += f32(a->pointers[1])[i];
        f32(a->pointers[0])[b] = total;
    }
    return CUDA_SUCCESS;
}

/* (unsigned *bins, const unsigned char *data, int n): 256 bins, added to, the threads stepping. */
static KERNEL(histogram)
{
    const uint64_t n = positive(a->numbers[0]);
    uint32_t *bins = (uint32_t *)(uintptr_t)a->pointers[0];
    const unsigned char *data = (const unsigned char *)(uintptr_t)a->pointers[1];

    if (op) {
        op_use(op, a->pointers[0], n ? BINS * sizeof(uint32_t) : 0, true);
        op_use(op, a->pointers[1], n, false);
        return CUDA_SUCCESS;
    }
    for (uint64_t i = 0; i < n; i++)
        bins[data[i]]++;
    return CUDA_SUCCESS;
}

/* ---- kernels of users who mean harm, and what tests see of them ---- */

enum { SLICE_NS = 200000 };

/* (float *p) */
static KERNEL(spin)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    while (!op && !context->broken)
        nanosleep(&pause, NULL);
    return CUDA_SUCCESS;
}

/* (float *p) */
static KERNEL(fault)
{
    return op ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult use_words(struct op *op, uint64_t address, uint64_t count)
{
    op_use(op, address, count * sizeof(uint32_t), true);
    return CUDA_SUCCESS;
}

static void add_one(uint64_t address)
{
    __atomic_fetch_add((uint32_t *)(uintptr_t)address, 1, __ATOMIC_RELEASE);
}

/* (unsigned *count): writes until the process ends. */
static KERNEL(count_for_ever)
{
    const struct timespec pause = {.tv_nsec = SLICE_NS};

    if (op)
        return use_words(op, a->pointers[0], 1);
    while (!context->broken) {
        add_one(a->pointers[0]);
        nanosleep(&pause, NULL);
    }
    return CUDA_SUCCESS;
}

/* (unsigned *runs, int us): takes so much time, then counts itself. */
static KERNEL(run_for)
{
    const uint64_t end_ns = now_ns() + positive(a->numbers[0]) * 1000;
    uint64_t now;

    if (op)
        return use_words(op, a->pointers[0], 1);
    while ((now = now_ns()) < end_ns && !context->broken) {
        const struct timespec pause = {.tv_nsec = (long)least(end_ns - now, SLICE_NS)};

        nanosleep(&pause, NULL);
    }
    add_one(a->pointers[0]);
    return CUDA_SUCCESS;
}

/* Whether the word could be read: the context has it mapped. */
static bool read_word(uint64_t address, const struct context *context, uint32_t *ret_word)
{
    const struct region *region;
    bool readable;

    pthread_mutex_lock(&standin_lock);
    region = region_find_range(address, sizeof(*ret_word));
    readable = region && region_allows(region, context, false, false);
    if (readable)
        memcpy(ret_word, (const void *)(uintptr_t)address, sizeof(*ret_word));
    pthread_mutex_unlock(&standin_lock);
    return readable;
}

/* (unsigned *out, unsigned long long address, int n): what lies there, as far as it can be read. */
static KERNEL(read_range)
{
    uint32_t *out = (uint32_t *)(uintptr_t)a->pointers[0];

    if (op)
        return use_words(op, a->pointers[0], positive(a->numbers[0]));
    for (uint64_t i = 0; i < positive(a->numbers[0]); i++) {
        const uint64_t address = a->pointers[1] + i * sizeof(*out);

        if (!read_word(address, context, &out[i])) {
            fprintf(stderr, "cuda_standin: illegal read of 4 bytes at %#llx\n", (unsigned long long)address);
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
    }
    return CUDA_SUCCESS;
}

/* (unsigned long long *out, const float *p) */
static KERNEL(tell_address)
{
    if (op)
        return use_words(op, a->pointers[0], 2);
    memcpy((void *)(uintptr_t)a->pointers[0], &a->pointers[1], sizeof(a->pointers[1]));
    return CUDA_SUCCESS;
}

/* (CUtensorMap out, CUtensorMap in) */
static KERNEL(square_by_maps)
{
    struct maps_tensor out = {0}, in = {0};
    const bool found = maps_find(a->maps[0], &out) && maps_find(a->maps[1], &in);

    if (op) {
        op_use(op, out.address, found ? out.bytes : 0, true);
        op_use(op, in.address, found ? in.bytes : 0, false);
        return CUDA_SUCCESS;
    }
    if (!found || out.count != in.count || out.size != in.size || out.size != sizeof(float))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (uint64_t i = 0; i < out.count; i++)
        *f32(maps_element(&out, i)) = *f32(maps_element(&in, i)) * *f32(maps_element(&in, i));
    return CUDA_SUCCESS;
}

/* ---- the table ---- */

static const struct user_kernel kernels[] = {
    {"add2_kernel", "pppi", add2},
    {"vector_add", "pppi", vector_add},
    {"square_matrix_kernel", "ppii", square},
    {"gemm_kernel", "pppiii", gemm},
    {"custom_kernel", "ppi", custom},
    {"sum_dynamic_shared", "ppi", sum},
    {"histogram_kernel", "ppi", histogram},
    {"spin_forever", "p", spin},
    {"fault_kernel", "p", fault},
    {"count_forever", "p", count_for_ever},
    {"run_for", "pi", run_for},
    {"read_range", "ppi", read_range},
    {"tell_address", "pp", tell_address},
    {"square_by_maps", "mm", square_by_maps},
};

static size_t size_of(char parameter)
{
    return parameter == 'p' ? sizeof(uint64_t) : parameter == 'm' ? sizeof(CUtensorMap) : sizeof(int32_t);
}

static bool parameters_are(const struct compiled_entry *kernel, const char *parameters)
{
    unsigned n = 0;

    for (; parameters[n]; n++)
        if (n >= kernel->n_params || kernel->param_sizes[n] != size_of(parameters[n]))
            return false;
    return n == kernel->n_params;
}

/* C++ names a function NAME that is in no namespace _Z<length>NAME<types>. */
static bool name_is(const char *symbol, const char *name)
{
    size_t length = strlen(name);
    char mangled[64];

    if (strcmp(symbol, name) == 0)
        return true;
    snprintf(mangled, sizeof(mangled), "_Z%zu%s", length, name);
    return strncmp(symbol, mangled, strlen(mangled)) == 0;
}

const struct user_kernel *user_kernel_find(const struct compiled_entry *kernel)
{
    for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
        if (name_is(kernel->lowered, kernels[i].name) && parameters_are(kernel, kernels[i].parameters))
            return &kernels[i];
    return NULL;
}

const char *user_kernel_name(const struct user_kernel *kernel)
{
    return kernel->name;
}

/* As C lays them out, which an image's offsets say, too, but of maps: those are aligned where the device has them. */
static struct arguments arguments_of(const struct user_kernel *kernel, const unsigned char *params)
{
    struct arguments a = {0};
    size_t at = 0, pointers = 0, numbers = 0, maps = 0;

    for (const char *p = kernel->parameters; *p; p++) {
        const size_t size = size_of(*p);

        at = *p == 'm' ? maps_next(params, at, MAX_PARAMS) : (at + size - 1) / size * size;
        if (*p == 'p')
            memcpy(&a.pointers[pointers++], params + at, size);
        else if (*p == 'm')
            a.maps[maps++] = params + at;
        else
            memcpy(&a.numbers[numbers++], params + at, size);
        at += size;
    }
    return a;
}

static struct launch launch_of(const CUDA_KERNEL_NODE_PARAMS *g)
{
    return (struct launch){
        .threads = {(uint64_t)g->gridDimX * g->blockDimX, (uint64_t)g->gridDimY * g->blockDimY,
                    (uint64_t)g->gridDimZ * g->blockDimZ},
        .grid = g->gridDimX * g->gridDimY * g->gridDimZ,
        .block = g->blockDimX * g->blockDimY * g->blockDimZ,
        .shared = g->sharedMemBytes,
    };
}

void user_kernel_uses(const struct user_kernel *kernel, const CUDA_KERNEL_NODE_PARAMS *geometry, const void *params,
                      struct op *op)
{
    struct arguments a = arguments_of(kernel, params);
    struct launch l = launch_of(geometry);

    kernel->run(&a, &l, NULL, op);
}

CUresult user_kernel_run(const struct user_kernel *kernel, const CUDA_KERNEL_NODE_PARAMS *geometry, const void *params,
                         const struct context *context)
{
    struct arguments a = arguments_of(kernel, params);
    struct launch l = launch_of(geometry);

    return kernel->run(&a, &l, context, NULL);
}
