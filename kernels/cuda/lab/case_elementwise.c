/* Cases of add, square and copy, and of the strided copy that staging makes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "ops/params.h"
#include "ops/plan_launch.h"
#include "values.h"

/* Rank and shape of the result: about scale² elements, now and then with factors that tiles like. */
static void random_shape(struct lab_random *r, int64_t scale, unsigned *ret_rank, int64_t *shape)
{
    int64_t room = scale * scale;

    *ret_rank = (unsigned)lab_random_between(r, 0, 5);
    for (unsigned d = 0; d < *ret_rank; d++) {
        int64_t high = d + 1 == *ret_rank ? room : (int64_t)sqrt((double)room);

        shape[d] = lab_random_between(r, 1, high > 1 ? high : 1);
        if (shape[d] > 32 && lab_random(r) % 2)
            shape[d] = shape[d] / 32 * 32;
        room = room / shape[d] + 1;
    }
}

static enum lab_layout random_layout(struct lab_random *r, bool is_output)
{
    return (enum lab_layout)(lab_random(r) % (is_output ? LAYOUT_EXPANDED : LAYOUT_COUNT));
}

void case_elementwise(struct lab_case *c, struct lab_random *r, enum op_id op, enum dtype dtype, int64_t scale)
{
    const bool special = lab_random(r) % 4 == 0;
    /* The input whose dimensions may be repeated. */
    const unsigned repeats = op_get(op)->n_inputs > 1 ? (unsigned)(lab_random(r) % 2) : OP_MAX_INPUTS + 1;
    unsigned rank;
    int64_t shape[TENSOR_MAX_RANK];

    memset(c, 0, sizeof(*c));
    c->call.op = op_get(op);
    random_shape(r, scale, &rank, shape);
    for (unsigned t = 0; t <= c->call.op->n_inputs; t++) {
        const bool is_output = t == c->call.op->n_inputs;
        struct tensor *tensor = &c->arrays[t].tensor;

        tensor->dtype = dtype;
        tensor->rank = rank;
        for (unsigned d = 0; d < rank; d++) {
            const bool repeated = t == repeats && lab_random(r) % 5 == 0;

            tensor->shape[d] = repeated ? 1 : shape[d];
        }
        /* A third of the cases is contiguous throughout, but for where it starts. */
        lab_array_make(&c->arrays[t], r,
                       lab_random(r) % 3 ? random_layout(r, is_output) : (enum lab_layout)(lab_random(r) % 2),
                       is_output);
        lab_array_fill(&c->arrays[t], r, special);
    }
    c->in_place = -1;
    if (lab_random(r) % 3 == 0) {
        struct lab_array *out = &c->arrays[c->call.op->n_inputs];

        /* In place: input 0 is made in out's layout. */
        lab_array_free(&c->arrays[0]);
        c->arrays[0] = *out;
        out->host = NULL;
        c->in_place = 0;
    }
    for (unsigned t = 0; t <= c->call.op->n_inputs; t++)
        c->call.tensors[t] = &c->arrays[t].tensor;
}

void case_free(struct lab_case *c)
{
    for (unsigned t = 0; t <= c->call.op->n_inputs; t++)
        lab_array_free(&c->arrays[t]);
}

/* An op on doubles, on floats (for all smaller ones, too) and on unsigned integers. */
struct arithmetic {
    double (*f64)(double a, double b);
    float (*f32)(float a, float b);
    uint64_t (*u64)(uint64_t a, uint64_t b);
};

#define ARITHMETIC(NAME, expression)                                                                                   \
    static double NAME##_f64(double a, double b)                                                                       \
    {                                                                                                                  \
        (void)b;                                                                                                       \
        return expression;                                                                                             \
    }                                                                                                                  \
    static float NAME##_f32(float a, float b)                                                                          \
    {                                                                                                                  \
        (void)b;                                                                                                       \
        return expression;                                                                                             \
    }                                                                                                                  \
    static uint64_t NAME##_u64(uint64_t a, uint64_t b)                                                                 \
    {                                                                                                                  \
        (void)b;                                                                                                       \
        return expression;                                                                                             \
    }

