/* Counts one step's kernels, pass by pass, on copies of its operands. */
#include "count.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "compute/kernels.h"
#include "driver/device.h"
#include "launches.h"
#include "memory/mapping.h"
#include "memory/operand.h"
#include "session.h"

/* Copies keep the operands' layout, alignment and overlaps. */

/* All copies together, those that outputs are restored from included. */
#define COPIES_BYTES_MAX (UINT64_C(8) << 30)

struct cuda_copy {
    uint32_t memory; /* of the operands */
    uint64_t start, end;
    bool read, written;
    CUdeviceptr allocation, work, master; /* master: of one that is read and written; 0: none */
};

struct cuda_copies { /* all zero: none */
    unsigned n;
    struct cuda_copy of[STEP_MAX_OPERANDS];
    uint64_t bytes;
};

/* ---- copies of operands ---- */

/* Addresses keep their place within this many bytes: a kernel loads as many elements at once as it would. */
enum { ALIGNMENT = 512 };

static bool touches(const struct cuda_copy *a, const struct cuda_copy *b)
{
    return a->memory == b->memory && a->start < b->end && b->start < a->end;
}

/* Adds a piece, merged with the pieces that it overlaps. */
static void add(struct cuda_copies *c, struct cuda_copy piece)
{
    for (unsigned i = 0; i < c->n;) {
        const struct cuda_copy *other = &c->of[i];

        if (!touches(&piece, other)) {
            i++;
            continue;
        }
        piece.start = other->start < piece.start ? other->start : piece.start;
        piece.end = other->end > piece.end ? other->end : piece.end;
        piece.read = piece.read || other->read;
        piece.written = piece.written || other->written;
        c->of[i] = c->of[--c->n];
        i = 0; /* it may overlap others now */
    }
    c->of[c->n++] = piece;
}

/* Whether an execution finds what the one before has written. */
static bool is_restored(const struct cuda_copy *c)
{
    return c->read && c->written;
}

static bool is_read(const struct step *step, unsigned operand)
{
    if (operand < step->n_inputs)
        return true;
    if (step->plan.kind == PLAN_KERNEL)
        return step->plan.kernel.inout >> operand & 1;
    return step->plan.kind == PLAN_GEMM && step->plan.gemm.beta != 0;
}

