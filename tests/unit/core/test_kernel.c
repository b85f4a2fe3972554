/* Signatures of user kernels: what a declaration may say, what a call is refused for, and the plan that a good call
 * becomes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "core/kernel.h"

#define TEXT(literal)                                                                                                  \
    {                                                                                                                  \
        .type = KERNEL_TEXT, .text = (literal), .length = sizeof(literal) - 1                                          \
    }
#define NUMBER(value)                                                                                                  \
    {                                                                                                                  \
        .type = KERNEL_NUMBER, .number = (value)                                                                       \
    }
#define PARAM(name_, kind_, dtype_, ...)                                                                               \
    {                                                                                                                  \
        .name = (name_), .name_length = sizeof(name_) - 1, .kind = (kind_), .dtype = (dtype_), __VA_ARGS__             \
    }
/* Of any shape; with the fields that follow. */
#define TENSOR(name_, kind_, dtype_, ...) PARAM(name_, kind_, dtype_, .rank = -1, .n_shape = -1, __VA_ARGS__)
#define SCALAR(name_, dtype_, ...)        TENSOR(name_, KERNEL_SCALAR, dtype_, __VA_ARGS__)

static const struct kernel_limits H200 = {
    .max_threads = 1024,
    .max_block = {1024, 1024, 64},
    .max_grid = {2147483647, 65535, 65535},
    .max_shared = 232448,
    .multiprocessors = 132,
    .max_cluster = 8,
};

static struct tensor dense(enum dtype dtype, unsigned rank, const int64_t *shape)
{
    struct tensor t = {.dtype = dtype, .rank = rank};
    struct error e;

    memcpy(t.shape, shape, rank * sizeof(int64_t));
    tensor_set_contiguous(&t);
    assert_int_equal(tensor_measure(&t, "t", &e), 0);
    return t;
}
#define DENSE(dtype, ...)                                                                                              \
    dense(dtype, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]){__VA_ARGS__})

static const struct error_detail *detail(const struct error *e, const char *key)
{
    static const struct error_detail none = {.key = ""};

    for (unsigned i = 0; i < e->n_details; i++)
        if (!strcmp(e->details[i].key, key))
            return &e->details[i];
    fail_msg("no detail %s: %s", key, e->message);
    return &none;
}

static void is_error(const struct error *e, enum error_code code, const char *key, const char *word)
{
    if (e->code != code || strcmp(detail(e, "key")->text, key) != 0 || !strstr(e->message, word))
        fail_msg("%s at %s: %s", error_code_name(e->code), detail(e, "key")->text, e->message);
}

static void is_number(const struct error *e, const char *key, int64_t value)
{
    assert_false(detail(e, key)->is_text);
    assert_int_equal(detail(e, key)->number, value);
}

/* ---- Declarations ---- */

/* add(float *c, const float *a, const float *b, int n), as most of the tests use it. */
static const struct kernel_param_declaration ADD[] = {
    TENSOR("c", KERNEL_OUT, DTYPE_F32, .elements = TEXT("n")),
    TENSOR("a", KERNEL_IN, DTYPE_F32, .elements = TEXT("n")),
    TENSOR("b", KERNEL_IN, DTYPE_F32, .elements = TEXT("n")),
    SCALAR("n", DTYPE_I32),
};
static const uint32_t ADD_OFFSETS[] = {0, 8, 16, 24}, ADD_SIZES[] = {8, 8, 8, 4};

static struct kernel_declaration declaration_of(const struct kernel_param_declaration *params, unsigned n)
{
    return (struct kernel_declaration){
        .entry = "add2_kernel(",
        .entry_length = 11,
        .n_params = n,
        .params = params,
        .grid = {1, {TEXT("ceil_div(n, 256)")}},
        .block = {1, {NUMBER(256)}},
    };
}

static struct kernel_signature *signature_of(const struct kernel_declaration *d)
{
    struct kernel_signature *s = NULL;
    struct error e = {0};

    if (kernel_signature_new(d, &s, &e) < 0)
        fail_msg("%s", e.message);
    return s;
}

static void refuses(const struct kernel_declaration *d, enum error_code code, const char *key, const char *word)
{
    struct kernel_signature *s = NULL;
    struct error e = {0};

    assert_int_equal(kernel_signature_new(d, &s, &e), -1);
    assert_null(s);
    is_error(&e, code, key, word);
}

/* The same with one parameter. */
static void refuses_param(struct kernel_param_declaration p, enum error_code code, const char *key, const char *word)
{
    struct kernel_declaration d = declaration_of(&p, 1);

    d.grid.n = d.block.n = 0;
    refuses(&d, code, key, word);
}

