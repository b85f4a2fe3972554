/* Owns one plan: its descriptors, the choice among the library's candidates, and running it. */
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/device.h"

enum {
    BLASLT_CANDIDATES = 8,  /* asked for, when the first usable one is taken */
    BLASLT_TUNED_FROM = 32, /* asked for with each size of workspace, when all are measured */
};

struct types {
    cudaDataType_t scale;
    cublasComputeType_t compute;
};

/* f32 multiplies in f32 (no tf32) unless the request allowed less; f8, f16 and bf16 accumulate in f32. */
static struct types types_of(const struct blaslt_problem *problem)
{
    if (problem->dtype == DTYPE_F64)
        return (struct types){CUDA_R_64F, CUBLAS_COMPUTE_64F};
    return (struct types){CUDA_R_32F, problem->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F};
}

static cudaDataType_t data_type(uint8_t dtype)
{
    switch ((enum dtype)dtype) {
    case DTYPE_F64:
        return CUDA_R_64F;
    case DTYPE_F16:
        return CUDA_R_16F;
    case DTYPE_BF16:
        return CUDA_R_16BF;
    case DTYPE_F8_E4M3:
        return CUDA_R_8F_E4M3;
    case DTYPE_F8_E5M2:
        return CUDA_R_8F_E5M2;
    default:
        break;
    }
    return CUDA_R_32F;
}

static void keep(cublasStatus_t *first, cublasStatus_t status)
{
    if (*first == CUBLAS_STATUS_SUCCESS)
        *first = status;
}

static cublasStatus_t set_pointer(struct blaslt_plan *p, cublasLtMatmulDescAttributes_t attribute, uint64_t address)
{
    const void *pointer = (const void *)(uintptr_t)address;

    return blaslt_api.MatmulDescSetAttribute(p->operation, attribute, &pointer, sizeof(pointer));
}

/* A placeholder: without addresses of scales the library would look for algorithms without scales. Nothing is read
 * there, since each run sets the addresses. */
enum { SOME_SCALE = 256 };

/* Libraries before 12.9 do not know scales that are vectors. */
static void set_scales(struct blaslt_plan *p, cublasStatus_t *status)
{
    const int8_t fast = p->problem.fast_sums != 0;

    keep(status, set_pointer(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, SOME_SCALE));
    keep(status, set_pointer(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, SOME_SCALE));
    keep(status, blaslt_api.MatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)));
    if (p->problem.scales != BLASLT_SCALE_VECTORS)
        return;
    p->is_refused = true;
#if CUBLAS_VERSION >= 120900
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const cublasLtMatmulDescAttributes_t modes[] = {CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                                                    CUBLASLT_MATMUL_DESC_B_SCALE_MODE};

    p->is_refused = false;
    for (unsigned i = 0; i < 2; i++)
        p->is_refused |=
            blaslt_api.MatmulDescSetAttribute(p->operation, modes[i], &mode, sizeof(mode)) != CUBLAS_STATUS_SUCCESS;
#endif
}

static cublasStatus_t make_operation(struct blaslt_plan *p, struct types types)
{
    static const uint32_t epilogues[] = {[PLAN_NONE] = CUBLASLT_EPILOGUE_BIAS,
                                         [PLAN_RELU] = CUBLASLT_EPILOGUE_RELU_BIAS,
                                         [PLAN_GELU_TANH] = CUBLASLT_EPILOGUE_GELU_BIAS};
    int32_t a = p->problem.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t b = p->problem.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = epilogues[p->problem.activation];
    cublasStatus_t status = blaslt_api.MatmulDescCreate(&p->operation, types.compute, types.scale);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    keep(&status, blaslt_api.MatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof(a)));
    keep(&status, blaslt_api.MatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof(b)));
    if (p->problem.has_bias)
        keep(&status, blaslt_api.MatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                        sizeof(epilogue)));
    if (p->problem.scales)
        set_scales(p, &status);
    return status;
}

