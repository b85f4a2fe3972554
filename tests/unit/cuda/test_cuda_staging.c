/* Tensors in shared host memory: copied in and out, around the kernels. */
#include "support.h"

#include <pthread.h>
#include <sched.h>

enum {
    N = 1000,
    BYTES = N * sizeof(float), /* few enough for one launch that moves them */
    MANY = 20000,
    MANY_BYTES = MANY * sizeof(float), /* too many */
    PAGE = 4096
};

static const float sentinel = -12345.0f;

static void expect_sum(const struct backend_memory *out, unsigned count, unsigned seed_a, unsigned seed_b)
{
    for (unsigned i = 0; i < count; i++)
        assert_true(floats(out)[i] == value(i, seed_a) + value(i, seed_b));
}

/* ---- few bytes, which a kernel copies in and out ---- */

/* All operands of a step together, in each direction. */
CUDA_TEST(test_few_bytes_are_moved_by_one_launch)
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
CUDA_TEST(test_few_bytes_need_no_preparing)
{
    struct backend_memory *a = host_memory(MANY_BYTES), *out = host_memory(MANY_BYTES);
    struct backend_stream *stream = stream_open();
    const int64_t registered = counter(STANDIN_COUNTER_host_registrations);
    struct test_job t;

    for (unsigned round = 0; round < 3; round++) {
        fill(a, N, round);
        make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(out, N)});
        assert_int_equal(needs_prepare(&t), round == 0);
        t.job.timing = round == 2 ? TIMING_NOW : TIMING_STATISTIC;
        run_job(stream, &t);
        for (unsigned i = 0; i < N; i++)
            assert_true(floats(out)[i] == value(i, round) * value(i, round));
        assert_true(t.job.started_ns > 0 && t.samples[0] > 0);
        assert_int_equal(t.job.h2d_us > 0 && t.job.d2h_us > 0, round == 2); /* where they are asked for */
    }
    assert_int_equal(counter(STANDIN_COUNTER_host_registrations) - registered, 2);
    assert_int_equal(counter(STANDIN_COUNTER_pageable_copies), 0);
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, MANY), VECTOR(out, MANY)});
    assert_true(needs_prepare(&t));
}

/* Steps one after the other in the same memory of the stream; more of them are prepared elsewhere. */
CUDA_TEST(test_steps_with_few_bytes)
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
        assert_true(needs_prepare(&t));
        t.job.n_steps = STEPS - 1;
        t.job.program = round == 2 ? &program : NULL; /* which has no graph */
        assert_int_equal(needs_prepare(&t), round == 0);
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
CUDA_TEST(test_few_bytes_without_memory_on_the_device)
{
    struct backend_memory *a = host_memory(BYTES), *out = host_memory(BYTES);
    struct backend_stream *stream = stream_open();
    struct test_job t;

    fill(a, N, 1);
    for (unsigned round = 0; round < 3; round++) {
        make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(out, N)});
        if (round != 1) {
            run_job(stream, &t);
            continue;
        }
        inject("cuMemAllocFromPoolAsync", 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
        run_failing(stream, &t, ERROR_OUT_OF_MEMORY);
    }
}

/* Together too many, though each is not. */
CUDA_TEST(test_more_bytes_are_copied)
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

/* ---- more, which are copied ---- */

CUDA_TEST(test_a_transposed_output_is_one_copy)
{
    struct backend_memory *a = host_memory(MANY_BYTES), *out = host_memory(MANY_BYTES);
    struct view transposed = {.memory = out, .rank = 2, .shape = {200, 100}, .strides = {1, 200}, .strided = true};
    int64_t copies = counter(STANDIN_COUNTER_copies_d2h);
    struct test_job t;

    fill(a, MANY, 4);
    make_job(&t, OP_SQUARE, (struct view[]){MATRIX(a, 200, 100), transposed});
    run_job(stream_open(), &t);
    for (unsigned i = 0; i < 200; i++)
        for (unsigned j = 0; j < 100; j++)
            assert_true(floats(out)[j * 200 + i] == value(i * 100 + j, 4) * value(i * 100 + j, 4));
    assert_int_equal(counter(STANDIN_COUNTER_copies_d2h) - copies, 1);
}

CUDA_TEST(test_inputs_may_be_read_only)
{
    struct backend_memory *plain = host_memory(BYTES), *out = host_memory(BYTES), *a;
    struct backend_stream *stream = stream_open();
    struct test_job t;

    fill(plain, N, 6);
    a = read_only(plain);
    assert_false(a->writable);
    make_job(&t, OP_ADD, (struct view[]){VECTOR(a, N), VECTOR(plain, N), VECTOR(out, N)});
    run_job(stream, &t);
    expect_sum(out, N, 6, 6);

    /* Also where the driver refuses to register such a mapping: then it is copied as pageable memory. */
    backend->memory_detach(device, a);
    inject("cuMemHostRegister", 801 /* CUDA_ERROR_NOT_SUPPORTED */, false);
    memset(out->host, 0, BYTES);
    make_job(&t, OP_ADD, (struct view[]){VECTOR(a, N), VECTOR(plain, N), VECTOR(out, N)});
    run_job(stream, &t);
    expect_sum(out, N, 6, 6);
}

