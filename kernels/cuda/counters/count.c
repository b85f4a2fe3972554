/* Counts one step's kernels, pass by pass, on copies of its operands. */
#include "count.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "compute/kernels.h"
#include "driver/device.h"
#include "memory/mapping.h"
#include "memory/operand.h"
#include "session.h"

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

/* Captures the work into a graph, without launching it, and fills ret->kernel, launch and has_launch from the node of
 * kernel `number` (of ret->kernels). They stay unchanged where the driver gives no answer. */
static void cuda_launches_describe(const struct cuda_queue *q, struct cuda_work *work, unsigned number,
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

/* ---- copies of operands, which keep layout, alignment and overlaps ---- */

/* Most bytes of all copies together, masters included. */
#define COPIES_BYTES_MAX (UINT64_C(8) << 30)

enum {
    ALIGNMENT = 512, /* copies keep addresses modulo this, so that a kernel uses loads of the same width */
    IS_READ = 1,
    IS_WRITTEN = 2,
    IS_RESTORED = IS_READ | IS_WRITTEN /* restored before each execution, which would read results of the last one */
};

struct copies { /* all zero: none */
    unsigned n;
    struct cuda_range of[STEP_MAX_OPERANDS];
    CUdeviceptr allocations[STEP_MAX_OPERANDS], works[STEP_MAX_OPERANDS];
    CUdeviceptr masters[STEP_MAX_OPERANDS]; /* the original bytes of restored ranges; 0: not restored */
    uint64_t bytes;
};

static bool is_read(const struct step *step, unsigned operand)
{
    if (operand < step->n_inputs)
        return true;
    if (step->plan.kind == PLAN_KERNEL)
        return step->plan.kernel.inout >> operand & 1;
    return step->plan.kind == PLAN_GEMM && step->plan.gemm.beta != 0;
}

static int list_copies(struct copies *c, const struct step *step, struct error *e)
{
    for (unsigned i = 0; i < step_operands(step); i++) {
        struct cuda_range range = cuda_operand_range(&step->operands[i]);

        if (range.start == range.end || !range.memory)
            continue;
        range.flags = (is_read(step, i) ? IS_READ : 0) | (i >= step->n_inputs ? IS_WRITTEN : 0);
        c->n = cuda_ranges_add(c->of, c->n, range);
    }
    for (unsigned i = 0; i < c->n; i++)
        c->bytes += (c->of[i].end - c->of[i].start) * (c->of[i].flags == IS_RESTORED ? 2 : 1);
    if (c->bytes <= COPIES_BYTES_MAX)
        return 0;
    error_set(e, ERROR_LIMIT_EXCEEDED,
              "counters work on copies of the operands, two of each that is read and written: %llu MiB in all here, "
              "and at most %llu; use smaller tensors",
              (unsigned long long)(c->bytes >> 20), (unsigned long long)(COPIES_BYTES_MAX >> 20));
    error_detail_number(e, "limit", (int64_t)COPIES_BYTES_MAX);
    return error_detail_number(e, "value", (int64_t)c->bytes);
}

static int copy(const struct cuda_queue *q, CUdeviceptr to, CUdeviceptr from, uint64_t bytes, struct error *e)
{
    return CUDA_CALL(q->device, e, MemcpyDtoDAsync, to, from, bytes, q->stream);
}

static int make_copy(const struct cuda_queue *q, struct copies *c, unsigned i, struct error *e)
{
    const struct cuda_range *r = &c->of[i];
    const bool on_host = r->memory->kind == MEMORY_MEMFD;
    const uint64_t bytes = r->end - r->start, from = (on_host ? 0 : cuda_peer_address(q->device, r->memory)) + r->start;

    if (cuda_scratch_alloc(q->device, q->stream, bytes + 2 * ALIGNMENT, &c->allocations[i], e) < 0)
        return -1;
    c->works[i] = (c->allocations[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + from % ALIGNMENT;
    if (r->flags == IS_RESTORED && cuda_scratch_alloc(q->device, q->stream, bytes, &c->masters[i], e) < 0)
        return -1;
    if (on_host
            ? CUDA_CALL(q->device, e, MemcpyHtoDAsync, c->works[i], r->memory->host + r->start, bytes, q->stream) < 0
            : copy(q, c->works[i], from, bytes, e) < 0)
        return -1;
    return c->masters[i] ? copy(q, c->masters[i], c->works[i], bytes, e) : 0;
}

static uint64_t address_of(const struct copies *c, const struct step_operand *o)
{
    const struct cuda_range wanted = cuda_operand_range(o);

    for (unsigned i = 0; i < c->n; i++)
        if (cuda_ranges_overlap(&c->of[i], &wanted))
            return c->works[i] + (o->offset - c->of[i].start);
    return 0;
}

/* Makes the copies, and fills `addresses` with the operands' addresses in them. The caller frees the copies, also
 * after a failure. */
static int make_copies(struct copies *c, const struct cuda_queue *q, const struct step *step,
                       uint64_t addresses[STEP_MAX_OPERANDS], struct error *e)
{
    memset(addresses, 0, STEP_MAX_OPERANDS * sizeof(addresses[0]));
    if (!q->device->has_pools || !CUDA_HAS(MemcpyDtoDAsync))
        return error_set(e, ERROR_UNSUPPORTED, "%s has no memory pools, so operands cannot be copied for counters",
                         q->device->base.info.name);
    if (list_copies(c, step, e) < 0)
        return -1;
    for (unsigned i = 0; i < c->n; i++)
        if (make_copy(q, c, i, e) < 0)
            return -1;
    for (unsigned i = 0; i < step_operands(step); i++)
        if (step->operands[i].extent)
            addresses[i] = address_of(c, &step->operands[i]);
    return 0;
}

/* Restores the operands that are both read and written. */
static int restore(const struct copies *c, const struct cuda_queue *q, struct error *e)
{
    for (unsigned i = 0; i < c->n; i++)
        if (c->masters[i] && copy(q, c->works[i], c->masters[i], c->of[i].end - c->of[i].start, e) < 0)
            return -1;
    return 0;
}

static void free_copies(struct copies *c, const struct cuda_queue *q)
{
    for (unsigned i = 0; i < c->n; i++) {
        cuda_scratch_free(q->device, q->stream, c->allocations[i]);
        cuda_scratch_free(q->device, q->stream, c->masters[i]);
    }
}

/* ---- processes with contexts on the device, by NVML ---- */

enum { NVML_SUCCESS = 0, NVML_INSUFFICIENT_SIZE = 7 };

static struct nvml {
    int (*init)(void);
    int (*by_uuid)(const char *uuid, void **ret_device);
    int (*processes)(void *device, unsigned *count, void *ret_processes);
} nvml;

static bool load_nvml(void)
{
    static const struct cuda_symbol wanted[] = {
        {"nvmlInit_v2", offsetof(struct nvml, init), false},
        {"nvmlDeviceGetHandleByUUID", offsetof(struct nvml, by_uuid), false},
        {"nvmlDeviceGetComputeRunningProcesses_v3", offsetof(struct nvml, processes), false}};
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

    return library && !cuda_resolve(library, wanted, sizeof(wanted) / sizeof(wanted[0]), &nvml) &&
           nvml.init() == NVML_SUCCESS;
}

static bool count_others(const char *uuid, uint32_t *ret)
{
    static enum { UNKNOWN, LOADED, ABSENT } state;
    unsigned count = 0;
    void *device;
    int r;

    if (state == UNKNOWN)
        state = load_nvml() ? LOADED : ABSENT;
    if (state == ABSENT || nvml.by_uuid(uuid, &device) != NVML_SUCCESS)
        return false;
    r = nvml.processes(device, &count, NULL); /* NULL asks for the number of processes */
    *ret = count;
    return r == NVML_SUCCESS || r == NVML_INSUFFICIENT_SIZE;
}

/* ---- one count ---- */

enum {
    PASSES_MAX = 200,
    FLUSH_TIMES = 2,      /* a flush reads so many times the size of the L2 cache */
    FLUSH_CHUNK = 1 << 20 /* bytes that a flush writes, over and over, so that the cache holds few written lines */
};

/* A process counts one job at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_session sessions[BACKEND_MAX_DEVICES];

struct counting {
    struct cuda_queue queue;
    struct copies copies;
    struct cuda_work work;
    CUdeviceptr flush;    /* memory for flushes: a chunk that is written, then the bytes that are read; 0: none */
    uint64_t flush_bytes; /* without the chunk */
};

/* The profiler counts what runs between two of its calls, so work must end before the second. */
static int finish(const struct counting *c, struct error *e)
{
    return cuda_stream_wait(c->queue.device, c->queue.stream, e);
}

static int take_memory(struct counting *c, struct error *e)
{
    struct cuda_queue *q = &c->queue;

    if (c->work.workspace && cuda_scratch_alloc(q->device, q->stream, c->work.workspace, &q->workspace, e) < 0)
        return -1;
    return cuda_queue_need_scratch(q, c->work.scratch, e);
}

static int provide(struct counting *c, const struct cuda_kernels *kernels, const struct step *step, struct error *e)
{
    if (take_memory(c, e) == 0)
        return 0;
    if (step_variant(step) || cuda_device_is_broken(c->queue.device))
        return -1;
    return cuda_work_prepare_own(kernels, step, &c->work, e);
}

static int prepare_flush(struct counting *c, struct error *e)
{
    const int l2 = cuda_device_attribute(c->queue.device, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);

    if (l2 <= 0)
        return 0;
    c->flush_bytes = ((uint64_t)l2 * FLUSH_TIMES + FLUSH_CHUNK - 1) / FLUSH_CHUNK * FLUSH_CHUNK;
    if (cuda_scratch_alloc(c->queue.device, c->queue.stream, FLUSH_CHUNK + c->flush_bytes, &c->flush, e) < 0)
        return -1;
    return CUDA_CALL(c->queue.device, e, MemsetD8Async, c->flush, 0, FLUSH_CHUNK + c->flush_bytes, c->queue.stream);
}

/* Fills the L2 cache with lines that were read: lines that were written would be written back while the kernel runs,
 * and count as its traffic. */
static int flush(const struct counting *c, struct error *e)
{
    for (uint64_t at = 0; c->flush && at < c->flush_bytes; at += FLUSH_CHUNK)
        if (CUDA_CALL(c->queue.device, e, MemcpyDtoDAsync, c->flush, c->flush + FLUSH_CHUNK + at, FLUSH_CHUNK,
                      c->queue.stream) < 0)
            return -1;
    return 0;
}

static int prepare(struct counting *c, const struct cuda_kernels *kernels, struct step *step, bool warm,
                   struct error *e)
{
    c->work.plan = &step->plan;
    if (cuda_step_allow(c->queue.device, step, e) < 0 ||
        make_copies(&c->copies, &c->queue, step, c->work.addresses, e) < 0 ||
        cuda_work_prepare(kernels, step, &c->work, e) < 0 || provide(c, kernels, step, e) < 0 ||
        (!warm && prepare_flush(c, e) < 0))
        return -1;
    step_copy_variant(step->variant_used, c->work.variant);
    return finish(c, e);
}

static int execute(struct counting *c, struct error *e)
{
    return cuda_work_issue(&c->queue, &c->work, e) < 0 ? -1 : finish(c, e);
}

/* The last execution is counted; those before it warm up code, page tables and data. A flush then removes only data,
 * so that code and page tables stay cached as on a busy GPU. */
static int execute_all(struct counting *c, bool warm, struct error *e)
{
    for (int i = 1; i < SESSION_EXECUTIONS; i++)
        if (execute(c, e) < 0 || restore(&c->copies, &c->queue, e) < 0)
            return -1;
    return (!warm && flush(c, e) < 0) || finish(c, e) < 0 ? -1 : execute(c, e);
}

static int pass(struct counting *c, struct cuda_session *s, bool warm, bool *ret_more, struct error *e)
{
    if (restore(&c->copies, &c->queue, e) < 0 || finish(c, e) < 0 || cuda_session_pass_begin(s, e) < 0 ||
        execute_all(c, warm, e) < 0)
        return -1;
    return cuda_session_pass_end(s, ret_more, e);
}

static int run_passes(struct counting *c, struct cuda_session *s, struct backend_counters *ret, unsigned *ret_longest,
                      struct error *e)
{
    bool more = true;

    for (ret->passes = 0; more && ret->passes < PASSES_MAX; ret->passes++)
        if (pass(c, s, ret->warm, &more, e) < 0)
            return -1;
    if (more)
        return error_set(e, ERROR_INTERNAL, "CUPTI wants more than %d passes", PASSES_MAX);
    return cuda_session_read(s, ret, ret_longest, e);
}

static void release(struct counting *c)
{
    cuda_work_release(&c->work);
    if (cuda_device_is_broken(c->queue.device))
        return;
    free_copies(&c->copies, &c->queue);
    cuda_scratch_free(c->queue.device, c->queue.stream, c->flush);
    cuda_scratch_free(c->queue.device, c->queue.stream, c->queue.workspace);
    cuda_queue_give_scratch(&c->queue);
}

int cuda_counters_load(struct backend_device *base, struct error *e)
{
    struct cuda_device *d = cuda_device(base);
    int r = -1;

    pthread_mutex_lock(&lock);
    if (cuda_enter(d, e) == 0)
        r = cuda_session_load(&sessions[base->index], d, e);
    pthread_mutex_unlock(&lock);
    return r;
}

int cuda_counters_take(struct backend_device *base, struct error *e)
{
    struct cuda_device *d = cuda_device(base);
    struct cuda_session *s = &sessions[base->index];
    int r = -1;

    pthread_mutex_lock(&lock);
    if (cuda_enter(d, e) == 0 && cuda_session_open(s, d, e) == 0)
        r = cuda_session_begin(s, d, e);
    pthread_mutex_unlock(&lock);
    return r;
}

int cuda_count(const struct cuda_kernels *kernels, const struct cuda_queue *queue, struct step *step,
               struct backend_counters *ret, struct error *e)
{
    struct cuda_device *d = queue->device;
    struct cuda_session *s = &sessions[d->base.index];
    struct counting c = {.queue = {.device = d, .stream = queue->stream}};
    unsigned longest = 0;
    int r = -1;

    if (plan_is_empty(&step->plan))
        return error_set(e, ERROR_INVALID_ARGUMENT, "nothing is computed with these shapes, so nothing can be counted");
    if (cuda_enter(d, e) < 0)
        return -1;
    pthread_mutex_lock(&lock);
    counters_clear(ret);
    ret->knows_others = count_others(d->base.info.uuid, &ret->others);
    if (prepare(&c, kernels, step, ret->warm, e) == 0 && cuda_session_open(s, d, e) == 0 &&
        cuda_session_begin(s, d, e) == 0) {
        r = run_passes(&c, s, ret, &longest, e);
        cuda_session_end(s);
        if (r == 0) {
            ret->copied_bytes = c.copies.bytes;
            ret->multiprocessors = d->base.info.compute_units;
            cuda_launches_describe(&c.queue, &c.work, longest, ret);
        }
    }
    release(&c);
    pthread_mutex_unlock(&lock);
    return r;
}
