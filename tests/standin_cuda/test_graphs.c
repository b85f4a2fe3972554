/* The stand-in driver's graphs: captured, instantiated, changed, launched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <string.h>

#include "kernels/cuda/ops/params.h"
#include "test_support.h"

static CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec exec;

    ok(cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

/* A graph that squares `a` n times. */
static CUgraph capture_squares(CUdeviceptr a, unsigned n)
{
    CUstream stream = new_stream();
    CUgraph graph;

    ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (unsigned i = 0; i < n; i++)
        launch_square(a, 16, stream);
    ok(cuStreamEndCapture(stream, &graph));
    ok(cuStreamDestroy(stream));
    return graph;
}

static CUDA_KERNEL_NODE_PARAMS square_params(struct cuda_ops_vector *p, void **pointers, CUdeviceptr a)
{
    *p = (struct cuda_ops_vector){.out = a, .a = a, .count = 16, .a_step = 1};
    pointers[0] = p;
    return (CUDA_KERNEL_NODE_PARAMS){.func = kernel("kops_square_f32_vector"),
                                     .gridDimX = 1,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 32,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = pointers};
}

/* ---- capture and launch ---- */

static void captured_work_runs_when_launched(void)
{
    CUdeviceptr a = new_floats(3), b = new_floats(0);
    CUstream stream = new_stream();
    CUgraphExec exec;
    CUgraph graph;
    CUstreamCaptureStatus status;
    CUgraphNodeType type;
    CUgraphNode nodes[16];
    size_t n = 8;

    ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ok(cuStreamIsCapturing(stream, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    launch_square(a, 16, stream);
    ok(cuMemcpyDtoDAsync(b, a, 64, stream));
    ok(cuMemsetD32Async(a, 0x40000000, 16, stream)); /* 2.0f */
    ok(cuStreamWriteValue32(stream, b + 60, 7, 0));
    assert_int_equal(COUNTER(live_captures), 1);
    ok(cuStreamEndCapture(stream, &graph));
    ok(cuStreamIsCapturing(stream, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
    assert_true(first_of(a) == 3); /* nothing ran */
    assert_int_equal(COUNTER(launches), 0);
    ok(cuGraphGetNodes(graph, NULL, &n));
    assert_int_equal(n, 4);
    n = 8;
    ok(cuGraphGetNodes(graph, nodes, &n));
    assert_int_equal(n, 4);
    assert_null(nodes[4]);
    ok(cuGraphNodeGetType(nodes[0], &type));
    assert_int_equal(type, CU_GRAPH_NODE_TYPE_KERNEL);
    ok(cuGraphNodeGetType(nodes[2], &type));
    assert_int_equal(type, CU_GRAPH_NODE_TYPE_MEMSET);
    n = 8;
    ok(cuGraphNodeGetDependencies(nodes[3], nodes + 4, NULL, &n));
    assert_int_equal(n, 1);
    assert_ptr_equal(nodes[4], nodes[2]);
    n = 8;
    ok(cuGraphGetRootNodes(graph, nodes + 4, &n));
    assert_int_equal(n, 1);
    assert_ptr_equal(nodes[4], nodes[0]);
    exec = instantiate(graph);
    ok(cuGraphDestroy(graph));
    ok(cuGraphUpload(exec, stream));
    ok(cuGraphLaunch(exec, stream));
    ok(cuGraphLaunch(exec, stream));
    ok(cuGraphExecDestroy(exec)); /* what was launched goes on */
    ok(cuStreamSynchronize(stream));
    assert_true(first_of(b) == 4); /* 9 by the first launch */
    assert_true(first_of(a) == 2);
    assert_int_equal(COUNTER(kernels_run), 2);
    assert_int_equal(COUNTER(graph_launches), 2);
    assert_int_equal(COUNTER(value_writes), 2);
    assert_int_equal(COUNTER(live_graphs) + COUNTER(live_graph_execs) + COUNTER(live_captures), 0);
    assert_int_equal(COUNTER(misuse), 0);
    assert_int_equal(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(COUNTER(misuse), 2);
}

/* A launch of a graph that uses freed memory faults, as on a device. */
static void freed_memory_faults_at_the_launch(void)
{
    CUdeviceptr a = new_floats(3);
    CUstream stream = new_stream();
    CUgraphExec exec = instantiate(capture_squares(a, 2));

    ok(cuGraphLaunch(exec, stream));
    ok(cuStreamSynchronize(stream));
    ok(cuMemFree(a));
    ok(cuGraphLaunch(exec, stream));
    assert_int_equal(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void streams_fork_and_join_in_a_capture(void)
{
    CUdeviceptr a = new_floats(3), b = new_floats(5);
    CUstream origin = new_stream(), side = new_stream();
    CUstreamCaptureStatus status;
    CUevent fork_event, join_event;
    CUgraphExec exec;
    CUgraph graph;

    ok(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
    ok(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
    ok(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    launch_square(a, 16, origin);
    ok(cuEventRecord(fork_event, origin));
    ok(cuStreamWaitEvent(side, fork_event, 0));
    ok(cuStreamIsCapturing(side, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    launch_square(b, 16, side);
    launch_square(a, 16, origin);
    assert_int_equal(cuEventQuery(fork_event), CUDA_ERROR_CAPTURED_EVENT);
    assert_int_equal(cuStreamEndCapture(side, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    assert_int_equal(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_null(graph);
    ok(cuStreamIsCapturing(side, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
    assert_int_equal(cuStreamWaitEvent(side, fork_event, 0), CUDA_ERROR_CAPTURED_EVENT);
    for (bool join = false;; join = true) {
        ok(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
        launch_square(a, 16, origin);
        ok(cuEventRecord(fork_event, origin));
        ok(cuStreamWaitEvent(side, fork_event, 0));
        launch_square(b, 16, side);
        ok(cuEventRecord(join_event, side));
        if (join) {
            ok(cuStreamWaitEvent(origin, join_event, 0));
            break;
        }
        assert_int_equal(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    }
    ok(cuStreamEndCapture(origin, &graph));
    exec = instantiate(graph);
    ok(cuGraphLaunch(exec, side));
    ok(cuStreamSynchronize(side));
    assert_true(first_of(a) == 9 && first_of(b) == 25);
    /* The event is any other's again once it is recorded outside. */
    ok(cuEventRecord(fork_event, side));
    ok(cuEventSynchronize(fork_event));
    assert_int_equal(COUNTER(misuse), 0);
}

/* Two launches of one graph do not overlap; a captured launch becomes part of the other graph. */
static void launches_of_one_graph_wait_for_each_other(void)
{
    struct standin_gate *gate = &control->gates[STANDIN_GATE_kernel];
    CUdeviceptr a = new_floats(3);
    CUstream first = new_stream(), second = new_stream();
    CUgraphExec exec = instantiate(capture_squares(a, 1)), outer;
    CUgraph graph;
    size_t n;

    gate->closed = 1;
    ok(cuGraphLaunch(exec, first));
    ok(cuGraphLaunch(exec, second));
    wait_until(&row->gate_waiting[STANDIN_GATE_kernel], 1);
    gate->tickets = 1;
    ok(cuStreamSynchronize(first));
    wait_until(&row->gate_waiting[STANDIN_GATE_kernel], 1);
    gate->closed = 0;
    ok(cuStreamSynchronize(second));
    assert_true(first_of(a) == 81);
    ok(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED));
    ok(cuGraphLaunch(exec, first));
    ok(cuGraphLaunch(exec, first));
    ok(cuStreamEndCapture(first, &graph));
    ok(cuGraphGetNodes(graph, NULL, &n));
    assert_int_equal(n, 2);
    outer = instantiate(graph);
    ok(cuGraphLaunch(outer, first));
    ok(cuStreamSynchronize(first));
    assert_int_equal(COUNTER(kernels_run), 4);
    assert_int_equal(COUNTER(graph_launches), 3);
}

/* ---- changes ---- */

static void nodes_take_other_parameters(void)
{
    CUdeviceptr a = new_floats(3), b = new_floats(5);
    CUstream stream = new_stream();
    CUgraph graph = capture_squares(a, 2);
    CUgraphExec exec = instantiate(graph);
    CUDA_KERNEL_NODE_PARAMS params, got;
    struct cuda_ops_vector p;
    CUgraphNode nodes[2];
    void *pointers[1];
    size_t n = 2;

    ok(cuGraphGetNodes(graph, nodes, &n));
    params = square_params(&p, pointers, b);
    ok(cuGraphExecKernelNodeSetParams(exec, nodes[1], &params));
    p.out = p.a = 0; /* was copied */
    ok(cuGraphLaunch(exec, stream));
    ok(cuStreamSynchronize(stream));
    assert_true(first_of(a) == 9 && first_of(b) == 25);
    ok(cuGraphKernelNodeGetParams(nodes[1], &got)); /* the graph's own are as they were */
    assert_int_equal(((struct cuda_ops_vector *)got.kernelParams[0])->out, a);
    assert_int_equal(got.blockDimX, 256);
    params = square_params(&p, pointers, b);
    ok(cuGraphKernelNodeSetParams(nodes[0], &params));
    ok(cuGraphLaunch(exec, stream)); /* not yet the exec's */
    ok(cuStreamSynchronize(stream));
    assert_true(first_of(a) == 81 && first_of(b) == 625);
    params.gridDimX = 0;
    assert_int_equal(cuGraphExecKernelNodeSetParams(exec, nodes[0], &params), CUDA_ERROR_INVALID_VALUE);
    params.gridDimX = 1;
    ok(cuGraphDestroy(graph));
    assert_int_equal(cuGraphExecKernelNodeSetParams(exec, nodes[0], &params), CUDA_ERROR_INVALID_VALUE);
}

static void an_exec_takes_a_like_graph(void)
{
    CUdeviceptr a = new_floats(3), b = new_floats(5);
    CUstream stream = new_stream();
    CUgraphExec exec = instantiate(capture_squares(a, 2));
    CUgraphExecUpdateResultInfo info;
    CUgraph like = capture_squares(b, 2), longer = capture_squares(b, 3), other;

    ok(cuGraphExecUpdate(exec, like, &info));
    assert_int_equal(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
    ok(cuGraphLaunch(exec, stream));
    ok(cuStreamSynchronize(stream));
    assert_true(first_of(a) == 3 && first_of(b) == 625);
    assert_int_equal(cuGraphExecUpdate(exec, longer, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    assert_int_equal(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    launch_square(a, 16, stream);
    ok(cuMemsetD8Async(a, 0, 64, stream));
    ok(cuStreamEndCapture(stream, &other));
    assert_int_equal(cuGraphExecUpdate(exec, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    assert_int_equal(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
    assert_non_null(info.errorNode);
}

static void graphs_are_made_by_hand(void)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {0};
    CUdeviceptr a = new_floats(3);
    CUstream stream = new_stream();
    CUDA_KERNEL_NODE_PARAMS params;
    CUgraphNode first, second;
    struct cuda_ops_vector p;
    void *pointers[1], *found;
    CUgraphExec exec;
    CUgraph graph;

    params = square_params(&p, pointers, a);
    ok(cuGraphCreate(&graph, 0));
    ok(cuGraphAddKernelNode(&first, graph, NULL, 0, &params));
    ok(cuGraphAddKernelNode(&second, graph, &first, 1, &params));
    ok(cuGraphInstantiateWithParams(&exec, graph, &how));
    assert_int_equal(how.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
    ok(cuGraphLaunch(exec, stream));
    ok(cuStreamSynchronize(stream));
    assert_true(first_of(a) == 81);
    arm_fault("cuGraphInstantiate", 1, CUDA_ERROR_OUT_OF_MEMORY, false);
    assert_int_equal(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(COUNTER(live_graph_execs), 1);
    arm_fault("cuGraphLaunch", 2, CUDA_ERROR_LAUNCH_FAILED, true);
    ok(cuGraphLaunch(exec, stream));
    assert_int_equal(cuGraphLaunch(exec, stream), CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
    ok(cuGetProcAddress("cuGraphInstantiate", &found, CUDA_VERSION, 0, NULL));
    assert_ptr_equal(found, dlsym(RTLD_DEFAULT, "cuGraphInstantiateWithFlags"));
    ok(cuGetProcAddress("cuGraphExecUpdate", &found, CUDA_VERSION, 0, NULL));
    assert_ptr_equal(found, dlsym(RTLD_DEFAULT, "cuGraphExecUpdate_v2"));
}

static const struct driver_test tests[] = {
    DRIVER_TEST(captured_work_runs_when_launched),
    DRIVER_TEST(freed_memory_faults_at_the_launch),
    DRIVER_TEST(streams_fork_and_join_in_a_capture),
    DRIVER_TEST(launches_of_one_graph_wait_for_each_other),
    DRIVER_TEST(nodes_take_other_parameters),
    DRIVER_TEST(an_exec_takes_a_like_graph),
    DRIVER_TEST(graphs_are_made_by_hand),
};

int main(int argc, char **argv)
{
    return run_driver_tests(argc, argv, tests, sizeof(tests) / sizeof(*tests));
}
