/* User kernels: what a declaration may say and the binary must have, the geometry of launches, what tensors and scalars
 * of calls are refused for, tensor maps, and the plan that a good call becomes. */
#include <stdio.h>
#include <time.h>

#include "core/kernel.h"
#include "tests/support/unit.h"

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
/* The parameter has any shape, and the fields that follow. */
#define TENSOR(name_, kind_, dtype_, ...) PARAM(name_, kind_, dtype_, .rank = -1, .n_shape = -1, __VA_ARGS__)
#define SCALAR(name_, dtype_, ...)        TENSOR(name_, KERNEL_SCALAR, dtype_, __VA_ARGS__)

static const struct kernel_limits H200 = {
    .max_threads = 1024,
    .max_block = {1024, 1024, 64},
    .max_grid = {2147483647, 65535, 65535},
    .max_shared = 232448,
    .multiprocessors = 132,
    .max_cluster = 8,
    .max_map_rank = PLAN_MAP_RANK,
    .cooperative = 1,
    .pdl = 1,
};

static struct tensor dense(enum dtype dtype, unsigned rank, const int64_t *shape)
{
    struct tensor t = {.dtype = dtype, .rank = rank};

    memcpy(t.shape, shape, rank * sizeof(int64_t));
    tensor_set_contiguous(&t);
    MUST(tensor_measure(&t, "t", &e));
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

static struct kernel_signature *current;

static int forget_signature(void **state)
{
    current = kernel_signature_free(current);
    return 0;
}

/* Kept until the next one is made, or the test's teardown, forget_signature(). */
static struct kernel_signature *signature_of(const struct kernel_declaration *d)
{
    forget_signature(NULL);
    MUST(kernel_signature_new(d, &current, &e));
    return current;
}

static void refuses(const struct kernel_declaration *d, enum error_code code, const char *key, const char *word)
{
    struct kernel_signature *s = NULL;
    struct error e = {0};

    if (kernel_signature_new(d, &s, &e) != -1 || s)
        fail_msg("taken, though %s is wrong: %s", key, word);
    is_error(&e, code, key, word);
}

#define KERNEL_TEST(name) TEST_WITH(name, NULL, forget_signature)

struct call {
    const struct tensor *tensors[KERNEL_MAX_TENSORS]; /* operands: inputs, then outputs */
    struct kernel_arg args[KERNEL_MAX_PARAMS];
    struct kernel_launch launch;
    struct kernel_limits limits;
};

static void set_integer(struct call *c, const struct kernel_signature *s, unsigned i, int64_t value)
{
    MUST(kernel_scalar_from_int(&s->params[i], value, c->args[i].value, &e));
}

static struct plan plans(const struct kernel_signature *s, const struct call *c)
{
    struct plan p;

