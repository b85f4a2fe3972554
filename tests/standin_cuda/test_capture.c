/* What the stand-in driver refuses while a stream is being captured. */
#include <pthread.h>

#include "test_support.h"

static CUresult query(void *stream)
{
    return cuStreamQuery(stream);
}

static CUresult synchronize(void *stream)
{
    return cuStreamSynchronize(stream);
}

static CUresult synchronize_all(void *stream)
{
    return cuCtxSynchronize();
}

static CUresult allocate(void *stream)
{
    CUdeviceptr a;

    return cuMemAlloc(&a, 64);
}

static CUresult allocate_in_order(void *stream)
{
    CUdeviceptr a;

    return cuMemAllocAsync(&a, 64, stream);
}

/* In a capture of that mode the call answers so; unless it is CUDA_SUCCESS the capture is invalid from then on. */
static void expect_refusal(CUresult (*call)(void *), CUstreamCaptureMode mode, CUresult answer)
{
    CUstream stream = new_stream();
    CUdeviceptr a = new_floats(3);
    CUgraph graph;

    ok(cuStreamBeginCapture(stream, mode));
    launch_square(a, 16, stream);
    assert_int_equal(call(stream), answer);
    if (answer == CUDA_SUCCESS) {
        ok(cuStreamEndCapture(stream, &graph));
    } else {
        assert_int_equal(cuMemsetD8Async(a, 0, 1, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        assert_int_equal(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    launch_square(a, 16, stream); /* it works as before */
    ok(cuStreamSynchronize(stream));
    assert_true(first_of(a) == 9);
}

static void captures_refuse_what_cannot_be_recorded(void)
{
    const CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED, local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    CUstream stream = new_stream();
    CUgraph graph;

    expect_refusal(query, relaxed, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_refusal(synchronize, relaxed, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_refusal(synchronize_all, relaxed, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_refusal(allocate, relaxed, CUDA_SUCCESS);
    expect_refusal(allocate, local, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_refusal(allocate, CU_STREAM_CAPTURE_MODE_GLOBAL, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_refusal(allocate_in_order, relaxed, CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(cuStreamBeginCapture(NULL, relaxed), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    assert_int_equal(cuStreamBeginCapture(stream, 3), CUDA_ERROR_INVALID_VALUE);
    ok(cuStreamBeginCapture(stream, relaxed));
    assert_int_equal(cuStreamBeginCapture(stream, relaxed), CUDA_ERROR_ILLEGAL_STATE);
    ok(cuStreamDestroy(stream));
    assert_int_equal(COUNTER(live_captures), 0);
    assert_int_equal(COUNTER(live_graphs), 1); /* of the one refusal that was none */
    assert_int_equal(COUNTER(misuse), 0);
}

static void the_default_stream_would_wait_for_a_capture(void)
{
    CUdeviceptr a = new_floats(3);
    CUstreamCaptureStatus status;
    CUstream blocking;
    CUgraph graph;

    ok(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    ok(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    assert_int_equal(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    launch_square(a, 16, blocking); /* asking did no harm */
    assert_int_equal(cuMemsetD8Async(a, 0, 64, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_int_equal(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_true(first_of(a) == 3);
}

struct other_thread {
    CUcontext context;
    CUstream stream;
    CUstreamCaptureMode mode;
    CUresult allocated, ended;
};

static void *in_another_thread(void *data)
{
    struct other_thread *t = data;
    CUgraph graph;

    cuCtxSetCurrent(t->context);
    cuThreadExchangeStreamCaptureMode(&t->mode);
    t->allocated = allocate(NULL);
    t->ended = cuStreamEndCapture(t->stream, &graph);
    return NULL;
}

/* What another thread gets that allocates, and ends the capture, when it was begun with `begun` and the thread's own
 * mode is `own`. */
static struct other_thread try_elsewhere(CUstreamCaptureMode begun, CUstreamCaptureMode own)
{
    struct other_thread t = {.mode = own};
    pthread_t thread;
    CUgraph graph;

    ok(cuCtxGetCurrent(&t.context));
    t.stream = new_stream();
    ok(cuStreamBeginCapture(t.stream, begun));
    assert_int_equal(pthread_create(&thread, NULL, in_another_thread, &t), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(t.mode, CU_STREAM_CAPTURE_MODE_GLOBAL); /* what it was before */
    if (t.ended != CUDA_SUCCESS)
        cuStreamEndCapture(t.stream, &graph);
    assert_int_equal(COUNTER(live_captures), 0);
    return t;
}

static void modes_say_who_is_refused(void)
{
    const CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL, local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                              relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

    assert_int_equal(try_elsewhere(global, global).allocated, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(try_elsewhere(global, local).allocated, CUDA_SUCCESS);
    assert_int_equal(try_elsewhere(global, relaxed).allocated, CUDA_SUCCESS);
    assert_int_equal(try_elsewhere(local, global).allocated, CUDA_SUCCESS);
    assert_int_equal(try_elsewhere(local, global).ended, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    assert_int_equal(try_elsewhere(relaxed, global).ended, CUDA_SUCCESS);
}

/* A launch of a graph that uses freed memory faults, as on a device. */
static void freed_memory_faults_at_the_launch(void)
{
    CUdeviceptr a = new_floats(3);
    CUstream stream = new_stream();
    CUgraphExec exec;
    CUgraph graph;

    ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch_square(a, 16, stream);
    ok(cuStreamEndCapture(stream, &graph));
    ok(cuGraphInstantiate(&exec, graph, 0));
    ok(cuGraphLaunch(exec, stream));
    ok(cuStreamSynchronize(stream));
    ok(cuMemFree(a));
    ok(cuGraphLaunch(exec, stream));
    assert_int_equal(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static const struct driver_test tests[] = {
    DRIVER_TEST(captures_refuse_what_cannot_be_recorded),
    DRIVER_TEST(the_default_stream_would_wait_for_a_capture),
    DRIVER_TEST(modes_say_who_is_refused),
    DRIVER_TEST(freed_memory_faults_at_the_launch),
};

int main(int argc, char **argv)
{
    return run_driver_tests(argc, argv, tests, sizeof(tests) / sizeof(*tests));
}