ARITHMETIC(ADD, a + b)
ARITHMETIC(ADD_SQUARE, (a + b) * (a + b))
ARITHMETIC(SQUARE, a *a)
ARITHMETIC(SUB_SQUARE, (a - b) * (a - b))

static const struct arithmetic arithmetic[OP_COUNT] = {
#define X(WITH, NAME, name, inputs, dtypes) [OP_##NAME] = {NAME##_f64, NAME##_f32, NAME##_u64},
    OP_ARITHMETIC(X, )
#undef X
};

/* Computes element `to` of out from these of the inputs. */
static void expect_element(enum op_id op, enum dtype dtype, const unsigned char *const *inputs, const size_t *from,
                           unsigned char *out, size_t to)
{
    if (op == OP_COPY)
        value_set_bits(dtype, out, to, value_bits(dtype, inputs[0], from[0]));
    else if (!dtype_is_float(dtype))
        value_set_bits(
            dtype, out, to,
            arithmetic[op].u64(value_bits(dtype, inputs[0], from[0]), value_bits(dtype, inputs[1], from[1])));
    else if (dtype == DTYPE_F64)
        value_set(dtype, out, to,
                  arithmetic[op].f64(value_get(dtype, inputs[0], from[0]), value_get(dtype, inputs[1], from[1])));
    else
        value_set(dtype, out, to,
                  (double)arithmetic[op].f32((float)value_get(dtype, inputs[0], from[0]),
                                             (float)value_get(dtype, inputs[1], from[1])));
}

/* Computes the bytes that out's memory must hold afterwards. */
static void expect(const struct lab_case *c, const unsigned char *before, unsigned char *after)
{
    const struct op_call *call = &c->call;
    const unsigned n = call->op->n_inputs;
    const struct tensor *out = call->tensors[n];
    const enum dtype dtype = out->dtype;
    int64_t index[TENSOR_MAX_RANK] = {0};

    do {
        const unsigned char *inputs[2] = {NULL, NULL};
        size_t from[2] = {0, 0};

        for (unsigned t = 0; t < n; t++) {
            const struct tensor *in = call->tensors[t];
            int64_t at[TENSOR_MAX_RANK];

            for (unsigned d = 0; d < in->rank; d++)
                at[d] = in->shape[d] == 1 ? 0 : index[d];
            inputs[t] = (int)t == c->in_place ? before : c->arrays[t].host;
            from[t] = lab_element(in, at);
        }
        if (n == 1) {
            inputs[1] = inputs[0];
            from[1] = from[0];
        }
        expect_element(call->op->id, dtype, inputs, from, after, lab_element(out, index));
    } while (lab_next_index(out->shape, out->rank, index));
}

/* Elements that differ; NaN equals NaN. */
static size_t differences(enum dtype dtype, const unsigned char *got, const unsigned char *expected, size_t bytes,
                          size_t *ret_first)
{
    const size_t size = dtype_size(dtype);
    size_t n = 0;

    for (size_t i = 0; i < bytes / size; i++) {
        if (memcmp(got + i * size, expected + i * size, size) == 0)
            continue;
        if (isnan(value_get(dtype, got, i)) && isnan(value_get(dtype, expected, i)))
            continue;
        if (n++ == 0)
            *ret_first = i;
    }
    return n;
}

static void describe(struct lab_case *c, const char *kernel, const char *what)
{
    size_t n = (size_t)snprintf(c->text, sizeof(c->text), "%s %s %s", kernel, c->in_place >= 0 ? "in place" : "", what);

    for (unsigned t = 0; t <= c->call.op->n_inputs && n + 8 < sizeof(c->text); t++) {
        n += (size_t)snprintf(c->text + n, sizeof(c->text) - n, "; ");
        n += (size_t)lab_array_describe(&c->arrays[t], c->text + n, sizeof(c->text) - n);
    }
}

