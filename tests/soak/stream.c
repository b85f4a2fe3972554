/* Ops on a CUDA stream of the client's own, between copies that it puts there itself, in batches, and by kernels here.
 */
#include <dlfcn.h>
#include <err.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "soak.h"

enum {
    ELEMENTS = 100,
    BYTES = ELEMENTS * sizeof(float),
    STEPS = 9,
    SQUARES = 2,
    COPIES = 30,
    LATE_US = 5000
}; /* exact in f32 */

/* The driver's functions, loaded at run time: most clients need none. */
static struct {
    int (*init)(unsigned);
    int (*device_get)(int *, int);
    int (*retain)(void **, int);
    int (*set)(void *);
    int (*alloc)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*create)(void **, unsigned);
    int (*synchronize)(void *);
    int (*copy)(uint64_t, uint64_t, size_t, void *);
    int (*copy_in)(uint64_t, const void *, size_t, void *);
    int (*copy_out)(void *, uint64_t, size_t, void *);
    int (*call)(void *, void (*)(void *), void *);
} cu;

struct stream {
    void *stream;
    uint64_t memory[3]; /* two that are worked in, and one that is added */
    kops_buffer *buffers[3];
    struct kops_tensor t[3];
};

static void must(int result, const char *what)
{
    if (result)
        errx(EXIT_FAILURE, "%s: CUDA error %d", what, result);
}

static void load(void)
{
    static const struct {
        const char *name;
        void *into;
    } functions[] = {{"cuInit", &cu.init},
                     {"cuDeviceGet", &cu.device_get},
                     {"cuDevicePrimaryCtxRetain", &cu.retain},
                     {"cuCtxSetCurrent", &cu.set},
                     {"cuMemAlloc_v2", &cu.alloc},
                     {"cuMemFree_v2", &cu.free},
                     {"cuStreamCreate", &cu.create},
                     {"cuStreamSynchronize", &cu.synchronize},
                     {"cuMemcpyDtoDAsync_v2", &cu.copy},
                     {"cuMemcpyHtoDAsync_v2", &cu.copy_in},
                     {"cuMemcpyDtoHAsync_v2", &cu.copy_out},
                     {"cuLaunchHostFunc", &cu.call}};
    const char *named = getenv("KOPS_CUDA_DRIVER");
    void *library = dlopen(named ? named : "libcuda.so.1", RTLD_NOW);

    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *symbol = library ? dlsym(library, functions[i].name) : NULL;

        if (!symbol)
            errx(EXIT_FAILURE, "%s", dlerror());
        memcpy(functions[i].into, &symbol, sizeof(symbol));
    }
}

static void make_memory(struct stream *m)
{
    float values[ELEMENTS];

    for (unsigned i = 0; i < 3; i++)
        must(cu.alloc(&m->memory[i], BYTES), "cuMemAlloc");
    for (unsigned i = 0; i < ELEMENTS; i++)
        values[i] = (float)(i % 2 + 1);
    must(cu.copy_in(m->memory[2], values, BYTES, m->stream), "cuMemcpyHtoD");
    must(cu.synchronize(m->stream), "cuStreamSynchronize");
}

void stream_begin(struct soak *s)
{
    void *context;
    int device;

    load();
    s->stream = calloc(1, sizeof(*s->stream));
    if (!s->stream)
        err(EXIT_FAILURE, "memory");
    must(cu.init(0), "cuInit");
    must(cu.device_get(&device, 0), "cuDeviceGet");
    must(cu.retain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cu.set(context), "cuCtxSetCurrent");
    must(cu.create(&s->stream->stream, 1), "cuStreamCreate");
    make_memory(s->stream);
}

static enum kops_code register_all(struct soak *s, struct kops_error *e)
{
    struct stream *m = s->stream;

    for (unsigned i = 0; i < 3; i++) {
        if (!m->buffers[i] && kops_buffer_register_cuda(s->client, m->memory[i], KOPS_ACCESS_RW, &m->buffers[i], e))
            return e->code;
        m->t[i] = kops_vector(m->buffers[i], KOPS_F32, ELEMENTS);
    }
    return KOPS_OK;
}

static void release_all(struct stream *m)
{
    for (unsigned i = 0; i < 3; i++)
        m->buffers[i] = kops_buffer_release(m->buffers[i]);
}

/* The executor of a daemon that was killed may still write to this memory, and nobody knows until when: what comes next
 * uses other memory. */
static void renew_memory(struct stream *m)
{
    release_all(m);
    make_memory(m);
}

static void pass_time(void *us)
{
    usleep((useconds_t)(uintptr_t)us);
}

/* Fills the memory that is worked in. Sometimes the stream comes late to that, after the calls behind it. */
static void fill(struct soak *s, const float *values)
{
    const struct stream *m = s->stream;
    const uintptr_t us = random_below(&s->random, LATE_US);

    must(cu.copy_in(m->memory[1], values, BYTES, m->stream), "cuMemcpyHtoD");
    if (random_chance(&s->random, 30))
        must(cu.call(m->stream, pass_time, (void *)us), "cuLaunchHostFunc");
    must(cu.copy(m->memory[0], m->memory[1], BYTES, m->stream), "cuMemcpyDtoD");
}

/* x = x², or x = x + a. A copy of the client's own comes before some: the op works in it. */
static enum kops_code step(struct soak *s, bool square, bool batch, unsigned *x, struct kops_error *e)
{
    const struct stream *m = s->stream;
    const struct kops_tensor inputs[] = {m->t[*x], m->t[2]};
    struct kops_request request = {.op = square ? "square" : "add",
                                   .inputs = inputs,
                                   .n_inputs = square ? 1 : 2,
                                   .outputs = &m->t[*x],
                                   .n_outputs = 1};
    const bool copies = !batch && random_chance(&s->random, 40);