static void operands_are_inputs_then_outputs(void **state)
{
    static const struct kernel_param_declaration params[] = {
        TENSOR("w", KERNEL_INOUT, DTYPE_F64), TENSOR("x", KERNEL_IN, DTYPE_F16), SCALAR("s", DTYPE_F32),
        TENSOR("y", KERNEL_OUT, DTYPE_I64),   TENSOR("z", KERNEL_IN, DTYPE_U8),
    };
    struct kernel_declaration d = declaration_of(params, 5);
    struct kernel_signature *s;

    (void)state;
    d.grid.n = 0;
    d.code = 77;
    s = signature_of(&d);
    assert_string_equal(s->op.name, "add2_kernel");
    assert_int_equal(s->op.id, OP_COUNT);
    assert_int_equal(s->op.code, 77);
    assert_int_equal(s->op.n_inputs, 2);
    assert_int_equal(s->op.n_outputs, 2);
    assert_int_equal(s->n_tensors, 4);
    assert_string_equal(s->operands[0]->name, "x");
    assert_string_equal(s->operands[1]->name, "z");
    assert_string_equal(s->operands[2]->name, "w");
    assert_string_equal(s->operands[3]->name, "y");
    assert_int_equal(s->params[4].operand, 1);
    assert_int_equal(s->params[4].index, 4);
    assert_true(kernel_reads_output(s));
    assert_ptr_equal(kernel_signature_ref(s), s);
    assert_null(kernel_signature_unref(s));
    assert_string_equal(s->params[1].name, "x"); /* still there */
    assert_null(kernel_signature_unref(s));
    assert_null(kernel_signature_unref(NULL));
    d = declaration_of(ADD, 4);
    s = signature_of(&d);
    assert_false(kernel_reads_output(s));
    kernel_signature_unref(s);
}

static void the_binary_must_have_these_parameters(void **state)
{
    static const uint32_t five[] = {8, 8, 8, 4, 4}, wide[] = {8, 8, 8, 8}, narrow[] = {8, 4, 8, 4};
    static const uint32_t far[] = {0, 8, 16, 4000}, gaps[] = {0, 8, 16, 32};
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct kernel_signature *s = NULL;
    struct error e = {0};

    (void)state;
    d.offsets = ADD_OFFSETS;
    d.sizes = five;
    d.n_binary = 5;
    assert_int_equal(kernel_signature_new(&d, &s, &e), -1);
    is_error(&e, ERROR_SIGNATURE_MISMATCH, "params", "params: 4 declared, but the compiled kernel add2_kernel has 5");
    is_number(&e, "declared", 4);
    is_number(&e, "compiled", 5);
    d.n_binary = 3;
    refuses(&d, ERROR_SIGNATURE_MISMATCH, "params", "has 3");
    d.n_binary = 4;
    d.sizes = wide;
    assert_int_equal(kernel_signature_new(&d, &s, &e), -1);
    is_error(&e, ERROR_SIGNATURE_MISMATCH, "params[3]", "n is declared as a scalar of type i32, 4 bytes");
    is_number(&e, "declared", 4);
    is_number(&e, "compiled", 8);
    d.sizes = narrow;
    refuses(&d, ERROR_SIGNATURE_MISMATCH, "params[1]", "a is declared as a tensor, a pointer, 8 bytes");
    d.sizes = ADD_SIZES;
    d.offsets = far;
    refuses(&d, ERROR_LIMIT_EXCEEDED, "params", "bytes");
    d.offsets = gaps;
    s = signature_of(&d);
    assert_int_equal(s->params[3].offset, 32);
    assert_int_equal(s->param_bytes, 36);
    kernel_signature_unref(s);
}

/* Where the binary does not tell, parameters lie as members of a struct do. */
static void lays_out_as_c_does(void **state)
{
    static const struct kernel_param_declaration params[] = {
        SCALAR("a", DTYPE_BOOL),           SCALAR("b", DTYPE_I16), SCALAR("c", DTYPE_U8),   SCALAR("d", DTYPE_F64),
        TENSOR("p", KERNEL_IN, DTYPE_F32), SCALAR("e", DTYPE_F32), SCALAR("f", DTYPE_BF16),
    };
    struct mirror {
        bool a;
        int16_t b;
        uint8_t c;
        double d;
        void *p;
        float e;
        uint16_t f;
    };
    static const size_t expected[] = {
        offsetof(struct mirror, a), offsetof(struct mirror, b), offsetof(struct mirror, c), offsetof(struct mirror, d),
        offsetof(struct mirror, p), offsetof(struct mirror, e), offsetof(struct mirror, f)};
    struct kernel_declaration d = declaration_of(params, 7);
    struct kernel_signature *s;

    (void)state;
    d.grid.n = 0;
    s = signature_of(&d);
    for (unsigned i = 0; i < 7; i++)
        assert_int_equal(s->params[i].offset, expected[i]);
    assert_int_equal(s->param_bytes, offsetof(struct mirror, f) + 2);
    kernel_signature_unref(s);
}

