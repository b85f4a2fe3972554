/* Owns the driver's streams, their marks and workspaces. */
#include "stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "driver/device.h"
#include "executor.h"
#include "staging/staging.h"

/* ---- marks ---- */

_Static_assert(!(MARKS_WINDOW & (MARKS_WINDOW - 1)), "places of marks are numbers modulo the window");

bool cuda_random_seed(struct cuda_random *random)
{
    random->drawn = 0;
    return getrandom(random->key, sizeof(random->key), 0) == sizeof(random->key);
}

static uint64_t turn(uint64_t value, unsigned bits)
{
    return value << bits | value >> (64 - bits);
}

static inline void mix(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = turn(v[1], 13) ^ v[0];
    v[0] = turn(v[0], 32);
    v[2] += v[3];
    v[3] = turn(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = turn(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = turn(v[1], 17) ^ v[2];
    v[2] = turn(v[2], 32);
}

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of 8 bytes, a pseudorandom function: without the key no value can be
 * predicted from others. Takes some 30 ns. */
static uint64_t siphash(const uint64_t key[2], uint64_t message)
{
    const uint64_t blocks[2] = {message, UINT64_C(8) << 56 /* the message's length */};
    uint64_t v[4] = {key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d),
                     key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573)};

    for (unsigned i = 0; i < 2; i++) {
        v[3] ^= blocks[i];
        mix(v);
        mix(v);
        v[0] ^= blocks[i];
    }
    v[2] ^= 0xff;
    for (unsigned i = 0; i < 4; i++)
        mix(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint64_t cuda_random_next(struct cuda_random *random)
{
    uint64_t value;

    do
        value = siphash(random->key, random->drawn++);
    while (!value);
    return value;
}

uint64_t cuda_marks_next(struct cuda_marks *marks, struct cuda_random *random)
{
    const uint64_t value = cuda_random_next(random);

    marks->values[(marks->issued + 1) % MARKS_WINDOW] = value;
    return value;
}

void cuda_marks_look(struct cuda_marks *marks, uint64_t value)
{
    /* The oldest mark is the most likely one. */
    for (uint64_t i = marks->ended + 1; i <= marks->issued; i++)
        if (marks->values[i % MARKS_WINDOW] == value) {
            marks->ended = i;
            marks->seen = value;
            return;
        }
}

/* ---- streams ---- */

enum {
    IDLE_STREAMS_MAX = 32,      /* streams of a priority, kept for reuse */
    RESTING_WORKSPACES_MAX = 8, /* streams that keep their workspace between jobs */
    RESTING_SMALLS_MAX = 64     /* streams that keep their small memory between jobs */
};

/* The driver's numbers fall with urgency. Normal work has the least urgent priority, that of default streams: on any
 * other graphs start 3.5 us later (H200). The server holds low work back while there is other work. */
static int find_priorities(struct cuda_streams *streams, struct error *e)
{
    int least, greatest;

    if (CUDA_OPEN_CALL(streams->device, e, CtxGetStreamPriorityRange, &least, &greatest) < 0)
        return -1;
    streams->priorities[PRIORITY_LOW] = least;
    streams->priorities[PRIORITY_HIGH] = greatest;
    streams->priorities[PRIORITY_NORMAL] = least;
    return 0;
}

int cuda_streams_open(struct cuda_streams *streams, struct cuda_device *d, uint64_t workspace_bytes, struct error *e)
{
    streams->device = d;
    streams->workspace_bytes = workspace_bytes;
    for (unsigned i = 0; i < PRIORITY_COUNT; i++)
        list_init(&streams->idle[i]);
    if (find_priorities(streams, e) < 0)
        return -1;
    if (!cuda_random_seed(&streams->random))
        return error_set(e, ERROR_INTERNAL, "getrandom: %s", strerror(errno));
    return cuda_flags_open(d, &streams->flags, e);
}

int cuda_stream_new(struct cuda_streams *streams, enum backend_priority priority, struct cuda_executor *executor,
                    struct cuda_stream **ret_stream, struct error *e)
{
    struct list *idle = list_first(&streams->idle[priority]);
    struct cuda_device *d = streams->device;
    struct cuda_stream *s;
    int r;

    if (idle) {
        list_remove(idle);
        streams->idle_count[priority]--;
        *ret_stream = list_entry(idle, struct cuda_stream, link);
        return 0;
    }
    if (cuda_enter(d, e) < 0)
        return -1;
    s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a stream");
    s->queue.device = d;
    s->streams = streams;
    s->executor = executor;
    s->priority = priority;
    list_init(&s->jobs);
    list_init(&s->link);
    s->next = &s->jobs;
    cuda_records_load_begin(true);
    r = CUDA_CALL(d, e, StreamCreateWithPriority, &s->queue.stream, CU_STREAM_NON_BLOCKING,
                  streams->priorities[priority]);
    cuda_records_load_end();
    if (r < 0)
        goto free_stream;
    s->flag = cuda_flag_take(&streams->flags, &s->flag_address);
    *ret_stream = s;
    return 0;

free_stream:
    free(s);
    return -1;
}

static void release_workspace(struct cuda_stream *s)
{
    if (!s->queue.workspace)
        return;
    cuda_scratch_free(s->queue.device, s->queue.stream, s->queue.workspace);
    s->queue.workspace = 0;
    s->streams->workspaces--;
}

static void release_small(struct cuda_stream *s)
{
    if (!s->queue.small)
        return;
    cuda_scratch_free(s->queue.device, s->queue.stream, s->queue.small);
    s->queue.small = 0;
    atomic_fetch_sub_explicit(&s->streams->smalls, 1, memory_order_relaxed);
}

static void destroy(struct cuda_stream *s)
{
    cuda_flag_give(&s->streams->flags, s->flag);
    cuda_timed_forget(s);
    if (!cuda_device_is_broken(s->queue.device)) {
        release_workspace(s);
        cuda_queue_give_scratch(&s->queue);
        release_small(s);
        cuda_records_load_begin(true);
        cuda_on(s->queue.device)->StreamDestroy(s->queue.stream);
        cuda_records_load_end();
    }
    free(s);
}

void cuda_stream_free(struct backend_stream *stream)
{
    struct cuda_stream *s = cuda_stream(stream);
    struct cuda_streams *streams = s->streams;
    struct error ignored;

    s->waited = NULL;
    if (streams->idle_count[s->priority] < IDLE_STREAMS_MAX && !cuda_device_is_broken(streams->device)) {
        if (s->queue.small && cuda_enter(streams->device, &ignored) == 0)
            release_small(s);
        list_append(&streams->idle[s->priority], &s->link);
        streams->idle_count[s->priority]++;
        return;
    }
    cuda_enter(streams->device, &ignored);
    destroy(s);
}

void cuda_streams_close(struct cuda_streams *streams)
{
    for (unsigned i = 0; i < PRIORITY_COUNT; i++) {
        list_for_each_safe (node, after, &streams->idle[i]) {
            list_remove(node);
            destroy(list_entry(node, struct cuda_stream, link));
        }
        streams->idle_count[i] = 0;
    }
    cuda_flags_close(streams->device, &streams->flags);
}

int cuda_stream_need_workspace(struct cuda_stream *s, struct error *e)
{
    if (s->queue.workspace)
        return 0;
    if (cuda_scratch_alloc(s->queue.device, s->queue.stream, s->streams->workspace_bytes, &s->queue.workspace, e) < 0)
        return -1;
    s->streams->workspaces++;
    return 0;
}

int cuda_stream_need_small(struct cuda_stream *s, struct error *e)
{
    if (s->queue.small)
        return 0;
    if (cuda_scratch_alloc(s->queue.device, s->queue.stream, STAGING_SMALL_BYTES, &s->queue.small, e) < 0)
        return -1;
    atomic_fetch_add_explicit(&s->streams->smalls, 1, memory_order_relaxed);
    return 0;
}

void cuda_stream_rest(struct cuda_stream *s)
{
    cuda_queue_give_scratch(&s->queue);
    if (atomic_load_explicit(&s->streams->smalls, memory_order_relaxed) > RESTING_SMALLS_MAX)
        release_small(s);
    if (s->streams->workspaces > RESTING_WORKSPACES_MAX)
        release_workspace(s);
}
