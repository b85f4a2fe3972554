/* The blocked product with a kernel that multiplies runs of units along k and reads A by rows, as AMX's does. The
 * kernel here is plain C: it checks the packing on every processor. */
#include <stdatomic.h>
#include <stdbool.h>

#include "gemm.h"
#include "support.h"

enum { ROWS = 32, COLUMNS = 32, STEP = 16, RUN = 16, PAIR = 2, SCRATCH_BYTES = 4 << 20 };

static unsigned began, ended;
static _Thread_local bool ready;
static atomic_bool wrong; /* a kernel was called as it must not be */

static void begin(void)
{
    __atomic_fetch_add(&began, 1, __ATOMIC_RELAXED);
    ready = true;
}

static void end(void)
{
    __atomic_fetch_add(&ended, 1, __ATOMIC_RELAXED);
    ready = false;
}

static void load(void *into, size_t ld, const void *from, size_t rows, size_t columns, ptrdiff_t row, ptrdiff_t column)
{
    const uint16_t *in = from;
    uint16_t *out = into;

    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            out[r / PAIR * ld * PAIR + c * PAIR + r % PAIR] = in[(ptrdiff_t)r * row + (ptrdiff_t)c * column];
}

static void load_rows(void *into, size_t ld, const void *from, size_t rows, size_t columns, ptrdiff_t row,
                      ptrdiff_t column)
{
    const uint16_t *in = from;
    uint16_t *out = into;

    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            out[r * ld * PAIR + c] = in[(ptrdiff_t)r * row + (ptrdiff_t)c * column];
}

static float multiply(const unsigned char *a, const unsigned char *b)
{
    float sum = 0;

    for (size_t i = 0; i < PAIR; i++)
        sum += (float)(decode(DTYPE_BF16, a + 2 * i) * decode(DTYPE_BF16, b + 2 * i));
    return sum;
}

static void micro(size_t rows, size_t k, const unsigned char *a, ptrdiff_t row, ptrdiff_t step, const unsigned char *b,
                  ptrdiff_t b_step, float *acc)
{
    if (!ready || k % RUN || step != PAIR * sizeof(uint16_t))
        wrong = true;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < COLUMNS; j++) {
            float sum = 0;

            for (size_t p = 0; p < k; p++)
                sum += multiply(a + (ptrdiff_t)i * row + (ptrdiff_t)p * step, b + (ptrdiff_t)p * b_step + 4 * j);
            acc[i * COLUMNS + j] = sum;
        }
}

static void micro_few(size_t k, const void *a, ptrdiff_t row, ptrdiff_t step, const void *b, ptrdiff_t b_step,
                      void *acc)
{
    micro(STEP, k, a, row, step, b, b_step, acc);
}

static void micro_all(size_t k, const void *a, ptrdiff_t row, ptrdiff_t step, const void *b, ptrdiff_t b_step,
                      void *acc)
{
    micro(ROWS, k, a, row, step, b, b_step, acc);
}

static const struct kernels_gemm kernel = {.mr = ROWS,
                                           .nr = COLUMNS,
                                           .mr_step = STEP,
                                           .pair = PAIR,
                                           .run = RUN,
                                           .load = load,
                                           .load_rows = load_rows,
                                           .begin = begin,
                                           .end = end,
                                           .micro = {micro_few, micro_all, micro_all}};

/* Small integers: their products and sums are exact. NaNs follow them, so that reading too far shows in the result. */
static uint16_t *integers(size_t count)
{
    enum { ROOM = 64 };
    uint16_t *values = malloc((count + ROOM) * sizeof(*values));

    assert_non_null(values);
    for (size_t i = 0; i < count + ROOM; i++)
        encode(DTYPE_BF16, i < count ? (double)(random_bits() % 9) - 4 : (double)__builtin_nanf(""), &values[i]);
    return values;
}

struct product {
    int64_t m, n, k;
    bool a_by_columns, b_by_columns;
};

static void check(const struct product *p, enum dtype out_dtype, const uint16_t *a, const uint16_t *b,
                  const unsigned char *out)
{
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            const double got = decode(out_dtype, out + (size_t)(i * p->n + j) * dtype_size(out_dtype));
            unsigned char rounded[sizeof(float)];
            double sum = 0;

            for (int64_t r = 0; r < p->k; r++)
                sum += decode(DTYPE_BF16, &a[p->a_by_columns ? r * p->m + i : i * p->k + r]) *
                       decode(DTYPE_BF16, &b[p->b_by_columns ? j * p->k + r : r * p->n + j]);
            encode(out_dtype, sum, rounded);
            if (got != decode(out_dtype, rounded))
                fail_msg("%lldx%lldx%lld at [%lld, %lld]: %g, not %g", (long long)p->m, (long long)p->n,
                         (long long)p->k, (long long)i, (long long)j, got, sum);
        }
}

