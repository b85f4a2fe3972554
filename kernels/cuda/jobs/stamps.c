/* Owns the memory for a device's flags and stamps; gates; measures the overhead of events. */
#include "stamps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "driver/device.h"
#include "ops/params.h"
#include "util/clock.h"

enum { LINE_BYTES = 64 };

bool cuda_flags_are_supported(const struct cuda_device *d)
{
    return CUDA_HAS(StreamBatchMemOp) && cuda_device_attribute(d, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
}

int cuda_flags_open(struct cuda_device *d, struct cuda_flags *flags, struct error *e)
{
    void *host;

    flags->host = NULL;
    flags->n_free = 0;
    if (!cuda_flags_are_supported(d))
        return 0;
    if (cuda_host_alloc(d, (size_t)CUDA_FLAGS_MAX * LINE_BYTES, &host, &flags->on_device, e) < 0)
        return -1;
    flags->host = host;
    for (unsigned i = CUDA_FLAGS_MAX; i-- > 0;)
        flags->free[flags->n_free++] = (uint16_t)i;
    return 0;
}

void cuda_flags_close(struct cuda_device *d, struct cuda_flags *flags)
{
    cuda_host_free(d, flags->host);
    flags->host = NULL;
}

atomic_ullong *cuda_flag_take(struct cuda_flags *flags, CUdeviceptr *ret_address)
{
    size_t offset;
    atomic_ullong *flag;

    if (flags->n_free == 0)
        return NULL;
    offset = (size_t)flags->free[--flags->n_free] * LINE_BYTES;
    flag = (atomic_ullong *)(void *)(flags->host + offset);
    atomic_store(&flag[0], 0);
    atomic_store(&flag[1], 0);
    *ret_address = flags->on_device + offset;
    return flag;
}

unsigned cuda_flag_number(const struct cuda_flags *flags, const atomic_ullong *flag)
{
    return (unsigned)((size_t)((const unsigned char *)flag - flags->host) / LINE_BYTES);
}

/* Returns the word behind the flag. */
static atomic_ullong *cuda_flag_go(const struct cuda_flags *flags, unsigned number, CUdeviceptr *ret_address)
{
    const size_t offset = (size_t)number * LINE_BYTES + sizeof(atomic_ullong);

    *ret_address = flags->on_device + offset;
    return (atomic_ullong *)(void *)(flags->host + offset);
}

void cuda_flag_give(struct cuda_flags *flags, atomic_ullong *flag)
{
    if (flag)
        flags->free[flags->n_free++] = (uint16_t)cuda_flag_number(flags, flag);
}

/* ---- clocks ---- */

enum {
    DRIFT_PPM = 100, /* 20 to 30 were measured */
    SEEN_NS = 2000   /* least time from an end until the host sees it. The launch's side is less certain, since another
                        process's time slice may come before it */
};

/* 0 where `since_ns` is later: ends may be seen out of order. */
static int64_t drift(uint64_t since_ns, uint64_t now_ns)
{
    return now_ns > since_ns ? (int64_t)((now_ns - since_ns) * DRIFT_PPM / 1000000) : 0;
}

void cuda_clock_learn(struct cuda_clock *c, uint64_t before_ns, uint64_t begin, uint64_t end, uint64_t seen_ns)
{
    const int64_t least = (int64_t)(before_ns - begin), most = (int64_t)(seen_ns - end);

    if (!c->least_ns || least >= c->least - drift(c->least_ns, seen_ns)) {
        c->least = least;
        c->least_ns = seen_ns;
    }
    if (!c->most_ns || most <= c->most + drift(c->most_ns, seen_ns)) {
        c->most = most;
        c->most_ns = seen_ns;
    }
}

uint64_t cuda_clock_host_ns(const struct cuda_clock *c, uint64_t gpu)
{
    const int64_t half = (c->most - c->least) / 2;

    if (!c->least_ns)
        return 0;
    return gpu + (uint64_t)(c->most - (half < SEEN_NS ? half : SEEN_NS));
}

/* ---- stamps ---- */

enum {
    PLACE_WORDS = 3,  /* begin of the first block, end of the last one, AROUND_…, which the kernel does not write */
    TRIES = 16,       /* launches that measure the clock's resolution, or the overhead of events */
    STEP_NS_MAX = 100 /* coarsest resolution of a usable clock */
};

/* Added to stamps: a kernel's time before its first block reads the clock and after its last block did. Medians of
 * CUPTI's records were larger by 860 to 890 ns for one block, and by 1,000 to 1,700 ns for 16 to 65,536 blocks of add,
 * square and gemm, with no trend in the number (H200). */
enum { AROUND_ONE_BLOCK_NS = 860, AROUND_BLOCKS_NS = 1300 };

_Static_assert((int)CUDA_FLAGS_MAX <= (int)CUDA_OPS_COUNTS, "every stream with a flag has a word to count in");

static size_t place_of(unsigned flag, uint64_t turn)
{
    return ((size_t)flag * STAMPS_WINDOW + turn % STAMPS_WINDOW) * PLACE_WORDS;
}

const atomic_ullong *cuda_stamps_take(const struct cuda_stamps *stamps, unsigned flag, uint64_t turn,
                                      struct cuda_launch *launch)
{
    const size_t place = place_of(flag, turn);

    atomic_store_explicit(&stamps->host[place], 0, memory_order_relaxed);
    atomic_store_explicit(&stamps->host[place + 1], 0, memory_order_relaxed);
    atomic_store_explicit(&stamps->host[place + 2], launch->grid[0] == 1 ? AROUND_ONE_BLOCK_NS : AROUND_BLOCKS_NS,
                          memory_order_relaxed);
    cuda_ops_stamp(launch, stamps->on_device + place * sizeof(stamps->host[0]),
                   stamps->counts + (CUdeviceptr)flag * CUDA_OPS_COUNT_BYTES);
    return &stamps->host[place];
}

bool cuda_stamps_span(const atomic_ullong *place, struct cuda_span *ret)
{
    const uint64_t begin = atomic_load_explicit(&place[0], memory_order_relaxed);
    const uint64_t end = atomic_load_explicit(&place[1], memory_order_relaxed);
    const uint64_t around = atomic_load_explicit(&place[2], memory_order_relaxed);

    if (!begin || end < begin)
        return false;
    *ret = (struct cuda_span){.begin_ns = begin - around / 2, .end_ns = end + (around - around / 2)};
    return true;
}

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* Finds the resolution of the GPU's clock in ns, the common divisor of differences of its readings. 0: unknown.
 * *ret_is_idle: no launch writes stamps any more. */
static int find_step(struct cuda_device *d, const struct cuda_embedded *kernels, const struct cuda_stamps *stamps,
                     uint64_t *ret_step, bool *ret_is_idle, struct error *e)
{
    const struct cuda_queue queue = {.device = d, .stream = d->service};
    const atomic_ullong *places[TRIES];
    struct cuda_launch launch;
    CUfunction function;
    struct error ignored;
    int r = 0;

    *ret_is_idle = true;
    cuda_ops_nothing(&launch);
    if (cuda_embedded_get(kernels, launch.kernel, &function, e) < 0)
        return -1;
    for (unsigned i = 0; i < TRIES && r == 0; i++) {
        places[i] = cuda_stamps_take(stamps, 0, i, &launch);
        r = cuda_embedded_launch(&queue, function, &launch, e);
    }
    /* Waits also after a failure: launches before it still write to memory that is freed next. */
    *ret_is_idle = CUDA_OPEN_CALL(d, r < 0 ? &ignored : e, StreamSynchronize, d->service) == 0;
    if (!*ret_is_idle || r < 0)
        return -1;
    *ret_step = 0;
    for (unsigned i = 1; i < TRIES; i++)
        *ret_step = greatest_common_divisor(atomic_load(places[i]) - atomic_load(places[0]), *ret_step);
    return 0;
}

int cuda_stamps_open(struct cuda_device *d, const struct cuda_embedded *kernels, struct cuda_stamps *stamps,
                     struct error *e)
{
    const size_t bytes = place_of(CUDA_FLAGS_MAX, 0) * sizeof(stamps->host[0]);
    uint64_t step = 0;
    bool is_idle;
    void *host;

    *stamps = (struct cuda_stamps){.host = NULL};
    if (!cuda_flags_are_supported(d))
        return 0;
    if (cuda_host_alloc(d, bytes, &host, &stamps->on_device, e) < 0)
        return -1;
    stamps->host = host;
    stamps->counts = kernels->stamp_counts;
    /* Events replace stamps. */
    if (find_step(d, kernels, stamps, &step, &is_idle, e) < 0 || !step || step > STEP_NS_MAX) {
        if (!is_idle)
            stamps->host = NULL; /* the context's end frees it */
        cuda_stamps_close(d, stamps);
    }
    return 0;
}

void cuda_stamps_close(struct cuda_device *d, struct cuda_stamps *stamps)
{
    cuda_host_free(d, stamps->host);
    *stamps = (struct cuda_stamps){.host = NULL};
}

/* ---- gates ---- */

enum { MOST_NS = 100 * 1000 /* a gate opens by itself after this time, which is enough to enqueue many launches */ };

void cuda_gates_init(struct cuda_gates *h, const struct cuda_stamps *stamps, const struct cuda_embedded *kernels)
{
    *h = (struct cuda_gates){.stamps = stamps,
                             .function = stamps->host ? cuda_embedded_find(kernels, "kops_gate") : NULL};
}

int cuda_gate_close(const struct cuda_gates *h, const struct cuda_queue *queue, const struct cuda_flags *flags,
                    unsigned number, uint64_t turn, struct cuda_gate *ret, struct error *e)
{
    struct cuda_launch launch;
    CUdeviceptr address;

    *ret = (struct cuda_gate){.value = turn + 1, .issued_ns = clock_now_ns()};
    ret->go = cuda_flag_go(flags, number, &address);
    cuda_ops_gate(&launch, address, ret->value, MOST_NS);
    ret->times = cuda_stamps_take(h->stamps, number, turn, &launch);
    if (cuda_embedded_launch(queue, h->function, &launch, e) == 0)
        return 0;
    ret->times = NULL;
    ret->go = NULL;
    return -1;
}

void cuda_gate_open(struct cuda_gate *h)
{
    if (!h->go)
        return;
    atomic_store_explicit(h->go, h->value, memory_order_release);
    h->go = NULL;
    h->in_time = clock_now_ns() - h->issued_ns < MOST_NS;
}

uint64_t cuda_gate_opened_ns(const struct cuda_gate *h)
{
    return h->times && h->in_time ? atomic_load_explicit(&h->times[1], memory_order_relaxed) : 0;
}

/* ---- overhead of events ---- */

enum { WARMUP = 2 };

/* Numbers of flags, for the stamps of the trials. */
enum { FLAG_OF_WORK, FLAG_OF_GATE };

struct measuring {
    struct cuda_queue queue;
    const struct cuda_flags *flags;
    const struct cuda_gates *gates;
    CUfunction function;
    struct cuda_launch nothing;
};

/* Low quartiles in us; NaN: unknown. `own`: the kernel's time; `more`: the time between events less that; `lead`: from
 * the gate's end until the kernel begins. Low, since other processes may use the GPU meanwhile, and it is better to
 * subtract too little than too much. */
struct found {
    double more, own, lead;
};

struct trial {
    CUevent start, end; /* EVENT_TIMED */
    const atomic_ullong *times;
    struct cuda_gate gate;
};

static int launch(struct measuring *m, bool gated, unsigned turn, struct trial *t)
{
    struct cuda_device *d = m->queue.device;
    struct error e;
    int r = 0;

    if (gated && cuda_gate_close(m->gates, &m->queue, m->flags, FLAG_OF_GATE, turn, &t->gate, &e) < 0)
        return -1;
    t->times = cuda_stamps_take(m->gates->stamps, FLAG_OF_WORK, turn, &m->nothing);
    if (cuda_event_mark(d, EVENT_TIMED, m->queue.stream, &t->start, &e) < 0 ||
        cuda_embedded_launch(&m->queue, m->function, &m->nothing, &e) < 0 ||
        cuda_event_mark(d, EVENT_TIMED, m->queue.stream, &t->end, &e) < 0)
        r = -1;
    cuda_gate_open(&t->gate);
    return r;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double low_quartile(double *values, unsigned n)
{
    qsort(values, n, sizeof(values[0]), ascending);
    return values[n / 4];
}

/* Runs the trials one by one, each alone on the stream. */
static struct found try_all(struct measuring *m, bool gated)
{
    struct trial trials[TRIES] = {{.times = NULL}};
    double more[TRIES], own[TRIES], lead[TRIES];
    struct cuda_device *d = m->queue.device;
    struct cuda_span span;
    struct error e;
    bool fine = true;

    for (unsigned i = 0; i < TRIES && fine; i++) {
        fine = launch(m, gated, i, &trials[i]) == 0;
        /* Waits also after a failure: launches before it still write their stamps. */
        fine = CUDA_OPEN_CALL(d, &e, StreamSynchronize, m->queue.stream) == 0 && fine;
    }
    for (unsigned i = 0; i < TRIES; i++) {
        fine = fine && cuda_stamps_span(trials[i].times, &span);
        if (fine) {
            const uint64_t left_ns = cuda_gate_opened_ns(&trials[i].gate);

            own[i] = (double)(span.end_ns - span.begin_ns) / 1e3;
            more[i] = cuda_event_us(d, trials[i].start, trials[i].end) - own[i];
            lead[i] = left_ns ? (double)(int64_t)(span.begin_ns - left_ns) / 1e3 : 0;
            fine = !isnan(more[i]);
        }
        cuda_event_return(d, EVENT_TIMED, trials[i].start);
        cuda_event_return(d, EVENT_TIMED, trials[i].end);
    }
    if (!fine)
        return (struct found){NAN, NAN, NAN};
    return (struct found){.more = low_quartile(more + WARMUP, TRIES - WARMUP),
                          .own = low_quartile(own + WARMUP, TRIES - WARMUP),
                          .lead = low_quartile(lead + WARMUP, TRIES - WARMUP)};
}

void cuda_overhead_measure(struct cuda_device *d, const struct cuda_embedded *kernels, const struct cuda_flags *flags,
                           const struct cuda_gates *gates, struct cuda_overhead *ret_overhead)
{
    struct measuring m = {
        .queue = {.device = d, .stream = d->service},
        .flags = flags,
        .gates = gates,
    };
    struct found first, settled;

    *ret_overhead = (struct cuda_overhead){.first_us = 0};
    if (!gates->function || !flags->host)
        return;
    cuda_ops_nothing(&m.nothing);
    m.function = cuda_embedded_find(kernels, m.nothing.kernel);
    if (!m.function)
        return;
    first = try_all(&m, false);
    settled = try_all(&m, true);
    if (isnan(first.more) || isnan(settled.more))
        return;
    ret_overhead->first_us = fmax(first.more, 0);
    ret_overhead->settled_us = fmin(fmax(settled.more, 0), ret_overhead->first_us);
    ret_overhead->least_us = settled.own;
    ret_overhead->lead_us = settled.lead;
}

double cuda_overhead_off(const struct cuda_overhead *o, double between_events_us, bool settled)
{
    const double us = between_events_us - (settled ? o->settled_us : o->first_us);

    if (isnan(between_events_us))
        return NAN;
    return fmin(fmax(us, o->least_us), between_events_us);
}
