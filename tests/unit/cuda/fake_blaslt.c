/* A cuBLASLt that multiplies on the CPU in f64 and checks what it is told: strides against shapes, addresses against
 * the alignment that the plan promised, the workspace against what the algorithm asked for. Like the real one it rounds
 * a product of 16 bits before it is added to out with a beta of exactly 1.
 *
 * An algorithm remembers, in its opaque words, what it was chosen for. FAKE_BLASLT in the environment: "none" finds no
 * algorithm at all. KOPS_STANDIN_BLASLT, which executors have, too: "slow", every product takes 10 ms, "slower", 0.1 s,
 * "stuck", 1 s; "second", all but those by the second algorithm do; "refuse", no algorithm is taken back that a caller
 * has kept; "numbers", scales that are vectors are not known. KOPS_STANDIN_BLASLT_VERSION: the version that it says it
 * has. */
#include <cublasLt.h>
#include <cuda.h>
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/host/convert.h"
#include "standin_cuda/profiler.h"

#define EXPORT __attribute__((visibility("default")))

enum { WORKSPACE = 1 << 20, COOKIE = 0x4b4f5053, RESULTS = 3, SLOW_NS = 10 * 1000 * 1000 };

struct layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
    int32_t batch_count;
    int64_t batch_stride;
};

struct operation {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t transpose_a, transpose_b;
    uint32_t epilogue;
    const void *bias;
    const void *scales[2]; /* of A and B; of products of f8 alone */
    int32_t modes[2];
    int8_t fast_sums;
};

struct preference {
    uint64_t workspace;
    uint32_t alignment[4], reduction;
};

/* Read by the tests. */
EXPORT unsigned fake_blaslt_heuristics, fake_blaslt_products, fake_blaslt_handles, fake_blaslt_wrong;
EXPORT int fake_blaslt_compute, fake_blaslt_fast_sums;
EXPORT unsigned fake_blaslt_misaligned; /* products of which the fast kernels of tensor cores could not be asked */

static int handle;

/* ---- products ---- */

static bool has_16_bits(cudaDataType type)
{
    return type == CUDA_R_16F || type == CUDA_R_16BF;
}

static double load(const void *base, cudaDataType type, int64_t index)
{
    switch (type) {
    case CUDA_R_8F_E4M3:
        return (double)e4m3_to_f32(((const uint8_t *)base)[index]);
    case CUDA_R_8F_E5M2:
        return (double)e5m2_to_f32(((const uint8_t *)base)[index]);
    case CUDA_R_16BF:
        return (double)bf16_to_f32(((const uint16_t *)base)[index]);
    case CUDA_R_16F:
        return (double)f16_to_f32(((const uint16_t *)base)[index]);
    case CUDA_R_64F:
        return ((const double *)base)[index];
    default:
        return (double)((const float *)base)[index];
    }
}

static void store(void *base, cudaDataType type, int64_t index, double value)
{
    switch (type) {
    case CUDA_R_16BF:
        ((uint16_t *)base)[index] = f32_to_bf16((float)value);
        break;
    case CUDA_R_16F:
        ((uint16_t *)base)[index] = f32_to_f16((float)value);
        break;
    case CUDA_R_64F:
        ((double *)base)[index] = value;
        break;
    default:
        ((float *)base)[index] = (float)value;
    }
}

