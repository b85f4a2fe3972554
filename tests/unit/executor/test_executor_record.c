/* Steps on their way to an executor: what a backend reads of a step arrives, and a packed step that was cut or altered
 * is refused or harmless. */
#include "executor/record.h"
#include "tests/support/unit.h"

enum { ROOM = 4096 };

static int64_t any(void)
{
    return ((int64_t)rand() << 31 ^ rand()) - (1 << 30);
}

/* A step as the decoder might make it; what it does not use is noise. */
static void make_step(struct step *s, enum plan_kind kind)
{
    static const char names[2][STEP_VARIANT_BYTES] = {"", "vector4"};

    for (size_t i = 0; i < sizeof(*s); i++)
        ((unsigned char *)s)[i] = (unsigned char)rand();
    s->op = (uint16_t)(kind == PLAN_ELEMENTWISE ? OP_ADD : kind == PLAN_GEMM ? OP_GEMM : OP_COUNT);
    s->n_inputs = (uint8_t)(kind == PLAN_KERNEL ? rand() % 9 : 2);
    s->n_outputs = (uint8_t)(kind == PLAN_KERNEL ? rand() % 8 : 1);
    step_copy_variant(s->variant, names[rand() % 2]);
    s->plan.kind = kind;
    s->plan.dtype = DTYPE_F32;
    if (kind == PLAN_ELEMENTWISE) {
        s->plan.elementwise.rank = 1 + (unsigned)rand() % TENSOR_MAX_RANK;
        s->plan.elementwise.contiguous = rand() % 2;
    }
    if (kind == PLAN_KERNEL)
        s->plan.kernel.param_bytes = (uint16_t)(rand() % (KERNEL_PARAM_BYTES + 1));
    if (kind == PLAN_GEMM) {
        s->plan.gemm.high_precision_only = rand() % 2;
        s->plan.gemm.has_bias = s->plan.gemm.has_scales = false;
        *(rand() % 2 ? &s->plan.gemm.has_bias : &s->plan.gemm.has_scales) = rand() % 2;
        s->n_inputs = (uint8_t)(2 + plan_gemm_extras(&s->plan.gemm));
    }
    for (unsigned i = 0; i < step_operands(s); i++)
        s->operands[i].memory = (uint32_t)any();
}

static void same_elementwise(const struct plan_elementwise *a, const struct plan_elementwise *b, unsigned operands)
{
    const size_t row = a->rank * sizeof(int64_t);

    assert_int_equal(a->rank, b->rank);
    assert_true(a->count == b->count && a->contiguous == b->contiguous);
    assert_memory_equal(a->shape, b->shape, row);
    for (unsigned i = 0; i < operands; i++)
        assert_memory_equal(a->strides[i], b->strides[i], row);
}

static void same_step(const struct step *a, const struct step *b, const uint32_t *memories)
{
    assert_int_equal(a->op, b->op);
    assert_int_equal(a->n_inputs, b->n_inputs);
    assert_int_equal(a->n_outputs, b->n_outputs);
    assert_int_equal(a->in_place, b->in_place);
    assert_string_equal(a->variant, b->variant);
    if (a->op < OP_COUNT)
        assert_memory_equal(a->attrs, b->attrs, op_get((enum op_id)a->op)->n_attrs * sizeof(a->attrs[0]));
    assert_int_equal(a->plan.kind, b->plan.kind);
    assert_int_equal(a->plan.dtype, b->plan.dtype);
    if (a->plan.kind == PLAN_ELEMENTWISE)
        same_elementwise(&a->plan.elementwise, &b->plan.elementwise, step_operands(a));
    else if (a->plan.kind == PLAN_GEMM)
        assert_memory_equal(&a->plan.gemm, &b->plan.gemm,
                            offsetof(struct plan_gemm, extra) +
                                plan_gemm_extras(&a->plan.gemm) * sizeof(struct plan_matrix));
    else
        assert_memory_equal(&a->plan.kernel, &b->plan.kernel,
                            offsetof(struct plan_kernel, params) + a->plan.kernel.param_bytes);
    for (unsigned i = 0; i < step_operands(a); i++) {
        assert_int_equal(b->operands[i].memory, memories[i]);
        assert_true(a->operands[i].offset == b->operands[i].offset && a->operands[i].extent == b->operands[i].extent);
    }
}

TEST(test_a_step_arrives)
{
    static unsigned char packed[ROOM];
    uint32_t memories[STEP_MAX_OPERANDS];
    struct step from, to;

    srand(3);
    for (unsigned i = 0; i < 5000; i++) {
        uint32_t bytes;

        make_step(&from, (enum plan_kind)(i % 3));
        for (unsigned o = 0; o < STEP_MAX_OPERANDS; o++)
            memories[o] = (uint32_t)rand();
        bytes = step_packed_bytes(&from);
        assert_true(bytes <= sizeof(packed));
        memset(packed, 0xa5, sizeof(packed));
        memset(&to, 0x5a, sizeof(to));
        assert_int_equal(step_pack(&from, memories, packed), bytes);
        assert_int_equal(packed[bytes], 0xa5); /* no more was written */
        assert_int_equal(step_unpack(packed, sizeof(packed), &to), bytes);
        same_step(&from, &to, memories);
        assert_int_equal(step_unpack(packed, bytes - 1, &to), 0);
    }
}

TEST(test_an_altered_step_is_refused_or_harmless)
{
    uint32_t memories[STEP_MAX_OPERANDS] = {0};
    struct step from, to;

    srand(4);
    for (unsigned i = 0; i < 20000; i++) {
        uint32_t bytes, got;
        unsigned char *packed; /* of its exact size, for tools that see reads behind the end */

        make_step(&from, (enum plan_kind)(i % 3));
        bytes = step_packed_bytes(&from);
        packed = malloc(bytes);
        step_pack(&from, memories, packed);
        for (unsigned n = 1 + (unsigned)rand() % 3; n--;)
            packed[rand() % 16] = (unsigned char)rand();
        got = step_unpack(packed, bytes, &to);
        assert_true(got <= bytes);
        if (got)
            assert_true(step_operands(&to) <= STEP_MAX_OPERANDS && to.op <= OP_COUNT);
        free(packed);
    }
}
