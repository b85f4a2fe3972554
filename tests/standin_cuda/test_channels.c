/* The stand-in driver's channels: what a wait on one stream does to others that share its channel. */
#include <pthread.h>
#include <stdlib.h>

#include "test_support.h"

/* A word in pinned memory, 0, that streams wait for. */
static _Atomic uint64_t *new_word(void)
{
    void *word;

    ok(cuMemHostAlloc(&word, 8, 0));
    *(_Atomic uint64_t *)word = 0;
    return word;
}

static void hold(CUstream stream, _Atomic uint64_t *word)
{
    ok(cuStreamWaitValue64(stream, (uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
}

static void share_channels(const char *connections)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    control->channels = 1;
}

/* The stream that comes round to the first one's channel is held with it. */
static void a_wait_holds_its_channel(void)
{
    const unsigned n = 3;
    _Atomic uint64_t *word = new_word();
    CUdeviceptr a = new_floats(3);
    CUstream streams[4];
    int64_t ran;

    share_channels("3");
    for (unsigned i = 0; i <= n; i++)
        streams[i] = new_stream();
    hold(streams[0], word);
    launch_square(a, 16, streams[n]);
    ran = COUNTER(kernels_run);
    for (unsigned i = 1; i < n; i++) {
        launch_square(a, 16, streams[i]);
        ok(cuStreamSynchronize(streams[i]));
    }
    assert_int_equal(COUNTER(kernels_run), ran + n - 1);
    assert_int_equal(cuStreamQuery(streams[n]), CUDA_ERROR_NOT_READY);
    *word = 1;
    ok(cuStreamSynchronize(streams[n]));
    assert_int_equal(COUNTER(kernels_run), ran + n);
}

/* Waits that were queued later, and work that takes its time, hold nobody. */
static void only_waits_before_it_hold_an_operation(void)
{
    struct standin_gate *gate = &control->gates[STANDIN_GATE_kernel];
    _Atomic uint64_t *word = new_word();
    CUdeviceptr a = new_floats(3);
    CUstream first, second;

    share_channels("1");
    first = new_stream();
    second = new_stream();
    gate->closed = 1;
    launch_square(a, 16, first);
    wait_until(&row->gate_waiting[STANDIN_GATE_kernel], 1);
    ok(cuMemsetD8Async(a, 0, 4, second)); /* a copy: not at that gate */
    ok(cuStreamSynchronize(second));
    launch_square(a, 16, second);
    hold(first, word);
    wait_until(&row->gate_waiting[STANDIN_GATE_kernel], 2);
    gate->closed = 0;
    ok(cuStreamSynchronize(second));
    assert_int_equal(cuStreamQuery(first), CUDA_ERROR_NOT_READY);
    *word = 1;
    ok(cuStreamSynchronize(first));
}

struct launcher {
    CUcontext context;
    CUstream stream;
    CUdeviceptr a;
};

static void *launch_one_more(void *data)
{
    struct launcher *l = data;

    if (cuCtxSetCurrent(l->context) == CUDA_SUCCESS)
        launch_square(l->a, 16, l->stream);
    return NULL;
}

static void a_launch_into_a_full_channel_blocks(void)
{
    _Atomic uint64_t *word = new_word();
    struct launcher l = {.a = new_floats(3)};
    CUstream other;
    pthread_t thread;

    share_channels("2");
    control->channel_entries = 4;
    l.stream = new_stream();
    other = new_stream();
    ok(cuCtxGetCurrent(&l.context));
    hold(l.stream, word);
    for (unsigned i = 0; i < 3; i++)
        launch_square(l.a, 16, l.stream);
    assert_int_equal(COUNTER(full_channels), 0);
    assert_int_equal(pthread_create(&thread, NULL, launch_one_more, &l), 0);
    wait_until((_Atomic uint64_t *)&row->counters[STANDIN_COUNTER_blocked_launches], 1);
    launch_square(l.a, 16, other); /* the other channel has room */
    ok(cuStreamSynchronize(other));
    assert_int_equal(COUNTER(blocked_launches), 1);
    *word = 1;
    assert_int_equal(pthread_join(thread, NULL), 0);
    ok(cuStreamSynchronize(l.stream));
    assert_int_equal(COUNTER(kernels_run), 5);
    assert_int_equal(COUNTER(full_channels), 1);
    assert_int_equal(COUNTER(blocked_launches), 0);
}

static const struct driver_test tests[] = {
    DRIVER_TEST(a_wait_holds_its_channel),
    DRIVER_TEST(only_waits_before_it_hold_an_operation),
    DRIVER_TEST(a_launch_into_a_full_channel_blocks),
};

int main(int argc, char **argv)
{
    return run_driver_tests(argc, argv, tests, sizeof(tests) / sizeof(*tests));
}