    memset(&p, 0xaa, sizeof(p)); /* what is not set shows */
    MUST(kernel_plan(s, c->tensors, c->args, &c->launch, &c->limits, &p, &e));
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

/* ---- declarations ---- */

/* A declaration of one parameter. */
static void refuses_param(struct kernel_param_declaration p, enum error_code code, const char *key, const char *word)
{
    struct kernel_declaration d = declaration_of(&p, 1);

    d.grid.n = d.block.n = 0;
    refuses(&d, code, key, word);
}

KERNEL_TEST(operands_are_inputs_then_outputs)
{
    static const struct kernel_param_declaration params[] = {
        TENSOR("w", KERNEL_INOUT, DTYPE_F64), TENSOR("x", KERNEL_IN, DTYPE_F16), SCALAR("s", DTYPE_F32),
        TENSOR("y", KERNEL_OUT, DTYPE_I64),   TENSOR("z", KERNEL_IN, DTYPE_U8),
    };
    struct kernel_declaration d = declaration_of(params, 5);
    struct kernel_signature *s;

    d.grid.n = 0;
    d.code = 77;
    s = signature_of(&d);
    assert_string_equal(s->op.name, "add2_kernel");
    assert_true(s->op.id == OP_COUNT && s->op.code == 77 && s->op.n_inputs == 2 && s->op.n_outputs == 2);
    assert_int_equal(s->n_tensors, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(*s->operands[i]->name, "xzwy"[i]);
    assert_true(s->params[4].operand == 1 && s->params[4].index == 4);
    assert_null(kernel_signature_free(NULL));
}

KERNEL_TEST(the_binary_must_have_these_parameters)
{
    static const uint32_t five[] = {8, 8, 8, 4, 4}, wide[] = {8, 8, 8, 8}, narrow[] = {8, 4, 8, 4};
    static const uint32_t far[] = {0, 8, 16, 4000}, gaps[] = {0, 8, 16, 32};
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct kernel_signature *s = NULL;
    struct error e = {0};

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
}

/* Where the binary does not tell, parameters lie as members of a struct do. */
KERNEL_TEST(lays_out_as_c_does)
{
    static const struct kernel_param_declaration params[] = {
        SCALAR("a", DTYPE_BOOL),
        SCALAR("b", DTYPE_I16),
        SCALAR("d", DTYPE_F64),
        SCALAR("f", DTYPE_BF16),
        TENSOR("p", KERNEL_IN, DTYPE_F32),
        SCALAR("c", DTYPE_U8),
        SCALAR("g", DTYPE_F32, .lanes = 3),
        SCALAR("i", DTYPE_F64, .lanes = 4),
        SCALAR("j", DTYPE_U8, .lanes = 5),
        SCALAR("k", DTYPE_F16, .lanes = 2),
    };
    struct mirror {
        bool a;
        int16_t b;
        double d;
        uint16_t f;
        void *p;
        uint8_t c;
        float g[3];
        _Alignas(16) double i[4]; /* a double4 */
        uint8_t j[5];
        _Alignas(4) uint16_t k[2]; /* a half2 */
    };
#define AT(member) offsetof(struct mirror, member)
    static const size_t expected[] = {AT(a), AT(b), AT(d), AT(f), AT(p), AT(c), AT(g), AT(i), AT(j), AT(k)};
#undef AT
    enum { N = sizeof(params) / sizeof(params[0]) };
    struct kernel_declaration d = declaration_of(params, N);
    struct kernel_signature *s;

    d.grid.n = 0;
    s = signature_of(&d);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(s->params[i].offset, expected[i]);
    assert_int_equal(s->param_bytes, expected[N - 1] + 4);
}

KERNEL_TEST(refuses_too_many_parameters_and_equal_names)
{
    static struct kernel_param_declaration many[KERNEL_MAX_PARAMS + 1];
    static char names[KERNEL_MAX_PARAMS + 1][8];
    struct kernel_declaration d = declaration_of(many, KERNEL_MAX_PARAMS + 1);

    for (unsigned i = 0; i <= KERNEL_MAX_PARAMS; i++) {
        snprintf(names[i], sizeof(names[i]), "p%u", i);
        many[i] = (struct kernel_param_declaration)SCALAR("", DTYPE_I64);
        many[i].name = names[i];
        many[i].name_length = strlen(names[i]);
    }
    d.grid.n = 0;
    refuses(&d, ERROR_LIMIT_EXCEEDED, "params", "33 parameters");
    d.n_params = KERNEL_MAX_PARAMS;
    signature_of(&d);
    for (unsigned i = 0; i <= KERNEL_MAX_TENSORS; i++)
        many[i].kind = i % 2 ? KERNEL_OUT : KERNEL_IN;
    refuses(&d, ERROR_LIMIT_EXCEEDED, "params", "17 tensors");
    many[0].kind = KERNEL_SCALAR;
    signature_of(&d);
    many[31].name = "p30";
    refuses(&d, ERROR_INVALID_ARGUMENT, "params[31].name", "another parameter");
    d.entry_length = 0;
    refuses(&d, ERROR_INVALID_ARGUMENT, "entry", "name");
}

KERNEL_TEST(refuses_parameters_that_make_no_sense)
{
    static const struct {
        struct kernel_param_declaration param;
        enum error_code code;
        const char *key, *word;
    } wrong[] = {
        {SCALAR("1n", DTYPE_I32), ERROR_INVALID_ARGUMENT, "params[0].name", "identifier"},
        {SCALAR("", DTYPE_I32), ERROR_INVALID_ARGUMENT, "params[0].name", "identifier"},
        {SCALAR("a.b", DTYPE_I32), ERROR_INVALID_ARGUMENT, "params[0].name", "identifier"},
        {SCALAR("a123456789b123456789c123456789d123456789e123456789f123456789g123", DTYPE_I32), ERROR_LIMIT_EXCEEDED,
         "params[0].name", "long"},
        {SCALAR("x", DTYPE_F8_E4M3), ERROR_UNKNOWN_DTYPE, "params[0].dtype", "tensor"},
        {SCALAR("x", DTYPE_I32, .elements = NUMBER(4)), ERROR_INVALID_ARGUMENT, "params[0]", "scalar"},
        {SCALAR("x", DTYPE_I32, .strided = true), ERROR_INVALID_ARGUMENT, "params[0]", "scalar"},
        {TENSOR("x", KERNEL_IN, DTYPE_I32, .align = 24), ERROR_INVALID_ARGUMENT, "params[0].align", "power"},
        {TENSOR("x", KERNEL_IN, DTYPE_I32, .align = 512), ERROR_INVALID_ARGUMENT, "params[0].align", "256"},
        {TENSOR("x", KERNEL_IN, DTYPE_I32, .lanes = 2), ERROR_INVALID_ARGUMENT, "params[0].lanes", "scalars"},
        {SCALAR("x", DTYPE_F8_E4M3, .lanes = 2), ERROR_UNKNOWN_DTYPE, "params[0].dtype", "tensor"},
        {SCALAR("x", DTYPE_F64, .lanes = 4096), ERROR_LIMIT_EXCEEDED, "params", "bytes of parameters"},
        {SCALAR("x", DTYPE_U8, .lanes = UINT64_MAX), ERROR_LIMIT_EXCEEDED, "params", "bytes of parameters"},
    };
    struct kernel_param_declaration x = TENSOR("x", KERNEL_IN, DTYPE_I32);
    struct kernel_declaration d;
    struct kernel_signature *s;
    struct error e;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        refuses_param(wrong[i].param, wrong[i].code, wrong[i].key, wrong[i].word);
    x.rank = 9;
    refuses_param(x, ERROR_INVALID_ARGUMENT, "params[0].rank", "8");
    x.n_shape = 9;
    refuses_param(x, ERROR_INVALID_ARGUMENT, "params[0].shape", "8");
    x.n_shape = 2;
    x.rank = 3;
    refuses_param(x, ERROR_INVALID_ARGUMENT, "params[0].rank", "shape");
    x.rank = -1;
    x.shape[1] = (struct kernel_value)TEXT("x.shape[2]"); /* x has two: known at once */
    d = declaration_of(&x, 1);
    assert_int_equal(kernel_signature_new(&d, &s, &e), -1);
    is_error(&e, ERROR_INVALID_ARGUMENT, "params[0].shape[1]", "x has no dimension 2");
    is_number(&e, "position", 9);
    x.n_shape = -1;
    x.elements = (struct kernel_value)TEXT("4 4");
    refuses(&d, ERROR_INVALID_ARGUMENT, "params[0].elements", "operator");
}

KERNEL_TEST(refuses_launches_that_make_no_sense)
{
    struct kernel_declaration d = declaration_of(ADD, 4);

    d.shared = (struct kernel_value)TEXT("n *");
    refuses(&d, ERROR_INVALID_ARGUMENT, "shared", "end");
    d.cluster = (struct kernel_dimensions_declaration){1, {TEXT("n / 0")}};
    refuses(&d, ERROR_INVALID_ARGUMENT, "cluster[0]", "zero");
    d.block.n = 2;
    refuses(&d, ERROR_INVALID_ARGUMENT, "block[1]", "number");
    d.block.n = 4;
    refuses(&d, ERROR_INVALID_ARGUMENT, "block", "3");
    d.grid.at[0] = (struct kernel_value)TEXT("ceil_div(count, 256)");
    refuses(&d, ERROR_INVALID_ARGUMENT, "grid[0]", "unknown name; there are c.numel, a.numel, b.numel, n");
}

/* ---- geometry: declared or given, within the device's limits ---- */

KERNEL_TEST(an_empty_grid_is_for_empty_tensors)
{
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct tensor empty = DENSE(DTYPE_F32, 0, 3), t = DENSE(DTYPE_F32, 5);
    struct kernel_signature *s;
    struct call c;
    struct error e;
    struct plan p;

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
}

KERNEL_TEST(ways_to_launch)
{
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct kernel_signature *s = signature_of(&d);
    struct tensor t = DENSE(DTYPE_F32, 1000);
    struct call c = add_call(s, &t, 1000);
    struct plan p = plans(s, &c);
    struct error e = {0};

    assert_int_equal(p.kernel.cooperative, 0);
    assert_int_equal(p.kernel.pdl, 0);
    d.pdl = true;
    s = signature_of(&d);
    assert_int_equal(plans(s, &c).kernel.pdl, 1);
    c.limits.pdl = 0;
    assert_int_equal(plans(s, &c).kernel.pdl, 0); /* in order is right, too */
    d.cooperative = true;
    refuses(&d, ERROR_INVALID_ARGUMENT, "pdl", "not with cooperative");
    d.pdl = false;
    s = signature_of(&d);
    p = plans(s, &c);
    assert_int_equal(p.kernel.cooperative, 1);
    assert_int_equal(kernel_check_cooperative(&p.kernel, 4, &e), 0);
    assert_int_equal(kernel_check_cooperative(&p.kernel, 3, &e), -1);
    is_error(&e, ERROR_OUT_OF_RANGE, "grid", "4 x 1 x 1 are 4 blocks");
    is_number(&e, "max", 3);
    c.limits.cooperative = 0;
    refuses_call(s, &c, ERROR_UNSUPPORTED, "cooperative", "no cooperative launches");
}

#define DIMENSIONS(which, ...)                                                                                         \
    {                                                                                                                  \
        .which = { __VA_ARGS__ }                                                                                       \
    }
#define GRID(...)    DIMENSIONS(grid, __VA_ARGS__)
#define BLOCK(...)   DIMENSIONS(block, __VA_ARGS__)
#define CLUSTER(...) DIMENSIONS(cluster, __VA_ARGS__)
#define SHARED(n)                                                                                                      \
    {                                                                                                                  \
        .has_shared = true, .shared = (n)                                                                              \
    }

KERNEL_TEST(geometry_has_the_devices_limits)
{
    static const struct {
        struct kernel_launch launch;
        unsigned function_threads, static_shared;
        const char *key, *word; /* of the refusal; NULL: it is taken */
        int64_t value, max;     /* told with it; 0: not looked at */
    } cases[] = {
        {GRID(1, {INT64_C(1) << 40}), 0, 0, "grid[0]", "1099511627776", INT64_C(1) << 40, 2147483647},
        {GRID(3, {1, 65535, 65536}), 0, 0, "grid[2]", "65536", 65536, 65535},
        {GRID(3, {2147483647, 65535, 65535}), 0, 0, NULL, NULL, 0, 0},
        {BLOCK(3, {1, 1, 65}), 0, 0, "block[2]", "from 1 to 64 on this device", 65, 64},
        {BLOCK(1, {0}), 0, 0, "block[0]", "0", 0, 0},
        {BLOCK(2, {64, 17}), 0, 0, "block", "64 x 17 x 1 are 1088 threads, but a block of this device", 1088, 1024},
        {BLOCK(1, {1024}), 0, 0, NULL, NULL, 0, 0},
        {BLOCK(1, {1024}), 640, 0, "block", "registers or its launch bounds, runs with at most 640", 1024, 640},
        {SHARED(232448), 0, 0, NULL, NULL, 232448, 0},
        {SHARED(232448), 0, 1024, "shared", "from 0 to 231424", 232448, 231424},
        {SHARED(231424), 0, 1024, NULL, NULL, 231424, 0},
        {SHARED(-1), 0, 1024, "shared", "-1", -1, 231424},
        {CLUSTER(1, {9}), 0, 0, "cluster[0]", "from 1 to 8", 9, 8},
        {CLUSTER(2, {4, 4}), 0, 0, "cluster", "16", 16, 8},
        {CLUSTER(1, {4}), 0, 0, NULL, NULL, 0, 0},
    };
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct kernel_signature *s = signature_of(&d);
    struct tensor t = DENSE(DTYPE_F32, 1000);
    struct call c = add_call(s, &t, 1000);
    struct error e;

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        c.launch = cases[i].launch;
        c.limits.function_threads = cases[i].function_threads;
        c.limits.static_shared = cases[i].static_shared;
        if (!cases[i].key) {
            assert_int_equal(plans(s, &c).kernel.shared_bytes, cases[i].value);
            continue;
        }
        e = refuses_call(s, &c, ERROR_OUT_OF_RANGE, cases[i].key, cases[i].word);
        if (cases[i].max) {
            is_number(&e, "value", cases[i].value);
            is_number(&e, "max", cases[i].max);
        }
    }
    c.limits.static_shared = 0;
    c.launch = (struct kernel_launch)CLUSTER(1, {3});
    e = refuses_call(s, &c, ERROR_INVALID_ARGUMENT, "grid[0]", "4 is no multiple of the cluster's 3");
    is_number(&e, "value", 4);
    is_number(&e, "cluster", 3);
    c.launch = (struct kernel_launch)CLUSTER(1, {4});
    c.limits.max_cluster = 0;
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "cluster[0]", "from 1 to 1");
}

KERNEL_TEST(geometry_may_be_declared_in_expressions)
{
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct tensor t = DENSE(DTYPE_F32, 100000);
    struct kernel_signature *s;
    struct call c;

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

    d.shared = (struct kernel_value)TEXT("256 / (n - 100000)"); /* not looked at where the launch gives another */
    s = signature_of(&d);
    plans(s, &c);
    c.launch.has_shared = false;
    refuses_call(s, &c, ERROR_INVALID_ARGUMENT, "shared",
                 "shared: `256 / (n - 100000)`: character 5: division by zero");
    c.launch.has_shared = true;

    d.grid.n = 0;
    s = signature_of(&d);
    refuses_call(s, &c, ERROR_MISSING_KEY, "grid", "neither");
    c.launch.grid = (struct kernel_launch_dimensions){1, {7}};
    assert_int_equal(plans(s, &c).kernel.grid[0], 7);
    d.block.n = 0;
    s = signature_of(&d);
    refuses_call(s, &c, ERROR_MISSING_KEY, "block", "neither");
}

/* ---- calls ---- */

KERNEL_TEST(a_call_becomes_a_plan)
{
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct tensor t = DENSE(DTYPE_F32, 1000);
    struct kernel_signature *s = signature_of(&d);
    struct call c = add_call(s, &t, 1000);
    struct plan p = plans(s, &c);

    assert_memory_equal(p.kernel.cluster, ((unsigned[]){0, 0, 0}), sizeof(p.kernel.cluster));
    c.launch = (struct kernel_launch){
        .grid = {3, {8, 4, 2}}, .block = {2, {16, 8}}, .cluster = {2, {4, 2}}, .has_shared = true, .shared = 4096};
    p = plans(s, &c);
    assert_memory_equal(p.kernel.grid, ((unsigned[]){8, 4, 2}), sizeof(p.kernel.grid));
    assert_memory_equal(p.kernel.block, ((unsigned[]){16, 8, 1}), sizeof(p.kernel.block));
    assert_memory_equal(p.kernel.cluster, ((unsigned[]){4, 2, 1}), sizeof(p.kernel.cluster));
    assert_int_equal(p.kernel.shared_bytes, 4096);
    c.launch.cluster = (struct kernel_launch_dimensions){1, {1}}; /* one block alone is no cluster */
    p = plans(s, &c);
    assert_int_equal(p.kernel.cluster[0], 0);
}

KERNEL_TEST(structures_are_their_bytes)
{
    static const struct kernel_param_declaration params[] = {
        TENSOR("c", KERNEL_OUT, DTYPE_F32), SCALAR("s", DTYPE_U8, .lanes = 24), SCALAR("n", DTYPE_I32)};
    static const uint32_t offsets[] = {0, 8, 32}, sizes[] = {8, 24, 4}, smaller[] = {8, 20, 4};
    static const char bytes[] = "abcdefghijklmnopqrstuvwx";
    struct kernel_declaration d = declaration_of(params, 3);
    struct tensor t = DENSE(DTYPE_F32, 1000);
    struct kernel_signature *s;
    struct error e = {0};
    struct call c;
    struct plan p;

    d.offsets = offsets;
    d.sizes = smaller;
    d.n_binary = 3;
    refuses(&d, ERROR_SIGNATURE_MISMATCH, "params[1]", "s is declared as a structure of type u8, 24 bytes");
    d.sizes = sizes;
    s = signature_of(&d);
    c = (struct call){.tensors = {&t}, .limits = H200};
    set_integer(&c, s, 2, 1000);
    for (size_t length = 0; length < 30; length++)
        assert_int_equal(kernel_scalar_from_bytes(&s->params[1], bytes, length, &c.args[1], &e), length == 24 ? 0 : -1);
    is_error(&e, ERROR_WRONG_TYPE, "args[1]", "s is a structure of 24 bytes: give its bytes; the argument has 29");
    assert_int_equal(kernel_scalar_from_bytes(&s->params[1], NULL, 0, &c.args[1], &e), -1);
    is_error(&e, ERROR_WRONG_TYPE, "args[1]", "something else");
    p = plans(s, &c);
    assert_memory_equal(p.kernel.params + 8, bytes, 24);
    assert_int_equal(p.kernel.param_bytes, 36);
    d.grid.at[0] = (struct kernel_value)TEXT("s");
    refuses(&d, ERROR_INVALID_ARGUMENT, "grid[0]", "s");
}

KERNEL_TEST(tensors_must_fit_the_declaration)
{
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct kernel_signature *s = signature_of(&d);
    struct tensor t = DENSE(DTYPE_F32, 1000), half = DENSE(DTYPE_F16, 1000), small = DENSE(DTYPE_F32, 5, 100);
    struct call c = add_call(s, &t, 1000);
    struct error e;

    c.tensors[0] = &half;
    refuses_call(s, &c, ERROR_DTYPE_MISMATCH, "args[1]", "a is f16, but the kernel takes f32");
    c.tensors[0] = &t;
    c.tensors[2] = &small;
    e = refuses_call(s, &c, ERROR_SHAPE_MISMATCH, "args[0]", "c has 500 elements, but the kernel's `n` needs 1000");
    is_number(&e, "elements", 500);
    is_number(&e, "needed", 1000);
    set_integer(&c, s, 3, -1);
    c.launch.grid = (struct kernel_launch_dimensions){1, {1}};
    plans(s, &c);
}

/* A parameter that is not strided takes exactly the tensors whose elements follow one another in the order of indices.
 */
KERNEL_TEST(dense_is_what_walks_memory_in_order)
{
    static const struct kernel_param_declaration params[] = {TENSOR("x", KERNEL_IN, DTYPE_U8)};
    struct kernel_declaration d = declaration_of(params, 1);
    unsigned n_dense = 0, n_other = 0, seed = (unsigned)time(NULL);
    struct kernel_signature *s;

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
        if (kernel_plan(s, c.tensors, c.args, &c.launch, &c.limits, &p, &e) != (in_order ? 0 : -1) ||
            (!in_order && !strstr(e.message, "dense")))
            fail_msg("seed %u, tensor %u", seed, i);
        in_order ? n_dense++ : n_other++;
    }
    assert_true(n_dense > 1000 && n_other > 1000);
}