static void refuses_declarations_that_make_no_sense(void **state)
{
    static struct kernel_param_declaration many[KERNEL_MAX_PARAMS + 1];
    static char names[KERNEL_MAX_PARAMS + 1][8];
    struct kernel_declaration d = declaration_of(many, KERNEL_MAX_PARAMS + 1);
    struct kernel_signature *s;
    struct error e;

    (void)state;
    for (unsigned i = 0; i <= KERNEL_MAX_PARAMS; i++) {
        snprintf(names[i], sizeof(names[i]), "p%u", i);
        many[i] = (struct kernel_param_declaration)SCALAR("", DTYPE_I64);
        many[i].name = names[i];
        many[i].name_length = strlen(names[i]);
    }
    d.grid.n = 0;
    refuses(&d, ERROR_LIMIT_EXCEEDED, "params", "33 parameters");
    d.n_params = KERNEL_MAX_PARAMS;
    s = signature_of(&d);
    kernel_signature_unref(s);
    for (unsigned i = 0; i <= KERNEL_MAX_TENSORS; i++)
        many[i].kind = i % 2 ? KERNEL_OUT : KERNEL_IN;
    refuses(&d, ERROR_LIMIT_EXCEEDED, "params", "17 tensors");
    many[0].kind = KERNEL_SCALAR;
    s = signature_of(&d);
    kernel_signature_unref(s);
    many[31].name = "p30";
    refuses(&d, ERROR_INVALID_ARGUMENT, "params[31].name", "another parameter");
    d.entry_length = 0;
    refuses(&d, ERROR_INVALID_ARGUMENT, "entry", "name");

    refuses_param((struct kernel_param_declaration)SCALAR("1n", DTYPE_I32), ERROR_INVALID_ARGUMENT, "params[0].name",
                  "identifier");
    refuses_param((struct kernel_param_declaration)SCALAR("", DTYPE_I32), ERROR_INVALID_ARGUMENT, "params[0].name",
                  "identifier");
    refuses_param((struct kernel_param_declaration)SCALAR("a.b", DTYPE_I32), ERROR_INVALID_ARGUMENT, "params[0].name",
                  "identifier");
    refuses_param((struct kernel_param_declaration)SCALAR(
                      "a123456789b123456789c123456789d123456789e123456789f123456789g123", DTYPE_I32),
                  ERROR_LIMIT_EXCEEDED, "params[0].name", "long");
    refuses_param((struct kernel_param_declaration)SCALAR("x", DTYPE_F8_E4M3), ERROR_UNKNOWN_DTYPE, "params[0].dtype",
                  "tensor");
    refuses_param((struct kernel_param_declaration)SCALAR("x", DTYPE_I32, .elements = NUMBER(4)),
                  ERROR_INVALID_ARGUMENT, "params[0]", "scalar");
    refuses_param((struct kernel_param_declaration)SCALAR("x", DTYPE_I32, .strided = true), ERROR_INVALID_ARGUMENT,
                  "params[0]", "scalar");
    refuses_param((struct kernel_param_declaration)TENSOR("x", KERNEL_IN, DTYPE_I32, .align = 24),
                  ERROR_INVALID_ARGUMENT, "params[0].align", "power");
    refuses_param((struct kernel_param_declaration)TENSOR("x", KERNEL_IN, DTYPE_I32, .align = 512),
                  ERROR_INVALID_ARGUMENT, "params[0].align", "256");
    many[0] = (struct kernel_param_declaration)TENSOR("x", KERNEL_IN, DTYPE_I32);
    many[0].rank = 9;
    refuses_param(many[0], ERROR_INVALID_ARGUMENT, "params[0].rank", "8");
    many[0].n_shape = 9;
    refuses_param(many[0], ERROR_INVALID_ARGUMENT, "params[0].shape", "8");
    many[0].n_shape = 2;
    many[0].rank = 3;
    refuses_param(many[0], ERROR_INVALID_ARGUMENT, "params[0].rank", "shape");
    many[0].rank = -1;
    many[0].shape[1] = (struct kernel_value)TEXT("x.shape[2]"); /* x has two: known at once */
    d = declaration_of(many, 1);
    assert_int_equal(kernel_signature_new(&d, &s, &e), -1);
    is_error(&e, ERROR_INVALID_ARGUMENT, "params[0].shape[1]", "x has no dimension 2");
    is_number(&e, "position", 9);
    many[0].n_shape = -1;
    many[0].elements = (struct kernel_value)TEXT("4 4");
    refuses(&d, ERROR_INVALID_ARGUMENT, "params[0].elements", "operator");

    d = declaration_of(ADD, 4);
    d.grid.at[0] = (struct kernel_value)TEXT("ceil_div(count, 256)");
    refuses(&d, ERROR_INVALID_ARGUMENT, "grid[0]", "unknown name; there are c.numel, a.numel, b.numel, n");
    d = declaration_of(ADD, 4);
    d.block.n = 4;
    refuses(&d, ERROR_INVALID_ARGUMENT, "block", "3");
    d.block.n = 2;
    refuses(&d, ERROR_INVALID_ARGUMENT, "block[1]", "number");
    d = declaration_of(ADD, 4);
    d.cluster = (struct kernel_dimensions_declaration){1, {TEXT("n / 0")}};
    refuses(&d, ERROR_INVALID_ARGUMENT, "cluster[0]", "zero");
    d = declaration_of(ADD, 4);
    d.shared = (struct kernel_value)TEXT("n *");
    refuses(&d, ERROR_INVALID_ARGUMENT, "shared", "end");
}

