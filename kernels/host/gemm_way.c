#include "gemm_way.h"

#include <string.h>

#include "cpu.h"
#include "device.h"
#include "gemm.h"
#include "util/clock.h"

enum { ONEDNN_LEAST = 96 * 96 * 96 }; /* m·n·k below which oneDNN, which packs both operands, is not tried */

/* The ways for each dtype, the best one without knowledge first. */
static const uint8_t order[KERNEL_DTYPES][GEMM_WAYS] = {
    [DTYPE_F32] = {GEMM_BLAS, GEMM_ONEDNN, GEMM_BLOCKED, GEMM_BF16, GEMM_AMX},
    [DTYPE_F64] = {GEMM_BLAS, GEMM_BLOCKED, GEMM_ONEDNN, GEMM_BF16, GEMM_AMX},
    [DTYPE_F16] = {GEMM_BLOCKED, GEMM_ONEDNN, GEMM_BLAS, GEMM_BF16, GEMM_AMX},
    [DTYPE_BF16] = {GEMM_AMX, GEMM_BF16, GEMM_ONEDNN, GEMM_BLOCKED, GEMM_BLAS},
};

_Static_assert((int)CHOICE_CANDIDATES == (int)GEMM_WAYS, "an order has a place for each candidate");

/* By products of bf16 pairs. */
enum { PAIRS = 1U << GEMM_BF16 | 1U << GEMM_AMX };

/* Whether the way can compute that type on this processor. */
static bool has_dtype(enum gemm_way way, enum dtype dtype)
{
    if (way == GEMM_ONEDNN) /* it refuses bf16 without AVX-512 */
        return dtype != DTYPE_F64 && (dtype != DTYPE_BF16 || cpu_has(CPU_AVX512));
    return PAIRS & 1U << way ? dtype == DTYPE_BF16 : true;
}

static void list_variants(struct gemm_ways *ways, enum dtype dtype)
{
    static const char *const lesser[CPU_ISAS] = {
        [CPU_GENERIC] = "blocked-generic", [CPU_AVX2] = "blocked-avx2", [CPU_AVX512] = "blocked-avx512"};
    const char **list = ways->variants[dtype];
    unsigned n = 0;

    for (unsigned i = 0; i < GEMM_WAYS; i++)
        if (ways->names[order[dtype][i]] && has_dtype(order[dtype][i], dtype))
            list[n++] = ways->names[order[dtype][i]];
    for (int isa = CPU_ISAS - 1; isa >= CPU_GENERIC; isa--)
        if (kernels_get((enum cpu_isa)isa) && kernels_get((enum cpu_isa)isa) != kernels_best())
            list[n++] = lesser[isa];
}

void gemm_ways_init(struct host_device *device, bool choose)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16};
    struct gemm_ways *ways = &device->gemm;

    *ways = (struct gemm_ways){.choose = choose,
                               .names = {[GEMM_BLAS] = device->blas.name,
                                         [GEMM_ONEDNN] = device->onednn.found ? "onednn" : NULL,
                                         [GEMM_BLOCKED] = "blocked",
                                         [GEMM_BF16] = kernels_gemm_bf16() ? "blocked-bf16" : NULL,
                                         [GEMM_AMX] = kernels_gemm_amx() ? "blocked-amx" : NULL}};
    ways->choose = choices_init(&ways->choices) && choose;
    for (unsigned i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        list_variants(ways, dtypes[i]);
}

void gemm_ways_deinit(struct gemm_ways *ways)
{
    choices_deinit(&ways->choices);
}

/* ---- which way ---- */

static struct library *library_of(struct host_device *device, enum gemm_way way)
{
    return way == GEMM_BLAS ? &device->blas.library : way == GEMM_ONEDNN ? &device->onednn.library : NULL;
}

static double products(const struct plan_gemm *p)
{
    return (double)p->m * (double)p->n * (double)p->k;
}

/* The ways to choose between, as a mask: all that can be, but for those that are slower by their nature. */
static unsigned candidates_of(struct host_device *device, const struct plan *plan)
{
    unsigned mask = 0;

    for (unsigned way = 0; way < GEMM_WAYS; way++) {
        const struct library *library = library_of(device, (enum gemm_way)way);

        if (device->gemm.names[way] && has_dtype((enum gemm_way)way, plan->dtype) &&
            !(library && library_has_failed(library)))
            mask |= 1U << way;
    }
    if (products(&plan->gemm) < ONEDNN_LEAST)
        mask &= ~(1U << GEMM_ONEDNN);
    if (mask & PAIRS) /* the others multiply f32 */
        mask &= PAIRS | 1U << GEMM_ONEDNN;
    return mask;
}

