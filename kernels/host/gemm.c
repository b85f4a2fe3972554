#include "gemm.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "device.h"
#include "util/clock.h"

enum {
    EDGE = 512,             /* most rows and columns of a tile, where matrices are copied */
    DEPTH = 512,            /* steps along k of a copied block */
    LEAST_EDGE = 64,        /* least edge of tiles that are halved to feed more threads */
    EDGE_UNIT = 32,         /* halved edges are multiples of this */
    ALONE = 96 * 96 * 96,   /* up to this m·n·k a second thread does not pay */
    BALANCE_FLOPS = 1 << 26 /* with larger tiles each thread should have several */
};

/* Operations of a call, some 100 ms: larger products are cut, since a library's call cannot be stopped. */
static const double CALL_FLOPS = 4e9;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- one product of a batch ---- */

struct matrix {
    unsigned char *at;
    enum dtype dtype;
    ptrdiff_t row, column; /* strides in elements */
};

struct product {
    int64_t m, n, k;
    struct matrix a, b, out;
    struct matrix more[2]; /* the bias, or both scales */
};

static struct matrix matrix_of(const struct gemm_call *call, unsigned operand, enum dtype dtype, uint64_t index)
{
    const struct plan_gemm *p = &call->plan->gemm;
    const struct plan_matrix *x = plan_gemm_matrix(p, operand);
    uint64_t offset = 0;

    for (unsigned d = p->batch_rank; d-- > 0;) {
        offset += index % (uint64_t)p->batch_shape[d] * (uint64_t)x->batch[d];
        index /= (uint64_t)p->batch_shape[d];
    }
    return (struct matrix){call->pointers[operand] + offset * dtype_size(dtype), dtype, x->row, x->column};
}

static void transpose(struct matrix *x)
{
    const ptrdiff_t row = x->row;

    x->row = x->column;
    x->column = row;
}

/* Returns the batch's product number `index`. If out is contiguous along its columns, all matrices are transposed, so
 * that out.column is 1 if either of out's strides is 1. */
static struct product product_at(const struct gemm_call *call, uint64_t index)
{
    const enum dtype dtype = call->plan->dtype;
    const struct plan_gemm *p = &call->plan->gemm;
    struct product x = {.m = p->m, .n = p->n, .k = p->alpha == 0 ? 0 : p->k};

    x.a = matrix_of(call, PLAN_GEMM_A, dtype, index);
    x.b = matrix_of(call, PLAN_GEMM_B, p->has_scales ? p->b_dtype : dtype, index);
    x.out = matrix_of(call, plan_gemm_out(p), call->plan->out_dtype, index);
    for (unsigned i = 0; i < plan_gemm_extras(p); i++)
        x.more[i] = matrix_of(call, PLAN_GEMM_BIAS + i, p->has_scales ? DTYPE_F32 : dtype, index);
    if (x.out.column != 1 && x.n > 1 && (x.out.row == 1 || x.m == 1)) {
        const struct product t = x;

        x.m = t.n;
        x.n = t.m;
        x.a = t.b;
        x.b = t.a;
        transpose(&x.a);
        transpose(&x.b);
        transpose(&x.out);
        transpose(&x.more[0]);
        transpose(&x.more[1]);
    }
    return x;
}

static struct matrix part_of(const struct matrix *x, int64_t row, int64_t column)
{
    struct matrix part = *x;

    part.at += (row * x->row + column * x->column) * (ptrdiff_t)dtype_size(x->dtype);
    return part;
}

/* Whether a library can use the matrix in place. */
static bool as_block(const struct matrix *x, int64_t rows, int64_t columns, struct gemm_block *ret)
{
    int64_t ld;

    if ((x->column == 1 || columns <= 1) && (x->row >= most(1, columns) || rows <= 1)) {
        ret->transposed = false;
        ld = rows <= 1 ? most(1, columns) : x->row;
    } else if ((x->row == 1 || rows <= 1) && (x->column >= most(1, rows) || columns <= 1)) {
        ret->transposed = true;
        ld = columns <= 1 ? most(1, rows) : x->column;
    } else {
        return false;
    }
    ret->at = x->at;
    ret->ld = (int)ld;
    return ld <= INT_MAX;
}

