/* Executions that are timed by CUPTI's records, over a stand-in of CUPTI whose clock is far from the host's. */
#include "recorded_support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "jobs/executor.h"
#include "util/clock.h"

enum { REPEAT = 700 /* more than are read at once */ };

static void make(const struct custom *c, struct test_job *t, enum backend_timing timing, uint32_t repeat)
{
    static double samples[REPEAT];

    make_custom(c, t, timing);
    t->job.samples = samples;
    t->job.repeat = repeat;
}

static void custom(struct test_job *t, enum backend_timing timing, uint32_t repeat)
{
    const struct custom c = open_custom();

    make(&c, t, timing, repeat);
    run_job(c.stream, t);
    backend->arm(device);
}

/* By a loop that has so much to do that it never sleeps. */
static void custom_busily(const struct custom *c, enum backend_timing timing)
{
    struct test_job t;

    make(c, &t, timing, 1);
    start_job(c->stream, &t);
    while (!t.done)
        backend->poll(device);
    assert_false(t.job.failed);
}

static void expect_between(uint64_t from_ns, uint64_t begin_ns, uint64_t end_ns)
{
    const uint64_t now_ns = clock_now_ns();

    assert_true(begin_ns >= from_ns && begin_ns <= end_ns && end_ns <= now_ns);
}

static void test_exact_times_are_the_records(void **state)
{
    const uint64_t before_ns = clock_now_ns();
    struct test_job t;

    custom(&t, TIMING_EXACT, 1);
    assert_int_equal(t.job.timer, TIMER_CUPTI);
    assert_int_equal(t.job.n_samples, 1);
    expect_between(before_ns, t.job.gpu_begin_ns, t.job.gpu_end_ns);
    assert_true(t.job.samples[0] * 1e3 >= (double)(t.job.gpu_end_ns - t.job.gpu_begin_ns) - 1);
    assert_true(t.job.samples[0] * 1e3 <= (double)(t.job.gpu_end_ns - t.job.gpu_begin_ns) + 1);
}

/* Kernels copy the operands of staged steps, and are no part of the time. */
static void test_copies_of_operands_are_not_timed(void **state)
{
    enum { N = 1000 };
    struct backend_memory *a = host_memory(N * sizeof(float)), *out = host_memory(N * sizeof(float));
    struct step steps[2];
    uint64_t copying_ns;
    struct test_job t;

    fill(a, N, 1);
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(out, N)});
    steps[0] = steps[1] = t.step;
    t.job.steps = steps;
    t.job.n_steps = 2;
    t.job.timing = TIMING_EXACT;
    gate_close(STANDIN_GATE_kernel);
    start_job(stream_open(), &t);
    wait_at_gate(STANDIN_GATE_kernel, 1);
    copying_ns = clock_now_ns();
    gate_open(STANDIN_GATE_kernel);
    finish(&t);
    assert_false(t.job.failed);
    assert_int_equal(t.job.timer, TIMER_CUPTI);
    expect_between(copying_ns, t.job.gpu_begin_ns, t.job.gpu_end_ns);
    for (unsigned i = 0; i < N; i++)
        assert_true(floats(out)[i] == value(i, 1) * value(i, 1));
}

/* Alone it lies between events, whose end is there at once; several at a time are told by their records. */
static void test_executions_in_a_row_have_records(void **state)
{
    struct test_job t;

    custom(&t, TIMING_NOW, 1);
    assert_int_equal(t.job.timer, TIMER_EVENTS);
    custom(&t, TIMING_NOW, REPEAT);
    assert_int_equal(t.job.timer, TIMER_CUPTI);
    assert_int_equal(t.job.n_samples, REPEAT);
    for (unsigned i = 0; i < REPEAT; i++)
        assert_true(t.job.samples[i] > 0 && t.job.samples[i] < 1e6);
}

static void test_a_statistic_comes_when_there_is_nothing_to_do(void **state)
{
    const uint64_t before_ns = clock_now_ns();
    struct test_job t;

    custom(&t, TIMING_STATISTIC, 1);
    assert_int_equal(t.job.n_samples, 0);
    assert_true(t.job.timed_later);
    assert_int_equal(told.count, 1);
    assert_int_equal(told.token, 77);
    expect_between(before_ns, told.times.begin_ns, told.times.end_ns);
    assert_true(told.times.us > 0);
}

static void test_a_statistic_comes_while_there_is_something_to_do(void **state)
{
    const struct custom c = open_custom();

    custom_busily(&c, TIMING_STATISTIC);
    assert_int_equal(told.count, 0);
    while (!told.count)
        custom_busily(&c, TIMING_NONE);
    assert_int_equal(told.count, 1);
}

static void test_what_is_not_to_be_timed_leaves_no_record(void **state)
{
    struct test_job t;

    custom(&t, TIMING_STATISTIC, 1);
    custom(&t, TIMING_NONE, 1);
    assert_false(t.job.timed_later);
    assert_int_equal(told.count, 1);
}

static void test_without_cupti_events_tell(void **state)
{
    struct test_job t;

    custom(&t, TIMING_EXACT, 1);
    assert_int_equal(t.job.timer, TIMER_EVENTS);
    assert_int_equal(t.job.n_samples, 1);
    custom(&t, TIMING_STATISTIC, 1);
    assert_int_equal(t.job.timer, TIMER_EVENTS);
    assert_int_equal(t.job.n_samples, 1);
    assert_int_equal(told.count, 0);
}

/* ---- code that is loaded meanwhile ---- */