/* A backend must not write what lies between the elements of an output, and must know what a kernel also reads. */
KERNEL_TEST(a_plan_tells_what_is_not_the_kernels)
{
    static const struct kernel_param_declaration params[] = {
        TENSOR("out", KERNEL_OUT, DTYPE_F32, .strided = true),
        TENSOR("in", KERNEL_IN, DTYPE_F32, .strided = true),
        TENSOR("none", KERNEL_IN, DTYPE_F32),
        TENSOR("both", KERNEL_INOUT, DTYPE_F32),
    };
    struct kernel_declaration d = declaration_of(params, 4);
    struct tensor table = DENSE(DTYPE_F32, 4, 8);
    struct tensor columns = DENSE(DTYPE_F32, 4, 8), transposed = DENSE(DTYPE_F32, 8, 4);
    struct call c = {.tensors = {&transposed, NULL, &columns, &table}, .limits = H200};
    struct kernel_signature *s;

    d.grid = (struct kernel_dimensions_declaration){1, {NUMBER(1)}};
    columns.shape[1] = 3;
    MUST(tensor_measure(&columns, "", &e));
    transposed.strides[0] = 1;
    transposed.strides[1] = 8;
    MUST(tensor_measure(&transposed, "", &e));
    s = signature_of(&d);
    assert_int_equal(plans(s, &c).kernel.sparse, 1 << 2);
    assert_int_equal(plans(s, &c).kernel.inout, 1 << 3);
    c.tensors[2] = &transposed;
    assert_int_equal(plans(s, &c).kernel.sparse, 0);
}