/* ---- the epilogue ---- */

/* Finishes n sums x of a row. `first`: the bias; with scales `first` and `second` are these. NaNs stay NaNs. */
#define DEFINE_FINISH(type, erf, tanh)                                                                                 \
    static void finish_##type(const struct plan_gemm *p, type *x, const type *first, const type *second, size_t n)     \
    {                                                                                                                  \
        const type alpha = (type)p->alpha, half = (type)0.5, root_half = (type)0.70710678118654752,                    \
                   scale = (type)0.79788456080286536, cubic = (type)0.044715;                                          \
                                                                                                                       \
        for (size_t i = 0; i < n; i++)                                                                                 \
            x[i] = p->has_scales ? x[i] * first[i] * second[i] : alpha * x[i] + first[i];                              \
        switch (p->activation) {                                                                                       \
        case PLAN_NONE:                                                                                                \
            break;                                                                                                     \
        case PLAN_RELU:                                                                                                \
            for (size_t i = 0; i < n; i++)                                                                             \
                x[i] = x[i] < 0 ? 0 : x[i];                                                                            \
            break;                                                                                                     \
        case PLAN_GELU:                                                                                                \
            for (size_t i = 0; i < n; i++)                                                                             \
                x[i] = half * x[i] * (1 + erf(x[i] * root_half));                                                      \
            break;                                                                                                     \
        case PLAN_GELU_TANH:                                                                                           \
            for (size_t i = 0; i < n; i++)                                                                             \
                x[i] = half * x[i] * (1 + tanh(scale * (x[i] + cubic * x[i] * x[i] * x[i])));                          \
            break;                                                                                                     \
        }                                                                                                              \
    }

DEFINE_FINISH(float, erff, tanhf)
DEFINE_FINISH(double, erf, tanh)

/* Makes elements of out from a tile's sums. (i, j): the tile's first element. */
static void finish(const struct gemm_call *call, const struct product *x, unsigned char *sums, int64_t i, int64_t j,
                   int64_t m, int64_t n)
{
    const struct plan_gemm *p = &call->plan->gemm;
    const enum dtype computed = kernels_compute_dtype(call->plan->dtype);
    const struct matrix out = part_of(&x->out, i, j);
    const bool plain = plan_gemm_extras(p) == 0;
    union {
        float f32[EDGE];
        double f64[EDGE];
    } more[2];

    for (int64_t r = 0; r < m && !plain; r++) {
        unsigned char *row = sums + (size_t)(r * n) * dtype_size(computed);

        for (unsigned o = 0; o < plan_gemm_extras(p); o++) {
            const struct matrix from = part_of(&x->more[o], i + r, j);

            call->kernels->load[from.dtype](&more[o], from.at, 1, (size_t)n, 0, from.column);
        }
        if (computed == DTYPE_F64)
            finish_double(p, (double *)(void *)row, more[0].f64, more[1].f64, (size_t)n);
        else
            finish_float(p, (float *)(void *)row, more[0].f32, more[1].f32, (size_t)n);
    }
    call->kernels->store[out.dtype](out.at, out.row, out.column, sums, (size_t)m, (size_t)n, plain ? p->alpha : 1,
                                    plain ? p->beta : 0);
}

/* ---- tiles ---- */

struct tiles {
    const struct gemm_call *call;
    const struct gemm_way *way;
    enum dtype dtype;              /* the dtype in which operands are multiplied */
    bool copy_a, copy_b, copy_out; /* copies are f32 or f64 */
    int64_t rows, columns, depth;  /* size of a tile; steps along k of a block */
    int64_t down, across;          /* number of tiles */
    size_t element;                /* bytes of a copied element */
    size_t at_b, at_out, scratch;  /* a thread's scratch: offsets of b and out, bytes of all */
    atomic_bool refused, computed; /* the library refused any call; it computed any call */
};

