#include "gemm_way.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "device.h"
#include "gemm.h"
#include "util/clock.h"

enum {
    PLACES = 8, /* table entries in which a key can be */
    TURNS = 4   /* first turns of each way; the first of them is a warmup and does not count */
};

static const double HOPELESS = 1.5; /* a way that is slower than the best by this factor gets no more first turns */
static const double SHARE = 32;     /* later turns of a way take 1/SHARE of the time of all uses */
static const double GAIN = 1.05;    /* factor by which a way must be faster to replace the chosen one */

struct choice_class {
    uint64_t key; /* 0: free */
    uint64_t used_at;
    uint64_t uses;
    unsigned chosen;
    struct {
        uint32_t turns, reports;
        double best; /* least time in ns for a unit of work; infinite: none yet */
    } ways[2];
};

void choices_init(struct choices *choices)
{
    *choices = (struct choices){.classes = calloc(CHOICE_CLASSES, sizeof(struct choice_class))};
    pthread_mutex_init(&choices->lock, NULL);
}

void choices_deinit(struct choices *choices)
{
    free(choices->classes);
    pthread_mutex_destroy(&choices->lock);
}

/* Finds the key's class. NULL: the key is new, and *ret_free is its place. */
static struct choice_class *find(const struct choices *choices, uint64_t key, struct choice_class **ret_free)
{
    struct choice_class *at =
        choices->classes + (key * UINT64_C(0x9e3779b97f4a7c15) >> 32) % (CHOICE_CLASSES / PLACES) * PLACES;

    *ret_free = at;
    for (unsigned i = 0; i < PLACES; i++) {
        if (at[i].key == key)
            return &at[i];
        if (at[i].used_at < (*ret_free)->used_at) /* 0 for free places */
            *ret_free = &at[i];
    }
    return NULL;
}

static bool is_due(const struct choice_class *c, unsigned way)
{
    const double ratio = c->ways[way].best / fmin(c->ways[0].best, c->ways[1].best);
    const double slower = isfinite(ratio) ? ratio : 1; /* infinite or NaN before the first measurement */

    return (c->ways[way].turns < TURNS && slower < HOPELESS) || SHARE * slower * c->ways[way].turns < (double)c->uses;
}

struct choice_turn choices_next(struct choices *choices, uint64_t key)
{
    struct choice_turn turn = {0, false};
    struct choice_class *c, *place;

    if (!choices->classes)
        return turn;
    pthread_mutex_lock(&choices->lock);
    c = find(choices, key, &place);
    if (!c) {
        c = place;
        *c = (struct choice_class){.key = key, .ways = {{.best = INFINITY}, {.best = INFINITY}}};
    }
    c->used_at = ++choices->now;
    c->uses++;
    turn.way = c->ways[1].turns < c->ways[0].turns;
    if (!is_due(c, turn.way))
        turn.way = !turn.way;
    turn.measure = is_due(c, turn.way);
    if (turn.measure)
        c->ways[turn.way].turns++;
    else
        turn.way = c->chosen;
    pthread_mutex_unlock(&choices->lock);
    return turn;
}

void choices_report(struct choices *choices, uint64_t key, unsigned way, double ns, double work)
{
    struct choice_class *c, *place;

    pthread_mutex_lock(&choices->lock);
    c = find(choices, key, &place);
    if (c) {
        if (c->ways[way].reports++ > 0)
            c->ways[way].best = fmin(c->ways[way].best, ns / work);
        if (c->ways[way].best * GAIN < c->ways[c->chosen].best)
            c->chosen = way;
    }
    pthread_mutex_unlock(&choices->lock);
}

enum { ONEDNN_LEAST = 96 * 96 * 96 }; /* least m·n·k for oneDNN, which packs both operands */

/* The ways, in the order of preference before any measurement. */
static const uint8_t usual[GEMM_WAYS] = {GEMM_BLAS, GEMM_ONEDNN, GEMM_OWN},
                     of_bf16[GEMM_WAYS] = {GEMM_ONEDNN, GEMM_BLAS, GEMM_OWN}; /* a BLAS would multiply in f32 */

static const uint8_t *order_of(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? of_bf16 : usual;
}

/* Whether the device has the way, and the way can compute the dtype. */
static bool has(const struct gemm_ways *ways, unsigned way, enum dtype dtype)
{
    if (way == GEMM_ONEDNN && (dtype == DTYPE_F64 || (dtype == DTYPE_BF16 && !cpu_has(CPU_AVX512))))
        return false;
    return ways->names[way];
}

void gemm_ways_init(struct host_device *device, bool choose)
{
    struct gemm_ways *ways = &device->gemm;

    *ways = (struct gemm_ways){.names = {[GEMM_BLAS] = device->blas.name,
                                         [GEMM_ONEDNN] = device->onednn.found ? "onednn" : NULL,
                                         [GEMM_OWN] = "blocked"}};
    if (choose)
        choices_init(&ways->choices);
    for (unsigned dtype = 0; dtype < DTYPE_SLOTS; dtype++)
        for (unsigned i = 0, n = 0; i < GEMM_WAYS; i++)
            if (has(ways, order_of((enum dtype)dtype)[i], (enum dtype)dtype))
                ways->variants[dtype][n++] = ways->names[order_of((enum dtype)dtype)[i]];
}

void gemm_ways_deinit(struct gemm_ways *ways)
{
    if (ways->choices.classes)
        choices_deinit(&ways->choices);
}

/* ---- choosing the way of a step ---- */

static double products(const struct plan_gemm *p)
{
    return (double)p->m * (double)p->n * (double)p->k;
}

