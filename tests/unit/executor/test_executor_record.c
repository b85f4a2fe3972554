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
    memset(s->variant, 0, sizeof(s->variant));
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

static void expect_altered_is_harmless(const unsigned char *packed, uint32_t bytes)
{
    for (unsigned round = 0; round < 4; round++) {
        unsigned char *altered = malloc(bytes); /* of its exact size, for tools that see reads behind the end */
        struct step to;
        uint32_t got;

        memcpy(altered, packed, bytes);
        for (unsigned n = 1 + (unsigned)rand() % 3; n--;)
            altered[rand() % 16] = (unsigned char)rand();
        got = step_unpack(altered, bytes, &to);
        assert_true(got <= bytes);
        assert_true(!got || (step_operands(&to) <= STEP_MAX_OPERANDS && to.op <= OP_COUNT));
        free(altered);
    }
}

/* A step that has arrived is packed once more: the bytes are the same. */
TEST(test_packed_steps)
{
    static unsigned char packed[ROOM], again[ROOM];
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
        assert_int_equal(step_pack(&from, memories, packed), bytes);
        assert_int_equal(packed[bytes], 0xa5); /* no more was written */
        assert_int_equal(step_unpack(packed, sizeof(packed), &to), bytes);
        for (unsigned o = 0; o < step_operands(&from); o++)
            assert_int_equal(to.operands[o].memory, memories[o]);
        assert_int_equal(step_pack(&to, memories, again), bytes);
        assert_memory_equal(packed, again, bytes);
        assert_true(from.op == to.op && from.in_place == to.in_place && from.plan.kind == to.plan.kind);
        assert_int_equal(step_unpack(packed, bytes - 1, &to), 0);
        expect_altered_is_harmless(packed, bytes);
    }
}