KERNEL_TEST(shapes_ranks_and_alignment)
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
    d.alias = true;
    s = signature_of(&d);
    plans(s, &c);
}

KERNEL_TEST(null_pointers)
{
    static const struct kernel_param_declaration params[] = {
        TENSOR("bias", KERNEL_IN, DTYPE_F32),
        TENSOR("out", KERNEL_OUT, DTYPE_F32, .elements = TEXT("n")),
        SCALAR("n", DTYPE_I32),
    };
    struct kernel_declaration d = declaration_of(params, 3);
    struct kernel_signature *s = signature_of(&d);
    struct tensor out = DENSE(DTYPE_F32, 300);
    struct call c = {.tensors = {NULL, &out}, .limits = H200};
    struct plan p;

    set_integer(&c, s, 2, 300);
    p = plans(s, &c);
    assert_int_equal(p.kernel.grid[0], 2);
    assert_int_equal(p.kernel.n_pointers, 2);
    c.tensors[1] = NULL; /* who declares a size wants a tensor */
    refuses_call(s, &c, ERROR_SHAPE_MISMATCH, "args[1]", "out is a null pointer");
    c.tensors[1] = &out;
    set_integer(&c, s, 2, 0); /* no tensor that is written is empty */
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "grid[0]", "0");
    d.grid.at[0] = (struct kernel_value)TEXT("2 * bias.numel");
    s = signature_of(&d);
    refuses_call(s, &c, ERROR_INVALID_ARGUMENT, "grid[0]", "grid[0]: `2 * bias.numel`: character 5: bias is null");
}