static bool has_failed(const struct host_device *device, unsigned way)
{
    return (way == GEMM_BLAS && library_has_failed(&device->blas.library)) ||
           (way == GEMM_ONEDNN && library_has_failed(&device->onednn.library));
}

/* Lists the libraries that can compute the plan, best first, or else our own way. Returns how many. */
static unsigned candidates_of(const struct host_device *device, const struct plan *plan, unsigned ret[2])
{
    unsigned n = 0;

    for (const uint8_t *way = order_of(plan->dtype); *way != GEMM_OWN; way++)
        if (has(&device->gemm, *way, plan->dtype) && !has_failed(device, *way) &&
            !(*way == GEMM_ONEDNN && products(&plan->gemm) < ONEDNN_LEAST))
            ret[n++] = *way;
    if (n == 0)
        ret[n++] = GEMM_OWN;
    return n;
}

static unsigned named(const struct gemm_ways *ways, const char *variant)
{
    unsigned way = 0;

    while (way < GEMM_OWN && !(ways->names[way] && !strcmp(variant, ways->names[way])))
        way++;
    return way;
}

bool gemm_needs_worker(struct host_device *device, const struct step *step)
{
    const struct library *blas = &device->blas.library;
    unsigned ways[2], n = 1;

    if (step_variant(step))
        ways[0] = named(&device->gemm, step_variant(step));
    else
        n = candidates_of(device, &step->plan, ways);
    for (unsigned i = 0; i < n; i++)
        if (ways[i] == GEMM_ONEDNN || (ways[i] == GEMM_BLAS && !library_is_loaded(blas) && !library_has_failed(blas)))
            return true;
    return false;
}

/* Returns the class of a size. Classes begin at 1, 2, 3, 4, 6, 8, 12, … */
static uint64_t size_class(int64_t n)
{
    const unsigned power = n > 1 ? 63U - (unsigned)__builtin_clzll((unsigned long long)n) : 0;

    return power ? 2 * power + ((uint64_t)n >> (power - 1) & 1) : 0;
}

/* Returns the key of a class of similar products. No key is 0. */
static uint64_t key_of(const struct plan *plan, unsigned threads)
{
    const struct plan_gemm *p = &plan->gemm;
    const unsigned batch = p->batch_count == 1 ? 0 : p->batch_count < threads ? 1 : 2;
    const bool rows[] = {p->a.column == 1, p->b.column == 1, p->out.column == 1, plan_gemm_extras(p) > 0, threads > 1};
    uint64_t key = 1;

    key = key << 8 | plan->dtype;
    key = key << 8 | size_class(p->m);
    key = key << 8 | size_class(p->n);
    key = key << 8 | size_class(p->k);
    key = key << 2 | batch;
    for (unsigned i = 0; i < sizeof(rows); i++)
        key = key << 1 | rows[i];
    return key;
}

static int load(struct host_device *device, unsigned way, struct error *e)
{
    return way == GEMM_BLAS ? blas_load(&device->blas, e) : way == GEMM_ONEDNN ? onednn_load(&device->onednn, e) : 0;
}

int gemm_begin(struct host_device *device, const struct thread_context *context, const struct step *step,
               struct execution *ret_execution, struct error *e)
{
    struct execution x = {.kernels = kernels_best(), .variant = step_variant(step)};

    if (x.variant) {
        x.way = named(&device->gemm, x.variant);
        if (load(device, x.way, e) < 0)
            return -1;
        *ret_execution = x;
        return 0;
    }
    /* The loop ends, since a library that fails to load is no longer a candidate, and our own way needs none. */
    do {
        unsigned candidates[2];
        struct choice_turn turn = {0, false};

        x.key = key_of(&step->plan, pool_threads(context->pool));
        if (candidates_of(device, &step->plan, candidates) == 2)
            turn = choices_next(&device->gemm.choices, x.key);
        x.way = candidates[turn.way];
        x.turn = turn.way;
        x.measure = turn.measure;
    } while (load(device, x.way, e) < 0);
    x.variant = device->gemm.names[x.way];
    *ret_execution = x;
    return 0;
}

/* ---- the product ---- */

int gemm_run(struct host_device *device, const struct thread_context *context, const struct step *step,
             unsigned char *const *pointers, const struct execution *x, struct error *e)
{
    const struct plan_gemm *p = &step->plan.gemm;
    const struct gemm_call call = {
        .plan = &step->plan, .pointers = pointers, .kernels = x->kernels, .pool = context->pool};
    const struct gemm_way own = gemm_own(x->kernels), way = x->way == GEMM_BLAS     ? blas_way(&device->blas)
                                                            : x->way == GEMM_ONEDNN ? onednn_way(&device->onednn)
                                                                                    : own;
    /* A single thread's processor time excludes other work on its processor. */
    uint64_t (*const clock)(void) = pool_threads(context->pool) == 1 ? clock_thread_ns : clock_now_ns;
    const uint64_t began_ns = x->measure ? clock() : 0;
    int r = gemm_compute(&call, &way, e);

    if (r > 0 && step_variant(step))
        return error_set(e, ERROR_UNSUPPORTED, "%s refuses to compute on this system; use another variant", x->variant);
    if (r > 0) {
        library_give_up(&device->onednn.library, "it refuses to compute");
        r = gemm_compute(&call, &own, e);
    }
    if (r == 0 && x->measure && !pool_is_stopped(context->pool))
        choices_report(&device->gemm.choices, x->key, x->turn, (double)(clock() - began_ns),
                       products(p) * (double)p->batch_count);
    return r;
}
