/* Tensors that several threads share, and that go past the caches: exact sums, and nothing else is written. Other
 * layouts, ops and sizes are those of tests/conformance. */
#include "device.h"
#include "support.h"

/* One rounding, and one more where f16 and bf16 pass through f32 by declaration; integers wrap around. */
static void check_sum(const struct operand *a, const struct operand *b, const struct operand *out)
{
    const enum dtype dtype = out->tensor.dtype;

    for (uint64_t i = 0; i < out->tensor.count; i++) {
        const uint64_t bits = operand_bits_before(a, i) + operand_bits_before(b, i);
        const double sum = operand_get_before(a, i) + operand_get_before(b, i);
        unsigned char want[8];

        if (dtype_is_float(dtype))
            encode(dtype, dtype == DTYPE_F16 || dtype == DTYPE_BF16 ? (double)(float)sum : sum, want);
        else
            memcpy(want, &bits, sizeof(bits));
        if (memcmp(operand_at(out, i), want, dtype_size(dtype)) != 0)
            fail_msg("%s element %llu is wrong", dtype_name(dtype), (unsigned long long)i);
    }
    operand_check_surroundings(out);
}

struct shape {
    unsigned rank;
    int64_t sizes[5];
};

static void run_add(struct fixture *f, enum dtype dtype, const char *variant, const struct shape *shape,
                    enum layout a_layout, enum layout out_layout)
{
    const unsigned open = opened_so_far();
    struct operand a, b, out;
    struct backend_job job;

    operand_init(&a, dtype, shape->rank, shape->sizes, a_layout);
    operand_init(&b, dtype, shape->rank, shape->sizes, CONTIGUOUS);
    operand_init(&out, dtype, shape->rank, shape->sizes, out_layout);
    job_init(&job, OP_ADD, (struct operand *[]){&a, &b}, &out, NULL);
    step_copy_variant(job.steps->variant, variant);
    job_run(f, &job);
    assert_false(job.failed);
    assert_string_equal(job.steps->variant_used, variant);
    check_sum(&a, &b, &out);
    close_since(open);
}

/* Large enough for several threads, and, as the threshold is set here, for stores past the caches. */
OPENING_TEST(test_large)
{
    const struct shape whole = {1, {200017}}, rows = {2, {90, 2403}};
    struct fixture f = fixture_open(&(struct backend_config){.host_threads = 5});

    ((struct host_device *)(void *)f.device)->bypass_bytes = 1 << 16;
    for (unsigned d = 0; d < COUNT(number_dtypes); d++) {
        const enum dtype dtype = number_dtypes[d];

        for (const char *const *v = host_backend.variants(f.device, op_get(OP_ADD), dtype); *v; v++) {
            run_add(&f, dtype, *v, &whole, OFFSET, OFFSET);
            run_add(&f, dtype, *v, &rows, TRANSPOSED, SLICE);
            run_add(&f, dtype, *v, &rows, SLICE, SLICE);
        }
    }
}
