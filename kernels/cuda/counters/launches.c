/* Describes the launches of a piece of work. */
#include "launches.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "driver/device.h"

/* ---- occupancy ---- */

/* Registers are allocated per warp in units of 256, in one of four parts of the multiprocessor (since compute
 * capability 5); shared memory in units of 128 bytes (since 8.0). */
enum { WARP = 32, PARTS = 4, REGISTER_UNIT = 256, SHARED_UNIT = 128 };

static uint32_t round_up(uint32_t value, uint32_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Returns UINT32_MAX where registers are no limit. */
static uint32_t by_registers(const struct occupancy_limits *limits, const struct counter_launch *launch, uint32_t warps)
{
    const uint32_t a_warp = round_up(launch->registers * WARP, REGISTER_UNIT);

    return a_warp ? limits->registers / PARTS / a_warp * PARTS / warps : UINT32_MAX;
}

static uint32_t by_shared(const struct occupancy_limits *limits, const struct counter_launch *launch)
{
    const uint32_t a_block =
        round_up(launch->static_shared + launch->dynamic_shared + limits->reserved_shared, SHARED_UNIT);

    return a_block ? limits->shared / a_block : UINT32_MAX;
}

void occupancy_find(const struct occupancy_limits *limits, struct counter_launch *launch)
{
    const uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    const uint32_t warps = (uint32_t)((threads + WARP - 1) / WARP), most = limits->threads / WARP;
    uint32_t blocks[LIMITED_COUNT], least = LIMITED_BY_WARPS;

    launch->limiter = LIMITED_BY_WARPS;
    launch->occupancy_pct = NAN;
    if (!warps || !most)
        return;
    blocks[LIMITED_BY_WARPS] = most / warps;
    blocks[LIMITED_BY_BLOCKS] = limits->blocks;
    blocks[LIMITED_BY_REGISTERS] = by_registers(limits, launch, warps);
    blocks[LIMITED_BY_SHARED] = by_shared(limits, launch);
    for (uint32_t i = 0; i < LIMITED_COUNT; i++)
        if (blocks[i] < blocks[least])
            least = i;
    launch->limiter = least;
    launch->occupancy_pct = 100.0 * blocks[least] * warps / most;
}

/* ---- launches ---- */

enum { ATTRIBUTE_MAX_BLOCKS = 106, ATTRIBUTE_RESERVED_SHARED = 111 /* missing in older cuda.h */ };

static uint32_t attribute(const struct cuda_device *d, int which)
{
    const int value = cuda_device_attribute(d, (CUdevice_attribute)which);

    return value > 0 ? (uint32_t)value : 0;
}

static uint32_t of_function(const struct cuda_device *d, CUfunction function, CUfunction_attribute which)
{
    int value = 0;

    if (cuda_on(d)->FuncGetAttribute(&value, which, function) != CUDA_SUCCESS || value < 0)
        return 0;
    return (uint32_t)value;
}

static void describe(const struct cuda_device *d, const CUDA_KERNEL_NODE_PARAMS *node, struct backend_counters *ret)
{
    const struct occupancy_limits limits = {
        .threads = attribute(d, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
        .blocks = attribute(d, ATTRIBUTE_MAX_BLOCKS),
        .registers = attribute(d, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR),
        .shared = attribute(d, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        .reserved_shared = attribute(d, ATTRIBUTE_RESERVED_SHARED)};
    struct counter_launch *launch = &ret->launch;
    const char *name = NULL;

    *launch = (struct counter_launch){
        .grid = {node->gridDimX, node->gridDimY, node->gridDimZ},
        .block = {node->blockDimX, node->blockDimY, node->blockDimZ},
        .registers = of_function(d, node->func, CU_FUNC_ATTRIBUTE_NUM_REGS),
        .static_shared = of_function(d, node->func, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
        .dynamic_shared = node->sharedMemBytes,
        .local_bytes = of_function(d, node->func, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
    };
    occupancy_find(&limits, launch);
    ret->has_launch = true;
    if (CUDA_HAS(FuncGetName) && cuda_on(d)->FuncGetName(&name, node->func) == CUDA_SUCCESS && name)
        snprintf(ret->kernel, sizeof(ret->kernel), "%s", name);
}

/* Graph nodes are in launch order. */
static bool find_kernel(const struct cuda_device *d, CUgraph graph, unsigned number, unsigned kernels,
                        CUDA_KERNEL_NODE_PARAMS *ret)
{
    CUgraphNode nodes[4 * COUNTER_RANGES_MAX];
    size_t n = sizeof(nodes) / sizeof(nodes[0]);
    unsigned found = 0;
    bool has = false;

    if (cuda_on(d)->GraphGetNodes(graph, nodes, &n) != CUDA_SUCCESS || n > sizeof(nodes) / sizeof(nodes[0]))
        return false;
    for (size_t i = 0; i < n; i++) {
        CUgraphNodeType type;

        if (cuda_on(d)->GraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_KERNEL)
            continue;
        if (found++ == number)
            has = cuda_on(d)->GraphKernelNodeGetParams(nodes[i], ret) == CUDA_SUCCESS && ret->func;
    }
    return has && found == kernels;
}

void cuda_launches_describe(const struct cuda_queue *q, struct cuda_work *work, unsigned number,
                            struct backend_counters *ret)
{
    const struct cuda_device *d = q->device;
    CUDA_KERNEL_NODE_PARAMS node;
    CUgraph graph = NULL;
    struct error ignored;

    if (!CUDA_HAS(StreamBeginCapture) || !CUDA_HAS(GraphGetNodes) || !CUDA_HAS(GraphNodeGetType) ||
        !CUDA_HAS(GraphKernelNodeGetParams) ||
        cuda_on(d)->StreamBeginCapture(q->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) != CUDA_SUCCESS)
        return;
    cuda_work_issue(q, work, &ignored);
    if (cuda_on(d)->StreamEndCapture(q->stream, &graph) != CUDA_SUCCESS || !graph)
        return;
    memset(&node, 0, sizeof(node));
    if (find_kernel(d, graph, number, ret->kernels, &node))
        describe(d, &node, ret);
    cuda_on(d)->GraphDestroy(graph);
}