/* The ways that the step may take, as a mask. */
static unsigned ways_of(struct host_device *device, const struct step *step)
{
    if (!step_variant(step))
        return candidates_of(device, &step->plan);
    for (unsigned way = 0; way < GEMM_WAYS; way++)
        if (device->gemm.names[way] && !strcmp(step_variant(step), device->gemm.names[way]))
            return 1U << way;
    return 1U << GEMM_BLOCKED;
}

bool gemm_needs_worker(struct host_device *device, const struct step *step)
{
    const unsigned ways = ways_of(device, step);
    const struct library *blas = &device->blas.library;

    if (ways & 1U << GEMM_ONEDNN)
        return true;
    return ways & 1U << GEMM_BLAS && !library_is_loaded(blas) && !library_has_failed(blas);
}

/* Half powers of two: 1, 2, 3, 4, 6, 8, 12, … */
static uint64_t size_class(int64_t n)
{
    const unsigned power = n > 1 ? 63U - (unsigned)__builtin_clzll((unsigned long long)n) : 0;

    return power ? 2 * power + ((uint64_t)n >> (power - 1) & 1) : 0;
}

static int64_t least_of_class(uint64_t size)
{
    return size < 2 ? 1 : (int64_t)((2 + (size & 1)) << (size / 2 - 1));
}

/* Where a key has its parts. */
enum {
    AT_LAYOUT = 0, /* a bit for each operand whose rows are contiguous */
    AT_THREADS = 8,
    AT_BATCH = 16,
    AT_K = 24,
    AT_N = 32,
    AT_M = 40,
    AT_DTYPE = 48,
    AT_USED = 63 /* always set: no key is 0 */
};

static uint64_t part(uint64_t key, unsigned at)
{
    return key >> at & 0xff;
}

/* The class of products among which one way is the fastest. */
static uint64_t key_of(const struct plan *plan, unsigned threads)
{
    const struct plan_gemm *p = &plan->gemm;
    const uint64_t batch = p->batch_count == 1 ? 0 : p->batch_count < threads ? 1 : 2;
    const uint64_t layout =
        (uint64_t)(p->a.column == 1) | (uint64_t)(p->b.column == 1) << 1 | (uint64_t)(p->out.column == 1) << 2;

    return UINT64_C(1) << AT_USED | (uint64_t)plan->dtype << AT_DTYPE | size_class(p->m) << AT_M |
           size_class(p->n) << AT_N | size_class(p->k) << AT_K | batch << AT_BATCH |
           (uint64_t)(threads > 1) << AT_THREADS | layout << AT_LAYOUT;
}

bool gemm_ways_get(struct gemm_ways *ways, unsigned index, struct gemm_choice *ret)
{
    struct choice_class c;

    if (!choices_get(&ways->choices, index, &c))
        return false;
    *ret = (struct gemm_choice){.dtype = (enum dtype)part(c.key, AT_DTYPE),
                                .m = least_of_class(part(c.key, AT_M)),
                                .n = least_of_class(part(c.key, AT_N)),
                                .k = least_of_class(part(c.key, AT_K)),
                                .batched = part(c.key, AT_BATCH) > 0,
                                .threads = part(c.key, AT_THREADS) > 0,
                                .chosen = c.chosen < 0 ? NULL : ways->names[c.chosen]};
    for (unsigned i = 0; i < 3; i++)
        ret->row_major[i] = part(c.key, AT_LAYOUT) >> i & 1;
    for (unsigned way = 0; way < GEMM_WAYS; way++)
        if (c.candidates & 1U << way) {
            ret->ways[ret->count].name = ways->names[way];
            ret->ways[ret->count++].ns_a_product = c.of[way].best;
        }
    return true;
}

static int load(struct host_device *device, enum gemm_way way, struct error *e)
{
    return way == GEMM_BLAS ? blas_load(&device->blas, e) : way == GEMM_ONEDNN ? onednn_load(&device->onednn, e) : 0;
}

