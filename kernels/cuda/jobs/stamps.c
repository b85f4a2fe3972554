/* Owns the places for the times of one device's kernels. */
#include "stamps.h"

#include <math.h>
#include <string.h>

#include "ops/params.h"

enum {
    PLACE_WORDS = 3,  /* the first block began, the last one ended; what lies around that, which the kernel leaves */
    TRIES = 16,       /* launches that show the steps of the clock */
    STEP_NS_MAX = 100 /* of a clock that is fine enough */
};

/* Added for what a kernel takes before its first block reads the clock and after its last one did, in ns. Medians of
 * CUPTI's records of the same launches were larger by 860 to 890 ns for one block, and by 1,000 to 1,700 ns for 16 to
 * 65,536 blocks of add, square and gemm, with no trend in the number (H200). */
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

uint64_t cuda_stamps_end_ns(const atomic_ullong *place)
{
    return atomic_load_explicit(&place[1], memory_order_relaxed);
}

double cuda_stamps_us(const atomic_ullong *place)
{
    struct cuda_span span;

    return cuda_stamps_span(place, &span) ? (double)(span.end_ns - span.begin_ns) / 1e3 : NAN;
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

/* The steps of the GPU's clock in ns: what the differences of its readings are multiples of. 0: unknown. */
static int find_step(struct cuda_device *d, const struct cuda_embedded *kernels, const struct cuda_stamps *stamps,
                     uint64_t *ret_step, struct error *e)
{
    const struct cuda_queue queue = {.device = d, .stream = d->service};
    const atomic_ullong *places[TRIES];
    struct cuda_launch launch;
    CUfunction function;
    struct error ignored;
    int r = 0;

    cuda_ops_nothing(&launch);
    function = cuda_embedded_find(kernels, launch.kernel);
    if (!function)
        return error_set(e, ERROR_INTERNAL, "no embedded binary has the kernel %s", launch.kernel);
    for (unsigned i = 0; i < TRIES && r == 0; i++) {
        places[i] = cuda_stamps_take(stamps, 0, i, &launch);
        r = cuda_embedded_launch(&queue, function, &launch, e);
    }
    /* Also after a failure: launches before it write to memory that is freed then. */
    if (CUDA_OPEN_CALL(d, r < 0 ? &ignored : e, StreamSynchronize, d->service) < 0 || r < 0)
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
    void *host;

    *stamps = (struct cuda_stamps){.host = NULL};
    if (!cuda_flags_are_supported(d))
        return 0;
    if (CUDA_OPEN_CALL(d, e, MemHostAlloc, &host, bytes, CU_MEMHOSTALLOC_DEVICEMAP) < 0)
        return -1;
    memset(host, 0, bytes);
    stamps->host = host;
    stamps->counts = kernels->stamp_counts;
    /* Without stamps events do as well. */
    if (CUDA_OPEN_CALL(d, e, MemHostGetDevicePointer, &stamps->on_device, host, 0) < 0 ||
        find_step(d, kernels, stamps, &step, e) < 0 || !step || step > STEP_NS_MAX)
        cuda_stamps_close(d, stamps);
    return 0;
}

void cuda_stamps_close(struct cuda_device *d, struct cuda_stamps *stamps)
{
    if (!stamps->host)
        return;
    cuda_on(d)->MemFreeHost(stamps->host);
    *stamps = (struct cuda_stamps){.host = NULL};
}