static int list(struct cuda_copies *c, const struct step *step, struct error *e)
{
    c->n = 0;
    c->bytes = 0;
    for (unsigned i = 0; i < step_operands(step); i++) {
        const struct step_operand *o = &step->operands[i];

        if (o->extent && cuda_operand_memory(o))
            add(c, (struct cuda_copy){.memory = o->memory,
                                      .start = o->offset,
                                      .end = o->offset + o->extent,
                                      .read = is_read(step, i),
                                      .written = i >= step->n_inputs});
    }
    for (unsigned i = 0; i < c->n; i++)
        c->bytes += (c->of[i].end - c->of[i].start) * (is_restored(&c->of[i]) ? 2 : 1);
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

static int fill(const struct cuda_queue *q, const struct cuda_copy *c, struct error *e)
{
    struct backend_memory *memory = memory_by_id(c->memory);

    if (memory->kind == MEMORY_MEMFD)
        return CUDA_CALL(q->device, e, MemcpyHtoDAsync, c->work, memory->host + c->start, c->end - c->start, q->stream);
    return copy(q, c->work, cuda_peer_address(q->device, memory) + c->start, c->end - c->start, e);
}

static uint64_t place_of(const struct cuda_device *d, const struct cuda_copy *c)
{
    struct backend_memory *memory = memory_by_id(c->memory);
    const uint64_t base = memory->kind == MEMORY_MEMFD ? 0 : cuda_peer_address(d, memory);

    return (base + c->start) % ALIGNMENT;
}

static int make_one(const struct cuda_queue *q, struct cuda_copy *c, struct error *e)
{
    const uint64_t bytes = c->end - c->start, place = place_of(q->device, c);

    if (cuda_scratch_alloc(q->device, q->stream, bytes + 2 * ALIGNMENT, &c->allocation, e) < 0)
        return -1;
    c->work = (c->allocation + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + place;
    if (is_restored(c) && cuda_scratch_alloc(q->device, q->stream, bytes, &c->master, e) < 0)
        return -1;
    if (fill(q, c, e) < 0)
        return -1;
    return c->master ? copy(q, c->master, c->work, bytes, e) : 0;
}

static uint64_t address_of(const struct cuda_copies *c, const struct step_operand *o)
{
    for (unsigned i = 0; i < c->n; i++)
        if (c->of[i].memory == o->memory && o->offset >= c->of[i].start && o->offset < c->of[i].end)
            return c->of[i].work + (o->offset - c->of[i].start);
    return 0;
}

static int make_copies(struct cuda_copies *c, const struct cuda_queue *q, const struct step *step,
                       uint64_t addresses[STEP_MAX_OPERANDS], struct error *e)
{
    memset(addresses, 0, STEP_MAX_OPERANDS * sizeof(addresses[0]));
    if (!q->device->has_pools || !CUDA_HAS(MemcpyDtoDAsync))
        return error_set(e, ERROR_UNSUPPORTED, "%s has no memory pools, so operands cannot be copied for counters",
                         q->device->base.info.name);
    if (list(c, step, e) < 0)
        return -1;
    for (unsigned i = 0; i < c->n; i++)
        if (make_one(q, &c->of[i], e) < 0)
            return -1;
    for (unsigned i = 0; i < step_operands(step); i++)
        if (step->operands[i].extent)
            addresses[i] = address_of(c, &step->operands[i]);
    return 0;
}

static int restore_copies(const struct cuda_copies *c, const struct cuda_queue *q, struct error *e)
{
    for (unsigned i = 0; i < c->n; i++)
        if (c->of[i].master && copy(q, c->of[i].work, c->of[i].master, c->of[i].end - c->of[i].start, e) < 0)
            return -1;
    return 0;
}

static void free_copies(struct cuda_copies *c, const struct cuda_queue *q)
{
    for (unsigned i = 0; i < c->n; i++) {
        cuda_scratch_free(q->device, q->stream, c->of[i].allocation);
        cuda_scratch_free(q->device, q->stream, c->of[i].master);
    }
    c->n = 0;
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
    r = nvml.processes(device, &count, NULL); /* without room for them: their number */
    *ret = count;
    return r == NVML_SUCCESS || r == NVML_INSUFFICIENT_SIZE;
}

/* ---- one count ---- */

enum {
    PASSES_MAX = 200,
    FLUSH_TIMES = 2,      /* as large as the L2 cache is what is read to flush it */
    FLUSH_CHUNK = 1 << 20 /* bytes into which that is copied again and again: so little that is written stays there */
};

/* A process counts one job at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_session sessions[BACKEND_MAX_DEVICES];

struct counting {
    struct cuda_queue queue;
    struct cuda_copies copies;
    struct cuda_work work;
    CUdeviceptr flush;    /* a chunk, and behind it what is read; 0: none */
    uint64_t flush_bytes; /* without the chunk */
};

/* The profiler counts what runs between two of its calls, so work must have ended then. */
static int finish(const struct counting *c, struct error *e)
{
    return CUDA_CALL(c->queue.device, e, StreamSynchronize, c->queue.stream);
}

static int allow_peers(struct cuda_device *d, const struct step *step, struct error *e)
{
    struct backend_memory *peer;

    while ((peer = cuda_step_find_peer(d, step)))
        if (cuda_peer_allow(d, peer, e) < 0)
            return -1;
    return 0;
}

static int take_memory(struct counting *c, struct error *e)
{
    struct cuda_queue *q = &c->queue;
    const uint64_t workspace = cuda_work_workspace(&c->work), scratch = cuda_work_scratch(&c->work);

    if (workspace && cuda_scratch_alloc(q->device, q->stream, workspace, &q->workspace, e) < 0)
        return -1;
    if (!scratch)
        return 0;
    if (cuda_scratch_take(q->device, q->stream, scratch, &q->scratch, e) < 0)
        return -1;
    q->scratch_bytes = scratch;
    return 0;
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
    if (allow_peers(c->queue.device, step, e) < 0 ||
        make_copies(&c->copies, &c->queue, step, c->work.addresses, e) < 0 ||
        cuda_work_prepare(kernels, step, &c->work, e) < 0 || provide(c, kernels, step, e) < 0 ||
        (!warm && prepare_flush(c, e) < 0))
        return -1;
    step_copy_variant(step->variant_used, c->work.variant);
    return finish(c, e);
}

static int restore(const struct counting *c, struct error *e)
{
    return restore_copies(&c->copies, &c->queue, e);
}

static int execute(struct counting *c, struct error *e)
{
    return cuda_work_issue(&c->queue, &c->work, e) < 0 ? -1 : finish(c, e);
}

/* The execution before the one that is read warms everything up. A cold cache loses only the data: code and page
 * tables stay, as on a GPU at work. */
static int execute_all(struct counting *c, bool warm, struct error *e)
{
    for (int i = 1; i < SESSION_EXECUTIONS; i++)
        if (execute(c, e) < 0 || restore(c, e) < 0)
            return -1;
    return (!warm && flush(c, e) < 0) || finish(c, e) < 0 ? -1 : execute(c, e);
}

static int pass(struct counting *c, struct cuda_session *s, bool warm, bool *ret_more, struct error *e)
{
    if (restore(c, e) < 0 || finish(c, e) < 0 || cuda_session_pass_begin(s, e) < 0 || execute_all(c, warm, e) < 0)
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

static void describe(struct counting *c, unsigned longest, struct backend_counters *ret)
{
    ret->copied_bytes = c->copies.bytes;
    ret->multiprocessors = c->queue.device->base.info.compute_units;
    cuda_launches_describe(&c->queue, &c->work, longest, ret);
}

static void release(struct counting *c)
{
    cuda_work_release(&c->work);
    if (cuda_device_is_broken(c->queue.device))
        return;
    free_copies(&c->copies, &c->queue);
    cuda_scratch_free(c->queue.device, c->queue.stream, c->flush);
    cuda_scratch_free(c->queue.device, c->queue.stream, c->queue.workspace);
    cuda_scratch_give(c->queue.device, c->queue.stream, c->queue.scratch, c->queue.scratch_bytes);
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
        if (r == 0)
            describe(&c, longest, ret);
    }
    release(&c);
    pthread_mutex_unlock(&lock);
    return r;
}