static cublasStatus_t make_layout(struct blaslt_plan *p, enum blaslt_operand o, cudaDataType_t type, int64_t rows,
                                  int64_t columns, bool transpose)
{
    cublasLtMatrixLayout_t *layout = &p->layouts[o];
    int32_t count = (int32_t)p->problem.batch_count;
    int64_t stride = p->problem.batch_stride[o];
    cublasStatus_t status;

    status = blaslt_api.MatrixLayoutCreate(layout, type, (uint64_t)(transpose ? columns : rows),
                                           (uint64_t)(transpose ? rows : columns), p->problem.ld[o]);
    if (status != CUBLAS_STATUS_SUCCESS || count == 1)
        return status;
    keep(&status,
         blaslt_api.MatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
    keep(&status, blaslt_api.MatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                      sizeof(stride)));
    return status;
}

static cublasStatus_t describe(struct blaslt_plan *p)
{
    const struct blaslt_problem *q = &p->problem;
    cublasStatus_t status = make_operation(p, types_of(q));

    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(p, BLASLT_A, data_type(q->dtype), q->m, q->k, q->transpose_a);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(p, BLASLT_B, data_type(q->b_dtype), q->k, q->n, q->transpose_b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(p, BLASLT_D, data_type(q->out_dtype), q->m, q->n, false);
    return status;
}

/* Partial sums of 8-bit and 16-bit products are added in f32 only, so there is one rounding, at the end. */
static cublasStatus_t make_preference(const struct blaslt_problem *q, uint64_t workspace_bytes,
                                      cublasLtMatmulPreference_t *ret_preference)
{
    static const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        enum blaslt_operand operand;
    } alignments[] = {
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, BLASLT_A},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, BLASLT_B},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, BLASLT_D},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, BLASLT_D},
    };
    uint32_t reduction =
        dtype_size((enum dtype)q->dtype) <= 2 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_MASK;
    cublasLtMatmulPreference_t preference;
    cublasStatus_t status = blaslt_api.MatmulPreferenceCreate(&preference);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    keep(&status, blaslt_api.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                          &workspace_bytes, sizeof(workspace_bytes)));
    keep(&status, blaslt_api.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                          &reduction, sizeof(reduction)));
    for (unsigned i = 0; i < sizeof(alignments) / sizeof(alignments[0]); i++)
        keep(&status, blaslt_api.MatmulPreferenceSetAttribute(preference, alignments[i].attribute,
                                                              &q->alignment[alignments[i].operand], sizeof(uint32_t)));
    if (status != CUBLAS_STATUS_SUCCESS) {
        blaslt_api.MatmulPreferenceDestroy(preference);
        return status;
    }
    *ret_preference = preference;
    return CUBLAS_STATUS_SUCCESS;
}

static int plan_new(struct cuda_device *d, cublasLtHandle_t handle, const struct blaslt_problem *problem,
                    struct blaslt_plan **ret_plan, struct error *e)
{
    struct blaslt_plan *p = calloc(1, sizeof(*p));
    cublasStatus_t status;

    if (!p)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a plan");
    atomic_init(&p->refs, 1);
    pthread_mutex_init(&p->pointers_lock, NULL);
    list_init(&p->link);
    p->device = d;
    p->handle = handle;
    p->problem = *problem;
    status = describe(p);
    if (status != CUBLAS_STATUS_SUCCESS) {
        blaslt_plan_unref(p);
        return blaslt_fail(status, "cublasLtMatmulDescCreate", e);
    }
    *ret_plan = p;
    return 0;
}

static cublasStatus_t ask(const struct blaslt_plan *p, uint64_t workspace_bytes, int max,
                          cublasLtMatmulHeuristicResult_t *ret, int *ret_n)
{
    cublasLtMatmulPreference_t preference;
    cublasStatus_t status;
    int found = 0;

    *ret_n = 0;
    if (p->is_refused)
        return CUBLAS_STATUS_SUCCESS;
    status = make_preference(&p->problem, workspace_bytes, &preference);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    status = blaslt_on(p->device)->MatmulAlgoGetHeuristic(p->handle, p->operation, p->layouts[BLASLT_A],
                                                          p->layouts[BLASLT_B], p->layouts[BLASLT_D],
                                                          p->layouts[BLASLT_D], preference, max, ret, &found);
    blaslt_api.MatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)
        return CUBLAS_STATUS_SUCCESS;
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; i++)
        if (ret[i].state == CUBLAS_STATUS_SUCCESS && ret[i].workspaceSize <= workspace_bytes)
            ret[(*ret_n)++] = ret[i];
    return status;
}

