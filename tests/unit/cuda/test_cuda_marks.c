/* Ends that a kernel cannot forge: what a flag gets is random, and only the outstanding values count. */
#include "jobs/stream.h"

#include <sched.h>

#include "support.h"

enum { N = 1000 };

/* The published vector of SipHash-2-4 for the message 00 01 … 07 under the key 00 01 … 0f. */
CUDA_TEST(test_the_generator_is_what_it_says)
{
    struct cuda_random random = {.key = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)},
                                 .drawn = UINT64_C(0x0706050403020100)};
    struct cuda_random other[2];

    assert_int_equal(cuda_random_next(&random), UINT64_C(0x93f5f5799a932462));
    assert_true(cuda_random_seed(&other[0]) && cuda_random_seed(&other[1]));
    assert_memory_not_equal(other[0].key, other[1].key, sizeof(other[0].key));
}

CUDA_TEST(test_only_outstanding_values_count)
{
    struct cuda_marks marks = {.issued = 0};
    struct cuda_random random;
    uint64_t values[40];
    atomic_ullong flag = 0;

    assert_true(cuda_random_seed(&random));
    for (unsigned i = 0; i < 40; i++) {
        values[i] = cuda_marks_next(&marks, &random);
        assert_int_not_equal(values[i], 0);
        assert_int_equal(cuda_marks_issue(&marks), i + 1);
    }
    assert_int_equal(cuda_marks_ended(&marks, &flag), 0);
    for (uint64_t forged = 1; forged; forged <<= 1) {
        atomic_store(&flag, forged);
        assert_int_equal(cuda_marks_ended(&marks, &flag), 0);
        atomic_store(&flag, UINT64_MAX - forged);
        assert_int_equal(cuda_marks_ended(&marks, &flag), 0);
        atomic_store(&flag, values[7] ^ forged);
        assert_int_equal(cuda_marks_ended(&marks, &flag), 0);
    }
    atomic_store(&flag, values[2]);
    assert_int_equal(cuda_marks_ended(&marks, &flag), 3);
    atomic_store(&flag, values[1]); /* one that was */
    assert_int_equal(cuda_marks_ended(&marks, &flag), 3);
    atomic_store(&flag, values[39]);
    assert_int_equal(cuda_marks_ended(&marks, &flag), 40);
    /* Places are used again. */
    for (unsigned i = 0; i < 1000; i++) {
        const uint64_t value = cuda_marks_next(&marks, &random);

        cuda_marks_issue(&marks);
        assert_int_equal(cuda_marks_ended(&marks, &flag), 40 + i);
        atomic_store(&flag, value);
        assert_int_equal(cuda_marks_ended(&marks, &flag), 41 + i);
    }
}

/* Last, since the context is lost: a job whose end would never be seen fails, whichever stream it is on. */
CUDA_TEST(test_a_flag_that_was_overwritten_is_a_fault)
{
    struct backend_memory *m = device_memory(N * sizeof(float));
    struct backend_stream *streams[2] = {stream_open(), stream_open()};
    struct test_job jobs[2];

    gate_close(STANDIN_GATE_kernel);
    for (unsigned i = 0; i < 2; i++) {
        make_job(&jobs[i], OP_ADD, (struct view[]){VECTOR(m, N), VECTOR(m, N), VECTOR(m, N)});
        start_job(streams[i], &jobs[i]);
    }
    wait_at_gate(STANDIN_GATE_kernel, 2);
    gate_pass_one(STANDIN_GATE_kernel);
    /* One of them ends, and its flag is written over before the loop looks. */
    for (unsigned i = 0;; i = !i)
        if (atomic_load(cuda_stream(streams[i])->flag) != cuda_stream(streams[i])->marks.seen) {
            atomic_store(cuda_stream(streams[i])->flag, 77);
            break;
        } else {
            sched_yield();
        }
    while (backend->poll(device))
        sched_yield();
    for (unsigned i = 0; i < 2; i++) {
        assert_true(jobs[i].done && jobs[i].job.failed);
        assert_int_equal(jobs[i].job.error.code, ERROR_DEVICE_LOST);
    }
    assert_true(device->lost);
    gate_open(STANDIN_GATE_kernel);
}

ALL_TESTS_WITH(setup, NULL)
