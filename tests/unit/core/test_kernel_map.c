/* Tensor maps of user kernels: declarations, and what a call's tensor becomes. */
#include "kernel_support.h"

/* f(CUtensorMap a, float *c, int rows, int columns) */
enum { A, C, ROWS, COLUMNS };

static const struct kernel_param_declaration MAPPED[] = {
    TENSOR("a", KERNEL_IN, DTYPE_F16, .map = {.n_box = 2, .box = {TEXT("rows / 2"), NUMBER(64)}, .swizzle = 128}),
    TENSOR("c", KERNEL_OUT, DTYPE_F32),
    SCALAR("rows", DTYPE_I32),
    SCALAR("columns", DTYPE_I32),
};
static const uint32_t OFFSETS[] = {0, 128, 136, 140}, SIZES[] = {128, 8, 4, 4};

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
                                      .offsets = OFFSETS,
                                      .sizes = SIZES};
    return m;
}

static struct kernel_signature *declared(struct mapped *m)
{
    m->d.params = m->params;
    return signature_of(&m->d);
}

static struct call call_of(const struct kernel_signature *s, const struct tensor *a, const struct tensor *c)
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
    struct call call = call_of(s, &a, &c);
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
    call = call_of(s, &other, &c);
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
    struct call call = call_of(s, &a, &c);
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
    struct call call = call_of(s, &a, &c);
    struct plan p;

    for (unsigned i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        call.tensors[0] = refused[i].a;
        refuses_call(s, &call, ERROR_SHAPE_MISMATCH, "args[0]", refused[i].word);
    }
    call.tensors[0] = &a;
    call.limits.max_map_rank = 0;
    refuses_call(s, &call, ERROR_UNSUPPORTED, "args[0]", "compute capability 9.0");
    call = call_of(s, &empty, &nothing);
    call.launch.grid = (struct kernel_launch_dimensions){1, {0}};
    p = plans(s, &call);
    assert_true(plan_is_empty(&p)); /* nothing is launched, so no map is needed */
}

KERNEL_TEST(boxes_have_limits)
{
    struct tensor a = DENSE(DTYPE_F16, 128, 96), c = DENSE(DTYPE_F32, 4);
    struct mapped d = mapped();
    struct kernel_signature *s = declared(&d);
    struct call call = call_of(s, &a, &c);
    struct error e;

    set_integer(&call, s, ROWS, 514);
    e = refuses_call(s, &call, ERROR_OUT_OF_RANGE, "args[0]", "the box of a is `rows / 2`, 257, in dimension 0");
    is_number(&e, "max", 256);
    set_integer(&call, s, ROWS, 0);
    refuses_call(s, &call, ERROR_OUT_OF_RANGE, "args[0]", "0, in dimension 0");
    d.params[A].map.box[1] = (struct kernel_value)NUMBER(72);
    s = declared(&d);
    call = call_of(s, &a, &c);
    refuses_call(s, &call, ERROR_INVALID_ARGUMENT, "args[0]", "144 bytes: with swizzle 128");
    d.params[A].map.swizzle = 0;
    s = declared(&d);
    plans(s, &call);
    d.params[A].map.box[1] = (struct kernel_value)TEXT("columns - 95");
    s = declared(&d);
    call = call_of(s, &a, &c);
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