static cublasStatus_t choose(struct blaslt_plan *p, uint64_t workspace_bytes)
{
    cublasLtMatmulHeuristicResult_t candidates[BLASLT_CANDIDATES];
    cublasStatus_t status;
    int n;

    status = ask(p, workspace_bytes, BLASLT_CANDIDATES, candidates, &n);
    p->has_algorithm = status == CUBLAS_STATUS_SUCCESS && n > 0;
    if (p->has_algorithm)
        p->algorithm = candidates[0];
    return status;
}

/* Uses the algorithm of a choice, which another version of the library may have made. False: the library refuses it. */
static bool take(struct blaslt_plan *p, const struct tuning_choice *choice, uint64_t workspace_bytes)
{
    cublasLtMatmulAlgo_t algorithm;
    cublasStatus_t status;

    _Static_assert(sizeof(algorithm) <= sizeof(choice->algorithm), "a choice has room for an algorithm");
    if (p->is_refused)
        return false;
    memcpy(&algorithm, choice->algorithm, sizeof(algorithm));
    status =
        blaslt_on(p->device)->MatmulAlgoCheck(p->handle, p->operation, p->layouts[BLASLT_A], p->layouts[BLASLT_B],
                                              p->layouts[BLASLT_D], p->layouts[BLASLT_D], &algorithm, &p->algorithm);
    if (status != CUBLAS_STATUS_SUCCESS || p->algorithm.workspaceSize > workspace_bytes)
        return false;
    p->algorithm.algo = algorithm;
    p->has_algorithm = true;
    return true;
}

int blaslt_plan_make(struct cuda_device *d, cublasLtHandle_t handle, const struct blaslt_problem *problem,
                     uint64_t workspace_bytes, const struct tuning_choice *choice, struct blaslt_plan **ret_plan,
                     struct error *e)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    struct blaslt_plan *p;

    if (plan_new(d, handle, problem, &p, e) < 0)
        return -1;
    if (!choice || !take(p, choice, workspace_bytes))
        status = choose(p, workspace_bytes);
    if (status != CUBLAS_STATUS_SUCCESS) {
        blaslt_plan_unref(p);
        return blaslt_fail(status, "cublasLtMatmulAlgoGetHeuristic", e);
    }
    *ret_plan = p;
    return 0;
}

struct blaslt_plan *blaslt_plan_unref(struct blaslt_plan *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) > 1)
        return NULL;
    for (unsigned o = 0; o < BLASLT_OPERANDS; o++)
        if (p->layouts[o])
            blaslt_api.MatrixLayoutDestroy(p->layouts[o]);
    if (p->operation)
        blaslt_api.MatmulDescDestroy(p->operation);
    pthread_mutex_destroy(&p->pointers_lock);
    free(p);
    return NULL;
}

size_t blaslt_plan_workspace(const struct blaslt_plan *p)
{
    return p->algorithm.workspaceSize;
}

/* With a beta of exactly 1 and a 16-bit out, the library rounds the product before it adds out. With the next larger
 * f32 it adds first; the difference is less than a rounding of f32. */
static float beta_of(const struct blaslt_plan *p, double beta)
{
    const bool is_wide = p->problem.out_dtype == DTYPE_F32 || p->problem.out_dtype == DTYPE_F64;

    return beta == 1 && !is_wide ? 0x1.000002p0f : (float)beta;
}

static cublasStatus_t run_call(const struct cuda_queue *queue, struct blaslt_plan *p, const struct plan_gemm *g,
                               const struct blaslt_layout *layout, unsigned call, const uint64_t *addresses)
{
    bool f64 = p->problem.dtype == DTYPE_F64;
    float scale32[] = {(float)g->alpha, beta_of(p, g->beta)};
    double scale64[] = {g->alpha, g->beta};
    void *at[BLASLT_OPERANDS];

    for (unsigned o = 0; o < BLASLT_OPERANDS; o++)
        at[o] = (void *)(uintptr_t)(addresses[layout->source[o]] +
                                    blaslt_call_offset(layout, call, (enum blaslt_operand)o));
    return blaslt_on(queue->device)
        ->Matmul(p->handle, p->operation, f64 ? (void *)&scale64[0] : (void *)&scale32[0], at[BLASLT_A],
                 p->layouts[BLASLT_A], at[BLASLT_B], p->layouts[BLASLT_B],
                 f64 ? (void *)&scale64[1] : (void *)&scale32[1], at[BLASLT_D], p->layouts[BLASLT_D], at[BLASLT_D],
                 p->layouts[BLASLT_D], &p->algorithm.algo, (void *)(uintptr_t)queue->workspace,
                 blaslt_plan_workspace(p), (cudaStream_t)queue->stream);
}

