/* Owns a tuning: lists the candidates for the step, and measures them on the device. */
#include "tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blaslt/blaslt.h"
#include "compute/kernels.h"
#include "compute/repack_sketch.h"
#include "core/tensor.h"
#include "tournament.h"
#include "util/clock.h"
#include "util/log.h"

enum { TUNE_SETS_MAX = 64 };

struct tune_operands {
    struct cuda_device *device;
    CUdeviceptr memory;
    unsigned n_sets, n_operands, next;
    uint64_t addresses[TUNE_SETS_MAX][STEP_MAX_OPERANDS]; /* addresses of first elements */
};

struct tune_bench {
    const struct cuda_kernels *kernels;
    struct cuda_queue queue;
    struct tune_operands operands;
    const struct tuning_request *request;
    struct tuning_pace *pace;
    uint64_t paused_ns;
    unsigned pauses;
    atomic_ullong *go; /* word of host memory that opens gates; NULL: there are no gates */
    CUdeviceptr go_address;
    CUfunction gate;
    uint64_t gates;
    CUevent begin, end;
};

enum {
    ALIGNMENT = 256,       /* alignment of an operand's memory, to which the request's offset is added */
    PIECE_BYTES = 1 << 18, /* bytes of random values, which are repeated, since making them takes milliseconds */
};

/* Bytes of all sets together, if a set is small: several times a GPU's cache. */
static const uint64_t ROTATED_BYTES = (uint64_t)256 << 20;
/* Operands take at most 1/FREE_PARTS of the free memory. */
enum { FREE_PARTS = 4 };

/* Counts elements from the first to the last, gaps included. */
static uint64_t extent_of(const struct plan_gemm *g, const struct plan_matrix *m, int64_t rows, int64_t columns)
{
    uint64_t last = (uint64_t)((rows - 1) * m->row + (columns - 1) * m->column);

    for (unsigned d = 0; d < g->batch_rank; d++)
        last += (uint64_t)((g->batch_shape[d] - 1) * m->batch[d]);
    return last + 1;
}

/* Computes the bytes of each operand, with its offset and padding. */
static void sizes_of(const struct tuning_request *request, uint64_t *sizes, unsigned *ret_n)
{
    const struct plan *plan = &request->step.plan;
    const struct plan_gemm *g = &plan->gemm;

    *ret_n = plan_gemm_out(g) + 1;
    for (unsigned i = 0; i < *ret_n; i++) {
        const uint64_t extent =
            extent_of(g, plan_gemm_matrix(g, i), i == PLAN_GEMM_B ? g->k : g->m, i == PLAN_GEMM_A ? g->k : g->n);

        sizes[i] = (extent * dtype_size(step_dtype(&request->step, i)) + request->alignment[i] + 2 * ALIGNMENT - 1) /
                   ALIGNMENT * ALIGNMENT;
    }
}

/* ---- values ---- */

static uint64_t next_random(uint64_t *state)
{
    /* SplitMix64, by Guy Steele, Doug Lea and Christine Flood. */
    uint64_t z = *state += 0x9e3779b97f4a7c15U;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

/* Returns a normally distributed value, by Box and Muller. */
static double next_normal(uint64_t *state)
{
    const double u = ((double)(next_random(state) >> 11) + 1) * 0x1p-53;
    const double v = (double)(next_random(state) >> 11) * 0x1p-53;

    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Converts to f16 by truncation: exact values do not matter, but their bits do, since power depends on them. */
static uint16_t half_of(float f)
{
    uint32_t bits;
    int exponent;

    memcpy(&bits, &f, sizeof(bits));
    exponent = (int)(bits >> 23 & 0xff) - 127 + 15;
    if (exponent <= 0)
        return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff));
}

/* Converts to either f8 by truncation; small numbers become 0. */
static uint8_t eighth_of(float f, enum dtype dtype)
{
    const uint16_t half = half_of(f);
    const int magnitude = (half >> 7 & 0xff) - (8 << 3); /* e4m3: the exponent's bias is 7, not 15 */

    if (dtype == DTYPE_F8_E5M2)
        return (uint8_t)(half >> 8);
    return (uint8_t)((half >> 8 & 0x80) | (magnitude < 0 ? 0 : magnitude));
}

