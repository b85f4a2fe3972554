/* Executions that are timed by CUPTI's records, over a stand-in of CUPTI whose clock is far from the host's.
 *
 * Records come late: CUPTI hands none out of a buffer in which a launch has not ended, so those of a stream that always
 * has more to do come when it pauses. There the backend's clock stands still, but for what a test adds. */
#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "jobs/executor.h"
#include "util/clock.h"

enum { N = 1000, REPEAT = 700 /* more than are read at once */, POLLS = 20, UNREAD_MAX = 768, MS = 1000 * 1000 };

/* What the backend has said of jobs with TIMING_STATISTIC since the setup. */
static struct {
    unsigned count;
    uint64_t token; /* the last one's */
} told;

static void on_timed(void *context, uint64_t token, const struct backend_times *times)
{
    told.count++;
    told.token = token;
    assert_true(times->us > 0 && times->begin_ns < times->end_ns);
}

static int setup_with(const char *blaslt)
{
    told.count = 0;
    test_config.cuda_cupti = KOPS_STANDIN_CUPTI;
    test_host.timed = on_timed;
    return open_device(blaslt);
}

static int setup_with_cupti(void **state)
{
    return setup_with("none");
}

/* A kernel of a user's, which does not know its own times. */
struct custom {
    struct backend_memory *memory;
    struct backend_stream *stream;
    const struct backend_function *function;
};

static struct custom open_custom(void)
{
    struct custom c = {.memory = device_memory(N * sizeof(float)), .stream = stream_open()};

    c.function = load_function(load_code(), "custom_kernel");
    return c;
}

static void make_custom(const struct custom *c, struct test_job *t, enum backend_timing timing)
{
    KERNEL_JOB(t, c->function, N, OUT(c->memory, N), IN(c->memory, N), INT(N));
    t->job.timing = timing;
    t->job.token = timing == TIMING_STATISTIC ? 77 : 0;
}

static void run_custom(struct test_job *t, enum backend_timing timing, uint32_t repeat)
{
    const struct custom c = open_custom();

    make_custom(&c, t, timing);
    t->job.repeat = repeat;
    run_job(c.stream, t);
    backend->arm(device);
}

#define RECORDED(name) TEST_WITH(name, setup_with_cupti, teardown)

/* Of two records the older one is read later: it says nothing worse than what is known. */
TEST(test_the_clock_in_another_order)
{
    const uint64_t ahead = 5000000;
    struct cuda_clock clock = {.least_ns = 0};
    uint64_t host_ns;

    cuda_clock_learn(&clock, 2000000, 2001000 + ahead, 2002000 + ahead, 2003000);
    cuda_clock_learn(&clock, 1000000, 1900000 + ahead, 1910000 + ahead, 1950000);
    host_ns = cuda_clock_host_ns(&clock, 2001000 + ahead);
    assert_true(host_ns >= 2000000 && host_ns <= 2002000);
}

/* Kernels copy the operands of staged steps, and are no part of the time. */
RECORDED(test_copies_of_operands_are_not_timed)
{
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
    assert_in_range(t.job.gpu_begin_ns, copying_ns, t.job.gpu_end_ns);
    assert_in_range(t.job.gpu_end_ns, t.job.gpu_begin_ns, clock_now_ns());
    for (unsigned i = 0; i < N; i++)
        assert_true(floats(out)[i] == value(i, 1) * value(i, 1));
}

/* Alone it lies between events, whose end is there at once; several at a time are told by their records. */
RECORDED(test_executions_in_a_row_have_records)
{
    struct test_job t;

    run_custom(&t, TIMING_NOW, 1);
    assert_int_equal(t.job.timer, TIMER_EVENTS);
    run_custom(&t, TIMING_NOW, REPEAT);
    assert_int_equal(t.job.timer, TIMER_CUPTI);
    assert_int_equal(t.job.n_samples, REPEAT);
    for (unsigned i = 0; i < REPEAT; i++)
        assert_true(t.samples[i] > 0 && t.samples[i] < 1e6);
}

/* By a loop that has so much to do that it never sleeps. Executions that are not to be timed leave no record. */
RECORDED(test_a_statistic_comes_while_there_is_something_to_do)
{
    const struct custom c = open_custom();
    struct test_job t;

    for (unsigned i = 0; !told.count; i++) {
        make_custom(&c, &t, i ? TIMING_NONE : TIMING_STATISTIC);
        start_job(c.stream, &t);
        while (!t.done)
            backend->poll(device);
        assert_false(t.job.failed);
        assert_true(i || !told.count);
    }
    assert_true(told.count == 1 && told.token == 77);
}

