/* Tensors in shared host memory: copied in and out, around the kernels. */
#include "support.h"

#include <sys/mman.h>

enum {
    N = 1000,
    BYTES = N * sizeof(float), /* few enough for one launch that moves them */
    MANY = 20000,
    MANY_BYTES = MANY * sizeof(float), /* too many */
    OUT_OF_MEMORY = 2
};

static void expect_doubled(const struct backend_memory *out, unsigned seed)
{
    for (unsigned i = 0; i < N; i++)
        assert_true(floats(out)[i] == 2 * value(i, seed));
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

/* ---- more, which are copied: each tensor once ---- */

CUDA_TEST(test_each_tensor_is_copied_once)
{
    enum { A, B, OUT };
    static const struct {
        const char *what;
        enum op_id op;
        int64_t count;
        unsigned second; /* the operand that is b */
        unsigned out;
        bool transposed; /* out, of 100 columns */
        unsigned repeat;
        int64_t in, back;
    } cases[] = {
        {"together too many, though each is not", OP_ADD, 10000, B, OUT, false, 1, 2, 0}, /* out by itself is few */
        {"in place, and one input twice", OP_ADD, MANY, A, A, false, 1, 1, 1},
        {"a transposed output", OP_SQUARE, MANY, A, OUT, true, 1, 1, 1},
        {"repeats", OP_SQUARE, MANY, A, OUT, false, 40, 1, 1},
    };

    for (unsigned c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct backend_memory *m[] = {host_memory(MANY_BYTES), host_memory(MANY_BYTES), host_memory(MANY_BYTES)};
        const int64_t n = cases[c].count, in = counter(STANDIN_COUNTER_copies_h2d),
                      back = counter(STANDIN_COUNTER_copies_d2h);
        const bool adds = cases[c].op == OP_ADD;
        struct view views[3] = {MATRIX(m[A], n / 100, 100), MATRIX(m[cases[c].second], n / 100, 100)};
        struct view *out = &views[adds ? 2 : 1];
        struct test_job t;

        for (unsigned i = 0; i < 2; i++)
            fill(m[i], MANY, i);
        *out = MATRIX(m[cases[c].out], n / 100, 100);
        if (cases[c].transposed)
            *out = (struct view){
                .memory = m[OUT], .rank = 2, .shape = {n / 100, 100}, .strides = {1, n / 100}, .strided = true};
        make_job(&t, cases[c].op, views);
        t.job.warmup = cases[c].repeat / 20;
        t.job.repeat = cases[c].repeat;
        run_job(stream_open(), &t);
        if (counter(STANDIN_COUNTER_copies_h2d) - in != cases[c].in ||
            counter(STANDIN_COUNTER_copies_d2h) - back != cases[c].back)
            fail_msg("%s: %d copies in, %d back", cases[c].what, (int)(counter(STANDIN_COUNTER_copies_h2d) - in),
                     (int)(counter(STANDIN_COUNTER_copies_d2h) - back));
        for (unsigned i = 0; i < n; i++) {
            const float x = value(i, A), want = adds ? x + value(i, cases[c].second) : x * x;

            assert_true(floats(out->memory)[cases[c].transposed ? i % 100 * n / 100 + i / 100 : i] == want);
        }
    }
}

CUDA_TEST(test_inputs_may_be_read_only)
{
    struct backend_memory *a = host_memory(BYTES), *plain = host_memory(BYTES), *out = host_memory(BYTES);
    struct backend_stream *stream = stream_open();
    struct test_job t;

    fill(plain, N, 6);
    fill(a, N, 6);
    a->writable = false;
    assert_int_equal(mprotect(a->host, BYTES, PROT_READ), 0);
    make_job(&t, OP_ADD, (struct view[]){VECTOR(a, N), VECTOR(plain, N), VECTOR(out, N)});
    run_job(stream, &t);
    expect_doubled(out, 6);

    /* Also where the driver refuses to register such a mapping: then it is copied as pageable memory. */
    backend->memory_detach(device, a);
    inject("cuMemHostRegister", 801 /* CUDA_ERROR_NOT_SUPPORTED */, false);
    memset(out->host, 0, BYTES);
    make_job(&t, OP_ADD, (struct view[]){VECTOR(a, N), VECTOR(plain, N), VECTOR(out, N)});
    run_job(stream, &t);
    expect_doubled(out, 6);
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

/* Few bytes as well as many: the step's error is the job's, and nothing is left of it. */
CUDA_TEST(test_a_failing_preparation_leaves_nothing_behind)
{
    static const struct {
        const char *function;
        unsigned count;
    } steps[] = {{"cuMemHostRegister", MANY},
                 {"cuMemAllocFromPoolAsync", MANY},
                 {"cuMemcpyHtoDAsync", MANY},
                 {"cuMemAllocFromPoolAsync", N},
                 {NULL, MANY}};
    struct backend_memory *a = host_memory(MANY_BYTES), *out = host_memory(MANY_BYTES);
    struct backend_stream *stream = stream_open();
    struct test_job t;

    fill(a, MANY, 2);
    for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, steps[i].count), VECTOR(out, steps[i].count)});
        if (!steps[i].function) {
            run_job(stream, &t);
            break;
        }
        inject(steps[i].function, OUT_OF_MEMORY, false);
        run_failing(stream, &t, ERROR_OUT_OF_MEMORY);
        assert_int_equal(backend->poll(device), 0);
    }
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
    inject_later("cuMemcpyHtoDAsync", 2, OUT_OF_MEMORY, false);
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
