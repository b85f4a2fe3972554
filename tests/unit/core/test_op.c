/* Shape rules: what they refuse, and that the normal form addresses the same elements as the request. */
#include <time.h>

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
    assert_int_equal(p.elementwise.strides[1][0], 0);
}

/* Visits every index of the request and of the plan, and compares the sets of (a, b, out) elements through a sum of
 * products: equal sets of triples have equal sums. */
static uint64_t triple(int64_t a, int64_t b, int64_t c)
{
    return ((uint64_t)a * 1000003 + (uint64_t)b) * 1000033 + (uint64_t)c;
}

TEST(plan_addresses_the_same_elements)
{
    srand((unsigned)time(NULL));
    for (int n = 0; n < 20000; n++) {
        struct tensor a = {.dtype = DTYPE_F32}, b = {.dtype = DTYPE_F32}, out = {.dtype = DTYPE_F32};
        unsigned rank = (unsigned)(rand() % 5), order[4] = {0, 1, 2, 3};
        uint64_t expected = 0, got = 0;
        int64_t stride = 1;
        struct op_call call;
        struct plan p;
        struct error e;

        a.rank = b.rank = out.rank = rank;
        for (unsigned i = 0; i < rank; i++) {
            unsigned j = (unsigned)rand() % (i + 1), x = order[i];

            order[i] = order[j];
            order[j] = x;
            out.shape[i] = 1 + rand() % 4;
            a.shape[i] = rand() % 3 ? out.shape[i] : 1;
            b.shape[i] = a.shape[i] == out.shape[i] && rand() % 2 ? 1 : out.shape[i];
            a.strides[i] = rand() % 20;
            b.strides[i] = rand() % 20;
        }
        for (unsigned i = 0; i < rank; i++) { /* out: a permutation with gaps, never overlapping */
            for (unsigned j = 0; j < rank; j++)
                if (order[j] == i) {
                    out.strides[j] = stride;
                    stride *= out.shape[j] + rand() % 2;
                }
        }
        tensor_measure(&a, "", &e);
        tensor_measure(&b, "", &e);
        tensor_measure(&out, "", &e);
        call = call_of("add", a, b, out);
        assert_int_equal(op_plan(&call, &p, &e), 0);
        assert_int_equal(p.elementwise.count, out.count);
        for (uint64_t k = 0; k < out.count; k++) {
            int64_t at[3] = {0};
            uint64_t rest = k;

            for (unsigned i = rank; i-- > 0;) {
                int64_t x = (int64_t)(rest % (uint64_t)out.shape[i]);

                rest /= (uint64_t)out.shape[i];
                at[0] += a.shape[i] == 1 ? 0 : x * a.strides[i];
                at[1] += b.shape[i] == 1 ? 0 : x * b.strides[i];
                at[2] += x * out.strides[i];
            }
            expected += triple(at[0], at[1], at[2]);
            memset(at, 0, sizeof(at));
            rest = k;
            for (unsigned i = p.elementwise.rank; i-- > 0;) {
                int64_t x = (int64_t)(rest % (uint64_t)p.elementwise.shape[i]);

                rest /= (uint64_t)p.elementwise.shape[i];
                for (unsigned t = 0; t < 3; t++)
                    at[t] += x * p.elementwise.strides[t][i];
            }
            got += triple(at[0], at[1], at[2]);
        }
        assert_true(expected == got);
    }
}

static void refused(struct op_call call, enum error_code code)
{
    struct plan p;

    MUST_FAIL(op_plan(&call, &p, &e), code, "");
}