static void fill(void *piece, enum dtype dtype, uint64_t state)
{
    const size_t n = PIECE_BYTES / dtype_size(dtype);

    for (size_t i = 0; i < n; i++) {
        const double value = next_normal(&state);
        const float f = (float)value;
        uint32_t bits;

        memcpy(&bits, &f, sizeof(bits));
        if (dtype == DTYPE_F64)
            ((double *)piece)[i] = value;
        else if (dtype == DTYPE_F32)
            ((float *)piece)[i] = f;
        else if (dtype == DTYPE_BF16)
            ((uint16_t *)piece)[i] = (uint16_t)(bits >> 16);
        else if (dtype == DTYPE_F16)
            ((uint16_t *)piece)[i] = half_of(f);
        else
            ((uint8_t *)piece)[i] = eighth_of(f, dtype);
    }
}

/* Copies the piece to the device, and doubles it there until it fills the memory. */
static int repeat_piece(const struct tune_operands *o, CUstream stream, const void *piece, uint64_t bytes,
                        struct error *e)
{
    uint64_t at = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    int r = CUDA_CALL(o->device, e, MemcpyHtoDAsync, o->memory, piece, at, stream);

    while (r == 0 && at < bytes) {
        const uint64_t n = CUDA_HAS(MemcpyDtoDAsync) ? at : PIECE_BYTES, take = bytes - at < n ? bytes - at : n;

        r = CUDA_HAS(MemcpyDtoDAsync)
                ? CUDA_CALL(o->device, e, MemcpyDtoDAsync, o->memory + at, o->memory, take, stream)
                : CUDA_CALL(o->device, e, MemcpyHtoDAsync, o->memory + at, piece, take, stream);
        at += take;
    }
    return r;
}

static int copy_values(const struct tune_operands *o, CUstream stream, enum dtype dtype, uint64_t bytes,
                       struct error *e)
{
    void *piece = malloc(PIECE_BYTES);
    int r;

    if (!piece)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for random values");
    fill(piece, dtype, bytes);
    r = repeat_piece(o, stream, piece, bytes, e);
    if (r == 0)
        r = cuda_stream_wait(o->device, stream, e);
    free(piece);
    return r;
}

/* ---- memory ---- */

static int count_sets(struct tune_operands *o, uint64_t set, struct error *e)
{
    uint64_t available = 0, n;

    if (cuda_device_memory_free(o->device, &available) < 0)
        available = ROTATED_BYTES * FREE_PARTS;
    available /= FREE_PARTS;
    if (set > available)
        return error_set(e, ERROR_OUT_OF_MEMORY,
                         "tuning needs %llu MiB of GPU memory for the operands, more than a quarter of what is free",
                         (unsigned long long)(set >> 20));
    n = ROTATED_BYTES / set + 1;
    while (n > 1 && n * set > available)
        n--;
    o->n_sets = n > TUNE_SETS_MAX ? TUNE_SETS_MAX : (unsigned)n;
    return 0;
}

/* Allocates and fills the operands. The caller frees their memory, also after an error. */
static int make_operands(struct tune_operands *o, struct cuda_device *d, CUstream stream,
                         const struct tuning_request *request, struct error *e)
{
    uint64_t sizes[STEP_MAX_OPERANDS], set = 0, at;

    *o = (struct tune_operands){.device = d};
    sizes_of(request, sizes, &o->n_operands);
    for (unsigned i = 0; i < o->n_operands; i++)
        set += sizes[i];
    if (count_sets(o, set, e) < 0 || cuda_scratch_alloc(d, stream, o->n_sets * set, &o->memory, e) < 0)
        return -1;
    at = o->memory;
    for (unsigned s = 0; s < o->n_sets; s++)
        for (unsigned i = 0; i < o->n_operands; at += sizes[i++])
            o->addresses[s][i] = at + request->alignment[i] % ALIGNMENT;
    return copy_values(o, stream, request->step.plan.dtype, o->n_sets * set, e);
}