/* ---- Calls ---- */

struct call {
    const struct tensor *tensors[KERNEL_MAX_TENSORS]; /* operands: inputs, then outputs */
    struct kernel_arg args[KERNEL_MAX_PARAMS];
    struct kernel_launch launch;
    struct kernel_limits limits;
};

static void set_integer(struct call *c, const struct kernel_signature *s, unsigned i, int64_t value)
{
    struct error e = {0};

    if (kernel_scalar_from_int(&s->params[i], value, c->args[i].value, &e) < 0)
        fail_msg("%s", e.message);
}

static struct plan plans(const struct kernel_signature *s, const struct call *c)
{
    struct plan p;
    struct error e = {0};

    memset(&p, 0xaa, sizeof(p)); /* what is not set shows */
    if (kernel_plan(s, c->tensors, c->args, &c->launch, &c->limits, &p, &e) < 0)
        fail_msg("%s", e.message);
    return p;
}

static struct error refuses_call(const struct kernel_signature *s, const struct call *c, enum error_code code,
                                 const char *key, const char *word)
{
    struct plan p;
    struct error e = {0};

    assert_int_equal(kernel_plan(s, c->tensors, c->args, &c->launch, &c->limits, &p, &e), -1);
    is_error(&e, code, key, word);
    return e;
}

/* A good call of ADD with n elements. */
static struct call add_call(const struct kernel_signature *s, const struct tensor *t, int64_t n)
{
    struct call c = {.tensors = {t, t, t}, .limits = H200};

    set_integer(&c, s, 3, n);
    return c;
}

static void a_call_becomes_a_plan(void **state)
{
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct tensor t = DENSE(DTYPE_F32, 1000);
    struct kernel_signature *s;
    struct plan_kernel *k;
    struct call c;
    struct plan p;
    int32_t n;

    (void)state;
    d.offsets = ADD_OFFSETS;
    d.sizes = ADD_SIZES;
    d.n_binary = 4;
    s = signature_of(&d);
    c = add_call(s, &t, 1000);
    p = plans(s, &c);
    k = &p.kernel;
    assert_int_equal(p.kind, PLAN_KERNEL);
    assert_int_equal(p.dtype, DTYPE_F32);
    assert_false(plan_is_empty(&p));
    assert_memory_equal(k->grid, ((unsigned[]){4, 1, 1}), sizeof(k->grid));
    assert_memory_equal(k->block, ((unsigned[]){256, 1, 1}), sizeof(k->block));
    assert_memory_equal(k->cluster, ((unsigned[]){0, 0, 0}), sizeof(k->cluster));
    assert_int_equal(k->shared_bytes, 0);
    assert_int_equal(k->param_bytes, 28);
    assert_int_equal(k->n_pointers, 3);
    assert_int_equal(k->pointers[0], 8);  /* a */
    assert_int_equal(k->pointers[1], 16); /* b */
    assert_int_equal(k->pointers[2], 0);  /* c */
    for (unsigned i = 0; i < 24; i++)
        assert_int_equal(k->params[i], 0);
    memcpy(&n, k->params + 24, sizeof(n));
    assert_int_equal(n, 1000);

    c.launch = (struct kernel_launch){
        .grid = {3, {8, 4, 2}}, .block = {2, {16, 8}}, .cluster = {2, {4, 2}}, .has_shared = true, .shared = 4096};
    p = plans(s, &c);
    assert_memory_equal(k->grid, ((unsigned[]){8, 4, 2}), sizeof(k->grid));
    assert_memory_equal(k->block, ((unsigned[]){16, 8, 1}), sizeof(k->block));
    assert_memory_equal(k->cluster, ((unsigned[]){4, 2, 1}), sizeof(k->cluster));
    assert_int_equal(k->shared_bytes, 4096);
    c.launch.cluster = (struct kernel_launch_dimensions){1, {1}}; /* one block alone is no cluster */
    p = plans(s, &c);
    assert_int_equal(k->cluster[0], 0);
    kernel_signature_unref(s);
}