/* Which numbers each type takes, and with which bytes: tests/rules. */
KERNEL_TEST(a_number_out_of_range_is_told_the_range)
{
    static const struct {
        enum dtype dtype;
        int64_t value, min, max;
    } cases[] = {
        {DTYPE_I8, -129, -128, 127}, {DTYPE_U16, 65536, 0, 65535}, {DTYPE_I32, INT64_MAX, INT32_MIN, INT32_MAX}};
    struct kernel_param p = {.name = "alpha", .index = 2, .kind = KERNEL_SCALAR};
    unsigned char bytes[8];
    struct error e = {0};
    int64_t back;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        p.dtype = cases[i].dtype;
        p.size = (uint16_t)dtype_size(p.dtype);
        assert_int_equal(kernel_scalar_from_int(&p, cases[i].value, bytes, &e), -1);
        is_error(&e, ERROR_OUT_OF_RANGE, "args[2]", "alpha");
        is_number(&e, "min", cases[i].min);
        is_number(&e, "max", cases[i].max);
        assert_int_equal(kernel_scalar_from_int(&p, cases[i].min, bytes, &e), 0);
        memset(bytes + p.size, 0xff, sizeof(bytes) - p.size);
        assert_int_equal(kernel_scalar_to_int(&p, bytes, &back, &e), 0);
        assert_true(back == cases[i].min);
    }
    p.dtype = DTYPE_U64;
    p.size = 8;
    assert_int_equal(kernel_scalar_from_int(&p, -1, bytes, &e), -1);
    assert_string_equal(detail(&e, "max")->text, "18446744073709551615");
    assert_int_equal(kernel_scalar_from_uint(&p, UINT64_MAX, bytes, &e), 0);
    assert_int_equal(kernel_scalar_to_int(&p, bytes, &back, &e), -1);
    is_error(&e, ERROR_OUT_OF_RANGE, "args[2]", "alpha");
}

