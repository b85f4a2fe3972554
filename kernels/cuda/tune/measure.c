/* Times candidates on the device: a gate keeps the stream waiting until the host has enqueued all, so that events
 * around the work tell its time alone. */
#include <string.h>

#include "blaslt/blaslt.h"
#include "compute/kernels.h"
#include "tournament.h"
#include "tune.h"
#include "util/clock.h"

enum {
    IN_A_ROW_MAX = 64,         /* launches that a gate waits for */
    GATE_NS = 2 * 1000 * 1000, /* after which a gate opens by itself: many times what enqueuing takes */
    FEW = 4,                   /* executions that tell how many are a slice */
    LEAST_US = 1,              /* that an execution takes */
};

/* A word of host memory for the gate. Without it, or without its kernel, events tell the time of the launches, too. */
static void open_gate(struct tune_bench *b)
{
    void *word = NULL;
    struct error ignored;

    b->gate = cuda_embedded_find(&b->kernels->embedded, "kops_gate");
    if (!b->gate || !CUDA_HAS(MemHostAlloc) || !CUDA_HAS(MemFreeHost) ||
        CUDA_CALL(b->queue.device, &ignored, MemHostAlloc, &word, sizeof(*b->go), 0) < 0)
        return;
    if (CUDA_CALL(b->queue.device, &ignored, MemHostGetDevicePointer, &b->go_address, word, 0) < 0) {
        CUDA_CALL(b->queue.device, &ignored, MemFreeHost, word);
        return;
    }
    b->go = word;
    atomic_init(b->go, 0);
}

int tune_bench_open(struct tune_bench *b, const struct cuda_kernels *k, const struct tuning_request *request,
                    struct tuning_pace *pace, struct error *e)
{
    struct cuda_device *d = k->device;

    *b = (struct tune_bench){.kernels = k, .request = request, .pace = pace, .queue = {.device = d}};
    if (cuda_enter(d, e) < 0)
        return -1;
    if (!cuda_scratch_is_there(d))
        return error_set(e, ERROR_UNSUPPORTED, "%s has no memory pools, where tuning has its operands",
                         d->base.info.name);
    if (CUDA_CALL(d, e, StreamCreate, &b->queue.stream, CU_STREAM_NON_BLOCKING) < 0)
        return -1;
    if (CUDA_CALL(d, e, EventCreate, &b->begin, CU_EVENT_DEFAULT) < 0 ||
        CUDA_CALL(d, e, EventCreate, &b->end, CU_EVENT_DEFAULT) < 0 ||
        cuda_scratch_alloc(d, b->queue.stream, k->workspace_bytes, &b->queue.workspace, e) < 0 ||
        tune_operands_make(&b->operands, d, b->queue.stream, request, e) < 0) {
        tune_bench_close(b);
        return -1;
    }
    open_gate(b);
    return 0;
}

void tune_bench_close(struct tune_bench *b)
{
    struct cuda_device *d = b->queue.device;
    struct error ignored;

    if (!b->queue.stream)
        return;
    if (b->operands.memory)
        tune_operands_free(&b->operands, b->queue.stream);
    cuda_scratch_free(d, b->queue.stream, b->queue.workspace);
    cuda_scratch_give(d, b->queue.stream, b->queue.scratch, b->queue.scratch_bytes);
    CUDA_CALL(d, &ignored, StreamSynchronize, b->queue.stream);
    if (b->go)
        CUDA_CALL(d, &ignored, MemFreeHost, (void *)(uintptr_t)b->go);
    if (b->begin)
        cuda_on(d)->EventDestroy(b->begin);
    if (b->end)
        cuda_on(d)->EventDestroy(b->end);
    cuda_on(d)->StreamDestroy(b->queue.stream);
    b->queue.stream = NULL;
}

static int close_gate(struct tune_bench *b, struct error *e)
{
    struct cuda_launch launch;

    if (!b->go)
        return 0;
    cuda_ops_gate(&launch, b->go_address, ++b->gates, GATE_NS);
    return cuda_embedded_launch(&b->queue, b->gate, &launch, e);
}

static void release_gate(struct tune_bench *b)
{
    if (b->go)
        atomic_store_explicit(b->go, b->gates, memory_order_release);
}

/* Memory for copies of operands, which all candidates share. */
static int need_scratch(struct cuda_queue *q, uint64_t bytes, struct error *e)
{
    if (bytes <= q->scratch_bytes)
        return 0;
    cuda_scratch_give(q->device, q->stream, q->scratch, q->scratch_bytes);
    q->scratch = 0;
    q->scratch_bytes = 0;
    if (cuda_scratch_take(q->device, q->stream, bytes, &q->scratch, e) < 0)
        return -1;
    q->scratch_bytes = bytes;
    return 0;
}