static void tensors_must_fit_the_declaration(void **state)
{
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct kernel_signature *s = signature_of(&d);
    struct tensor t = DENSE(DTYPE_F32, 1000), half = DENSE(DTYPE_F16, 1000), small = DENSE(DTYPE_F32, 5, 100);
    struct tensor column = DENSE(DTYPE_F32, 1000, 2), odd = DENSE(DTYPE_F32, 1, 1000, 1);
    struct call c = add_call(s, &t, 1000);
    struct error e;

    (void)state;
    c.tensors[0] = &half;
    refuses_call(s, &c, ERROR_DTYPE_MISMATCH, "args[1]", "a is f16, but the kernel takes f32");
    c.tensors[0] = &t;
    c.tensors[2] = &small;
    e = refuses_call(s, &c, ERROR_SHAPE_MISMATCH, "args[0]", "c has 500 elements, but the kernel's `n` needs 1000");
    is_number(&e, "elements", 500);
    is_number(&e, "needed", 1000);
    column.shape[1] = 1; /* every second element */
    assert_int_equal(tensor_measure(&column, "", &e), 0);
    c.tensors[2] = &column;
    refuses_call(s, &c, ERROR_SHAPE_MISMATCH, "args[0]", "dense");
    odd.strides[0] = 5; /* of dimensions of size 1 no stride matters */
    odd.strides[2] = 77;
    c.tensors[2] = &odd;
    plans(s, &c);
    set_integer(&c, s, 3, -1);
    c.launch.grid = (struct kernel_launch_dimensions){1, {1}};
    plans(s, &c);
    kernel_signature_unref(s);
}

/* A parameter that is not strided takes exactly the tensors whose elements follow one another in the order of indices.
 */
static void dense_is_what_walks_memory_in_order(void **state)
{
    static const struct kernel_param_declaration params[] = {TENSOR("x", KERNEL_IN, DTYPE_U8)};
    struct kernel_declaration d = declaration_of(params, 1);
    unsigned n_dense = 0, n_other = 0, seed = (unsigned)time(NULL);
    struct kernel_signature *s;

    (void)state;
    srand(seed);
    d.grid = (struct kernel_dimensions_declaration){1, {NUMBER(1)}};
    s = signature_of(&d);
    for (unsigned i = 0; i < 50000; i++) {
        struct tensor t = {.dtype = DTYPE_U8, .rank = (unsigned)rand() % 4};
        struct call c = {.tensors = {&t}, .limits = H200};
        bool in_order = true;
        struct plan p;
        struct error e;

        for (unsigned j = 0; j < t.rank; j++)
            t.shape[j] = rand() % 4;
        tensor_set_contiguous(&t);
        for (unsigned j = 0; j < t.rank; j++)
            if (rand() % 4 == 0)
                t.strides[j] = rand() % 5;
        assert_int_equal(tensor_measure(&t, "", &e), 0);
        for (int64_t k = 0; k < (int64_t)t.count; k++) {
            int64_t rest = k, at = 0;

            for (unsigned j = t.rank; j-- > 0; rest /= t.shape[j])
                at += rest % t.shape[j] * t.strides[j];
            in_order = in_order && at == k;
        }
        if (kernel_plan(s, c.tensors, c.args, &c.launch, &c.limits, &p, &e) != (in_order ? 0 : -1))
            fail_msg("seed %u, tensor %u", seed, i);
        in_order ? n_dense++ : n_other++;
    }
    assert_true(n_dense > 1000 && n_other > 1000);
    kernel_signature_unref(s);
}

