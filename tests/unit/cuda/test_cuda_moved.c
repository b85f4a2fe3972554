/* Few bytes in shared host memory, which a kernel copies in and out. */
#include "support.h"

#include <string.h>

enum {
    N = 1000,
    BYTES = N * sizeof(float), /* few enough for one launch */
    MANY = 20000,
    MANY_BYTES = MANY * sizeof(float) /* too many */
};

/* All operands of a step together, in each direction. */
static void test_few_bytes_are_moved_by_one_launch(void **state)
{
    struct backend_memory *a = host_memory(2 * BYTES), *b = host_memory(BYTES), *out = host_memory(BYTES);
    const int64_t copies = counter(STANDIN_COUNTER_copies_h2d) + counter(STANDIN_COUNTER_copies_d2h);
    struct view odd = {.memory = a, .offset = 3, .rank = 1, .shape = {N - 1}};
    int64_t launched;
    struct test_job t;

    fill(a, 2 * N, 1);
    fill(b, N, 2);
    memset(out->host, 0, BYTES);
    make_job(&t, OP_ADD, (struct view[]){odd, VECTOR(b, N - 1), VECTOR(out, N - 1)});
    launched = counter(STANDIN_COUNTER_launches);
    t.job.timing = TIMING_NONE;
    run_job(stream_open(), &t);
    assert_int_equal(counter(STANDIN_COUNTER_launches) - launched, 3);
    assert_int_equal(counter(STANDIN_COUNTER_copies_h2d) + counter(STANDIN_COUNTER_copies_d2h), copies);
    for (unsigned i = 0; i < N - 1; i++)
        assert_true(floats(out)[i] == value(3 + i, 1) + value(i, 2));
    assert_true(floats(out)[N - 1] == 0);
}

/* Where their memory is registered, by the first job, the loop may prepare others itself. */
static void test_few_bytes_need_no_preparing(void **state)
{
    struct backend_memory *a = host_memory(MANY_BYTES), *out = host_memory(MANY_BYTES);
    struct backend_stream *stream = stream_open();
    struct test_job t;

    for (unsigned round = 0; round < 3; round++) {
        fill(a, N, round);
        make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(out, N)});
        assert_int_equal(backend->needs_prepare(device, &t.job), round == 0);
        t.job.timing = round == 2 ? TIMING_NOW : TIMING_STATISTIC;
        run_job(stream, &t);
        for (unsigned i = 0; i < N; i++)
            assert_true(floats(out)[i] == value(i, round) * value(i, round));
        assert_true(t.job.started_ns > 0 && t.samples[0] > 0);
        assert_int_equal(t.job.h2d_us > 0 && t.job.d2h_us > 0, round == 2); /* where they are asked for */
    }
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, MANY), VECTOR(out, MANY)});
    assert_true(backend->needs_prepare(device, &t.job));
}

/* Steps one after the other in the same memory of the stream; more of them are prepared elsewhere. */
static void test_steps_with_few_bytes(void **state)
{
    enum { STEPS = 9 };
    struct backend_memory *a = host_memory(BYTES), *b = host_memory(BYTES), *c = host_memory(BYTES);
    struct backend_stream *stream = stream_open();
    struct backend_program *program = NULL;
    struct step steps[STEPS];
    struct test_job t;

    for (unsigned round = 0; round < 3; round++) {
        fill(a, N, round);
        make_job(&t, OP_ADD, (struct view[]){VECTOR(a, N), VECTOR(b, N), VECTOR(c, N)});
        steps[1] = t.step;
        make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(b, N)});
        steps[0] = t.step;
        for (unsigned i = 2; i < STEPS; i++)
            steps[i] = steps[1];
        t.job.steps = steps;
        t.job.n_steps = STEPS;
        assert_true(backend->needs_prepare(device, &t.job));
        t.job.n_steps = STEPS - 1;
        t.job.program = round == 2 ? &program : NULL; /* which has no graph */
        assert_int_equal(backend->needs_prepare(device, &t.job), round == 0);
        t.job.repeat = 2;
        run_job(stream, &t);
        for (unsigned i = 0; i < N; i++) {
            const float x = value(i, round);

            assert_true(floats(b)[i] == x * x && floats(c)[i] == x * x + x);
        }
    }
    backend->program_free(device, program);
}

/* Its step's error is the job's, and nothing is left of it. */
static void test_few_bytes_without_memory_on_the_device(void **state)
{
    struct backend_memory *a = host_memory(BYTES), *out = host_memory(BYTES);
    struct backend_stream *stream = stream_open();
    struct test_job t;
    struct error e;

    fill(a, N, 1);
    for (unsigned round = 0; round < 3; round++) {
        make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(out, N)});
        if (round != 1) {
            run_job(stream, &t);
            continue;
        }
        inject("cuMemAllocFromPoolAsync", 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
        assert_true(start(stream, &t, &e));
        finish(&t);
        assert_true(t.job.failed);
        assert_int_equal(t.job.error.code, ERROR_OUT_OF_MEMORY);
    }
}

/* Together too many, though each is not. */
static void test_more_bytes_are_copied(void **state)
{
    enum { COUNT = 10000 };
    struct backend_memory *a = host_memory(MANY_BYTES), *b = host_memory(MANY_BYTES), *out = host_memory(MANY_BYTES);
    const int64_t in = counter(STANDIN_COUNTER_copies_h2d), back = counter(STANDIN_COUNTER_copies_d2h);
    struct test_job t;

    fill(a, COUNT, 1);
    fill(b, COUNT, 2);
    make_job(&t, OP_ADD, (struct view[]){VECTOR(a, COUNT), VECTOR(b, COUNT), VECTOR(out, COUNT)});
    run_job(stream_open(), &t);
    for (unsigned i = 0; i < COUNT; i++)
        assert_true(floats(out)[i] == value(i, 1) + value(i, 2));
    assert_int_equal(counter(STANDIN_COUNTER_copies_h2d) - in, 2);
    assert_int_equal(counter(STANDIN_COUNTER_copies_d2h) - back, 0); /* by themselves few enough */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CUDA_TEST(test_few_bytes_are_moved_by_one_launch),
        CUDA_TEST(test_few_bytes_need_no_preparing),
        CUDA_TEST(test_steps_with_few_bytes),
        CUDA_TEST(test_few_bytes_without_memory_on_the_device),
        CUDA_TEST(test_more_bytes_are_copied),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