/* Prepared for each set of operands in use: alignments are the same, addresses are not. */
static int prepare(struct tune_bench *b, const struct tuning_choice *choice, struct cuda_work *works, unsigned n,
                   struct error *e)
{
    for (unsigned i = 0; i < n; i++) {
        memset(&works[i], 0, sizeof(works[i]));
        works[i].plan = &b->request->step.plan;
        memcpy(works[i].addresses, tune_operands_next(&b->operands), sizeof(works[i].addresses));
        if (cuda_work_prepare_choice(b->kernels, &b->request->step, choice, &works[i], e) < 0 ||
            need_scratch(&b->queue, cuda_work_scratch(&works[i]), e) < 0)
            return -1;
    }
    return 0;
}

/* Runs them in a row. *ret_us: the device's time; *ret_host_us, which may be NULL: what the host took to enqueue them,
 * which is part of that time where there is no gate. */
static int run_all(struct tune_bench *b, struct cuda_work *works, unsigned n, bool gated, double *ret_us,
                   double *ret_host_us, struct error *e)
{
    struct cuda_device *d = b->queue.device;
    uint64_t begin_ns;
    int r = 0;

    if (gated)
        r = close_gate(b, e);
    if (r == 0)
        r = CUDA_CALL(d, e, EventRecord, b->begin, b->queue.stream);
    begin_ns = clock_now_ns();
    for (unsigned i = 0; i < n && r == 0; i++)
        r = cuda_work_issue(&b->queue, &works[i], e);
    if (ret_host_us)
        *ret_host_us = (double)(clock_now_ns() - begin_ns) * 1e-3;
    if (r == 0)
        r = CUDA_CALL(d, e, EventRecord, b->end, b->queue.stream);
    release_gate(b);
    /* Also what was enqueued before a failure ends before its operands go. */
    if (CUDA_CALL(d, e, StreamSynchronize, b->queue.stream) < 0 || r < 0)
        return -1;
    *ret_us = cuda_event_us(d, b->begin, b->end);
    return 0;
}

static int prepare_and_run(struct tune_bench *b, const struct tuning_choice *choice, unsigned n, bool gated,
                           double *ret_us, double *ret_host_us, struct error *e)
{
    struct cuda_work works[IN_A_ROW_MAX];
    int r;

    memset(works, 0, n * sizeof(works[0]));
    r = prepare(b, choice, works, n, e);
    if (r == 0)
        r = run_all(b, works, n, gated, ret_us, ret_host_us, e);
    for (unsigned i = 0; i < n; i++)
        cuda_work_release(&works[i]);
    return r;
}

/* As many in a row as fit into a slice, of `most` at most. */
static int run_slice(struct tune_bench *b, const struct tuning_choice *choice, double guess_us, double slice_us,
                     unsigned most, double *ret_us, struct error *e)
{
    const double fit = slice_us / guess_us;
    const unsigned n = fit < 1 ? 1 : fit > most ? most : (unsigned)fit;

    if (prepare_and_run(b, choice, n, true, ret_us, NULL, e) < 0)
        return -1;
    *ret_us /= n;
    return 0;
}

static int wait_for_turn(struct tune_bench *b, struct error *e)
{
    const uint64_t begin_ns = clock_now_ns();

    if (b->pace && b->pace->wait(b->pace, e) < 0)
        return -1;
    b->paused_ns += clock_now_ns() - begin_ns;
    b->pauses++;
    return 0;
}

int tune_measure(struct tune_bench *b, const struct tuning_choice *choice, double guess_us, double slice_us,
                 double *ret_us, struct error *e)
{
    if (wait_for_turn(b, e) < 0)
        return -1;
    return run_slice(b, choice, guess_us, slice_us, IN_A_ROW_MAX, ret_us, e);
}

/* A gate would keep the code from being loaded, which waits for the device. So the first execution begins while the
 * host loads: what the host took is no time of the execution's. That is exact but for what the two do at the same time,
 * and so what follows is a few executions, whose time says how many are a slice. */
int tune_measure_first(struct tune_bench *b, const struct tuning_choice *choice, double slice_us, double *ret_us,
                       bool *ret_rough, struct error *e)
{
    double us, host_us = 0;
    unsigned few;

    if (wait_for_turn(b, e) < 0 || prepare_and_run(b, choice, 1, false, &us, &host_us, e) < 0)
        return -1;
    few = us > slice_us ? 1 : FEW;
    us = us - host_us > LEAST_US ? us - host_us : LEAST_US;
    *ret_rough = us > TOURNAMENT_LONG_US;
    *ret_us = us;
    if (*ret_rough)
        return 0;
    if (run_slice(b, choice, us, slice_us, few, &us, e) < 0)
        return -1;
    *ret_us = us = us > LEAST_US ? us : LEAST_US;
    return us * few > slice_us / 2 ? 0 : run_slice(b, choice, us, slice_us, IN_A_ROW_MAX, ret_us, e);
}
