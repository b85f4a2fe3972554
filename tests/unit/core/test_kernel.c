/* Calls of user kernels: what tensors are refused for, and the plan that a good call becomes. */
#include "core/kernel_internal.h"
#include "kernel_support.h"

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
