#include "support.h"
#include "tests/unit/memory_id_of.h"

#include <math.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ThreadSanitizer does not see the locks of libraries that are not built with it. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:libopenblas\nrace:libdnnl\n";
}

/* ---- numbers ---- */

uint64_t random_bits(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1d;
}

/* Uniform in [-1, 1). */
static double random_double(void)
{
    return (double)(random_bits() >> 11) * 0x1p-52 - 1;
}

/* A format of 1 sign bit, `exponent` and `mantissa` bits. */
static double decode_small(uint16_t bits, int exponent, int mantissa)
{
    const int bias = (1 << (exponent - 1)) - 1, e = bits >> mantissa & ((1 << exponent) - 1);
    const int m = bits & ((1 << mantissa) - 1);
    double value;

    if (e == (1 << exponent) - 1)
        value = m ? (double)NAN : (double)INFINITY;
    else if (e == 0)
        value = ldexp(m, 1 - bias - mantissa);
    else
        value = ldexp(m + (1 << mantissa), e - bias - mantissa);
    return bits & 0x8000 ? -value : value;
}

static uint16_t encode_small(double value, int exponent, int mantissa)
{
    const int bias = (1 << (exponent - 1)) - 1;
    const uint16_t sign = signbit(value) ? 0x8000 : 0, infinity = (uint16_t)(((1 << exponent) - 1) << mantissa);
    double x = fabs(value);
    int e;

    if (isnan(value))
        return (uint16_t)(sign | infinity | 1 << (mantissa - 1));
    if (isinf(value))
        return sign | infinity;
    frexp(x, &e); /* x = f·2^e, f in [0.5, 1) */
    e = x == 0 || e - 1 < 1 - bias ? 1 - bias : e - 1;
    x = nearbyint(ldexp(x, mantissa - e)); /* in units of the last place; to even */
    if (x >= ldexp(1, mantissa + 1)) {
        x /= 2;
        e++;
    }
    if (e > bias)
        return sign | infinity;
    if (x < ldexp(1, mantissa))
        return (uint16_t)(sign | (uint16_t)x);
    return (uint16_t)(sign | (e + bias) << mantissa | ((uint16_t)x & ((1 << mantissa) - 1)));
}

double decode(enum dtype dtype, const void *from)
{
    uint16_t half;
    float f;
    double d;

    switch (dtype) {
    case DTYPE_F32:
        memcpy(&f, from, sizeof(f));
        return f;
    case DTYPE_F64:
        memcpy(&d, from, sizeof(d));
        return d;
    default:
        memcpy(&half, from, sizeof(half));
        return dtype == DTYPE_F16 ? decode_small(half, 5, 10) : decode_small(half, 8, 7);
    }
}

void encode(enum dtype dtype, double value, void *into)
{
    uint16_t half;
    float f = (float)value;

    switch (dtype) {
    case DTYPE_F32:
        memcpy(into, &f, sizeof(f));
        break;
    case DTYPE_F64:
        memcpy(into, &value, sizeof(value));
        break;
    default:
        half = dtype == DTYPE_F16 ? encode_small(value, 5, 10) : encode_small(value, 8, 7);
        memcpy(into, &half, sizeof(half));
    }
}

/* ---- tensors ---- */

static void set_strides(struct tensor *t, enum layout layout)
{
    const unsigned slack = layout == SLICE ? 3 : 0;
    int64_t stride = layout == STRIDED ? 2 : 1;

    for (unsigned i = t->rank; i-- > 0;) {
        unsigned d = i;

        if (layout == TRANSPOSED && t->rank >= 2 && i + 2 >= t->rank)
            d = i + 1 == t->rank ? i - 1 : i + 1;
        t->strides[d] = stride;
        stride *= t->shape[d] + slack;
    }
}

void operand_init(struct operand *o, enum dtype dtype, unsigned rank, const int64_t *shape, enum layout layout)
{
    const size_t size = dtype_size(dtype);

    *o = (struct operand){.tensor = {.dtype = dtype, .rank = rank}};
    memcpy(o->tensor.shape, shape, rank * sizeof(*shape));
    set_strides(&o->tensor, layout);
    o->tensor.offset = (layout == CONTIGUOUS ? 64 : 3) * size;
    MUST(tensor_measure(&o->tensor, "tensor", &e));
    o->memory = (struct backend_memory){
        .kind = MEMORY_MEMFD, .size = o->tensor.offset + o->tensor.extent + 64 * size, .writable = true};
    o->memory.host = opened(malloc(o->memory.size), free);
    o->before = opened(malloc(o->memory.size), free);
    for (size_t i = 0; i < o->memory.size / size; i++) {
        const uint64_t bits = random_bits();

        if (dtype_is_float(dtype))
            encode(dtype, random_double(), o->memory.host + i * size);
        else
            memcpy(o->memory.host + i * size, &bits, size);
    }
}