TEST(refuses_wrong_shapes)
{
    struct op_call call;
    struct tensor t;

    refused(call_of("add", DENSE(3), DENSE(4), DENSE(4)), ERROR_SHAPE_MISMATCH);
    refused(call_of("add", DENSE(3), DENSE(3), DENSE(1, 3)), ERROR_SHAPE_MISMATCH);
    refused(call_of("add", DENSE(3), DENSE(1), DENSE(1)), ERROR_SHAPE_MISMATCH);
    refused(call_of("square", DENSE(3), DENSE(4), DENSE(4)), ERROR_SHAPE_MISMATCH);
    refused(call_of("gemm", DENSE(3, 4), DENSE(5, 6), DENSE(3, 6)), ERROR_SHAPE_MISMATCH);
    refused(call_of("gemm", DENSE(3, 4), DENSE(4, 6), DENSE(3, 5)), ERROR_SHAPE_MISMATCH);
    refused(call_of("gemm", DENSE(4), DENSE(4, 6), DENSE(6)), ERROR_SHAPE_MISMATCH);
    refused(call_of("gemm", DENSE(2, 3, 4), DENSE(3, 4, 6), DENSE(2, 3, 6)), ERROR_SHAPE_MISMATCH);
    refused(call_of("gemm", DENSE(1, 3, 4), DENSE(1, 4, 6), DENSE(2, 3, 6)), ERROR_SHAPE_MISMATCH);
    t = DENSE(3);
    t.dtype = DTYPE_F64;
    refused(call_of("add", DENSE(3), t, DENSE(3)), ERROR_DTYPE_MISMATCH);
    t = DENSE(3);
    t.strides[0] = 0;
    refused(call_of("add", DENSE(3), DENSE(3), t), ERROR_OVERLAP);
    call = call_of("gemm", DENSE(4, 3), DENSE(4, 6), DENSE(3, 6));
    refused(call, ERROR_SHAPE_MISMATCH);
    call.attrs[GEMM_TRANS_A].b = true;
    assert_int_equal(op_plan(&call, &(struct plan){0}, &(struct error){0}), 0);
}

TEST(gemm_plan_has_the_operands_strides)
{
    struct op_call call = call_of("gemm", DENSE(2, 5, 7, 3), DENSE(5, 7, 4), DENSE(2, 5, 3, 4));
    struct plan p;

    call.attrs[GEMM_TRANS_A].b = true;
    MUST(op_plan(&call, &p, &e));
    assert_int_equal(p.gemm.m, 3);
    assert_int_equal(p.gemm.n, 4);
    assert_int_equal(p.gemm.k, 7);
    assert_int_equal(p.gemm.a.row, 1);
    assert_int_equal(p.gemm.a.column, 3);
    assert_int_equal(p.gemm.batch_count, 10);
    assert_int_equal(p.gemm.batch_rank, 2);
    assert_int_equal(p.gemm.b.batch[0], 0);
    assert_int_equal(p.gemm.b.batch[1], 28);
    assert_true(p.gemm.high_precision_only);
    call = call_of("gemm", DENSE(2, 5, 3, 7), DENSE(2, 5, 7, 4), DENSE(2, 5, 3, 4));
    MUST(op_plan(&call, &p, &e));
    assert_int_equal(p.gemm.batch_rank, 1); /* merged */
    assert_int_equal(p.gemm.batch_shape[0], 10);
    call = call_of("gemm", DENSE(5, 0), DENSE(0, 7), DENSE(5, 7));
    MUST(op_plan(&call, &p, &e));
    assert_int_equal(p.gemm.k, 0);
    assert_false(plan_is_empty(&p));
}

/* Only strides that lead to an element are bounded. Those of others must not reach the plan, whose strides are
 * multiplied and added: UBSan sees it where they do. */