/* ---- the bench ---- */

enum {
    IN_A_ROW_MAX = 64,         /* most executions behind a gate */
    GATE_NS = 2 * 1000 * 1000, /* a gate opens by itself after this time, many times that for enqueuing */
    FEW = 4,                   /* executions that estimate the time of one */
    LEAST_US = 1,              /* least estimate of an execution's time */
};

/* Allocates the gate's word. Without a gate, times include launches. */
static void open_gate(struct tune_bench *b)
{
    void *word = NULL;
    struct error ignored;

    b->gate = cuda_embedded_find(&b->kernels->embedded, "kops_gate");
    if (!b->gate || !CUDA_HAS(MemHostAlloc) || !CUDA_HAS(MemFreeHost) ||
        cuda_host_alloc(b->queue.device, sizeof(*b->go), &word, &b->go_address, &ignored) < 0)
        return;
    b->go = word;
}

static void tune_bench_close(struct tune_bench *b)
{
    struct cuda_device *d = b->queue.device;
    struct error ignored;

    if (!b->queue.stream)
        return;
    cuda_scratch_free(d, b->queue.stream, b->operands.memory);
    cuda_scratch_free(d, b->queue.stream, b->queue.workspace);
    cuda_queue_give_scratch(&b->queue);
    cuda_stream_wait(d, b->queue.stream, &ignored);
    cuda_host_free(d, (void *)(uintptr_t)b->go);
    if (b->begin)
        cuda_on(d)->EventDestroy(b->begin);
    if (b->end)
        cuda_on(d)->EventDestroy(b->end);
    cuda_on(d)->StreamDestroy(b->queue.stream);
    b->queue.stream = NULL;
}

static int tune_bench_open(struct tune_bench *b, const struct cuda_kernels *k, const struct tuning_request *request,
                           struct tuning_pace *pace, struct error *e)
{
    struct cuda_device *d = k->device;

    *b = (struct tune_bench){.kernels = k, .request = request, .pace = pace, .queue = {.device = d}};
    if (cuda_enter(d, e) < 0)
        return -1;
    if (!d->has_pools)
        return error_set(e, ERROR_UNSUPPORTED, "%s has no memory pools, where tuning has its operands",
                         d->base.info.name);
    if (CUDA_CALL(d, e, StreamCreate, &b->queue.stream, CU_STREAM_NON_BLOCKING) < 0)
        return -1;
    if (CUDA_CALL(d, e, EventCreate, &b->begin, CU_EVENT_DEFAULT) < 0 ||
        CUDA_CALL(d, e, EventCreate, &b->end, CU_EVENT_DEFAULT) < 0 ||
        cuda_scratch_alloc(d, b->queue.stream, k->workspace_bytes, &b->queue.workspace, e) < 0 ||
        make_operands(&b->operands, d, b->queue.stream, request, e) < 0) {
        tune_bench_close(b);
        return -1;
    }
    open_gate(b);
    return 0;
}

static int close_gate(struct tune_bench *b, struct error *e)
{
    struct cuda_launch launch;

    if (!b->go)
        return 0;
    cuda_ops_gate(&launch, b->go_address, ++b->gates, GATE_NS);
    return cuda_embedded_launch(&b->queue, b->gate, &launch, e);
}

/* Prepares `n` executions on consecutive sets of operands, which have equal alignments. */
static int prepare(struct tune_bench *b, const struct tuning_choice *choice, struct cuda_work *works, unsigned n,
                   struct error *e)
{
    struct tune_operands *o = &b->operands;

    for (unsigned i = 0; i < n; i++) {
        memset(&works[i], 0, sizeof(works[i]));
        works[i].plan = &b->request->step.plan;
        o->next = (o->next + 1) % o->n_sets;
        memcpy(works[i].addresses, o->addresses[o->next], sizeof(works[i].addresses));
        if (cuda_work_prepare_choice(b->kernels, &b->request->step, choice, &works[i], e) < 0 ||
            cuda_queue_need_scratch(&b->queue, works[i].scratch, e) < 0)
            return -1;
    }
    return 0;
}