/* ---- code that is loaded meanwhile ---- */

static int setup_with_both(void **state)
{
    return setup_with(KOPS_FAKE_BLASLT);
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

static void expect_time(struct test_job *t)
{
    finish(t);
    assert_false(t->job.failed);
    assert_int_equal(t->job.timer, TIMER_CUPTI);
    assert_int_equal(t->job.n_samples, 1);
}

/* The records come when all code is loaded, whichever of several threads is the last. */
static void expect_records_after(void *(*const *loaders)(void *), unsigned n)
{
    const struct custom c = open_custom();
    const int64_t run_before = counter(STANDIN_COUNTER_kernels_run);
    struct test_job t;
    pthread_t threads[2];
    int results[2];

    make_custom(&c, &t, TIMING_EXACT);
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
    expect_time(&t);
}

TEST_WITH(test_records_wait_while_code_is_loaded, setup_with_both, teardown)
{
    void *(*const loaders[])(void *) = {load_module, prepare_gemm};
    struct test_job t;

    run_custom(&t, TIMING_EXACT, 1); /* CUPTI is started */
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

/* ---- records that are held back: the clock and the flushes are under the test's hand ---- */

static atomic_ullong now_ns;  /* 0: the real one */
static atomic_ullong tick_ns; /* each look at it takes */
static unsigned flushes;
static bool nothing_comes; /* of a flush */

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
bool __real_cuda_records_flush(void);
bool __wrap_cuda_records_flush(void);

int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    uint64_t now;

    if (id != CLOCK_MONOTONIC || !atomic_load(&now_ns))
        return __real_clock_gettime(id, t);
    now = atomic_fetch_add(&now_ns, atomic_load(&tick_ns));
    *t = (struct timespec){.tv_sec = (time_t)(now / (1000 * MS)), .tv_nsec = (long)(now % (1000 * MS))};
    return 0;
}

bool __wrap_cuda_records_flush(void)
{
    flushes++;
    return nothing_comes || __real_cuda_records_flush();
}

static void pass_time(uint64_t ns)
{
    atomic_fetch_add(&now_ns, ns);
}

/* ---- kernels that end one by one ---- */

static struct custom custom;
static struct test_job jobs[3];

static int begin(void **state)
{
    struct timespec t;

    setup_with_cupti(state);
    custom = open_custom();
    make_custom(&custom, &jobs[0], TIMING_EXACT); /* CUPTI is started */
    run_job(custom.stream, &jobs[0]);
    __real_clock_gettime(CLOCK_MONOTONIC, &t);
    atomic_store(&now_ns, (uint64_t)t.tv_sec * 1000 * MS + (uint64_t)t.tv_nsec);
    gate_close(STANDIN_GATE_kernel);
    flushes = 0;
    return 0;
}

static int end(void **state)
{
    gate_open(STANDIN_GATE_kernel);
    nothing_comes = false;
    atomic_store(&now_ns, 0);
    atomic_store(&tick_ns, 0);
    return teardown(state);
}

static void begin_job(unsigned number, struct backend_stream *stream, enum backend_timing timing)
{
    make_custom(&custom, &jobs[number], timing);
    start_job(stream, &jobs[number]);
}

static void poll_some(void)
{
    for (unsigned i = 0; i < POLLS; i++)
        backend->poll(device);
}

/* The rest ends, and the backend has not looked yet. */
static void let_all_end(void)
{
    gate_open(STANDIN_GATE_kernel);
    while (counter(STANDIN_COUNTER_queued))
        sched_yield();
}

/* The first of these kernels ends, and the backend has seen that. */
static void let_first_end(void)
{
    gate_pass_one(STANDIN_GATE_kernel);
    while (!jobs[0].job.ended)
        backend->poll(device);
}

/* Of two kernels on a stream the first one ends. */
static void let_first_of_two_end(void)
{
    begin_job(0, custom.stream, TIMING_EXACT);
    begin_job(1, custom.stream, TIMING_EXACT);
    let_first_end();
}

/* ---- exact times ---- */

#define HELD(name) TEST_WITH(name, begin, end)

HELD(test_another_streams_kernels_hold_back)
{
    struct backend_stream *other = stream_open();

    begin_job(0, custom.stream, TIMING_EXACT);
    wait_at_gate(STANDIN_GATE_kernel, 1);
    begin_job(1, other, TIMING_EXACT);
    gate_pass_one(STANDIN_GATE_kernel); /* either of them */
    while (!jobs[0].job.ended && !jobs[1].job.ended)
        backend->poll(device);
    pass_time(500 * MS);
    poll_some();
    assert_false(jobs[0].done || jobs[1].done);
    let_all_end();
    expect_time(&jobs[0]);
    expect_time(&jobs[1]);
}

HELD(test_a_busy_stream_does_not_wait_for_ever)
{
    let_first_of_two_end();
    pass_time(1900 * MS);
    poll_some();
    assert_false(jobs[0].done);
    pass_time(101 * MS);
    poll_some();
    assert_true(jobs[0].done);
    assert_int_equal(jobs[0].job.n_samples, 0);
    let_all_end();
    expect_time(&jobs[1]);
}

/* A flush costs 20 us, and the loop polls without a pause. */
HELD(test_flushes_have_pauses)
{
    begin_job(0, custom.stream, TIMING_EXACT);
    begin_job(1, custom.stream, TIMING_EXACT);
    pass_time(MS);
    let_first_end();
    for (unsigned i = 1; i < 5; i++) {
        poll_some();
        assert_int_equal(flushes, i);
        pass_time(MS / 2);
    }
    let_all_end();
    finish(&jobs[1]);
    assert_true(jobs[0].done);
}

/* What was held back need not be there at the first flush behind the last kernel. */
HELD(test_the_end_of_a_backlog_has_some_time)
{
    let_first_of_two_end();
    pass_time(3 * MS);
    poll_some();
    pass_time(1500 * MS);
    nothing_comes = true;
    let_all_end();
    pass_time(1500 * MS);
    poll_some();
    pass_time(90 * MS);
    poll_some();
    assert_false(jobs[0].done);
    nothing_comes = false;
    expect_time(&jobs[0]);
    expect_time(&jobs[1]);
}

/* However late the backend looks: what CUPTI has is asked for first. */
HELD(test_nothing_is_given_up_unasked)
{
    let_first_of_two_end();
    poll_some();
    let_all_end();
    pass_time(5000ULL * MS);
    expect_time(&jobs[0]);
    expect_time(&jobs[1]);
}

/* A job that repeats goes on: its last executions keep their times. */
HELD(test_many_executions_outrun_their_records)
{
    struct test_job *t = &jobs[0];
    uint32_t unasked;

    make_custom(&custom, t, TIMING_EXACT);
    t->job.repeat = SAMPLES_MAX;
    nothing_comes = true;
    atomic_store(&tick_ns, MS / 100);
    gate_open(STANDIN_GATE_kernel);
    start_job(custom.stream, t);
    while (t->job.ended < UNREAD_MAX + 200)
        backend->poll(device);
    nothing_comes = false;
    unasked = t->job.ended;
    finish(t);
    assert_true(t->job.n_samples < SAMPLES_MAX);
    assert_true(t->job.n_samples > SAMPLES_MAX - (unasked - UNREAD_MAX) - 2);
}

/* ---- statistics ---- */

static void let_statistic_end(unsigned number)
{
    gate_pass_one(STANDIN_GATE_kernel);
    while (!jobs[number].done)
        backend->poll(device);
}

HELD(test_statistics_do_not_wait_for_ever)
{
    for (unsigned i = 0; i < 3; i++)
        begin_job(i, custom.stream, TIMING_STATISTIC);
    let_statistic_end(0);
    pass_time(2001ULL * MS);
    let_statistic_end(1);
    poll_some();
    let_statistic_end(2);
    backend->arm(device);
    assert_int_equal(told.count, 2);
}

/* ---- without CUPTI, which is tried once a process: KOPS_STANDIN_CUPTI=busy ---- */

static void test_without_cupti_events_tell(void **state)
{
    struct test_job t;

    for (unsigned statistic = 0; statistic < 2; statistic++) {
        run_custom(&t, statistic ? TIMING_STATISTIC : TIMING_EXACT, 1);
        assert_int_equal(t.job.timer, TIMER_EVENTS);
        assert_int_equal(t.job.n_samples, 1);
    }
    assert_int_equal(told.count, 0);
}

static int without_cupti(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_without_cupti_events_tell, setup_with_cupti, teardown)};

    return getenv("KOPS_STANDIN_CUPTI") ? cmocka_run_group_tests(tests, NULL, NULL) : -1;
}

FIRST(without_cupti)