/* A backend must not write what lies between the elements of an output. */
static void a_plan_tells_what_is_not_the_kernels(void **state)
{
    static const struct kernel_param_declaration params[] = {
        TENSOR("out", KERNEL_OUT, DTYPE_F32, .strided = true),
        TENSOR("in", KERNEL_IN, DTYPE_F32, .strided = true),
        TENSOR("none", KERNEL_IN, DTYPE_F32),
    };
    struct kernel_declaration d = declaration_of(params, 3);
    struct tensor columns = DENSE(DTYPE_F32, 4, 8), transposed = DENSE(DTYPE_F32, 8, 4);
    struct call c = {.tensors = {&transposed, NULL, &columns}, .limits = H200};
    struct kernel_signature *s;
    struct error e;

    (void)state;
    d.grid = (struct kernel_dimensions_declaration){1, {NUMBER(1)}};
    columns.shape[1] = 3;
    assert_int_equal(tensor_measure(&columns, "", &e), 0);
    transposed.strides[0] = 1;
    transposed.strides[1] = 8;
    assert_int_equal(tensor_measure(&transposed, "", &e), 0);
    s = signature_of(&d);
    assert_int_equal(plans(s, &c).kernel.sparse, 1 << 2);
    c.tensors[2] = &transposed;
    assert_int_equal(plans(s, &c).kernel.sparse, 0);
    kernel_signature_unref(s);
}

static void shapes_ranks_and_alignment(void **state)
{
    static const struct kernel_param_declaration params[] = {
        PARAM("a", KERNEL_IN, DTYPE_F32, .rank = -1, .n_shape = 2, .shape = {{0}, NUMBER(8)}, .align = 16),
        PARAM("x", KERNEL_IN, DTYPE_F32, .n_shape = -1, .rank = 1, .strided = true, .align = 2),
        PARAM("out", KERNEL_OUT, DTYPE_F32, .rank = -1, .n_shape = 1, .shape = {TEXT("a.shape[0] + k")},
              .strided = true),
        SCALAR("k", DTYPE_U64),
    };
    struct kernel_declaration d = declaration_of(params, 4);
    struct tensor a = DENSE(DTYPE_F32, 3, 8), x = DENSE(DTYPE_F32, 5), out = DENSE(DTYPE_F32, 3);
    struct tensor wide = DENSE(DTYPE_F32, 3, 9), overlapping = DENSE(DTYPE_F32, 3);
    struct call c = {.tensors = {&a, &x, &out}, .limits = H200};
    struct kernel_signature *s;
    struct error e;

    (void)state;
    d.grid = (struct kernel_dimensions_declaration){1, {TEXT("x.numel")}};
    s = signature_of(&d);
    assert_int_equal(plans(s, &c).kernel.grid[0], 5);
    x.strides[0] = 0;
    x.offset = 4;
    tensor_measure(&x, "", &e);
    plans(s, &c); /* an input may repeat an element, and x needs no more than its elements' alignment */

    c.tensors[0] = &x;
    e = refuses_call(s, &c, ERROR_SHAPE_MISMATCH, "args[0]", "a has 1 dimensions, but the kernel takes 2");
    is_number(&e, "rank", 1);
    is_number(&e, "needed", 2);
    c.tensors[0] = &wide;
    e = refuses_call(s, &c, ERROR_SHAPE_MISMATCH, "args[0]", "a has size 9 in dimension 1");
    is_number(&e, "dimension", 1);
    is_number(&e, "size", 9);
    is_number(&e, "needed", 8);
    c.tensors[0] = &a;
    c.tensors[1] = &a;
    refuses_call(s, &c, ERROR_SHAPE_MISMATCH, "args[1]", "dimensions");
    c.tensors[1] = &x;
    set_integer(&c, s, 3, 1);
    e = refuses_call(s, &c, ERROR_SHAPE_MISMATCH, "args[2]", "`a.shape[0] + k` needs 4");
    set_integer(&c, s, 3, INT64_MAX);
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "args[2]", "args[2]: `a.shape[0] + k`: character 12: the result");
    assert_int_equal(kernel_scalar_from_uint(&s->params[3], UINT64_MAX, c.args[3].value, &e), 0);
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "args[3]", "18446744073709551615");
    set_integer(&c, s, 3, 0);

    a.offset = 8;
    e = refuses_call(s, &c, ERROR_MISALIGNED, "args[0]", "byte 8 of its buffer");
    is_number(&e, "offset", 8);
    is_number(&e, "align", 16);
    a.offset = 48;
    plans(s, &c);

    overlapping.strides[0] = 0;
    tensor_measure(&overlapping, "", &e);
    c.tensors[2] = &overlapping;
    refuses_call(s, &c, ERROR_OVERLAP, "args[2]", "share an element");
    kernel_signature_unref(s);
    d.alias = true;
    s = signature_of(&d);
    plans(s, &c);
    kernel_signature_unref(s);
}