/* ---- tensor maps ---- */

/* f(CUtensorMap a, float *c, int rows, int columns) */
enum { A, C, ROWS, COLUMNS };

static const struct kernel_param_declaration MAPPED[] = {
    TENSOR("a", KERNEL_IN, DTYPE_F16, .map = {.n_box = 2, .box = {TEXT("rows / 2"), NUMBER(64)}, .swizzle = 128}),
    TENSOR("c", KERNEL_OUT, DTYPE_F32),
    SCALAR("rows", DTYPE_I32),
    SCALAR("columns", DTYPE_I32),
};
static const uint32_t MAPPED_OFFSETS[] = {0, 128, 136, 140}, MAPPED_SIZES[] = {128, 8, 4, 4};

struct mapped {
    struct kernel_param_declaration params[4];
    struct kernel_declaration d;
};

static struct mapped mapped(void)
{
    struct mapped m;

    memcpy(m.params, MAPPED, sizeof(m.params));
    m.d = (struct kernel_declaration){.entry = "f",
                                      .entry_length = 1,
                                      .n_params = 4,
                                      .grid = {1, {NUMBER(1)}},
                                      .block = {1, {NUMBER(32)}},
                                      .n_binary = 4,
                                      .offsets = MAPPED_OFFSETS,
                                      .sizes = MAPPED_SIZES};
    return m;
}

static struct kernel_signature *declared(struct mapped *m)
{
    m->d.params = m->params;
    return signature_of(&m->d);
}

static struct call mapped_call(const struct kernel_signature *s, const struct tensor *a, const struct tensor *c)
{
    struct call call = {.tensors = {a, c}, .limits = H200};

    set_integer(&call, s, ROWS, 128);
    set_integer(&call, s, COLUMNS, 96);
    return call;
}