CUDA_TEST(test_in_place_and_the_same_input_twice)
{
    struct backend_memory *m = host_memory(MANY_BYTES);
    int64_t copies = counter(STANDIN_COUNTER_copies_h2d);
    struct test_job t;

    fill(m, MANY, 8);
    make_job(&t, OP_ADD, (struct view[]){VECTOR(m, MANY), VECTOR(m, MANY), VECTOR(m, MANY)});
    run_job(stream_open(), &t);
    expect_sum(m, MANY, 8, 8);
    assert_int_equal(counter(STANDIN_COUNTER_copies_h2d) - copies, 1);
}

CUDA_TEST(test_repeats_are_copied_once)
{
    struct backend_memory *a = host_memory(MANY_BYTES), *out = host_memory(MANY_BYTES);
    int64_t in = counter(STANDIN_COUNTER_copies_h2d), back = counter(STANDIN_COUNTER_copies_d2h);
    struct test_job t;

    fill(a, MANY, 2);
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, MANY), VECTOR(out, MANY)});
    t.job.warmup = 2;
    t.job.repeat = 40;
    run_job(stream_open(), &t);
    assert_int_equal(t.job.n_samples, 40);
    assert_int_equal(counter(STANDIN_COUNTER_copies_h2d) - in, 1);
    assert_int_equal(counter(STANDIN_COUNTER_copies_d2h) - back, 1);
}

CUDA_TEST(test_a_column_needs_no_room_for_its_matrix)
{
    enum { ROWS = 1000, ROW = 16384 };
    uint64_t whole = (uint64_t)ROWS * ROW * sizeof(float);
    struct backend_memory *a = host_memory(whole), *b = host_memory(BYTES), *out = host_memory(whole);
    struct view column = {.memory = a, .offset = 5, .rank = 1, .shape = {ROWS}, .strides = {ROW}, .strided = true};
    struct view target = {.memory = out, .offset = 9, .rank = 1, .shape = {ROWS}, .strides = {ROW}, .strided = true};
    struct test_job t;

    for (unsigned i = 0; i < ROWS; i++)
        floats(a)[5 + i * ROW] = value(i, 1);
    fill(b, N, 2);
    control->memory_limit = 8 << 20; /* the matrix has 64 MiB */
    make_job(&t, OP_ADD, (struct view[]){column, VECTOR(b, N), target});
    t.job.timing = TIMING_NOW;
    run_job(stream_open(), &t);
    control->memory_limit = 0;
    for (unsigned i = 0; i < ROWS; i++) {
        assert_true(floats(out)[9 + i * ROW] == value(i, 1) + value(i, 2));
        assert_true(floats(out)[8 + i * ROW] == 0.0f && floats(out)[10 + i * ROW] == 0.0f);
    }
    assert_true(t.job.h2d_us > 0 && t.job.d2h_us > 0);
}

CUDA_TEST(test_a_cancelled_job_writes_nothing_back)
{
    struct backend_memory *a = host_memory(BYTES), *out = host_memory(BYTES);
    struct test_job t;

    fill(a, N, 2);
    for (unsigned i = 0; i < N; i++)
        floats(out)[i] = sentinel;
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(out, N)});
    atomic_store(&t.job.cancel, true);
    run_failing(stream_open(), &t, ERROR_CANCELLED);
    for (unsigned i = 0; i < N; i++)
        assert_true(floats(out)[i] == sentinel);
    assert_int_equal(counter(STANDIN_COUNTER_live_allocations), 0);
}

CUDA_TEST(test_a_failing_preparation_leaves_nothing_behind)
{
    static const char *const steps[] = {"cuMemHostRegister", "cuMemAllocFromPoolAsync", "cuMemcpyHtoDAsync"};
    struct backend_memory *a = host_memory(MANY_BYTES), *out = host_memory(MANY_BYTES);
    struct backend_stream *stream = stream_open();
    struct test_job t;

    fill(a, MANY, 2);
    for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, MANY), VECTOR(out, MANY)});
        inject(steps[i], 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
        run_failing(stream, &t, ERROR_OUT_OF_MEMORY);
        assert_int_equal(backend->poll(device), 0);
    }
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, MANY), VECTOR(out, MANY)});
    run_job(stream, &t);
    for (unsigned i = 0; i < MANY; i++)
        assert_true(floats(out)[i] == value(i, 2) * value(i, 2));
}

CUDA_TEST(test_a_failing_preparation_waits_for_copies_on_their_way)
{
    struct backend_memory *a = host_memory(MANY_BYTES), *b = host_memory(MANY_BYTES), *out = host_memory(MANY_BYTES);
    int64_t waits = counter(STANDIN_COUNTER_blocking_waits);
    struct test_job t;

    make_job(&t, OP_ADD, (struct view[]){VECTOR(a, MANY), VECTOR(b, MANY), VECTOR(out, MANY)});
    gate_close(STANDIN_GATE_copy);
    inject_later("cuMemcpyHtoDAsync", 2, 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
    backend->submit(stream_open(), &t.job);
    /* The first copy reads the caller's memory, which may be unmapped as soon as the job has ended. */
    while (counter(STANDIN_COUNTER_blocking_waits) == waits && !t.done)
        backend->poll(device);
    assert_false(t.done);
    gate_open(STANDIN_GATE_copy);
    finish(&t);
    assert_true(t.job.failed);
    assert_int_equal(t.job.error.code, ERROR_OUT_OF_MEMORY);
}

ALL_TESTS_WITH(setup, teardown)