static void null_pointers(void **state)
{
    static const struct kernel_param_declaration params[] = {
        PARAM("bias", KERNEL_IN, DTYPE_F32, .rank = -1, .n_shape = 1, .shape = {TEXT("n")}),
        TENSOR("out", KERNEL_OUT, DTYPE_F32, .elements = TEXT("n")),
        SCALAR("n", DTYPE_I32),
    };
    struct kernel_declaration d = declaration_of(params, 3);
    struct kernel_signature *s = signature_of(&d);
    struct tensor out = DENSE(DTYPE_F32, 300);
    struct call c = {.tensors = {NULL, &out}, .limits = H200};
    struct plan p;

    (void)state;
    set_integer(&c, s, 2, 300);
    p = plans(s, &c);
    assert_int_equal(p.kernel.grid[0], 2);
    assert_int_equal(p.kernel.n_pointers, 2);
    c.tensors[1] = NULL;
    plans(s, &c);
    set_integer(&c, s, 2, 0); /* no tensor that is written is empty: there is none */
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "grid[0]", "0");
    kernel_signature_unref(s);
    d.grid.at[0] = (struct kernel_value)TEXT("2 * bias.numel");
    s = signature_of(&d);
    refuses_call(s, &c, ERROR_INVALID_ARGUMENT, "grid[0]", "grid[0]: `2 * bias.numel`: character 5: bias is null");
    kernel_signature_unref(s);
}

static void an_empty_grid_is_for_empty_tensors(void **state)
{
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct tensor empty = DENSE(DTYPE_F32, 0, 3), t = DENSE(DTYPE_F32, 5);
    struct kernel_signature *s;
    struct call c;
    struct error e;
    struct plan p;

    (void)state;
    d.block.at[0] = (struct kernel_value)TEXT("min(n, 256)");
    d.cluster = (struct kernel_dimensions_declaration){1, {NUMBER(2)}};
    s = signature_of(&d);
    c = add_call(s, &empty, 0);
    p = plans(s, &c);
    assert_true(plan_is_empty(&p));
    assert_int_equal(p.kernel.grid[0], 0);
    assert_int_equal(p.kernel.grid[1], 1);
    assert_int_equal(p.kernel.block[0], 1);
    c.tensors[2] = &t;
    e = refuses_call(s, &c, ERROR_OUT_OF_RANGE, "grid[0]",
                     "grid[0]: `ceil_div(n, 256)` is 0, but it must be from 1 to 2147483647 (0 only");
    is_number(&e, "value", 0);
    is_number(&e, "min", 1);
    is_number(&e, "max", 2147483647);
    c.tensors[2] = &empty;
    set_integer(&c, s, 3, -257);
    c.tensors[0] = c.tensors[1] = &empty;
    e = refuses_call(s, &c, ERROR_OUT_OF_RANGE, "grid[0]", "is -1");
    is_number(&e, "min", 0);
    kernel_signature_unref(s);

    d.n_params = 0; /* a kernel that writes no tensor at all */
    d.grid = (struct kernel_dimensions_declaration){2, {NUMBER(1), NUMBER(0)}};
    d.block.at[0] = (struct kernel_value)NUMBER(1);
    s = signature_of(&d);
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "grid[1]", "grid[1]: 0, but it must be from 1 to 65535");
    kernel_signature_unref(s);
}