static void is_map(const struct plan *p, const struct plan_map *wanted)
{
    assert_true(p->kernel.maps == 1 && p->kernel.pointers[0] == 0);
    assert_memory_equal(p->kernel.params, wanted, offsetof(struct plan_map, fill) + sizeof(wanted->fill));
}

KERNEL_TEST(a_tensor_becomes_a_map)
{
    static const struct plan_map plain = {
        .extents = {96, 128}, .strides = {192}, .box = {64, 64}, .steps = {1, 1}, .rank = 2, .type = 6, .swizzle = 3};
    static const struct plan_map all = {.extents = {32, 8, 1, 3},
                                        .strides = {128, 128 /* of one element: any that a map takes */, 1024},
                                        .box = {8, 4, 1, 1},
                                        .steps = {3, 2, 1, 1},
                                        .rank = 4,
                                        .type = 11,
                                        .interleave = 2,
                                        .swizzle = 1,
                                        .promotion = 3,
                                        .fill = 1};
    struct tensor a = DENSE(DTYPE_F16, 128, 96), c = DENSE(DTYPE_F32, 4), other = DENSE(DTYPE_F32, 3, 1, 8, 32);
    struct mapped d = mapped();
    struct kernel_signature *s = declared(&d);
    struct call call = mapped_call(s, &a, &c);
    struct plan p = plans(s, &call);

    is_map(&p, &plain);
    assert_int_equal(p.kernel.n_listed, 4);
    assert_int_equal(p.kernel.param_bytes, 144 + 4 * sizeof(uint16_t));
    assert_memory_equal(p.kernel.params + 144, ((const uint16_t[]){0, 128, 136, 140}), 8);

    d.params[A].dtype = DTYPE_F32;
    d.params[A].map = (struct kernel_map_declaration){.n_box = 4,
                                                      .box = {NUMBER(1), NUMBER(1), NUMBER(4), NUMBER(8)},
                                                      .n_steps = 4,
                                                      .steps = {1, 1, 2, 3},
                                                      .interleave = 32,
                                                      .swizzle = 32,
                                                      .l2 = 256,
                                                      .nan = true,
                                                      .tf32 = true};
    s = declared(&d);
    call = mapped_call(s, &other, &c);
    p = plans(s, &call);
    is_map(&p, &all);
    other.offset = 16;
    refuses_call(s, &call, ERROR_MISALIGNED, "args[0]", "a multiple of 32");
}

KERNEL_TEST(strides_are_those_of_maps)
{
    static const struct {
        int64_t row, column, offset;
        enum error_code code;
        const char *word;
    } refused[] = {{100, 1, 0, ERROR_MISALIGNED, "a has stride 100 in dimension 0, 200 bytes"},
                   {0, 1, 0, ERROR_MISALIGNED, "a has stride 0 in dimension 0"},
                   {-96, 1, 0, ERROR_MISALIGNED, "a has stride -96 in dimension 0"},
                   {INT64_C(1) << 39, 1, 0, ERROR_MISALIGNED, "below 2^40"},
                   {96, 2, 0, ERROR_SHAPE_MISMATCH, "stride 2 in its last dimension"},
                   {96, 1, 8, ERROR_MISALIGNED, "a multiple of 16"}};
    static const struct plan_map gaps = {
        .extents = {96, 128}, .strides = {208}, .box = {64, 64}, .steps = {1, 1}, .rank = 2, .type = 6, .swizzle = 3};
    struct tensor a = DENSE(DTYPE_F16, 128, 96), c = DENSE(DTYPE_F32, 4);
    struct mapped d = mapped();
    struct kernel_signature *s = declared(&d);
    struct call call = mapped_call(s, &a, &c);
    struct plan p;

    a.strides[0] = 104; /* rows with gaps */
    a.extent = 127 * 208 + 192;
    p = plans(s, &call);
    is_map(&p, &gaps);
    for (unsigned i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        a.strides[0] = refused[i].row;
        a.strides[1] = refused[i].column;
        a.offset = (uint64_t)refused[i].offset;
        refuses_call(s, &call, refused[i].code, "args[0]", refused[i].word);
    }
}

KERNEL_TEST(tensors_that_no_map_describes)
{
    struct tensor a = DENSE(DTYPE_F16, 128, 96), c = DENSE(DTYPE_F32, 4), empty = DENSE(DTYPE_F16, 0, 96);
    struct tensor cube = DENSE(DTYPE_F16, 2, 4, 8), nothing = DENSE(DTYPE_F32, 0);
    const struct {
        const struct tensor *a;
        const char *word;
    } refused[] = {{&empty, "a has size 0 in dimension 0"},
                   {NULL, "a is a null pointer"},
                   {&cube, "3 dimensions, but the kernel takes 2"}};
    struct mapped d = mapped();
    struct kernel_signature *s = declared(&d);
    struct call call = mapped_call(s, &a, &c);
    struct plan p;

    for (unsigned i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        call.tensors[0] = refused[i].a;
        refuses_call(s, &call, ERROR_SHAPE_MISMATCH, "args[0]", refused[i].word);
    }
    call.tensors[0] = &a;
    call.limits.max_map_rank = 0;
    refuses_call(s, &call, ERROR_UNSUPPORTED, "args[0]", "compute capability 9.0");
    call = mapped_call(s, &empty, &nothing);
    call.launch.grid = (struct kernel_launch_dimensions){1, {0}};
    p = plans(s, &call);
    assert_true(plan_is_empty(&p)); /* nothing is launched, so no map is needed */
}