/* *ret_us: the device's time for all executions. *ret_host_us, which may be NULL: the host's time to enqueue them,
 * which *ret_us includes where there is no gate. */
static int run_all(struct tune_bench *b, struct cuda_work *works, unsigned n, bool gated, double *ret_us,
                   double *ret_host_us, struct error *e)
{
    struct cuda_device *d = b->queue.device;
    uint64_t begin_ns;
    int r = 0;

    if (gated)
        r = close_gate(b, e);
    if (r == 0)
        r = CUDA_CALL(d, e, EventRecord, b->begin, b->queue.stream);
    begin_ns = clock_now_ns();
    for (unsigned i = 0; i < n && r == 0; i++)
        r = cuda_work_issue(&b->queue, &works[i], e);
    if (ret_host_us)
        *ret_host_us = (double)(clock_now_ns() - begin_ns) * 1e-3;
    if (r == 0)
        r = CUDA_CALL(d, e, EventRecord, b->end, b->queue.stream);
    if (b->go)
        atomic_store_explicit(b->go, b->gates, memory_order_release);
    /* Waits also after a failure, since the operands are freed next. */
    if (cuda_stream_wait(d, b->queue.stream, e) < 0 || r < 0)
        return -1;
    *ret_us = cuda_event_us(d, b->begin, b->end);
    return 0;
}

static int prepare_and_run(struct tune_bench *b, const struct tuning_choice *choice, unsigned n, bool gated,
                           double *ret_us, double *ret_host_us, struct error *e)
{
    struct cuda_work works[IN_A_ROW_MAX];
    int r;

    memset(works, 0, n * sizeof(works[0]));
    r = prepare(b, choice, works, n, e);
    if (r == 0)
        r = run_all(b, works, n, gated, ret_us, ret_host_us, e);
    for (unsigned i = 0; i < n; i++)
        cuda_work_release(&works[i]);
    return r;
}

/* Measures as many executions as fit into `slice_us`, at most `most`. */
static int run_slice(struct tune_bench *b, const struct tuning_choice *choice, double guess_us, double slice_us,
                     unsigned most, double *ret_us, struct error *e)
{
    const double fit = slice_us / guess_us;
    const unsigned n = fit < 1 ? 1 : fit > most ? most : (unsigned)fit;

    if (prepare_and_run(b, choice, n, true, ret_us, NULL, e) < 0)
        return -1;
    *ret_us /= n;
    return 0;
}

static int wait_for_turn(struct tune_bench *b, struct error *e)
{
    const uint64_t begin_ns = clock_now_ns();

    if (b->pace && b->pace->wait(b->pace, e) < 0)
        return -1;
    b->paused_ns += clock_now_ns() - begin_ns;
    b->pauses++;
    return 0;
}

static int tune_measure(void *bench, const struct tuning_choice *choice, double guess_us, double slice_us,
                        double *ret_us, struct error *e)
{
    struct tune_bench *b = bench;

    if (wait_for_turn(b, e) < 0)
        return -1;
    return run_slice(b, choice, guess_us, slice_us, IN_A_ROW_MAX, ret_us, e);
}

/* The first execution loads the code, which waits for the device, so it cannot run behind a gate. The host's time is
 * subtracted from its time, which is inexact. So a few executions follow, to estimate how many fit into the slice. */
static int tune_measure_first(void *bench, const struct tuning_choice *choice, double slice_us, double *ret_us,
                              bool *ret_rough, struct error *e)
{
    struct tune_bench *b = bench;
    double us, host_us = 0;
    unsigned few;

    if (wait_for_turn(b, e) < 0 || prepare_and_run(b, choice, 1, false, &us, &host_us, e) < 0)
        return -1;
    few = us > slice_us ? 1 : FEW;
    us = us - host_us > LEAST_US ? us - host_us : LEAST_US;
    *ret_rough = us > TOURNAMENT_LONG_US;
    *ret_us = us;
    if (*ret_rough)
        return 0;
    if (run_slice(b, choice, us, slice_us, few, &us, e) < 0)
        return -1;
    *ret_us = us = us > LEAST_US ? us : LEAST_US;
    return us * few > slice_us / 2 ? 0 : run_slice(b, choice, us, slice_us, IN_A_ROW_MAX, ret_us, e);
}