TEST(strides_without_elements_reach_no_plan)
{
    static const char *const names[] = {"gemm", "linear", "scaled_gemm", "add", "square", "copy"};
    static const int64_t sizes[] = {0, 0, 1, 1, 2, 3, INT64_C(1) << 31, INT64_C(1) << 62, INT64_MAX};
    static const int64_t strides[] = {0, 1, 2, 3, INT64_C(1) << 31, INT64_C(1) << 61, INT64_C(1) << 62, INT64_MAX};
    enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), STRIDES = sizeof(strides) / sizeof(strides[0]) };
    unsigned planned = 0;

    srand((unsigned)time(NULL));
    for (int n = 0; n < 200000; n++) {
        const struct op *op = op_find(names[n % 6], strlen(names[n % 6]));
        const unsigned rank = (unsigned)(2 + rand() % 4), operands = op->n_inputs + op->n_outputs;
        const bool product = n % 6 < 3;
        struct tensor tensors[PLAN_MAX_OPERANDS] = {{.rank = 0}};
        struct op_call call = {.op = op};
        int64_t shape[TENSOR_MAX_RANK], k = sizes[rand() % SIZES];
        bool fits = true;
        struct plan p;
        struct error e;

        for (unsigned i = 0; i < rank; i++)
            shape[i] = sizes[rand() % SIZES];
        for (unsigned t = 0; t < operands; t++) {
            struct tensor *x = &tensors[t];

            x->rank = rank;
            x->dtype = n % 6 == 2 ? t < 2 ? DTYPE_F8_E4M3 : DTYPE_F32 : DTYPE_F32;
            for (unsigned i = 0; i < rank; i++) {
                x->shape[i] = t < op->n_inputs && rand() % 3 == 0 ? 1 : shape[i];
                x->strides[i] = strides[rand() % STRIDES];
            }
            if (product && t == 0)
                x->shape[rank - 2] = shape[rank - 2], x->shape[rank - 1] = k;
            if (product && t == 1)
                x->shape[rank - 2] = k, x->shape[rank - 1] = shape[rank - 1];
            if (n % 6 == 2 && (t == 2 || t == 3))
                x->shape[rank - (t == 2 ? 1 : 2)] = 1;
            fits = fits && tensor_measure(x, "", &e) == 0;
            call.tensors[t] = x;
        }
        for (unsigned i = 0; i < op->n_attrs; i++)
            call.attrs[i] = op->attrs[i].fallback;
        if (!fits || op_plan(&call, &p, &e) < 0)
            continue;
        planned++;
        assert_true(plan_is_empty(&p) == (tensors[operands - 1].count == 0));
        for (unsigned t = 0; p.kind == PLAN_GEMM && t < operands; t++) {
            const struct plan_matrix *m = plan_gemm_matrix(&p.gemm, t);

            for (unsigned d = 0; tensors[t].count == 0 && d < p.gemm.batch_rank; d++)
                assert_int_equal(m->batch[d], 0);
            if (tensors[t].count == 0)
                assert_true(m->row == 0 && m->column == 0);
        }
    }
    assert_true(planned > 1000);
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

static struct tensor of_dtype(struct tensor t, enum dtype dtype)
{
    t.dtype = dtype;
    MUST(tensor_measure(&t, "t", &e));
    return t;
}

static int plan_dtypes(const char *op, enum dtype a, enum dtype b, enum dtype out, struct plan *ret, struct error *e)
{
    struct op_call call = call_of(op, of_dtype(DENSE(4, 4), a), of_dtype(DENSE(4, 4), b), of_dtype(DENSE(4, 4), out));

    return op_plan(&call, ret, e);
}

TEST(outputs_have_a_declared_dtype)
{
    struct plan p;
    struct error e;

    assert_int_equal(plan_dtypes("gemm", DTYPE_BF16, DTYPE_BF16, DTYPE_F32, &p, &e), 0);
    assert_int_equal(p.dtype, DTYPE_BF16);
    assert_int_equal(p.out_dtype, DTYPE_F32);
    assert_int_equal(plan_dtypes("gemm", DTYPE_F16, DTYPE_F16, DTYPE_F16, &p, &e), 0);
    assert_int_equal(p.out_dtype, DTYPE_F16);
    assert_int_equal(plan_dtypes("add", DTYPE_F32, DTYPE_F32, DTYPE_F32, &p, &e), 0);
    assert_int_equal(p.out_dtype, DTYPE_F32);
    assert_int_equal(plan_dtypes("gemm", DTYPE_BF16, DTYPE_BF16, DTYPE_F16, &p, &e), -1);
    assert_int_equal(e.code, ERROR_DTYPE_MISMATCH);
    assert_string_equal(e.message, "out[0] is f16; beside inputs of bf16 it may be f32 or bf16");
    assert_int_equal(plan_dtypes("gemm", DTYPE_F32, DTYPE_F32, DTYPE_BF16, &p, &e), -1);
    assert_int_equal(plan_dtypes("gemm", DTYPE_BF16, DTYPE_F32, DTYPE_F32, &p, &e), -1);
    assert_string_equal(e.message, "in[1] is f32, but in[0] is bf16; convert one of them first");
    assert_int_equal(plan_dtypes("add", DTYPE_BF16, DTYPE_BF16, DTYPE_F32, &p, &e), -1);
    assert_string_equal(e.message, "out[0] is f32, but in[0] is bf16; convert one of them first");
}

/* A product of 7 x 3 by 3 x 4 in two batches, whose scales have these shapes. */
static int plan_scaled(struct tensor a, struct tensor b, struct tensor scale_a, struct tensor scale_b, enum dtype out,
                       struct plan *ret, struct error *e)
{
    struct tensor product = of_dtype(DENSE(2, 7, 4), out);
    struct op_call call = {.op = op_find("scaled_gemm", 11), .tensors = {&a, &b, &scale_a, &scale_b, &product}};