static size_t byte_of(const struct operand *o, uint64_t index)
{
    int64_t at = 0;

    for (unsigned d = o->tensor.rank; d-- > 0;) {
        at += (int64_t)(index % (uint64_t)o->tensor.shape[d]) * o->tensor.strides[d];
        index /= (uint64_t)o->tensor.shape[d];
    }
    return o->tensor.offset + (size_t)at * dtype_size(o->tensor.dtype);
}

unsigned char *operand_at(const struct operand *o, uint64_t index)
{
    return o->memory.host + byte_of(o, index);
}

double operand_get(const struct operand *o, uint64_t index)
{
    return decode(o->tensor.dtype, o->memory.host + byte_of(o, index));
}

double operand_get_before(const struct operand *o, uint64_t index)
{
    return decode(o->tensor.dtype, o->before + byte_of(o, index));
}

uint64_t operand_bits_before(const struct operand *o, uint64_t index)
{
    uint64_t bits = 0;

    memcpy(&bits, o->before + byte_of(o, index), dtype_size(o->tensor.dtype));
    return bits;
}

void operand_check_surroundings(const struct operand *o)
{
    const size_t size = dtype_size(o->tensor.dtype);
    unsigned char *now = malloc(o->memory.size);

    memcpy(now, o->memory.host, o->memory.size);
    for (uint64_t i = 0; i < o->tensor.count; i++)
        memcpy(now + byte_of(o, i), o->before + byte_of(o, i), size);
    assert_memory_equal(now, o->before, o->memory.size);
    free(now);
}

/* ---- jobs ---- */

static void wake(void *context)
{
    const uint64_t one = 1;

    assert_int_equal(write((int)(intptr_t)context, &one, sizeof(one)), sizeof(one));
}

static void stream_close(void *stream)
{
    host_backend.stream_free(stream);
}

struct backend_stream *stream_open(const struct fixture *f)
{
    struct backend_stream *stream;
    struct error e;

    assert_int_equal(host_backend.stream_new(f->device, PRIORITY_NORMAL, &stream, &e), 0);
    return opened(stream, stream_close);
}

static void device_close(void *device)
{
    host_backend.close(device);
}

static void event_close(void *event)
{
    close((int)(intptr_t)event);
}

struct fixture fixture_open(const struct backend_config *config)
{
    struct fixture f = {.event = eventfd(0, EFD_CLOEXEC)};
    struct backend_host host = {wake, opened((void *)(intptr_t)f.event, event_close)};
    unsigned count;
    struct error e;

    host_backend.prepare_process();
    assert_int_equal(host_backend.open(config, &host, &f.device, 1, &count, &e), 0);
    opened(f.device, device_close);
    assert_int_equal(count, 1);
    f.stream = stream_open(&f);
    return f;
}

static void on_done(struct backend_job *job)
{
    job->impl = job; /* the backend's own no more */
}

bool job_is_done(const struct backend_job *job)
{
    return job->impl == job;
}

void fixture_wait(struct fixture *f, struct backend_job *job)
{
    uint64_t times;

    while (host_backend.poll(f->device) > 0 && !(job && job_is_done(job))) {
        host_backend.arm(f->device);
        assert_int_equal(read(f->event, &times, sizeof(times)), sizeof(times));
    }
}

/* A step of a job's own: there are more than jobs at one time in any test. */
static struct step *next_step(void)
{
    static struct step steps[1024];
    static unsigned n;

    return &steps[n++ % COUNT(steps)];
}

void job_init(struct backend_job *job, enum op_id op, struct operand *const *inputs, struct operand *out,
              const union op_attr_value *attrs)
{
    struct op_call call = {.op = op_get(op)};

    *job = (struct backend_job){.steps = next_step(), .n_steps = 1, .repeat = 1, .timing = true, .done = on_done};
    *job->steps = (struct step){.in_place = -1};
    step_set_op(job->steps, call.op);
    for (unsigned i = 0; i < call.op->n_attrs; i++)
        call.attrs[i] = attrs ? attrs[i] : call.op->attrs[i].fallback;
    for (unsigned i = 0; i <= call.op->n_inputs; i++) {
        struct operand *o = i < call.op->n_inputs ? inputs[i] : out;

        call.tensors[i] = &o->tensor;
        memcpy(o->before, o->memory.host, o->memory.size);
        job->steps->operands[i] = (struct step_operand){memory_id_of(&o->memory), o->tensor.offset, o->tensor.extent};
        if (i < call.op->n_inputs && o == out)
            job->steps->in_place = (int8_t)i;
    }
    MUST(op_plan(&call, &job->steps->plan, &e));
    backend_job_begin(job);
}

void job_run(struct fixture *f, struct backend_job *job)
{
    backend_job_begin(job);
    host_backend.submit(f->stream, job);
    fixture_wait(f, job);
    assert_true(job_is_done(job));
}
