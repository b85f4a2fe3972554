/* kopsctl's checks: what they accept, and above all what they refuse. */
#include <math.h>

#include "data/data.h"
#include "scene.h"

static struct reference_case matrices(enum kops_dtype dtype, const int64_t *a, const int64_t *b, unsigned rank)
{
    struct reference_case c = {.dtype = dtype, .n_inputs = 2, .out = {.dtype = dtype}, .alpha = 1};

    c.inputs[0] = kops_tensor_of(NULL, dtype, rank, a);
    c.inputs[1] = kops_tensor_of(NULL, dtype, rank, b);
    return c;
}

TEST(bits_are_read_as_the_dtypes_define)
{
    static const struct {
        enum kops_dtype dtype;
        uint64_t bits;
        double value;
    } cases[] = {{KOPS_F16, 0xc000, -2},
                 {KOPS_F16, 0x0001, 0x1p-24},
                 {KOPS_F16, 0x7bff, 65504},
                 {KOPS_F16, 0x7c00, INFINITY},
                 {KOPS_F16, 0x3555, 0.333251953125},
                 {KOPS_BF16, 0xc000, -2},
                 {KOPS_BF16, 0x3eab, 0.333984375},
                 {KOPS_F8_E4M3, 0xc0, -2},
                 {KOPS_F8_E4M3, 0x01, 0x1p-9},
                 {KOPS_F8_E4M3, 0x7e, 448},
                 {KOPS_F8_E4M3, 0x7f, NAN},
                 {KOPS_F8_E5M2, 0xc0, -2},
                 {KOPS_F8_E5M2, 0x01, 0x1p-16},
                 {KOPS_F8_E5M2, 0x7b, 57344},
                 {KOPS_F8_E5M2, 0x7c, INFINITY},
                 {KOPS_I8, 0xff, -1},
                 {KOPS_U8, 0xff, 255},
                 {KOPS_I16, 0xffff, -1},
                 {KOPS_U16, 0xffff, 65535},
                 {KOPS_I64, UINT64_MAX, -1},
                 {KOPS_U32, 0xffffffff, 4294967295.0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const double value = data_get(&cases[i].bits, 0, cases[i].dtype);

        if (isnan(cases[i].value) ? !isnan(value) : value != cases[i].value)
            fail_msg("%s 0x%llx is read as %g", kops_dtype_name(cases[i].dtype), (unsigned long long)cases[i].bits,
                     value);
    }
}

TEST(values_are_written_as_they_are_read)
{
    const enum kops_dtype small[] = {KOPS_F16, KOPS_BF16, KOPS_I8,      KOPS_U8,
                                     KOPS_I16, KOPS_U16,  KOPS_F8_E4M3, KOPS_F8_E5M2};
    static const struct {
        enum kops_dtype dtype;
        double value, written;
    } rounded[] = {{KOPS_F16, 1 + 0x1p-11, 1}, /* a tie: to even */
                   {KOPS_F16, 1 + 3 * 0x1p-11, 1 + 2 * 0x1p-10},
                   {KOPS_F16, 65535, INFINITY},
                   {KOPS_F8_E4M3, -1000, -448},
                   {KOPS_F32, 1e300, INFINITY},
                   {KOPS_F32, 0.1, (double)0.1F},
                   {KOPS_I8, 200, 127},
                   {KOPS_I32, -1e20, -2147483648.0},
                   {KOPS_U64, -3, 0},
                   {KOPS_BOOL, 0.5, 1}};

    for (size_t d = 0; d < sizeof(small) / sizeof(small[0]); d++)
        for (unsigned i = 0; i < 1U << 8 * kops_dtype_size(small[d]); i++) {
            const uint16_t from = (uint16_t)i;
            const double value = data_get(&from, 0, small[d]);
            uint16_t to = 0;

            data_set(&to, 0, small[d], value);
            if (isnan(value) ? !isnan(data_get(&to, 0, small[d])) : to != from)
                fail_msg("%s 0x%x became 0x%x", kops_dtype_name(small[d]), from, to);
        }
    for (size_t i = 0; i < sizeof(rounded) / sizeof(rounded[0]); i++) {
        uint64_t out = 0;

        data_set(&out, 0, rounded[i].dtype, rounded[i].value);
        if (data_get(&out, 0, rounded[i].dtype) != rounded[i].written)
            fail_msg("%s %g became %g", kops_dtype_name(rounded[i].dtype), rounded[i].value,
                     data_get(&out, 0, rounded[i].dtype));
    }
}

TEST(random_data_are_in_range_and_differ)
{
    const enum kops_dtype dtypes[] = {KOPS_F32, KOPS_F64, KOPS_F16, KOPS_BF16};
    char data[1000 * 8];

    for (size_t d = 0; d < 4; d++) {
        unsigned negative = 0, repeated = 0;

        data_fill(data, 1000, dtypes[d], 7);
        for (size_t i = 0; i < 1000; i++) {
            double v = data_get(data, i, dtypes[d]);

            assert_true(fabs(v) >= 1.0 / 64 && fabs(v) < 1);
            negative += v < 0;
            repeated += i && v == data_get(data, i - 1, dtypes[d]);
        }
        assert_in_range(negative, 400, 600);
        assert_true(repeated < 50);
    }
}

/* The element of so many in which the result, with the tolerance of the op, is found wrong; -1: it is right. */
static int64_t wrong_element(const struct reference *op, const struct reference_case *c, const char *name,
                             int64_t elements)
{
    struct report report = {0};
    struct tolerance t;

    assert_true(reference_tolerance(name, c->out.dtype, "highest", &t));
    reference_check(op, c, &t, &report);
    assert_int_equal(report.checked, elements);
    assert_in_range(report.wrong, 0, 1);
    return report.wrong ? (int64_t)report.at : -1;
}

static void assert_shape(const struct reference *op, struct reference_case *c, unsigned rank, const int64_t *shape)
{
    const char *why;

    assert_true(op->shape(c, &why));
    assert_int_equal(c->out.rank, rank);
    assert_memory_equal(c->out.shape, shape, rank * sizeof(*shape));
}

TEST(add_broadcasts)
{
    const float a[] = {1, 2, 3}, b[] = {10, 20};
    float sum[] = {11, 12, 13, 21, 22, 23};
    struct reference_case c = {
        .dtype = KOPS_F32, .n_inputs = 2, .out = {.dtype = KOPS_F32}, .data = {a, b}, .after = sum};
    const char *why;

    c.inputs[0] = kops_vector(NULL, KOPS_F32, 3);
    c.inputs[1] = kops_matrix(NULL, KOPS_F32, 2, 1);
    assert_shape(reference_find("add"), &c, 2, (const int64_t[]){2, 3});
    assert_int_equal(wrong_element(reference_find("add"), &c, "add", 6), -1);
    sum[4] = nextafterf(nextafterf(22, 100), 100); /* two units in the last place */
    assert_int_equal(wrong_element(reference_find("add"), &c, "add", 6), 4);
    sum[4] = NAN;
    assert_int_equal(wrong_element(reference_find("add"), &c, "add", 6), 4);
    c.inputs[1] = kops_vector(NULL, KOPS_F32, 2);
    assert_false(reference_find("add")->shape(&c, &why));
}

/* Twice [2, 3] · [3, 2] less three times what was there. That right products of every kind pass is kopsctl_test's. */
TEST(gemm_tells_what_is_wrong)
{
    const double a[] = {1, 2, 3, 4, 5, 6}, b[] = {7, 8, 9, 10, 11, 12}, before[] = {1, 1, 1, 1};
    double after[] = {58 * 2 - 3, 64 * 2 - 3, 139 * 2 - 3, 154 * 2 - 3};
    struct reference_case c = matrices(KOPS_F64, (const int64_t[]){2, 3}, (const int64_t[]){3, 2}, 2);

    c.alpha = 2;
    c.beta = -3;
    c.data[0] = a;
    c.data[1] = b;
    c.before = before;
    c.after = after;
    assert_shape(reference_find("gemm"), &c, 2, (const int64_t[]){2, 2});
    assert_true(reference_find("gemm")->flops(&c) == 24);
    assert_int_equal(wrong_element(reference_find("gemm"), &c, "gemm", 4), -1);
    after[3] += 1e-9;
    assert_int_equal(wrong_element(reference_find("gemm"), &c, "gemm", 4), 3);
}

/* Too much to check whole: a product of ones, with a band of wrong elements that a sample meets. */
TEST(a_sample_finds_what_is_wrong)
{
    const int64_t n = 1024;
    float *ones = malloc((size_t)(n * n) * sizeof(float)), *after = malloc((size_t)(n * n) * sizeof(float));
    struct reference_case c = matrices(KOPS_F32, (const int64_t[]){n, n}, (const int64_t[]){n, n}, 2);
    struct report report = {0};
    struct tolerance t;
    const char *why;

    for (int64_t i = 0; i < n * n; i++) {
        ones[i] = 1;
        after[i] = (float)n;
    }
    c.data[0] = c.data[1] = ones;
    c.after = after;
    assert_true(reference_find("gemm")->shape(&c, &why));
    assert_true(reference_tolerance("gemm", KOPS_F32, "highest", &t));
    reference_check(reference_find("gemm"), &c, &t, &report);
    assert_true(report.checked > 10000 && report.checked < report.total);
    assert_int_equal(report.wrong, 0);
    for (int64_t i = n * n / 2; i < n * n / 2 + n * 8; i++)
        after[i] += 1;
    report = (struct report){0};
    reference_check(reference_find("gemm"), &c, &t, &report);
    assert_true(report.wrong > 0);
    free(ones);
    free(after);
}

TEST(tolerances_are_the_declared_ones)
{
    struct tolerance usual, high, medium;

    assert_true(reference_tolerance("gemm", KOPS_F32, "", &usual));
    assert_true(reference_tolerance("gemm", KOPS_F32, "high", &high));
    assert_true(reference_tolerance("gemm", KOPS_F32, "medium", &medium));
    assert_true(high.scaled > usual.scaled && medium.scaled > high.scaled);
    assert_true(reference_tolerance("gemm", KOPS_F64, "highest", &usual));
    assert_true(reference_tolerance("gemm", KOPS_F64, "high", &high));
    assert_true(high.scaled == usual.scaled);
    assert_false(reference_tolerance("no_such_op", KOPS_F32, "", &usual));
    assert_null(reference_find("no_such_op"));
    assert_string_equal(reference_find("gemm")->op, "gemm");
}