    call.attrs[SCALED_GEMM_PRECISION].choice = SCALED_GEMM_PRECISION_MEDIUM;
    return op_plan(&call, ret, e);
}

TEST(scales_are_of_all_or_of_rows_and_columns)
{
    const struct tensor a = of_dtype(DENSE(2, 7, 3), DTYPE_F8_E4M3), b = of_dtype(DENSE(3, 4), DTYPE_F8_E5M2);
    struct tensor one = {.dtype = DTYPE_F32};
    struct plan p;
    struct error e;

    assert_int_equal(tensor_measure(&one, "t", &e), 0);
    assert_int_equal(plan_scaled(a, b, one, one, DTYPE_BF16, &p, &e), 0);
    assert_true(p.gemm.has_scales && p.gemm.fast_sums && !p.gemm.all_in_f32 && p.gemm.alpha == 1 && p.gemm.beta == 0);
    assert_true(p.dtype == DTYPE_F8_E4M3 && p.gemm.b_dtype == DTYPE_F8_E5M2 && p.out_dtype == DTYPE_BF16);
    assert_int_equal(plan_dtype(&p, 4, 0), DTYPE_F8_E4M3);
    assert_int_equal(plan_dtype(&p, 4, 1), DTYPE_F8_E5M2);
    assert_int_equal(plan_dtype(&p, 4, 3), DTYPE_F32);
    assert_int_equal(plan_dtype(&p, 4, 4), DTYPE_BF16);
    assert_true(p.gemm.extra[0].row == 0 && p.gemm.extra[1].column == 0);
    assert_int_equal(plan_scaled(a, b, DENSE(7, 1), DENSE(4), DTYPE_F32, &p, &e), 0);
    assert_true(p.gemm.extra[0].row == 1 && p.gemm.extra[0].column == 0 && p.gemm.extra[0].batch[0] == 0);
    assert_true(p.gemm.extra[1].row == 0 && p.gemm.extra[1].column == 1);
    assert_int_equal(plan_scaled(a, b, DENSE(2, 7, 1), DENSE(2, 1, 1), DTYPE_F16, &p, &e), 0);
    assert_true(p.gemm.extra[0].batch[0] == 7 && p.gemm.extra[1].batch[0] == 1);

    assert_int_equal(plan_scaled(a, b, DENSE(7), one, DTYPE_F32, &p, &e), -1);
    assert_int_equal(e.code, ERROR_SHAPE_MISMATCH);
    assert_string_equal(e.message, "in[2]: dimension 0 has size 7; a scale of each row has the shape [rows, 1]");
    assert_int_equal(plan_scaled(a, b, one, DENSE(4, 1), DTYPE_F32, &p, &e), -1);
    assert_string_equal(e.message, "in[3]: dimension 0 has size 4; a scale of each column has the shape [columns]");
    assert_int_equal(plan_scaled(a, b, DENSE(6, 1), one, DTYPE_F32, &p, &e), -1);
    assert_string_equal(e.message, "in[2]: dimension 0 of size 6 does not broadcast to the product's 7");
    assert_int_equal(plan_scaled(a, b, DENSE(1, 1, 1, 1), one, DTYPE_F32, &p, &e), -1);
    assert_string_equal(e.message, "in[2]: has 4 dimensions, the product has 3");

    assert_int_equal(plan_scaled(a, of_dtype(b, DTYPE_I8), one, one, DTYPE_F32, &p, &e), -1);
    assert_int_equal(e.code, ERROR_DTYPE_MISMATCH);
    assert_string_equal(e.message, "in[1] is i8; scaled_gemm's b is f8_e4m3 or f8_e5m2");
    assert_int_equal(plan_scaled(a, b, one, of_dtype(one, DTYPE_F16), DTYPE_F32, &p, &e), -1);
    assert_string_equal(e.message, "in[3] is f16; scaled_gemm's scale_b is f32");
    assert_int_equal(plan_scaled(a, b, one, one, DTYPE_F64, &p, &e), -1);
    assert_string_equal(e.message, "out[0] is f64; beside inputs of f8_e4m3 it may be f32 or f16 or bf16");
    assert_int_equal(plan_scaled(of_dtype(DENSE(2, 7, 3), DTYPE_F16), b, one, one, DTYPE_F32, &p, &e), -1);
    assert_int_equal(e.code, ERROR_UNKNOWN_DTYPE);
}
