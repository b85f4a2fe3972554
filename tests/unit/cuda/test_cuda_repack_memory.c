/* Gemm through copies of its operands, in jobs: the memory of the copies, which they share, and which may not be there.
 */
#include "driver/device.h" /* before blaslt_support.h, whose `device` its parameters would shadow */

#include "blaslt_support.h"

enum { BYTES = 4096, REPACK_BYTES = 8 << 20 };

static int open_plenty(void **state)
{
    test_config.cuda_repack_bytes = REPACK_BYTES;
    return open_with_library(BYTES);
}

static void make_odd(struct test_job *t)
{
    const struct view views[] = {MATRIX(memory[0], 5, 3), MATRIX(memory[1], 3, 7), MATRIX(memory[2], 5, 7)};

    fill(memory[0], 15, 1);
    fill(memory[1], 21, 2);
    make_gemm(t, views, 1, 0);
    step_copy_variant(t->step.variant, "bf16x6");
}

static void expect_odd(void)
{
    for (unsigned i = 0; i < 5; i++)
        for (unsigned j = 0; j < 7; j++) {
            float want = 0;

            for (unsigned k = 0; k < 3; k++)
                want += value(i * 3 + k, 1) * value(k * 7 + j, 2);
            assert_true(floats(memory[2])[i * 7 + j] == want);
        }
}

OPENING_TEST(jobs_repeat_and_follow_each_other)
{
    struct test_job jobs[3];

    for (unsigned i = 0; i < 3; i++) {
        make_odd(&jobs[i]);
        jobs[i].job.repeat = 40;
        start_job(stream, &jobs[i]);
    }
    for (unsigned i = 0; i < 3; i++) {
        finish(&jobs[i]);
        assert_false(jobs[i].job.failed);
        assert_int_equal(jobs[i].job.n_samples, 40);
    }
    expect_odd();
}

OPENING_TEST(without_memory_a_forced_variant_fails)
{
    struct backend_stream *fresh = stream_open();
    struct test_job t;

    make_odd(&t);
    run_job(fresh, &t); /* cuBLASLt's workspace is there */
    make_odd(&t);
    inject("cuMemAllocFromPoolAsync", 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
    run_failing(fresh, &t, ERROR_OUT_OF_MEMORY);
    make_odd(&t);
    run_job(fresh, &t);
    expect_odd();
}

OPENING_TEST(tensors_in_host_memory_are_copied_there_and_here)
{
    struct backend_memory *host[3] = {host_memory(4096), host_memory(4096), host_memory(4096)};
    const struct view views[] = {MATRIX(host[0], 5, 3), MATRIX(host[1], 3, 7), MATRIX(host[2], 5, 7)};
    struct test_job t;

    fill(host[0], 15, 1);
    fill(host[1], 21, 2);
    make_gemm(&t, views, 1, 0);
    step_copy_variant(t.step.variant, "bf16x6");
    run_job(stream, &t);
    memcpy(floats(memory[2]), floats(host[2]), 35 * sizeof(float));
    expect_odd();
}

/* The smallest product for which the estimate takes pieces. */
static void make_high(struct test_job *t, struct backend_memory **large)
{
    enum { N = 768 };
    const struct view views[] = {MATRIX(large[0], N, N), MATRIX(large[1], N, N), MATRIX(large[2], N, N)};

    fill(large[0], N * N, 1);
    fill(large[1], N * N, 2);
    make_gemm(t, views, 1, 0);
    t->step.plan.gemm.in_pieces = true;
}

OPENING_TEST(without_memory_operands_are_not_copied)
{
    struct backend_memory *large[3];
    struct test_job t;

    for (unsigned i = 0; i < 3; i++)
        large[i] = device_memory(768 * 768 * sizeof(float));
    make_high(&t, large);
    run_job(stream, &t);
    assert_string_equal(t.step.variant_used, "bf16x3");
    make_high(&t, large);
    inject("cuMemAllocFromPoolAsync", 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
    run_job(stream, &t);
    assert_string_equal(t.step.variant_used, "cublaslt");
}

OPENING_TEST(the_share_for_copies_is_bounded)
{
    struct cuda_device *d = cuda_device(device);
    CUdeviceptr first, second;

    MUST(cuda_scratch_take(d, d->service, REPACK_BYTES / 2 + 1, &first, &e));
    MUST_FAIL(cuda_scratch_take(d, d->service, REPACK_BYTES / 2, &second, &e), ERROR_OUT_OF_MEMORY, "");
    cuda_scratch_give(d, d->service, first, REPACK_BYTES / 2 + 1);
    MUST(cuda_scratch_take(d, d->service, REPACK_BYTES, &second, &e));
    cuda_scratch_give(d, d->service, second, REPACK_BYTES);
    assert_int_equal(atomic_load(&d->repack_used), 0);
}

ALL_TESTS_WITH(open_plenty, close_all)