/* Runs one launch on fresh contents of out; c->text describes the mistake. */
static int check_launch(struct lab_case *c, const struct lab_machine *m, const struct cuda_launch *launch,
                        const unsigned char *before, const unsigned char *expected, unsigned char *got)
{
    const struct lab_array *out = &c->arrays[c->in_place >= 0 ? (unsigned)c->in_place : c->call.op->n_inputs];
    const enum dtype dtype = out->tensor.dtype;
    size_t n, first = 0;

    if (m->write(m->context, out->address, before, out->size) < 0 || m->launch(m->context, launch) < 0 ||
        m->read(m->context, got, out->address, out->size) < 0) {
        describe(c, launch->kernel, "did not run");
        return -1;
    }
    n = differences(dtype, got, expected, out->size, &first);
    if (n) {
        char what[128];

        snprintf(what, sizeof(what), "%zu elements differ, first %zu: %.9g for %.9g", n, first,
                 value_get(dtype, got, first), value_get(dtype, expected, first));
        describe(c, launch->kernel, what);
        return -1;
    }
    return 0;
}

/* The same launch with 64-bit indices, where it was made for 32. */
static bool widen_launch(const struct cuda_launch *launch, struct cuda_launch *ret_wide, char *name, size_t size)
{
    struct cuda_ops_strided p;

    if (strcmp(launch->variant, "strided") != 0 || strstr(launch->kernel, "strided64"))
        return false;
    memcpy(&p, launch->params, sizeof(p));
    for (unsigned d = 0; d < p.rank; d++)
        p.sizes[d] = cuda_ops_divider(p.sizes[d].divisor, true);
    snprintf(name, size, "%s64", launch->kernel);
    cuda_ops_set_launch(ret_wide, name, launch->variant, launch->grid[0], &p, sizeof(p));
    return true;
}

/* A plain kernel's launch in large blocks and in small ones, and by the kernel that takes any contiguous tensors. */
static int check_plain(struct lab_case *c, const struct lab_machine *m, const struct cuda_launch *launch,
                       const unsigned char *before, const unsigned char *expected, unsigned char *got)
{
    static const unsigned threads[] = {CUDA_OPS_PLAIN_THREADS, 128};
    struct cuda_launch other = *launch;
    char name[64];

    if (!strstr(launch->kernel, "_plain"))
        return 0;
    for (unsigned i = 0; i < 2; i++) {
        other.block[0] = threads[i];
        if (check_launch(c, m, &other, before, expected, got) < 0)
            return -1;
    }
    snprintf(name, sizeof(name), "%.*svector", (int)(strlen(launch->kernel) - strlen("plain")), launch->kernel);
    other = *launch;
    other.kernel = name;
    return check_launch(c, m, &other, before, expected, got) < 0 ? -1 : 3;
}

static int check_ways(struct lab_case *c, const struct lab_machine *m, const struct plan *plan, unsigned char *before,
                      unsigned char *expected, unsigned char *got)
{
    static const char *const variants[] = {NULL, "rows", "tiles", "strided"};
    const enum op_id op = c->call.op->id;
    uint64_t addresses[PLAN_MAX_OPERANDS];
    int ways = 0, more;

    for (unsigned t = 0; t <= c->call.op->n_inputs; t++)
        addresses[t] = lab_array_first(&c->arrays[t]);
    for (unsigned v = 0; v < sizeof(variants) / sizeof(variants[0]); v++) {
        const bool always = !variants[v] || strcmp(variants[v], "strided") == 0;
        struct cuda_launch launch, other;
        struct error e;
        char name[64];

        if (cuda_ops_launch(op, plan, addresses, variants[v], &m->device, &launch, &e) < 0) {
            if (!always)
                continue;
            describe(c, e.message, "refused");
            return -1;
        }
        if (check_launch(c, m, &launch, before, expected, got) < 0)
            return -1;
        other = launch;
        other.grid[0] = (launch.grid[0] + 2) / 3; /* blocks take several tiles */
        if (check_launch(c, m, &other, before, expected, got) < 0)
            return -1;
        ways += 2;
        if (widen_launch(&launch, &other, name, sizeof(name))) {
            if (check_launch(c, m, &other, before, expected, got) < 0)
                return -1;
            ways++;
        }
        more = check_plain(c, m, &launch, before, expected, got);
        if (more < 0)
            return -1;
        ways += more;
    }
    return ways;
}

