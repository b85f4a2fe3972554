/* Shape rules: what they refuse, and the plan that a call becomes. Which elements it addresses is for
 * tests/conformance. */
#include "core/op.h"
#include "tests/support/unit.h"

static struct tensor dense(unsigned rank, const int64_t *shape)
{
    struct tensor t = {.dtype = DTYPE_F32, .rank = rank};

    memcpy(t.shape, shape, rank * sizeof(int64_t));
    tensor_set_contiguous(&t);
    MUST(tensor_measure(&t, "t", &e));
    return t;
}
#define DENSE(...) dense(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]){__VA_ARGS__})

static struct tensor of_dtype(struct tensor t, enum dtype dtype)
{
    t.dtype = dtype;
    MUST(tensor_measure(&t, "t", &e));
    return t;
}

static struct op_call call_of(const char *name, struct tensor a, struct tensor b, struct tensor c)
{
    /* A call refers to its tensors: as many as any test has at a time. */
    static struct tensor kept[64][3];
    static unsigned next;
    struct tensor *tensors = kept[next++ % 64];
    struct op_call call = {.op = op_find(name, strlen(name)), .tensors = {&tensors[0], &tensors[1], &tensors[2]}};

    tensors[0] = a;
    tensors[1] = b;
    tensors[2] = c;

    for (unsigned i = 0; i < call.op->n_attrs; i++)
        call.attrs[i] = call.op->attrs[i].fallback;
    return call;
}

TEST(contiguous_becomes_one_dimension)
{
    struct op_call call = call_of("add", DENSE(4, 5, 6), DENSE(4, 5, 6), DENSE(4, 5, 6));
    struct plan p;

    MUST(op_plan(&call, &p, &e));
    assert_true(p.elementwise.contiguous);
    assert_int_equal(p.elementwise.rank, 1);
    assert_int_equal(p.elementwise.shape[0], 120);
    call = call_of("add", DENSE(4, 5, 6), DENSE(1, 6), DENSE(4, 5, 6));
    MUST(op_plan(&call, &p, &e));
    assert_false(p.elementwise.contiguous);
    assert_int_equal(p.elementwise.rank, 2);
    call = call_of("gemm", DENSE(2, 5, 3, 7), DENSE(2, 5, 7, 4), DENSE(2, 5, 3, 4));
    MUST(op_plan(&call, &p, &e));
    assert_int_equal(p.gemm.batch_rank, 1);
    assert_int_equal(p.gemm.batch_shape[0], 10);
}

/* functional_bad_requests tests elementwise ops, tests/conformance/test_scaled_gemm.py scales. */
TEST(refuses_wrong_shapes)
{
    const struct {
        struct tensor a, b, c;
    } gemms[] = {
        {DENSE(3, 4), DENSE(5, 6), DENSE(3, 6)},
        {DENSE(3, 4), DENSE(4, 6), DENSE(3, 5)},
        {DENSE(4), DENSE(4, 6), DENSE(6)},
        {DENSE(2, 3, 4), DENSE(3, 4, 6), DENSE(2, 3, 6)},
        {DENSE(1, 3, 4), DENSE(1, 4, 6), DENSE(2, 3, 6)},
        {DENSE(4, 3), DENSE(4, 6), DENSE(3, 6)},
    };
    const struct tensor a = of_dtype(DENSE(2, 7, 3), DTYPE_F8_E4M3), b = of_dtype(DENSE(3, 4), DTYPE_F8_E5M2);
    const struct tensor one = of_dtype((struct tensor){0}, DTYPE_F32), scale = DENSE(1, 1, 1, 1), out = DENSE(2, 7, 4);
    struct op_call call;
    struct plan p;

    for (unsigned i = 0; i < sizeof(gemms) / sizeof(gemms[0]); i++) {
        call = call_of("gemm", gemms[i].a, gemms[i].b, gemms[i].c);
        MUST_FAIL(op_plan(&call, &p, &e), ERROR_SHAPE_MISMATCH, "");
    }
    call.attrs[GEMM_TRANS_A].b = true;
    MUST(op_plan(&call, &p, &e));
    call = call_of("add", DENSE(3), DENSE(1), DENSE(1));
    MUST_FAIL(op_plan(&call, &p, &e), ERROR_SHAPE_MISMATCH, "");
    call = (struct op_call){.op = op_find("scaled_gemm", 11), .tensors = {&a, &b, &scale, &one, &out}};
    MUST_FAIL(op_plan(&call, &p, &e), ERROR_SHAPE_MISMATCH, "in[2]: has 4 dimensions, the product has 3");
}

/* Only strides that lead to an element are bounded. Those of others must not reach the plan, whose strides are
 * multiplied and added: UBSan sees it where they do. */
