#include "count.h"

#include <pthread.h>

#include "compute/kernels.h"
#include "copies.h"
#include "driver/scratch.h"
#include "launches.h"
#include "memory/operand.h"
#include "memory/peer.h"
#include "others.h"
#include "session.h"

enum {
    PASSES_MAX = 200,
    FLUSH_TIMES = 2,      /* as large as the L2 cache is what is read to flush it */
    FLUSH_CHUNK = 1 << 20 /* bytes into which that is copied again and again: so little that is written stays there */
};

/* One for each device; a process that counts does so one job at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_session sessions[BACKEND_MAX_DEVICES];

/* What one count needs besides the session. */
struct counting {
    struct cuda_queue queue;
    struct cuda_copies copies;
    struct cuda_work work;
    CUdeviceptr flush;    /* a chunk, and behind it what is read; 0: none */
    uint64_t flush_bytes; /* without the chunk */
};

/* Ended, not only enqueued: the profiler counts what runs between two of its calls. */
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

/* Fills the L2 cache with lines that were read. What is written would be written back while the kernel runs, and count
 * as its traffic. */
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
        cuda_copies_make(&c->copies, &c->queue, step, c->work.addresses, e) < 0 ||
        cuda_work_prepare(kernels, step, &c->work, e) < 0 || provide(c, kernels, step, e) < 0 ||
        (!warm && prepare_flush(c, e) < 0))
        return -1;
    step_copy_variant(step->variant_used, c->work.variant);
    return finish(c, e);
}

/* What an execution finds in memory. */
static int restore(const struct counting *c, struct error *e)
{
    return cuda_copies_restore(&c->copies, &c->queue, e);
}

static int execute(struct counting *c, struct error *e)
{
    return cuda_work_issue(&c->queue, &c->work, e) < 0 ? -1 : finish(c, e);
}

/* Before the execution that is read comes one that warms everything up. For a cold cache only the data goes again: what
 * a GPU at work has of code and page tables stays. */
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

/* What the counters do not tell. The profiler is off by now. */
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
    cuda_copies_free(&c->copies, &c->queue);
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
    ret->knows_others = cuda_others_count(d->base.info.uuid, &ret->others);
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