/* A matrix of one batch, or its transpose, as rows of doubles. */
static double *rows_of(const void *base, const struct layout *l, int64_t batch, bool transpose)
{
    const int64_t rows = (int64_t)(transpose ? l->columns : l->rows);
    const int64_t columns = (int64_t)(transpose ? l->rows : l->columns);
    double *values = malloc((size_t)(rows * columns) * sizeof(*values));

    for (int64_t i = 0; values && i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            values[i * columns + j] =
                load(base, l->type, batch * l->batch_stride + (transpose ? j + i * l->ld : i + j * l->ld));
    return values;
}

/* What the library's epilogue makes of element i of a column. */
static double finish(const struct operation *o, double x, cudaDataType type, int64_t i)
{
    if (o->epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        return x;
    x += load(o->bias, type, i);
    if (o->epilogue == CUBLASLT_EPILOGUE_RELU_BIAS)
        return x > 0 ? x : 0;
    if (o->epilogue == CUBLASLT_EPILOGUE_GELU_BIAS)
        return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    if (o->epilogue != CUBLASLT_EPILOGUE_BIAS)
        fake_blaslt_wrong++;
    return x;
}

/* Of row or column i of D. */
static double scale_of(const struct operation *o, unsigned of, int64_t i)
{
    const bool is_vector = o->modes[of] == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;

    return o->scales[of] ? (double)((const float *)o->scales[of])[is_vector ? i : 0] : 1;
}

/* Multiplies on the CPU, in f64. */
static void multiply(const struct operation *o, double alpha, double beta, const void *a, const struct layout *la,
                     const void *b, const struct layout *lb, void *out, const struct layout *l)
{
    const int64_t depth = (int64_t)(o->transpose_a ? la->rows : la->columns), columns = (int64_t)l->columns;

    for (int64_t batch = 0; batch < l->batch_count; batch++) {
        double *x = rows_of(a, la, batch, o->transpose_a), *y = rows_of(b, lb, batch, o->transpose_b);
        double *sums = malloc((size_t)columns * sizeof(*sums));

        for (int64_t i = 0; x && y && sums && i < (int64_t)l->rows; i++) {
            memset(sums, 0, (size_t)columns * sizeof(*sums));
            for (int64_t k = 0; k < depth; k++)
                for (int64_t j = 0; j < columns; j++)
                    sums[j] += x[i * depth + k] * y[k * columns + j];
            for (int64_t j = 0; j < columns; j++) {
                int64_t at = batch * l->batch_stride + i + j * l->ld;
                double sum = sums[j];

                sum *= alpha * scale_of(o, 0, i) * scale_of(o, 1, j);
                if (beta == 1 && has_16_bits(l->type)) {
                    _Alignas(8) unsigned char rounded[8];

                    store(rounded, l->type, 0, sum);
                    sum = load(rounded, l->type, 0);
                }
                sum += beta != 0.0 ? beta * load(out, l->type, at) : 0.0;
                store(out, l->type, at, finish(o, sum, l->type, i));
            }
        }
        fake_blaslt_wrong += !x || !y || !sums;
        free(x);
        free(y);
        free(sums);
    }
}

/* ---- the library ---- */

/* Of an algorithm's opaque words. */
enum { WORD_COOKIE, WORD_ALIGNMENT, WORD_WORKSPACE = WORD_ALIGNMENT + 4, WORD_NUMBER };

static bool is_mode(const char *mode)
{
    const char *set = getenv("KOPS_STANDIN_BLASLT");

    return set && strcmp(set, mode) == 0;
}

EXPORT size_t cublasLtGetVersion(void)
{
    const char *version = getenv("KOPS_STANDIN_BLASLT_VERSION");

    return version ? strtoul(version, NULL, 10) : 130000;
}

EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret_handle)
{
    fake_blaslt_handles++;
    *ret_handle = (cublasLtHandle_t)(void *)&handle;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    fake_blaslt_handles--;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_OTHER";
}

EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *ret, cublasComputeType_t compute,
                                               cudaDataType_t scale)
{
    struct operation *o = calloc(1, sizeof(*o));

    o->compute = compute;
    o->scale = scale;
    o->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    *ret = (cublasLtMatmulDesc_t)(void *)o;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    free(d);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set(void *member, size_t wanted, const void *value, size_t size)
{
    if (size != wanted)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(member, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

#define SET(member) set(&(member), sizeof(member), value, size)

EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute,
                                                     const void *value, size_t size)
{
    struct operation *o = (struct operation *)(void *)d;

    switch ((int)attribute) {
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return SET(o->bias);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
        return SET(o->scales[0]);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        return SET(o->scales[1]);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
        return SET(o->fast_sums);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return SET(o->epilogue);
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return SET(o->transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return SET(o->transpose_b);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
        return is_mode("numbers") ? CUBLAS_STATUS_INVALID_VALUE : SET(o->modes[0]);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
        return is_mode("numbers") ? CUBLAS_STATUS_INVALID_VALUE : SET(o->modes[1]);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *ret, cudaDataType type, uint64_t rows,
                                                 uint64_t columns, int64_t ld)
{
    struct layout *l = malloc(sizeof(*l));

    *l = (struct layout){.type = type, .rows = rows, .columns = columns, .ld = ld, .batch_count = 1};
    *ret = (cublasLtMatrixLayout_t)(void *)l;
    return ld >= (int64_t)rows && rows > 0 && columns > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    free(l);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                       cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                       size_t size)
{
    struct layout *l = (struct layout *)(void *)layout;

    return attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT            ? SET(l->batch_count)
           : attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET ? SET(l->batch_stride)
                                                                      : CUBLAS_STATUS_INVALID_VALUE;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret)
{
    struct preference *p = calloc(1, sizeof(*p));

    *ret = (cublasLtMatmulPreference_t)(void *)p;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                           cublasLtMatmulPreferenceAttributes_t attribute,
                                                           const void *value, size_t size)
{
    struct preference *p = (struct preference *)(void *)preference;
    unsigned operand = (unsigned)attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;

    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return SET(p->workspace);
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return SET(p->reduction);
    return operand < 4 ? SET(p->alignment[operand]) : CUBLAS_STATUS_INVALID_VALUE;
}

static const struct layout *layout_of(cublasLtMatrixLayout_t l)
{
    return (const struct layout *)(const void *)l;
}

static bool has_f8(const struct layout *l)
{
    return l->type == CUDA_R_8F_E4M3 || l->type == CUDA_R_8F_E5M2;
}

/* What a GPU of compute capability 9.0 takes, by the library's documentation. */
static bool takes_f8(const struct operation *o, const struct layout *a, const struct layout *b,
                     const struct layout *out, const struct preference *p)
{
    bool aligned = a->rows % 16 == 0 && a->columns % 16 == 0 && a->ld % 16 == 0 && b->ld % 16 == 0;

    for (unsigned i = 0; i < 4; i++)
        aligned = aligned && p->alignment[i] % 16 == 0;
    if (o->modes[0] != o->modes[1] || (o->modes[0] != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F &&
                                       o->modes[0] != CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F))
        return false;
    return aligned && o->transpose_a && !o->transpose_b && o->scales[0] && o->scales[1] && has_f8(b) &&
           !(a->type == CUDA_R_8F_E5M2 && b->type == CUDA_R_8F_E5M2) &&
           (out->type == CUDA_R_16BF || out->type == CUDA_R_16F || out->type == CUDA_R_32F);
}

static void *of_driver(const char *symbol)
{
    return dlsym(dlopen(KOPS_STANDIN, RTLD_NOW | RTLD_NOLOAD), symbol);
}

/* cuBLASLt loads the kernels that it chooses. */
static void load_code(void)
{
    __typeof__(standin_load_takes_time) *take_time;

    *(void **)&take_time = of_driver("standin_load_takes_time");
    take_time();
}

EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                                     cublasLtMatmulPreference_t preference, int wanted,
                                                     cublasLtMatmulHeuristicResult_t results[], int *ret_count)
{
    const struct preference *p = (const struct preference *)(const void *)preference;
    const char *mode = getenv("FAKE_BLASLT");

    fake_blaslt_heuristics++;
    load_code();
    if (has_f8(layout_of(a)) &&
        !takes_f8((const struct operation *)(const void *)d, layout_of(a), layout_of(b), layout_of(out), p))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((void *)h != (void *)&handle || wanted < RESULTS)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (mode && strcmp(mode, "none") == 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(results, 0, RESULTS * sizeof(results[0]));
    results[0].state = CUBLAS_STATUS_NOT_SUPPORTED; /* the first one is not usable */
    for (unsigned n = 1; n < RESULTS; n++) {
        results[n].state = CUBLAS_STATUS_SUCCESS;
        results[n].workspaceSize = p->workspace < WORKSPACE ? p->workspace : WORKSPACE;
        results[n].algo.data[WORD_COOKIE] = COOKIE;
        results[n].algo.data[WORD_WORKSPACE] = results[n].workspaceSize;
        results[n].algo.data[WORD_NUMBER] = n;
        for (unsigned i = 0; i < 4; i++)
            results[n].algo.data[WORD_ALIGNMENT + i] = p->alignment[i];
    }
    *ret_count = RESULTS;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t out, const cublasLtMatmulAlgo_t *algo,
                                              cublasLtMatmulHeuristicResult_t *ret)
{
    memset(ret, 0, sizeof(*ret));
    if (algo->data[WORD_COOKIE] != COOKIE || is_mode("refuse"))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    ret->algo = *algo;
    ret->workspaceSize = algo->data[WORD_WORKSPACE];
    return CUBLAS_STATUS_SUCCESS;
}

static bool shapes_agree(const struct operation *o, const struct layout *a, const struct layout *b,
                         const struct layout *out)
{
    uint64_t m = o->transpose_a ? a->columns : a->rows, ka = o->transpose_a ? a->rows : a->columns;
    uint64_t kb = o->transpose_b ? b->columns : b->rows, n = o->transpose_b ? b->rows : b->columns;

    return ka == kb && m == out->rows && n == out->columns && a->batch_count == out->batch_count &&
           b->batch_count == out->batch_count && (a->type == b->type || has_f8(a)) && !has_f8(out) &&
           has_f8(a) == has_f8(b) && has_f8(a) == (o->scales[0] && o->scales[1]) &&
           (has_f8(a) || a->type == out->type || (has_16_bits(a->type) && out->type == CUDA_R_32F));
}

/* Whether rows and extents are multiples of 16 bytes, and every matrix begins on such a boundary. */
static bool is_aligned(const struct layout *l, const void *address)
{
    const uint64_t size = has_f8(l) ? 1 : has_16_bits(l->type) ? 2 : l->type == CUDA_R_64F ? 8 : 4;

    return ((uintptr_t)address | l->rows * size | (l->columns > 1 ? (uint64_t)l->ld * size : 0) |
            (l->batch_count > 1 ? (uint64_t)l->batch_stride * size : 0)) %
               16 ==
           0;
}

/* In the stream's order: what comes before has ended, and the product is there when this returns. */
static CUresult wait_for(cudaStream_t stream)
{
    __typeof__(cuStreamSynchronize) *synchronize;

    *(void **)&synchronize = of_driver("cuStreamSynchronize");
    return synchronize((CUstream)stream);
}

static bool is_captured(cudaStream_t stream)
{
    __typeof__(cuStreamIsCapturing) *ask;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    *(void **)&ask = of_driver("cuStreamIsCapturing");
    return ask((CUstream)stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static void spend(long ns)
{
    struct timespec begin, now;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000000L + now.tv_nsec - begin.tv_nsec < ns);
}

/* A product, with all that it needs. */
struct call {
    struct operation operation;
    double alpha, beta;
    const void *a, *b;
    void *out;
    struct layout la, lb, l;
    uint64_t algorithm;
};

static void run(void *data)
{
    const struct call *c = data;

    if (is_mode("slow") || (is_mode("second") && c->algorithm != 2))
        spend(SLOW_NS);
    if (is_mode("slower") || is_mode("stuck"))
        spend(is_mode("stuck") ? 100ULL * SLOW_NS : 10ULL * SLOW_NS);
    multiply(&c->operation, c->alpha, c->beta, c->a, &c->la, c->b, &c->lb, c->out, &c->l);
}

/* Adds the call to the graph that is captured. A graph does not tell when it is destroyed, so the call is never freed.
 * It stays in a list, so that it is no leak. */
static cublasStatus_t record(cudaStream_t stream, const struct call *call)
{
    static struct recorded {
        struct call call;
        struct recorded *before;
    } * all;
    struct recorded *new = malloc(sizeof(*new));
    __typeof__(cuLaunchHostFunc) *launch;

    *(void **)&launch = of_driver("cuLaunchHostFunc");
    if (!new)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *new = (struct recorded){*call, all};
    all = new;
    return launch((CUstream)stream, run, &new->call) == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS
                                                                     : CUBLAS_STATUS_EXECUTION_FAILED;
}

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *a,
                                     cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb,
                                     const void *beta, const void *c, cublasLtMatrixLayout_t lc, void *out,
                                     cublasLtMatrixLayout_t l, const cublasLtMatmulAlgo_t *algo, void *workspace,
                                     size_t workspace_size, cudaStream_t stream)
{
    const struct operation *o = (const struct operation *)(const void *)d;
    const struct layout *of_a = layout_of(la), *of_b = layout_of(lb), *of_out = layout_of(l);
    const void *addresses[] = {a, b, c, out};
    struct call call = {*o,      load(alpha, o->scale, 0), load(beta, o->scale, 0), a, b, out, *of_a, *of_b,
                        *of_out, algo->data[WORD_NUMBER]};

    if ((void *)h != (void *)&handle || algo->data[WORD_COOKIE] != COOKIE || c != out || lc != l || !workspace ||
        workspace_size != algo->data[WORD_WORKSPACE] || !shapes_agree(o, of_a, of_b, of_out))
        fake_blaslt_wrong++;
    for (unsigned i = 0; i < 4; i++)
        if (!algo->data[WORD_ALIGNMENT + i] || (uintptr_t)addresses[i] % algo->data[WORD_ALIGNMENT + i] != 0)
            fake_blaslt_wrong++;
    fake_blaslt_products++;
    fake_blaslt_misaligned += !is_aligned(of_a, a) || !is_aligned(of_b, b) || !is_aligned(of_out, out);
    fake_blaslt_compute = (int)o->compute;
    fake_blaslt_fast_sums = o->fast_sums;
    if (is_captured(stream))
        return record(stream, &call);
    if (wait_for(stream) != CUDA_SUCCESS)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    run(&call);
    return CUBLAS_STATUS_SUCCESS;
}