int case_check_elementwise(struct lab_case *c, const struct lab_machine *m)
{
    const unsigned n = c->call.op->n_inputs;
    struct lab_array *out = &c->arrays[c->in_place >= 0 ? (unsigned)c->in_place : n];
    unsigned char *before = malloc(out->size + 1), *expected = malloc(out->size + 1), *got = malloc(out->size + 1);
    struct plan plan = {.dtype = out->tensor.dtype};
    struct error e;
    int ways = -1;

    snprintf(c->text, sizeof(c->text), "out of memory");
    if (!before || !expected || !got)
        goto free_copies;
    for (unsigned t = 0; t <= n; t++) {
        if (c->arrays[t].host && lab_array_upload(&c->arrays[t], m) < 0)
            goto unload;
    }
    if (c->in_place >= 0)
        c->arrays[n].address = out->address;
    if (op_plan(&c->call, &plan, &e) < 0) {
        describe(c, e.message, "not planned");
        goto unload;
    }
    memcpy(before, out->host, out->size);
    if (c->in_place < 0)
        memset(before, 0xff, out->size); /* NaN in every dtype */
    memcpy(expected, before, out->size);
    expect(c, before, expected);
    ways = check_ways(c, m, &plan, before, expected, got);
unload:
    for (unsigned t = 0; t <= n; t++) {
        if (c->arrays[t].host)
            lab_array_unload(&c->arrays[t], m);
    }
free_copies:
    free(before);
    free(expected);
    free(got);
    return ways;
}

int case_check_copy(struct lab_random *r, const struct lab_machine *m, enum dtype dtype, int64_t scale, char *text)
{
    struct lab_case c;
    struct lab_array *in = &c.arrays[0], *out = &c.arrays[1];
    struct plan plan = {.dtype = dtype};
    struct cuda_launch launch;
    unsigned char *got = NULL;
    int64_t index[TENSOR_MAX_RANK] = {0};
    struct error e;
    int result = -1;

    do {
        case_elementwise(&c, r, OP_SQUARE, dtype, scale);
        if (c.in_place >= 0)
            case_free(&c);
    } while (c.in_place >= 0);
    got = malloc(out->size + 1);
    if (!got || lab_array_upload(in, m) < 0 || lab_array_upload(out, m) < 0 || op_plan(&c.call, &plan, &e) < 0 ||
        cuda_ops_copy(&plan.elementwise, dtype_size(dtype), lab_array_first(in), lab_array_first(out), &launch, &e) <
            0 ||
        m->launch(m->context, &launch) < 0 || lab_array_download(out, m, got) < 0)
        goto unload;
    do {
        memcpy(out->host + lab_element(&out->tensor, index) * dtype_size(dtype),
               in->host + lab_element(&in->tensor, index) * dtype_size(dtype), dtype_size(dtype));
    } while (lab_next_index(out->tensor.shape, out->tensor.rank, index));
    if (memcmp(got, out->host, out->size) == 0)
        result = 1;
unload:
    describe(&c, "copy", result < 0 ? "failed" : "");
    memcpy(text, c.text, sizeof(c.text));
    lab_array_unload(in, m);
    lab_array_unload(out, m);
    free(got);
    case_free(&c);
    return result;
}