/* The descriptor holds the addresses of bias and scales, and all runs of the plan share it: hence the lock. */
static cublasStatus_t run_pointed(const struct cuda_queue *queue, struct blaslt_plan *p, const struct plan_gemm *g,
                                  const struct blaslt_layout *layout, unsigned call, const uint64_t *addresses)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    pthread_mutex_lock(&p->pointers_lock);
    if (p->problem.has_bias)
        status = set_pointer(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, addresses[PLAN_GEMM_BIAS]);
    if (p->problem.scales) {
        keep(&status, set_pointer(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                  addresses[PLAN_GEMM_SCALE_A + layout->source[BLASLT_A]]));
        keep(&status, set_pointer(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                  addresses[PLAN_GEMM_SCALE_A + layout->source[BLASLT_B]]));
    }
    if (status == CUBLAS_STATUS_SUCCESS)
        status = run_call(queue, p, g, layout, call, addresses);
    pthread_mutex_unlock(&p->pointers_lock);
    return status;
}

int blaslt_plan_run(const struct cuda_queue *queue, struct blaslt_plan *p, const struct plan *plan,
                    const uint64_t *addresses, struct error *e)
{
    struct blaslt_layout layout;

    if (blaslt_layout(plan, addresses, &layout, e) < 0)
        return -1;
    for (unsigned i = 0; i < layout.n_calls; i++) {
        cublasStatus_t status = layout.problem.has_bias || layout.problem.scales
                                    ? run_pointed(queue, p, &plan->gemm, &layout, i, addresses)
                                    : run_call(queue, p, &plan->gemm, &layout, i, addresses);

        if (status != CUBLAS_STATUS_SUCCESS)
            return blaslt_fail(status, "cublasLtMatmul", e);
    }
    return 0;
}

/* ---- loading ---- */

enum { SMALL = 256 /* at most as many rows, columns and steps of k */ };

static int64_t small(int64_t size)
{
    return size < SMALL ? size : SMALL;
}

/* Returns the problem reduced to one small product. */
static struct blaslt_problem small_problem(const struct blaslt_problem *problem)
{
    struct blaslt_problem q = *problem;

    q.m = small(q.m);
    q.n = small(q.n);
    q.k = small(q.k);
    q.batch_count = 1;
    for (unsigned o = 0; o < BLASLT_OPERANDS; o++)
        q.ld[o] = SMALL;
    return q;
}

/* Runs the plan's algorithm on a small product in scratch memory, and waits for it. */
static bool run_small(const struct blaslt_plan *p, CUstream stream)
{
    enum { MATRIX_BYTES = SMALL * SMALL * 8, MATRICES_BYTES = BLASLT_OPERANDS * MATRIX_BYTES };
    const struct blaslt_problem problem = small_problem(&p->problem);
    const struct plan_gemm numbers = {.alpha = 1};
    struct cuda_queue queue = {.device = p->device, .stream = stream};
    struct blaslt_layout layout = {.source = {BLASLT_A, BLASLT_B, BLASLT_D}};
    uint64_t addresses[BLASLT_OPERANDS];
    struct blaslt_plan *q;
    struct error ignored;
    CUdeviceptr at;
    bool ran = false;

    if (plan_new(p->device, p->handle, &problem, &q, &ignored) < 0)
        return false;
    q->algorithm = p->algorithm;
    if (blaslt_on(p->device)->MatmulAlgoCheck(q->handle, q->operation, q->layouts[BLASLT_A], q->layouts[BLASLT_B],
                                              q->layouts[BLASLT_D], q->layouts[BLASLT_D], &p->algorithm.algo,
                                              &q->algorithm) == CUBLAS_STATUS_SUCCESS &&
        cuda_scratch_alloc(p->device, stream, MATRICES_BYTES + q->algorithm.workspaceSize, &at, &ignored) == 0) {
        q->algorithm.algo = p->algorithm.algo;
        for (unsigned o = 0; o < BLASLT_OPERANDS; o++)
            addresses[o] = at + o * (uint64_t)MATRIX_BYTES;
        queue.workspace = at + MATRICES_BYTES;
        ran = run_call(&queue, q, &numbers, &layout, 0, addresses) == CUBLAS_STATUS_SUCCESS;
        cuda_scratch_free(p->device, stream, at);
        cuda_stream_wait(p->device, stream, &ignored);
    }
    blaslt_plan_unref(q);
    return ran;
}