TEST(strides_without_elements_reach_no_plan)
{
    static const char *const names[] = {"gemm", "linear", "scaled_gemm", "add", "square", "copy"};
    enum { B, M, N, K };
    static const unsigned of_products[][3] = {{B, M, K}, {B, K, N}, {B, M, N}}, of_elements[] = {B, M, N};
    static const int64_t strides[] = {INT64_C(1) << 61, INT64_C(1) << 62, INT64_MAX, 0};

    for (unsigned i = 0; i < 6 * 81 * 4; i++) { /* each dimension has the size 0, 1 or 3 */
        const unsigned digits[] = {i / 24 % 3, i / 72 % 3, i / 216 % 3, i / 648 % 3};
        const struct op *op = op_find(names[i % 6], strlen(names[i % 6]));
        const unsigned operands = op->n_inputs + op->n_outputs, out = operands - 1;
        struct tensor tensors[PLAN_MAX_OPERANDS] = {{.rank = 0}};
        struct op_call call = {.op = op};
        struct plan p;

        for (unsigned t = 0; t < operands; t++) {
            struct tensor *x = &tensors[t];

            x->dtype = i % 6 == 2 && t < 2 ? DTYPE_F8_E4M3 : DTYPE_F32;
            x->rank = i % 6 < 3 && t > 1 && t < out ? 0 : 3; /* scales and a bias of one number */
            for (unsigned d = 0; d < x->rank; d++) {
                const unsigned which = i % 6 < 3 ? of_products[t < 2 ? t : 2][d] : of_elements[d];

                x->shape[d] = digits[which] == 2 ? 3 : digits[which];
            }
            tensor_set_contiguous(x);
            MUST(tensor_measure(x, "", &e));
            for (unsigned d = 0; d < x->rank && !x->count; d++)
                x->strides[d] = strides[(i / 6 + d) % 4];
            call.tensors[t] = x;
        }
        for (unsigned k = 0; k < op->n_attrs; k++)
            call.attrs[k] = op->attrs[k].fallback;
        MUST(op_plan(&call, &p, &e));
        assert_true(plan_is_empty(&p) == (tensors[out].count == 0));
        for (unsigned t = 0; p.kind == PLAN_GEMM && t < operands; t++) {
            const struct plan_matrix *m = plan_gemm_matrix(&p.gemm, t);

            if (tensors[t].count == 0)
                assert_true(m->row == 0 && m->column == 0 && (!p.gemm.batch_rank || m->batch[0] == 0));
        }
    }
}

/* A dimension that lies far beyond another one does not go on where that ends. */
TEST(products_of_strides_past_the_end)
{
    struct tensor t = {.dtype = DTYPE_F8_E4M3, .rank = 3, .shape = {2, 2, 2}, .strides = {0, INT64_C(1) << 62, 1}};
    struct tensor out = {.dtype = DTYPE_F8_E4M3, .rank = 3, .shape = {2, 2, 2}, .strides = {4, 2, 1}};
    struct op_call call;
    struct plan p;

    MUST(tensor_measure(&t, "", &e));
    MUST(tensor_measure(&out, "", &e));
    call = call_of("copy", t, out, out);
    MUST(op_plan(&call, &p, &e));
    assert_int_equal(p.elementwise.rank, 3);
}

TEST(amounts)
{
    struct op_call call = call_of("add", DENSE(4, 1), DENSE(5), DENSE(4, 5));
    const struct op user = {.id = OP_COUNT, .n_inputs = 1, .n_outputs = 1};
    struct tensor wide = DENSE(1, 1);

    assert_int_equal(op_bytes(&call), 4 * (4 + 5 + 20));
    assert_int_equal(op_operations(&call), 20);
    call = call_of("gemm", DENSE(2, 7, 3), DENSE(4, 7), DENSE(2, 3, 4));
    call.attrs[GEMM_TRANS_A].b = call.attrs[GEMM_TRANS_B].b = true;
    assert_int_equal(op_bytes(&call), 4 * (42 + 28 + 24));
    assert_int_equal(op_operations(&call), 2 * 7 * 24);
    call = call_of("square", DENSE(3), DENSE(3), DENSE(3));
    assert_int_equal(op_bytes(&call), 24);
    call.op = &user;
    assert_int_equal(op_bytes(&call), 24);
    assert_int_equal(op_operations(&call), -1);
    /* Numbers beyond 63 bits: of one tensor, of their sum, of the operations. */
    wide.count = UINT64_C(1) << 61;
    call = call_of("add", wide, DENSE(1), DENSE(1));
    assert_int_equal(op_bytes(&call), -1);
    wide.count = UINT64_C(1) << 60;
    call = call_of("add", wide, wide, DENSE(1));
    assert_int_equal(op_bytes(&call), -1);
    wide.shape[1] = INT64_C(1) << 60;
    call = call_of("gemm", wide, DENSE(1, 4), DENSE(1, 4));
    assert_int_equal(op_operations(&call), -1);
}

TEST(outputs_have_a_declared_dtype)
{
    static const struct {
        const char *op;
        enum dtype a, b, out;
        const char *refusal;
    } cases[] = {
        {"gemm", DTYPE_BF16, DTYPE_BF16, DTYPE_F32, NULL},
        {"gemm", DTYPE_F16, DTYPE_F16, DTYPE_F16, NULL},
        {"add", DTYPE_F32, DTYPE_F32, DTYPE_F32, NULL},
        {"gemm", DTYPE_BF16, DTYPE_BF16, DTYPE_F16, "out[0] is f16; beside inputs of bf16 it may be f32 or bf16"},
        {"gemm", DTYPE_F32, DTYPE_F32, DTYPE_BF16, "out[0] is bf16"},
        {"gemm", DTYPE_BF16, DTYPE_F32, DTYPE_F32, "in[1] is f32, but in[0] is bf16; convert one of them first"},
        {"add", DTYPE_BF16, DTYPE_BF16, DTYPE_F32, "out[0] is f32, but in[0] is bf16; convert one of them first"},
    };

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct op_call call = call_of(cases[i].op, of_dtype(DENSE(4, 4), cases[i].a),
                                            of_dtype(DENSE(4, 4), cases[i].b), of_dtype(DENSE(4, 4), cases[i].out));
        struct plan p;

        if (cases[i].refusal) {
            MUST_FAIL(op_plan(&call, &p, &e), ERROR_DTYPE_MISMATCH, cases[i].refusal);
            continue;
        }
        MUST(op_plan(&call, &p, &e));
        assert_true(p.dtype == cases[i].a && p.out_dtype == cases[i].out);
    }
}
