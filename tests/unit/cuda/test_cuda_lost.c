/* A sticky fault: jobs that had ended are done, the others fail, and say whether they had begun. That all other calls
 * fail as well: functional_cuda_lifetimes, faults_driver. A process whose context broke gets no other: each test has a
 * process of its own. */
#include "support.h"

#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "times/records.h"

enum {
    N = 1000,
    BYTES = N * sizeof(float),
    STREAM_WINDOW = 32 /* executions issued ahead */
};

static struct backend_memory *filled(unsigned seed)
{
    struct backend_memory *m = device_memory(BYTES);

    fill(m, N, seed);
    return m;
}

static void submit_square(struct backend_stream *stream, struct test_job *t, struct backend_memory *m)
{
    make_job(t, OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
    backend->submit(stream, &t->job);
}

static void submit_repeated(struct backend_stream *stream, struct test_job *t, struct backend_memory *m,
                            uint32_t repeat)
{
    make_job(t, OP_ADD, (struct view[]){VECTOR(m, N), VECTOR(m, N), VECTOR(m, N)});
    t->job.repeat = repeat;
    backend->submit(stream, &t->job);
}

/* Until the device has ended so many executions; the loop was not told. */
static void wait_for_ends(int64_t n)
{
    while (counter(STANDIN_COUNTER_value_writes) < n)
        sched_yield();
}

/* So that submit() issues a user's kernel at once: CUPTI need not be started first, by a thread. */
static struct backend_code *load_code_and_records(void)
{
    assert_false(cuda_records_start());
    return load_code();
}

static void wait_for_the_fault(void)
{
    while (!counter(STANDIN_COUNTER_sticky))
        sched_yield();
}

static void fault_on(struct backend_stream *stream, struct test_job *t, const struct backend_function *fault,
                     struct backend_memory *m)
{
    KERNEL_JOB(t, fault, 1, OUT(m, 1));
    backend->submit(stream, &t->job);
    wait_for_the_fault();
}

static void expect_fault(const struct test_job *t, bool started)
{
    assert_true(t->done && t->job.failed);
    assert_int_equal(t->job.error.code, ERROR_DEVICE_LOST);
    assert_texts(t->job.error.details[0].key, "driver", t->job.error.details[0].text, "CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_int_equal(t->job.started_ns != 0, started);
}

/* `state`: whether another thread has seen the fault before. */
static void test_jobs_that_had_ended_are_done(void **state)
{
    const bool another_thread_knows = *(const bool *)*state;
    struct backend_stream *streams[4] = {stream_open(), stream_open(), stream_open(), stream_open()};
    struct backend_memory *m[3] = {filled(1), filled(2), filled(3)}, *none;
    struct test_job one, three, refused, repeated, behind;
    struct error e;
    int fd;

    submit_square(streams[0], &one, m[0]);
    submit_repeated(streams[1], &three, m[1], 3);
    inject("cuLaunchKernel", 1 /* CUDA_ERROR_INVALID_VALUE */, false);
    submit_square(streams[3], &refused, m[0]);
    wait_for_ends(5);
    gate_close(STANDIN_GATE_kernel);
    submit_repeated(streams[2], &repeated, m[2], 5);
    submit_square(streams[2], &behind, m[2]);
    for (unsigned i = 0; i < 2; i++) {
        gate_pass_one(STANDIN_GATE_kernel);
        wait_for_ends(6 + i);
    }
    inject("kernel", 700 /* CUDA_ERROR_ILLEGAL_ADDRESS */, true);
    gate_open(STANDIN_GATE_kernel);
    wait_for_the_fault();
    if (another_thread_knows)
        assert_int_equal(backend->memory_alloc(device, BYTES, &none, &fd, &e), -1);

    finish(&behind);
    assert_int_equal(backend->poll(device), 0);
    assert_true(one.done && !one.job.failed && three.done && !three.job.failed);
    assert_int_equal(one.job.ended, 1);
    assert_int_equal(three.job.ended, 3);
    for (unsigned k = 0; k < N; k++) {
        assert_true(floats(m[0])[k] == value(k, 1) * value(k, 1));
        assert_true(floats(m[1])[k] == 8 * value(k, 2));
    }
    assert_int_equal(refused.job.error.code, ERROR_DEVICE_ERROR);
    expect_fault(&repeated, true);
    assert_int_equal(repeated.job.ended, 2);
    expect_fault(&behind, true);
    assert_int_equal(behind.job.ended, 0);
    assert_true(device->lost);
}

static void test_a_job_that_was_never_issued_has_not_started(void **state)
{
    struct backend_stream *stream = stream_open(), *other = stream_open();
    static struct test_job endless, behind[2 * STREAM_WINDOW], fault;
    struct backend_code *code = load_code_and_records();
    const struct backend_function *faults = load_function(code, "fault_kernel");
    struct backend_memory *m = filled(1);

    KERNEL_JOB(&endless, load_function(code, "spin_forever"), 1, OUT(m, 1));
    backend->submit(stream, &endless.job);
    for (unsigned i = 0; i < 2 * STREAM_WINDOW; i++)
        submit_square(stream, &behind[i], m);
    fault_on(other, &fault, faults, m);
    finish(&behind[2 * STREAM_WINDOW - 1]);
    expect_fault(&endless, true);
    expect_fault(&fault, true);
    for (unsigned i = 0; i < 2 * STREAM_WINDOW; i++)
        expect_fault(&behind[i], i < STREAM_WINDOW - 1);
}

/* The loop does not know of the fault yet. The first call of a timed job of a user's kernel only records an
 * event: then the job has not started. */
static void test_a_job_meets_the_fault(void **state)
{
    const bool timing = *(const bool *)*state;
    struct backend_stream *stream = stream_open(), *other = stream_open();
    const struct backend_function *faults = load_function(load_code_and_records(), "fault_kernel");
    struct backend_memory *m = filled(1);
    struct test_job fault, t, next;

    fault_on(other, &fault, faults, m);
    KERNEL_JOB(&t, faults, 1, OUT(m, 1));
    t.job.timing = timing;
    backend->submit(stream, &t.job);
    submit_square(stream, &next, m);
    assert_int_equal(backend->poll(device), 0);
    expect_fault(&fault, true);
    expect_fault(&t, !timing);
    expect_fault(&next, false);
}

static int each_in_a_process(int argc, char **argv)
{
    static bool yes = true, no = false;
    const struct CMUnitTest tests[] = {
        {"jobs that had ended are done", test_jobs_that_had_ended_are_done, NULL, NULL, &no},
        {"jobs that had ended are done, whoever saw the fault", test_jobs_that_had_ended_are_done, NULL, NULL, &yes},
        cmocka_unit_test_teardown(test_a_job_that_was_never_issued_has_not_started, end_test),
        {"a job whose event meets the fault has not started", test_a_job_meets_the_fault, NULL, NULL, &yes},
        {"a job whose launch meets the fault may have started", test_a_job_meets_the_fault, NULL, NULL, &no},
    };
    int failed = 0;

    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        int status = 1;
        pid_t child;

        fflush(NULL);
        child = fork();
        if (child == 0) {
            const struct CMUnitTest one[] = {tests[i]};

            status = cmocka_run_group_tests_name(tests[i].name, one, setup, teardown);
            fflush(NULL);
            _exit(status != 0);
        }
        failed += child < 0 || waitpid(child, &status, 0) != child || status != 0;
    }
    return failed;
}

FIRST(each_in_a_process)