static const struct kernels *kernels_named(const char *name)
{
    for (int isa = CPU_ISAS - 1; isa >= CPU_GENERIC; isa--) {
        const struct kernels *kernels = kernels_get((enum cpu_isa)isa);

        if (kernels && !strcmp(kernels->name, name))
            return kernels;
    }
    return kernels_best();
}

static int begin_forced(struct host_device *device, const struct step *step, struct execution *x, struct error *e)
{
    x->variant = step_variant(step);
    for (unsigned way = 0; way < GEMM_WAYS; way++)
        if (device->gemm.names[way] && !strcmp(x->variant, device->gemm.names[way])) {
            x->way = way;
            return load(device, (enum gemm_way)way, e);
        }
    x->way = GEMM_BLOCKED;
    x->kernels = kernels_named(x->variant + strlen("blocked-"));
    return 0;
}

static unsigned first_of(unsigned candidates, const uint8_t *ways)
{
    while (!(candidates & 1U << *ways))
        ways++;
    return *ways;
}

int gemm_begin(struct host_device *device, const struct thread_context *context, const struct step *step,
               struct execution *ret_execution, struct error *e)
{
    const enum dtype dtype = step->plan.dtype;
    struct execution x = {.kernels = kernels_best()};

    if (step_variant(step)) {
        if (begin_forced(device, step, &x, e) < 0)
            return -1;
        *ret_execution = x;
        return 0;
    }
    /* Ends: a library that does not load is no candidate any more, and our own kernel always is one. */
    for (;;) {
        const unsigned candidates = candidates_of(device, &step->plan);

        x.way = first_of(candidates, order[dtype]);
        if (device->gemm.choose) {
            struct choice_turn turn;

            x.key = key_of(&step->plan, pool_threads(context->pool));
            turn = choices_next(&device->gemm.choices, x.key, candidates, order[dtype]);
            x.way = turn.candidate;
            x.measure = turn.measure;
        }
        if (load(device, (enum gemm_way)x.way, e) == 0)
            break;
    }
    x.variant = device->gemm.names[x.way];
    *ret_execution = x;
    return 0;
}

/* ---- the product ---- */

static int run_onednn(struct host_device *device, const struct gemm_call *call, bool forced, struct error *e)
{
    const int r = gemm_onednn(call, &device->onednn, e);

    if (r <= 0)
        return r;
    if (forced)
        return error_set(e, ERROR_UNSUPPORTED, "oneDNN refuses to compute on this system; use another variant");
    library_give_up(&device->onednn.library, "it refuses to compute");
    return gemm_blocked(call, NULL, e);
}

static int run(struct host_device *device, const struct gemm_call *call, enum gemm_way way, bool forced,
               struct error *e)
{
    switch (way) {
    case GEMM_BLAS:
        return gemm_blas(call, &device->blas, e);
    case GEMM_ONEDNN:
        return run_onednn(device, call, forced, e);
    case GEMM_AMX:
        return gemm_blocked(call, kernels_gemm_amx(), e);
    case GEMM_BF16:
        return gemm_blocked(call, kernels_gemm_bf16(), e);
    default:
        return gemm_blocked(call, NULL, e);
    }
}

int gemm_run(struct host_device *device, const struct thread_context *context, const struct step *step,
             unsigned char *const *pointers, const struct execution *x, struct error *e)
{
    const struct plan_gemm *p = &step->plan.gemm;
    const struct gemm_call call = {
        .plan = &step->plan, .pointers = pointers, .kernels = x->kernels, .pool = context->pool};
    /* A thread's own time has none of the time in which other work had its processor. */
    uint64_t (*const clock)(void) = pool_threads(context->pool) == 1 ? clock_thread_ns : clock_now_ns;
    const uint64_t began_ns = x->measure ? clock() : 0;

    if (p->k == 0 || p->alpha == 0) {
        gemm_scale(&call);
        return 0;
    }
    if (run(device, &call, (enum gemm_way)x->way, step_variant(step) != NULL, e) < 0)
        return -1;
    if (x->measure && !pool_is_stopped(context->pool))
        choices_report(&device->gemm.choices, x->key, x->way, (double)(clock() - began_ns),
                       products(p) * (double)p->batch_count);
    return 0;
}