static void run(struct pool *pool, const struct product *p, enum dtype out_dtype)
{
    uint16_t *a = integers((size_t)(p->m * p->k)), *b = integers((size_t)(p->k * p->n));
    unsigned char *out = malloc((size_t)(p->m * p->n) * dtype_size(out_dtype));
    const struct plan plan = {
        .dtype = DTYPE_BF16,
        .out_dtype = out_dtype,
        .gemm = {.m = p->m,
                 .n = p->n,
                 .k = p->k,
                 .batch_count = 1,
                 .a = {.row = p->a_by_columns ? 1 : p->k, .column = p->a_by_columns ? p->m : 1},
                 .b = {.row = p->b_by_columns ? 1 : p->n, .column = p->b_by_columns ? p->k : 1},
                 .out = {.row = p->n, .column = 1},
                 .alpha = 1},
    };
    const struct gemm_call call = {.plan = &plan,
                                   .pointers = (unsigned char *[]){(void *)a, (void *)b, out},
                                   .kernels = kernels_best(),
                                   .pool = pool};

    assert_non_null(out);
    for (unsigned i = 0; i < pool_threads(pool); i++)
        memset(pool_scratch(pool, i), 0xff, SCRATCH_BYTES); /* no numbers */
    MUST(gemm_blocked(&call, &kernel, &e));
    check(p, out_dtype, a, b, out);
    free(a);
    free(b);
    free(out);
}

TEST(test_products)
{
    static const struct product products[] = {
        {1, 1, 1},     {16, 32, 32},  {32, 32, 64},  {17, 33, 31},    {33, 31, 33}, {5, 70, 513}, {70, 5, 1025},
        {64, 64, 511}, {130, 40, 47}, {40, 130, 30}, {100, 100, 100}, {16, 40, 20}, {32, 8, 50}};

    for (unsigned threads = 1; threads <= 7; threads += 6) {
        struct pool *pool;

        MUST(pool_new(threads, &pool, &e));
        MUST(pool_reserve(pool, SCRATCH_BYTES, &e));
        for (size_t i = 0; i < 4 * COUNT(products); i++) {
            struct product p = products[i / 4];

            p.a_by_columns = i & 1;
            p.b_by_columns = i & 2;
            run(pool, &p, DTYPE_F32);
            run(pool, &p, DTYPE_BF16);
        }
        pool_free(pool);
    }
    assert_false(wrong);
    assert_true(began > 0);
    assert_int_equal(began, ended);
}

#ifdef __x86_64__
/* AMX's own packing, which needs no AMX, as the plain one does it. */
TEST(test_packing_for_amx)
{
    enum { LINES = 32, MOST = 100, LD = 64 };
    static const ptrdiff_t strides[][2] = {{MOST, 1}, {1, LINES}, {2 * MOST, 2}, {0, 1}, {1, 0}, {3, 3}};
    uint16_t *from = integers(LINES * MOST * 4);
    uint32_t got[LINES * LD], wanted[LINES * LD];

    if (!cpu_has(CPU_AVX512)) {
        free(from);
        skip();
    }
    for (size_t s = 0; s < COUNT(strides); s++)
        for (size_t lines = 1; lines <= LINES; lines += 5)
            for (size_t length = 1; length <= MOST; length += 11) {
                memset(got, 0, sizeof(got));
                memset(wanted, 0, sizeof(wanted));
                kernels_gemm_amxbf16.load_rows(got, LD, from, lines, length, strides[s][0], strides[s][1]);
                load_rows(wanted, LD, from, lines, length, strides[s][0], strides[s][1]);
                assert_memory_equal(got, wanted, sizeof(got));
                memset(got, 0, sizeof(got));
                memset(wanted, 0, sizeof(wanted));
                kernels_gemm_amxbf16.load(got, LINES, from, length, lines, strides[s][1], strides[s][0]);
                load(wanted, LINES, from, length, lines, strides[s][1], strides[s][0]);
                assert_memory_equal(got, wanted, sizeof(got));
            }
    free(from);
}
#endif