/* ---- candidates ---- */

/* Candidates reserved for our own kernels. */
enum { OWN_MAX = BACKEND_MAX_VARIANTS };

static int list_library(const struct cuda_kernels *k, const struct step *step, const uint64_t *addresses,
                        struct tuning_result *ret, struct error *e)
{
    unsigned n = 0;

    if (!k->blaslt || blaslt_check(&step->plan, e) < 0)
        return 0;
    if (blaslt_candidates(k->blaslt, &step->plan, addresses, ret->candidates, TUNING_CANDIDATES_MAX - OWN_MAX, &n, e) <
            0 &&
        !blaslt_is_absent(k->blaslt))
        return -1;
    ret->n = n;
    return 0;
}

/* Whether the variant has the request's precision: products of pieces need less than the highest. */
static bool is_allowed(const struct plan *plan, const char *variant)
{
    if (strcmp(variant, repack_bf16x3) == 0)
        return plan->gemm.in_pieces;
    return strcmp(variant, repack_bf16x6) != 0 || (plan->gemm.in_pieces && repack_is_as_exact(plan));
}

/* Lists our own kernels for the op and dtype. Measuring shows whether a kernel serves this step. */
static void list_own(const struct cuda_kernels *k, const struct step *step, struct tuning_result *ret)
{
    const char *const *names = cuda_variants_find(&k->variants, op_get((enum op_id)step->op), step->plan.dtype);

    for (; names && *names && ret->n < TUNING_CANDIDATES_MAX; names++) {
        struct tuning_candidate *c = &ret->candidates[ret->n];

        if (strcmp(*names, cuda_variant_blaslt) == 0 || !is_allowed(&step->plan, *names))
            continue;
        *c = (struct tuning_candidate){.n = 0};
        step_copy_variant(c->choice.variant, *names);
        snprintf(c->text, sizeof(c->text), "%s", *names);
        ret->n++;
    }
}

static void find_usual(const struct cuda_kernels *k, const struct step *step, const uint64_t *addresses,
                       struct tuning_result *ret)
{
    struct cuda_work work = {.plan = &step->plan};
    struct error ignored;

    memcpy(work.addresses, addresses, sizeof(work.addresses));
    ret->usual = 0;
    if (cuda_work_prepare_usual(k, step, &work, &ignored) < 0)
        return;
    for (unsigned i = ret->n; i-- > 0;)
        if (strcmp(ret->candidates[i].choice.variant, work.variant) == 0)
            ret->usual = i; /* the first one, if it is the library's variant */
    cuda_work_release(&work);
}

static int list_candidates(const struct cuda_kernels *k, const struct step *step, const uint64_t *addresses,
                           struct tuning_result *ret, struct error *e)
{
    ret->n = 0;
    if (list_library(k, step, addresses, ret, e) < 0)
        return -1;
    list_own(k, step, ret);
    if (ret->n < 2)
        return error_set(e, ERROR_UNSUPPORTED, "there is nothing to tune: one kernel serves this op and dtype here");
    for (unsigned i = 0; i < ret->n; i++) {
        ret->candidates[i].state = TUNING_LEFT_OUT;
        ret->candidates[i].us = NAN;
    }
    find_usual(k, step, addresses, ret);
    return 0;
}

/* ---- the tuning ---- */

/* Larger products would block the GPU for other users too long. */
static const double OPERATIONS_MAX = 0x1p45;

bool cuda_tunes(const struct step *step)
{
    return step->plan.kind == PLAN_GEMM && !plan_is_empty(&step->plan) && !step_variant(step);
}