    if (copies) {
        const unsigned other = 1 - *x;

        must(cu.copy(m->memory[other], m->memory[*x], BYTES, m->stream), "cuMemcpyDtoD");
        *x = other;
        return step(s, square, true, x, e);
    }
    if (random_chance(&s->random, 15))
        request.options.where = KOPS_WHERE_HERE;
    s->requests++;
    return kops_enqueue(s->client, &request, m->stream, e);
}

static bool is_right(const float *values, const bool *squares, unsigned n)
{
    for (unsigned i = 0; i < ELEMENTS; i++) {
        double right = 0;

        for (unsigned k = 0; k < n; k++)
            right = squares[k] ? right * right : right + (i % 2 + 1);
        if ((double)values[i] != right)
            return false;
    }
    return true;
}

/* What a call says of an earlier one that was refused is no error of its own. */
static void is_refusal(struct kops_error *e, bool *refused)
{
    if (e->code != KOPS_ERR_INVALID_ARGUMENT)
        return;
    *refused = true;
    e->code = KOPS_OK;
}

/* A batch whose first op the daemon refuses. The others begin no earlier for that: what the client put on its stream
 * before them comes first. */
static void refused_batch(struct soak *s)
{
    const struct stream *m = s->stream;
    const struct kops_tensor inputs[] = {m->t[0], m->t[2]};
    const struct kops_request add = {.op = "add", .inputs = inputs, .n_inputs = 2, .outputs = &m->t[0], .n_outputs = 1};
    const unsigned n = random_between(&s->random, 1, STEPS), copies = random_below(&s->random, COPIES);
    struct kops_request twice = add;
    float values[ELEMENTS];
    struct kops_error e, ignored;
    bool refused = false;

    twice.options.repeat = 2; /* of an op in place */
    for (unsigned i = 0; i < ELEMENTS; i++)
        values[i] = (float)i;
    for (unsigned i = 0; i < copies; i++)
        must(cu.copy(m->memory[1], m->memory[0], BYTES, m->stream), "cuMemcpyDtoD");
    fill(s, values);
    if (kops_batch_begin(s->client, m->stream, &e)) {
        count_failure(s, EXPECT_ORDERED, "a batch", &e);
        renew_memory(s->stream);
        return;
    }
    s->requests += n + 1;
    kops_enqueue(s->client, &twice, m->stream, &e);
    for (unsigned sent = 0; sent < n && !e.code;) {
        kops_enqueue(s->client, &add, m->stream, &e);
        sent += !e.code;
        is_refusal(&e, &refused);
    }
    while (!e.code && kops_synchronize(s->client, m->stream, 0, &e))
        is_refusal(&e, &refused);
    if (e.code)
        kops_batch_end(s->client, m->stream, &ignored);
    else if (kops_batch_end(s->client, m->stream, &e))
        is_refusal(&e, &refused);
    must(cu.copy_out(values, m->memory[0], BYTES, m->stream), "cuMemcpyDtoH");
    must(cu.synchronize(m->stream), "cuStreamSynchronize");
    if (e.code) {
        count_failure(s, EXPECT_ORDERED, "a batch", &e);
        renew_memory(s->stream);
        return;
    }
    s->checked++;
    if (!refused)
        complain(s, "a refusal", "an op in place was repeated");
    if (!expect_nothing(&s->since)) /* only the first error of several is told, which is the refusal */
        return;
    for (unsigned i = 0; i < ELEMENTS; i++)
        if (values[i] != (float)(i + n * (i % 2 + 1))) {
            complain(s, "a wrong answer", "of a batch whose first op was refused");
            return;
        }
}

void stream_turn(struct soak *s)
{
    struct kops_error failed = {.code = KOPS_OK}, e;
    const unsigned n = random_between(&s->random, 1, STEPS);
    const bool batch = random_chance(&s->random, 40);
    const struct stream *m = s->stream;
    float values[ELEMENTS] = {0};
    bool squares[STEPS];
    unsigned x = 0, done = 0, n_squares = 0;

    if (register_all(s, &failed)) {
        count_failure(s, EXPECT_AGAIN, "device memory", &failed);
        return;
    }
    if (random_chance(&s->random, 20)) {
        refused_batch(s);
        return;
    }
    fill(s, values);
    if (batch)
        kops_batch_begin(s->client, m->stream, &failed);
    while (!failed.code && done < n) {
        squares[done] = n_squares < SQUARES && random_chance(&s->random, 50);
        n_squares += squares[done];
        step(s, squares[done++], batch, &x, &failed);
    }
    if (batch && kops_batch_end(s->client, m->stream, &e) && !failed.code)
        failed = e;
    if (kops_synchronize(s->client, m->stream, 0, &e) && !failed.code)
        failed = e;
    must(cu.copy_out(values, m->memory[x], BYTES, m->stream), "cuMemcpyDtoH");
    must(cu.synchronize(m->stream), "cuStreamSynchronize"); /* it goes on, whatever failed */
    if (failed.code)
        count_failure(s, EXPECT_ORDERED, "an ordered call", &failed);
    else if (s->checked++, !is_right(values, squares, done))
        complain(s, "a wrong answer", "of ordered calls");
    if (failed.code)
        renew_memory(s->stream);
    else if (random_chance(&s->random, 10))
        release_all(s->stream);
}

void stream_end(struct soak *s)
{
    if (!s->stream)
        return;
    release_all(s->stream);
    for (unsigned i = 0; i < 3; i++)
        must(cu.free(s->stream->memory[i]), "cuMemFree");
    free(s->stream);
}