static int setup_with_both(void **state)
{
    test_config.cuda_cupti = KOPS_STANDIN_CUPTI;
    return open_device(KOPS_FAKE_BLASLT);
}

static atomic_uint loaded; /* threads that are done */
static struct backend_code *code;
static struct test_job gemm;
static struct backend_stream *gemms;

static void *load_module(void *ret)
{
    unsigned char *image;
    struct error e;
    size_t size;

    image = read_file(KOPS_TEST_CUBIN, &size);
    *(int *)ret = backend->code_load(device, DOMAIN_COMMON, image, size, &code, &e);
    free(image);
    atomic_fetch_add(&loaded, 1);
    return NULL;
}

static void *prepare_gemm(void *ret)
{
    struct cuda_stream *s = cuda_stream(gemms);
    struct cuda_job *job = cuda_job_take(&s->executor->job_pool);
    struct error e;

    *(int *)ret = cuda_prepare(s, &gemm.job, job, &e);
    cuda_job_give(&s->executor->job_pool, job);
    atomic_fetch_add(&loaded, 1);
    return NULL;
}

/* The records come when all code is loaded, whichever of several threads is the last. */
static void expect_records_after(void *(*const *loaders)(void *), unsigned n)
{
    const struct custom c = open_custom();
    const int64_t run_before = counter(STANDIN_COUNTER_kernels_run);
    struct test_job t;
    pthread_t threads[2];
    int results[2];

    make(&c, &t, TIMING_EXACT, 1);
    atomic_store(&loaded, 0);
    gate_close(STANDIN_GATE_module_load);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, loaders[i], &results[i]), 0);
    wait_at_gate(STANDIN_GATE_module_load, n);
    start_job(c.stream, &t);
    while (counter(STANDIN_COUNTER_kernels_run) == run_before)
        backend->poll(device);
    for (unsigned ended = 0; ended < n; ended++) {
        while (atomic_load(&loaded) < ended)
            sched_yield();
        for (unsigned i = 0; i < 1000; i++)
            backend->poll(device);
        assert_false(t.done);
        gate_pass_one(STANDIN_GATE_module_load);
    }
    gate_open(STANDIN_GATE_module_load);
    for (unsigned i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(results[i], 0);
    }
    finish(&t);
    assert_false(t.job.failed);
    assert_int_equal(t.job.timer, TIMER_CUPTI);
    assert_int_equal(t.job.n_samples, 1);
}

static void test_records_wait_while_code_is_loaded(void **state)
{
    void *(*const loaders[])(void *) = {load_module, prepare_gemm};
    struct test_job t;

    custom(&t, TIMING_EXACT, 1); /* CUPTI is started */
    gemms = stream_open();
    for (unsigned which = 0; which < 3; which++) {
        const int64_t side = 16 + 16 * which;
        struct backend_memory *m = device_memory((uint64_t)(side * side) * sizeof(float));
        struct backend_memory *out = device_memory((uint64_t)(side * side) * sizeof(float));

        make_gemm(&gemm, (struct view[]){MATRIX(m, side, side), MATRIX(m, side, side), MATRIX(out, side, side)}, 1, 0);
        expect_records_after(loaders + which % 2, which < 2 ? 1 : 2);
        if (which != 1)
            backend->code_unload(device, code);
        if (!which)
            continue;
        backend->submit(gemms, &gemm.job);
        finish(&gemm);
    }
}

/* Of two records the older one is read later: it says nothing worse than what is known. */
static void test_the_clock_in_another_order(void **state)
{
    const uint64_t ahead = 5000000;
    struct cuda_clock clock = {.least_ns = 0};
    uint64_t host_ns;

    cuda_clock_learn(&clock, 2000000, 2001000 + ahead, 2002000 + ahead, 2003000);
    cuda_clock_learn(&clock, 1000000, 1900000 + ahead, 1910000 + ahead, 1950000);
    host_ns = cuda_clock_host_ns(&clock, 2001000 + ahead);
    assert_true(host_ns >= 2000000 && host_ns <= 2002000);
}

static int with_cupti_or_without(int argc, char **argv)
{
    const struct CMUnitTest records[] = {
        cmocka_unit_test(test_the_clock_in_another_order),
        cmocka_unit_test_setup_teardown(test_exact_times_are_the_records, setup_with_cupti, teardown),
        cmocka_unit_test_setup_teardown(test_copies_of_operands_are_not_timed, setup_with_cupti, teardown),
        cmocka_unit_test_setup_teardown(test_executions_in_a_row_have_records, setup_with_cupti, teardown),
        cmocka_unit_test_setup_teardown(test_a_statistic_comes_when_there_is_nothing_to_do, setup_with_cupti, teardown),
        cmocka_unit_test_setup_teardown(test_a_statistic_comes_while_there_is_something_to_do, setup_with_cupti,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_what_is_not_to_be_timed_leaves_no_record, setup_with_cupti, teardown),
        cmocka_unit_test_setup_teardown(test_records_wait_while_code_is_loaded, setup_with_both, teardown),
    };
    const struct CMUnitTest none[] = {
        cmocka_unit_test_setup_teardown(test_without_cupti_events_tell, setup_with_cupti, teardown)};

    /* CUPTI is tried once a process. */
    return getenv("KOPS_STANDIN_CUPTI") ? cmocka_run_group_tests(none, NULL, NULL)
                                        : cmocka_run_group_tests(records, NULL, NULL);
}

FIRST(with_cupti_or_without)