static void find_before(const struct cuda_kernels *k, struct tuning_result *ret)
{
    struct tuning_choice choice;

    ret->before = ret->usual;
    if (!tuning_table_find(k->tuning, &ret->key, &choice))
        return;
    for (unsigned i = 0; i < ret->n; i++)
        if (memcmp(&ret->candidates[i].choice, &choice, sizeof(choice)) == 0) {
            ret->before = i;
            return;
        }
    if (ret->n == TUNING_CANDIDATES_MAX)
        return;
    ret->before = ret->n++;
    ret->candidates[ret->before] = (struct tuning_candidate){.choice = choice, .us = NAN};
    snprintf(ret->candidates[ret->before].text, sizeof(ret->candidates[0].text), "%.24s, as chosen before",
             choice.variant);
}

/* ---- the tournament, on a bench ---- */

/* True for a broken device, and if the pace cancels the tuning; false if the candidate does not serve the step. */
static bool ends_all(void *context, const struct error *why)
{
    const struct tune_bench *b = context;

    return cuda_device_is_broken(b->queue.device) || why->code == ERROR_CANCELLED || why->code == ERROR_DEVICE_LOST;
}

static uint64_t now_ns(void *context)
{
    const struct tune_bench *b = context;

    return clock_now_ns() - (b->request->patient ? b->paused_ns : 0);
}

/* Returns 0 for patient tunings, whose time excludes pauses. */
static double pause_ns(void *context)
{
    const struct tune_bench *b = context;

    return b->request->patient || !b->pauses ? 0 : (double)b->paused_ns / b->pauses;
}

static double operations(const struct plan_gemm *g)
{
    return 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)g->batch_count;
}

/* Writes a text such as "linear bf16 4096x4096x4096 nt bias gelu". */
static void describe(const struct tuning_request *request, const uint64_t *addresses, char *into, size_t size)
{
    const int n = snprintf(into, size, "%.32s ", step_op_name(&request->step));

    if (n > 0 && (size_t)n < size)
        blaslt_problem_text(&request->step.plan, addresses, into + n, size - (size_t)n);
}

/* A client that waits sets `until_ns`; the budget applies otherwise, and where `until_ns` has passed. */
static uint64_t ends_at(const struct tuning_request *request, uint64_t begin_ns)
{
    const uint64_t budget_ns = begin_ns + (uint64_t)request->budget_ms * 1000 * 1000;

    return request->until_ns > begin_ns && request->until_ns < budget_ns ? request->until_ns : budget_ns;
}

int cuda_tune(const struct cuda_kernels *k, const struct tuning_request *request, struct tuning_pace *pace,
              struct tuning_result *ret, struct error *e)
{
    const uint64_t begin_ns = clock_now_ns(), until_ns = ends_at(request, begin_ns);
    const uint64_t *addresses;
    struct tune_bench bench;
    int r;

    memset(ret, 0, sizeof(*ret));
    if (!cuda_tunes(&request->step))
        return error_set(e, ERROR_UNSUPPORTED, "there is nothing to tune: one kernel serves this op");
    if (operations(&request->step.plan.gemm) > OPERATIONS_MAX)
        return error_set(e, ERROR_LIMIT_EXCEEDED, "the product is too large to tune: at most 2^45 operations");
    if (tune_bench_open(&bench, k, request, pace, e) < 0)
        return -1;
    addresses = bench.operands.addresses[0];
    cuda_tuned_machine(k, ret->machine, sizeof(ret->machine));
    describe(request, addresses, ret->problem, sizeof(ret->problem));
    r = cuda_tuned_key(k, &request->step.plan, addresses, &ret->key, e);
    if (r == 0)
        r = list_candidates(k, &request->step, addresses, ret, e);
    if (r == 0) {
        find_before(k, ret);
        ret->best = ret->before;
        r = pace && pace->listed ? pace->listed(pace, ret, e) : 0;
    }
    if (r == 0) {
        const struct tournament t = {tune_measure_first, tune_measure, ends_all,        now_ns, pause_ns, &bench,
                                     now_ns(&bench),     until_ns,     request->patient};

        log_debug("tuning_begins", "problem=\"%s\" candidates=%u tried=%u prepared_us=%llu", ret->problem, ret->n,
                  tuning_tried(ret), (unsigned long long)(clock_now_ns() - begin_ns) / 1000);
        r = tournament_run(&t, ret, e);
    }
    tune_bench_close(&bench);
    return r;
}