KERNEL_TEST(boxes_have_limits)
{
    struct tensor a = DENSE(DTYPE_F16, 128, 96), c = DENSE(DTYPE_F32, 4);
    struct mapped d = mapped();
    struct kernel_signature *s = declared(&d);
    struct call call = mapped_call(s, &a, &c);
    struct error e;

    set_integer(&call, s, ROWS, 514);
    e = refuses_call(s, &call, ERROR_OUT_OF_RANGE, "args[0]", "the box of a is `rows / 2`, 257, in dimension 0");
    is_number(&e, "max", 256);
    set_integer(&call, s, ROWS, 0);
    refuses_call(s, &call, ERROR_OUT_OF_RANGE, "args[0]", "0, in dimension 0");
    d.params[A].map.box[1] = (struct kernel_value)NUMBER(72);
    s = declared(&d);
    call = mapped_call(s, &a, &c);
    refuses_call(s, &call, ERROR_INVALID_ARGUMENT, "args[0]", "144 bytes: with swizzle 128");
    d.params[A].map.swizzle = 0;
    s = declared(&d);
    plans(s, &call);
    d.params[A].map.box[1] = (struct kernel_value)TEXT("columns - 95");
    s = declared(&d);
    call = mapped_call(s, &a, &c);
    refuses_call(s, &call, ERROR_INVALID_ARGUMENT, "args[0]", "rows of 1 elements, 2 bytes");
}

KERNEL_TEST(declarations_are_checked)
{
    static const struct {
        struct kernel_map_declaration map;
        enum dtype dtype;
        int rank;
        const char *key, *word;
    } wrong[] = {
        {{.n_box = 6}, DTYPE_F16, -1, "params[0].map.box", "at most 5"},
        {{.n_box = 2}, DTYPE_F16, 3, "params[0].map.box", "number of the tensor's dimensions"},
        {{.n_box = 2, .swizzle = 16}, DTYPE_F16, -1, "params[0].map.swizzle", "0, 32, 64 or 128"},
        {{.n_box = 3, .interleave = 64}, DTYPE_F16, -1, "params[0].map.interleave", "0, 16 or 32"},
        {{.n_box = 2, .interleave = 16}, DTYPE_F16, -1, "params[0].map.interleave", "at least 3"},
        {{.n_box = 3, .interleave = 32, .swizzle = 64}, DTYPE_F16, -1, "params[0].map.swizzle", "must be 32"},
        {{.n_box = 2, .l2 = 32}, DTYPE_F16, -1, "params[0].map.l2", "64, 128 or 256"},
        {{.n_box = 2, .nan = true}, DTYPE_I32, -1, "params[0].map.nan", "f16"},
        {{.n_box = 2, .tf32 = true}, DTYPE_F16, -1, "params[0].map.tf32", "f32"},
        {{.n_box = 2, .n_steps = 1, .steps = {1}}, DTYPE_F16, -1, "params[0].map.steps", "as many"},
        {{.n_box = 2, .n_steps = 2, .steps = {9, 1}}, DTYPE_F16, -1, "params[0].map.steps", "1 to 8"},
        {{.n_box = 2, .n_steps = 2, .steps = {0, 1}}, DTYPE_F16, -1, "params[0].map.steps", "1 to 8"},
        {{.n_box = 2, .n_steps = 2, .steps = {1, 2}}, DTYPE_F16, -1, "params[0].map.steps", "the last"},
        {{.n_box = 2, .box = {TEXT("nobody"), NUMBER(8)}}, DTYPE_F16, -1, "params[0].map.box[0]", "nobody"},
    };
    struct mapped d;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        d = mapped();
        d.params[A].map = wrong[i].map;
        d.params[A].dtype = wrong[i].dtype;
        d.params[A].rank = wrong[i].rank;
        d.d.params = d.params;
        refuses(&d.d, ERROR_INVALID_ARGUMENT, wrong[i].key, wrong[i].word);
    }
    d = mapped();
    d.params[COLUMNS].map = d.params[A].map;
    d.d.params = d.params;
    refuses(&d.d, ERROR_INVALID_ARGUMENT, "params[3]", "a scalar has no");
}

KERNEL_TEST(the_binary_has_a_map_there)
{
    static const uint32_t pointers[] = {8, 8, 4, 4}, maps[] = {128, 128, 4, 4};
    struct mapped d = mapped();

    d.d.params = d.params;
    d.d.sizes = pointers;
    refuses(&d.d, ERROR_SIGNATURE_MISMATCH, "params[0]", "a tensor map, a CUtensorMap, 128 bytes");
    d.d.sizes = maps;
    refuses(&d.d, ERROR_SIGNATURE_MISMATCH, "params[1]", "a tensor, a pointer, 8 bytes");
}