/* Returns a block for the library: in place, or copied to `into` in the order of its memory. */
static struct gemm_block block(const struct tiles *t, const struct matrix *x, bool copy, unsigned char *into,
                               int64_t row, int64_t column, int64_t rows, int64_t columns)
{
    const struct matrix part = part_of(x, row, column);
    struct gemm_block ret = {into, part.row < part.column && t->way->in_place, 0};

    if (!copy) {
        as_block(&part, rows, columns, &ret);
    } else if (ret.transposed) {
        ret.ld = (int)rows;
        t->call->kernels->load[part.dtype](into, part.at, (size_t)columns, (size_t)rows, part.column, part.row);
    } else {
        ret.ld = (int)columns;
        t->call->kernels->load[part.dtype](into, part.at, (size_t)rows, (size_t)columns, part.row, part.column);
    }
    return ret;
}

static void run_tile(void *context, unsigned thread, size_t item)
{
    struct tiles *t = context;
    const struct plan_gemm *plan = &t->call->plan->gemm;
    const int64_t rest = (int64_t)item / t->across;
    const struct product x = product_at(t->call, (uint64_t)(rest / t->down));
    const int64_t i = rest % t->down * t->rows, j = (int64_t)item % t->across * t->columns;
    const int64_t m = least(t->rows, x.m - i), n = least(t->columns, x.n - j);
    unsigned char *scratch = pool_scratch(t->call->pool, thread);
    struct gemm_block out = {scratch + t->at_out, false, (int)n};

    if (!t->copy_out)
        out = block(t, &x.out, false, NULL, i, j, m, n);
    else if (x.k == 0)
        memset(out.at, 0, (size_t)(m * n) * t->element);
    for (int64_t p = 0; p < x.k && !pool_is_stopped(t->call->pool); p += t->depth) {
        const int64_t k = least(t->depth, x.k - p);
        const struct gemm_block a = block(t, &x.a, t->copy_a, scratch, i, p, m, k);
        const struct gemm_block b = block(t, &x.b, t->copy_b, scratch + t->at_b, p, j, k, n);
        const double first = t->copy_out ? 0 : plan->beta;

        if (atomic_load(&t->refused))
            return;
        if (t->way->multiply(t->way->library, t->dtype, m, n, k, t->copy_out ? 1 : plan->alpha, &a, &b,
                             p == 0 ? first : 1, &out) != 0) {
            atomic_store(&t->refused, true);
            return;
        }
        atomic_store(&t->computed, true);
    }
    /* A stopped product lacks sums, and the scratch memory may hold another job's. */
    if (t->copy_out && !pool_is_stopped(t->call->pool))
        finish(t->call, &x, out.at, i, j, m, n);
}

static int64_t halve(int64_t edge)
{
    return (edge / 2 + EDGE_UNIT - 1) / EDGE_UNIT * EDGE_UNIT;
}

/* Cuts out into tiles of at most `edge` rows and columns, enough for all threads. */
static void cut(struct tiles *t, const struct product *x, int64_t edge)
{
    const int64_t threads = pool_threads(t->call->pool), batches = (int64_t)t->call->plan->gemm.batch_count;
    const bool alone = threads == 1 || (double)x->m * (double)x->n * (double)x->k <= ALONE;

    t->rows = least(x->m, edge);
    t->columns = least(x->n, edge);
    for (;;) {
        const double flops = 2.0 * (double)t->rows * (double)t->columns * (double)x->k;

        t->down = (x->m + t->rows - 1) / t->rows;
        t->across = (x->n + t->columns - 1) / t->columns;
        if (alone || t->down * t->across * batches >= (flops > BALANCE_FLOPS ? 2 * threads : threads))
            return;
        if (t->rows >= t->columns && t->rows >= 2 * LEAST_EDGE)
            t->rows = halve(t->rows);
        else if (t->columns >= 2 * LEAST_EDGE)
            t->columns = halve(t->columns);
        else
            return;
    }
}

