/* add and square: every dtype, layout, variant and thread count against f64, exactly; nothing else is written. */
#include <string.h>

#include "device.h"
#include "support.h"

/* What must come out: a rounding for each step, and one more where f16 and bf16 pass through f32 by declaration. */
static void expect(enum op_id op, enum dtype dtype, double a, double b, void *into)
{
    const double sum = op == OP_SQUARE ? a : op == OP_SUB_SQUARE ? a - b : a + b;
    const double rounded = dtype == DTYPE_F64 ? sum : (double)(float)sum;
    const double exact = op == OP_ADD ? sum : rounded * rounded;

    encode(dtype, dtype == DTYPE_F16 || dtype == DTYPE_BF16 ? (double)(float)exact : exact, into);
}

/* Wraps around: the low bytes of what comes out of 64 bits. */
static void expect_integer(enum op_id op, uint64_t a, uint64_t b, unsigned char into[8])
{
    const uint64_t sum = op == OP_SQUARE ? a : op == OP_SUB_SQUARE ? a - b : a + b;
    const uint64_t exact = op == OP_ADD ? sum : sum * sum;

    memcpy(into, &exact, sizeof(exact));
}

/* The input's index for an index of out, by NumPy's broadcasting. */
static uint64_t broadcast_index(const struct tensor *in, const struct tensor *out, uint64_t index)
{
    uint64_t result = 0, scale = 1;

    for (unsigned i = 0; i < in->rank; i++) {
        unsigned d = out->rank - 1 - i, di = in->rank - 1 - i;

        if (in->shape[di] != 1)
            result += index % (uint64_t)out->shape[d] * scale;
        scale *= (uint64_t)in->shape[di];
        index /= (uint64_t)out->shape[d];
    }
    return result;
}

static void check_result(enum op_id op, const struct operand *a, const struct operand *b, const struct operand *out)
{
    const size_t size = dtype_size(out->tensor.dtype);

    for (uint64_t i = 0; i < out->tensor.count; i++) {
        const uint64_t at_a = broadcast_index(&a->tensor, &out->tensor, i);
        const uint64_t at_b = b ? broadcast_index(&b->tensor, &out->tensor, i) : 0;
        unsigned char want[8];

        if (dtype_is_float(out->tensor.dtype))
            expect(op, out->tensor.dtype, operand_get_before(a, at_a), b ? operand_get_before(b, at_b) : 0, want);
        else
            expect_integer(op, operand_bits_before(a, at_a), b ? operand_bits_before(b, at_b) : 0, want);
        if (memcmp(operand_at(out, i), want, size) != 0)
            fail_msg("%s %s element %llu is wrong", op_get(op)->name, dtype_name(out->tensor.dtype),
                     (unsigned long long)i);
    }
    operand_check_surroundings(out);
}

struct shape {
    unsigned rank;
    int64_t sizes[5];
};

static void run_two(struct fixture *f, enum op_id op, enum dtype dtype, const char *variant,
                    const struct shape *a_shape, enum layout a_layout, const struct shape *b_shape,
                    enum layout b_layout, const struct shape *out_shape, enum layout out_layout)
{
    struct operand a, b, out;
    struct backend_job job;

    operand_init(&a, dtype, a_shape->rank, a_shape->sizes, a_layout);
    operand_init(&b, dtype, b_shape->rank, b_shape->sizes, b_layout);
    operand_init(&out, dtype, out_shape->rank, out_shape->sizes, out_layout);
    job_init(&job, op, (struct operand *[]){&a, &b}, &out, NULL);
    step_copy_variant(job.steps->variant, variant);
    job_run(f, &job);
    assert_false(job.failed);
    if (variant)
        assert_string_equal(job.steps->variant_used, variant);
    check_result(op, &a, &b, &out);
    operand_deinit(&a);
    operand_deinit(&b);
    operand_deinit(&out);
}

static void for_each_variant(void (*body)(struct fixture *, enum dtype, const char *), const struct backend_config *c)
{
    struct fixture f;

    fixture_open(&f, c);
    for (unsigned d = 0; d < COUNT(number_dtypes); d++) {
        const char *const *variants = host_backend.variants(f.device, op_get(OP_ADD), number_dtypes[d]);

        assert_non_null(variants[0]);
        for (; *variants; variants++)
            body(&f, number_dtypes[d], *variants);
    }
    fixture_close(&f);
}

/* Large enough for several threads, and, as the threshold is set here, for stores past the caches. */
static void large_body(struct fixture *f, enum dtype dtype, const char *variant)
{
    const struct shape whole = {1, {200017}}, rows = {2, {90, 2403}};

    ((struct host_device *)(void *)f->device)->bypass_bytes = 1 << 16;
    run_two(f, OP_ADD, dtype, variant, &whole, OFFSET, &whole, CONTIGUOUS, &whole, OFFSET);
    run_two(f, OP_ADD, dtype, variant, &rows, TRANSPOSED, &rows, CONTIGUOUS, &rows, SLICE);
    run_two(f, OP_ADD, dtype, variant, &rows, SLICE, &rows, CONTIGUOUS, &rows, SLICE);
}

static void test_large(void **state)
{
    (void)state;
    for_each_variant(large_body, &(struct backend_config){.host_threads = 5});
}

static void test_empty(void **state)
{
    static const int64_t shape[] = {4, 0, 3};
    struct operand a, b, out;
    struct backend_job job;
    struct fixture f;
    double sample;

    (void)state;
    fixture_open(&f, NULL);
    operand_init(&a, DTYPE_F32, 3, shape, CONTIGUOUS);
    operand_init(&b, DTYPE_F32, 3, shape, CONTIGUOUS);
    operand_init(&out, DTYPE_F32, 3, shape, CONTIGUOUS);
    job_init(&job, OP_ADD, (struct operand *[]){&a, &b}, &out, NULL);
    for (unsigned i = 0; i < 3; i++)
        job.steps->operands[i] = (struct step_operand){0, 0, 0};
    job.samples = &sample;
    job_run(&f, &job);
    assert_false(job.failed);
    assert_int_equal(job.n_samples, 1);
    operand_deinit(&a);
    operand_deinit(&b);
    operand_deinit(&out);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_empty),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