static void record(struct blaslt_plan *p, const struct plan *plan, const uint64_t *addresses, CUstream stream)
{
    struct cuda_queue queue = {
        .device = p->device, .stream = stream, .workspace = addresses[plan_gemm_out(&plan->gemm)]};
    CUgraph recorded = NULL;
    struct error ignored;

    if (!CUDA_HAS(StreamBeginCapture) ||
        cuda_on(p->device)->StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS)
        return;
    blaslt_plan_run(&queue, p, plan, addresses, &ignored);
    if (cuda_on(p->device)->StreamEndCapture(stream, &recorded) == CUDA_SUCCESS && recorded)
        cuda_on(p->device)->GraphDestroy(recorded);
}

void blaslt_plan_load(struct blaslt_plan *p, const struct plan *plan, const uint64_t *addresses)
{
    struct error ignored;
    CUstream stream;

    if (CUDA_CALL(p->device, &ignored, StreamCreate, &stream, CU_STREAM_NON_BLOCKING) < 0)
        return;
    if (p->problem.has_bias || p->problem.scales || !p->device->has_pools || !run_small(p, stream))
        record(p, plan, addresses, stream);
    cuda_on(p->device)->StreamDestroy(stream);
}

/* ---- candidates ---- */

/* Adds the algorithms of `from` that are not in `ret` yet. */
static unsigned add_candidates(const cublasLtMatmulHeuristicResult_t *from, int n_from, struct tuning_candidate *ret,
                               unsigned n, unsigned max)
{
    for (int i = 0; i < n_from && n < max; i++) {
        struct tuning_candidate c = {
            .choice = {.workspace_bytes = (uint32_t)from[i].workspaceSize, .has_algorithm = 1}};
        unsigned known = 0;

        step_copy_variant(c.choice.variant, "cublaslt");
        memcpy(c.choice.algorithm, &from[i].algo, sizeof(from[i].algo));
        snprintf(c.text, sizeof(c.text), "cublaslt %u, scratch %u KiB", n + 1, c.choice.workspace_bytes >> 10);
        while (known < n && memcmp(ret[known].choice.algorithm, c.choice.algorithm, sizeof(c.choice.algorithm)) != 0)
            known++;
        if (known == n)
            ret[n++] = c;
    }
    return n;
}

int blaslt_plan_candidates(struct cuda_device *d, cublasLtHandle_t handle, const struct blaslt_problem *problem,
                           uint64_t workspace_bytes, struct tuning_candidate *ret, unsigned max, unsigned *ret_n,
                           struct error *e)
{
    /* The library names other algorithms first when there is less workspace. */
    const uint64_t workspaces[] = {workspace_bytes, workspace_bytes / 8, 0};
    cublasLtMatmulHeuristicResult_t found[BLASLT_TUNED_FROM];
    struct blaslt_plan *p = NULL;
    cublasStatus_t status;
    int n;

    *ret_n = 0;
    if (plan_new(d, handle, problem, &p, e) < 0)
        return -1;
    for (unsigned i = 0; i < sizeof(workspaces) / sizeof(workspaces[0]); i++) {
        status = ask(p, workspaces[i], BLASLT_TUNED_FROM, found, &n);
        if (status != CUBLAS_STATUS_SUCCESS)
            break;
        *ret_n = add_candidates(found, n, ret, *ret_n, max);
    }
    blaslt_plan_unref(p);
    return *ret_n || status == CUBLAS_STATUS_SUCCESS ? 0 : blaslt_fail(status, "cublasLtMatmulAlgoGetHeuristic", e);
}
