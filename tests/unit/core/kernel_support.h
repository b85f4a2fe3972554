/* What the tests of user kernels share: declarations, a device's limits, calls and what they are refused for. */
#ifndef KOPS_TESTS_KERNEL_SUPPORT_H
#define KOPS_TESTS_KERNEL_SUPPORT_H

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
    .max_map_rank = PLAN_MAP_RANK,
    .cooperative = 1,
    .pdl = 1,
};

static inline struct tensor dense(enum dtype dtype, unsigned rank, const int64_t *shape)
{
    struct tensor t = {.dtype = dtype, .rank = rank};

    memcpy(t.shape, shape, rank * sizeof(int64_t));
    tensor_set_contiguous(&t);
    MUST(tensor_measure(&t, "t", &e));
    return t;
}
#define DENSE(dtype, ...)                                                                                              \
    dense(dtype, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]){__VA_ARGS__})

static inline const struct error_detail *detail(const struct error *e, const char *key)
{
    static const struct error_detail none = {.key = ""};

    for (unsigned i = 0; i < e->n_details; i++)
        if (!strcmp(e->details[i].key, key))
            return &e->details[i];
    fail_msg("no detail %s: %s", key, e->message);
    return &none;
}

static inline void is_error(const struct error *e, enum error_code code, const char *key, const char *word)
{
    if (e->code != code || strcmp(detail(e, "key")->text, key) != 0 || !strstr(e->message, word))
        fail_msg("%s at %s: %s", error_code_name(e->code), detail(e, "key")->text, e->message);
}

static inline void is_number(const struct error *e, const char *key, int64_t value)
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

static inline struct kernel_declaration declaration_of(const struct kernel_param_declaration *params, unsigned n)
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

static inline int forget_signature(void **state)
{
    (void)state;
    current = kernel_signature_unref(current);
    return 0;
}

/* Kept until the next one is made, or the test's teardown, forget_signature(). */
static inline struct kernel_signature *signature_of(const struct kernel_declaration *d)
{
    forget_signature(NULL);
    MUST(kernel_signature_new(d, &current, &e));
    return current;
}

static inline void refuses(const struct kernel_declaration *d, enum error_code code, const char *key, const char *word)
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

static inline void set_integer(struct call *c, const struct kernel_signature *s, unsigned i, int64_t value)
{
    MUST(kernel_scalar_from_int(&s->params[i], value, c->args[i].value, &e));
}

static inline struct plan plans(const struct kernel_signature *s, const struct call *c)
{
    struct plan p;

    memset(&p, 0xaa, sizeof(p)); /* what is not set shows */
    MUST(kernel_plan(s, c->tensors, c->args, &c->launch, &c->limits, &p, &e));
    return p;
}

static inline struct error refuses_call(const struct kernel_signature *s, const struct call *c, enum error_code code,
                                        const char *key, const char *word)
{
    struct plan p;
    struct error e = {0};

    assert_int_equal(kernel_plan(s, c->tensors, c->args, &c->launch, &c->limits, &p, &e), -1);
    is_error(&e, code, key, word);
    return e;
}

/* A good call of ADD with n elements. */
static inline struct call add_call(const struct kernel_signature *s, const struct tensor *t, int64_t n)
{
    struct call c = {.tensors = {t, t, t}, .limits = H200};

    set_integer(&c, s, 3, n);
    return c;
}

#endif