/* Decides which matrices are copied, and the size of tiles and blocks. */
static void plan_tiles(struct tiles *t, const struct product *x)
{
    const enum dtype computed = kernels_compute_dtype(t->call->plan->dtype);
    const bool fits = x->m <= INT_MAX && x->n <= INT_MAX && x->k <= INT_MAX;
    int64_t edge = INT_MAX;
    struct gemm_block a, b, out;
    double deepest;
    bool in_place;

    in_place = t->way->in_place & DTYPE_BIT(t->call->plan->dtype) && fits;
    t->copy_a = !(in_place && as_block(&x->a, x->m, x->k, &a));
    t->copy_b = !(in_place && as_block(&x->b, x->k, x->n, &b));
    if (t->call->plan->dtype != computed && (t->copy_a || t->copy_b)) /* a and b must have equal dtypes */
        t->copy_a = t->copy_b = true;
    t->dtype = t->copy_a && t->copy_b ? computed : t->call->plan->dtype;
    t->copy_out = !t->way->in_place || !fits || x->k == 0 || plan_gemm_extras(&t->call->plan->gemm) ||
                  x->out.dtype != computed || !as_block(&x->out, x->m, x->n, &out) || out.transposed;
    if (t->copy_a || t->copy_b || t->copy_out)
        edge = EDGE;
    else if (2.0 * (double)x->m * (double)x->n * (double)x->k > CALL_FLOPS) /* cut along all three edges */
        edge = 4 * EDGE;
    cut(t, x, edge);
    deepest = fmin(fmax(CALL_FLOPS / (2.0 * (double)t->rows * (double)t->columns), DEPTH), INT_MAX);
    t->depth = least(t->copy_a || t->copy_b ? DEPTH : (int64_t)deepest, x->k);
    t->element = dtype_size(computed);
    t->at_b = t->copy_a ? (size_t)(t->rows * t->depth) * t->element : 0;
    t->at_out = t->at_b + (t->copy_b ? (size_t)(t->depth * t->columns) * t->element : 0);
    t->scratch = t->at_out + (t->copy_out ? (size_t)(t->rows * t->columns) * t->element : 0);
}

/* Computes the product. Returns 1 if the library refuses, for example where the system forbids generated code; out is
 * then unchanged. Errors: out_of_memory. */
static int gemm_compute(const struct gemm_call *call, const struct gemm_way *way, struct error *e)
{
    const struct product first = product_at(call, 0);
    struct tiles t = {.call = call, .way = way};

    plan_tiles(&t, &first);
    if (t.scratch && pool_reserve(call->pool, t.scratch, e) < 0)
        return -1;
    pool_run(call->pool, (size_t)(t.down * t.across) * call->plan->gemm.batch_count, run_tile, &t);
    if (!atomic_load(&t.refused))
        return 0;
    if (!atomic_load(&t.computed))
        return 1;
    return error_set(e, ERROR_OUT_OF_MEMORY, "the library gave up within a product; use another variant");
}

/* ---- our own way ---- */

static int multiply(const void *kernels_, enum dtype dtype, int64_t m, int64_t n, int64_t k, double alpha,
                    const struct gemm_block *a, const struct gemm_block *b, double beta, const struct gemm_block *out)
{
    const struct kernels *kernels = kernels_;

    (void)alpha;
    if (beta == 0)
        memset(out->at, 0, (size_t)(m * n) * dtype_size(dtype));
    kernels->multiply[dtype](out->at, a->at, b->at, (size_t)m, (size_t)n, (size_t)k);
    return 0;
}

/* Returns the way without a library. */
static struct gemm_way gemm_own(const struct kernels *kernels)
{
    return (struct gemm_way){kernels, multiply, 0};
}

double gemm_cost_ns(const struct plan *plan)
{
    const struct plan_gemm *p = &plan->gemm;
    const double batches = (double)p->batch_count, elements = (double)p->m * (double)p->n;
    const double bytes = ((double)p->m + (double)p->n) * (double)p->k * (double)dtype_size(plan->dtype) +
                         elements * (double)dtype_size(plan->out_dtype);
    const bool gelu = p->activation == PLAN_GELU || p->activation == PLAN_GELU_TANH;
    const double each = gelu ? 10 : plan_gemm_extras(p) ? 1 : 0;

    return batches * (2 * elements * (double)p->k / 40 + bytes / 10 + 200 + each * elements);
}

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