static void geometry_has_the_devices_limits(void **state)
{
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct kernel_signature *s = signature_of(&d);
    struct tensor t = DENSE(DTYPE_F32, 1000);
    const struct call good = add_call(s, &t, 1000);
    struct call c = good;
    struct error e;

    (void)state;
    c.launch.grid = (struct kernel_launch_dimensions){1, {INT64_C(1) << 40}};
    e = refuses_call(s, &c, ERROR_OUT_OF_RANGE, "grid[0]", "1099511627776");
    is_number(&e, "value", INT64_C(1) << 40);
    c.launch.grid = (struct kernel_launch_dimensions){3, {1, 65535, 65536}};
    e = refuses_call(s, &c, ERROR_OUT_OF_RANGE, "grid[2]", "65536");
    is_number(&e, "max", 65535);
    c.launch.grid = (struct kernel_launch_dimensions){3, {2147483647, 65535, 65535}};
    plans(s, &c);

    c = good;
    c.launch.block = (struct kernel_launch_dimensions){3, {1, 1, 65}};
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "block[2]", "from 1 to 64 on this device");
    c.launch.block = (struct kernel_launch_dimensions){1, {0}};
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "block[0]", "0");
    c.launch.block = (struct kernel_launch_dimensions){2, {64, 17}};
    e = refuses_call(s, &c, ERROR_OUT_OF_RANGE, "block", "64 x 17 x 1 are 1088 threads, but a block of this device");
    is_number(&e, "value", 1088);
    is_number(&e, "max", 1024);
    c.launch.block = (struct kernel_launch_dimensions){1, {1024}};
    plans(s, &c);
    c.limits.function_threads = 640;
    e = refuses_call(s, &c, ERROR_OUT_OF_RANGE, "block", "registers or its launch bounds, runs with at most 640");
    is_number(&e, "max", 640);

    c = good;
    c.launch.has_shared = true;
    c.launch.shared = 232448;
    assert_int_equal(plans(s, &c).kernel.shared_bytes, 232448);
    c.limits.static_shared = 1024;
    e = refuses_call(s, &c, ERROR_OUT_OF_RANGE, "shared", "from 0 to 231424");
    is_number(&e, "value", 232448);
    is_number(&e, "max", 231424);
    c.launch.shared = 231424;
    plans(s, &c);
    c.launch.shared = -1;
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "shared", "-1");

    c = good;
    c.launch.cluster = (struct kernel_launch_dimensions){1, {9}};
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "cluster[0]", "from 1 to 8");
    c.launch.cluster = (struct kernel_launch_dimensions){2, {4, 4}};
    e = refuses_call(s, &c, ERROR_OUT_OF_RANGE, "cluster", "16");
    is_number(&e, "max", 8);
    c.launch.cluster = (struct kernel_launch_dimensions){1, {3}};
    e = refuses_call(s, &c, ERROR_INVALID_ARGUMENT, "grid[0]", "4 is no multiple of the cluster's 3");
    is_number(&e, "value", 4);
    is_number(&e, "cluster", 3);
    c.launch.cluster = (struct kernel_launch_dimensions){1, {4}};
    plans(s, &c);
    c.limits.max_cluster = 0;
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "cluster[0]", "from 1 to 1");
    kernel_signature_unref(s);
}

static void geometry_may_be_declared_in_expressions(void **state)
{
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct tensor t = DENSE(DTYPE_F32, 100000);
    struct kernel_signature *s;
    struct call c;

    (void)state;
    d.grid.at[0] = (struct kernel_value)TEXT("min(ceil_div(n, 256), multiprocessors * 2)");
    d.shared = (struct kernel_value)TEXT("n * 4");
    s = signature_of(&d);
    c = add_call(s, &t, 50000);
    assert_int_equal(plans(s, &c).kernel.grid[0], 196);
    assert_int_equal(plans(s, &c).kernel.shared_bytes, 200000);
    set_integer(&c, s, 3, 100000);
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "shared", "`n * 4` is 400000");
    c.launch.has_shared = true;
    assert_int_equal(plans(s, &c).kernel.grid[0], 264);
    assert_int_equal(plans(s, &c).kernel.shared_bytes, 0);
    kernel_signature_unref(s);

    d.grid.n = 0;
    s = signature_of(&d);
    refuses_call(s, &c, ERROR_MISSING_KEY, "grid", "neither");
    c.launch.grid = (struct kernel_launch_dimensions){1, {7}};
    assert_int_equal(plans(s, &c).kernel.grid[0], 7);
    kernel_signature_unref(s);
    d.block.n = 0;
    s = signature_of(&d);
    refuses_call(s, &c, ERROR_MISSING_KEY, "block", "neither");
    kernel_signature_unref(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands_are_inputs_then_outputs),
        cmocka_unit_test(the_binary_must_have_these_parameters),
        cmocka_unit_test(lays_out_as_c_does),
        cmocka_unit_test(refuses_declarations_that_make_no_sense),
        cmocka_unit_test(a_call_becomes_a_plan),
        cmocka_unit_test(tensors_must_fit_the_declaration),
        cmocka_unit_test(dense_is_what_walks_memory_in_order),
        cmocka_unit_test(a_plan_tells_what_is_not_the_kernels),
        cmocka_unit_test(shapes_ranks_and_alignment),
        cmocka_unit_test(null_pointers),
        cmocka_unit_test(an_empty_grid_is_for_empty_tensors),
        cmocka_unit_test(geometry_has_the_devices_limits),
        cmocka_unit_test(geometry_may_be_declared_in_expressions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
