/* Signatures of user kernels: what a declaration may say, and what the binary must have. */
#include "kernel_support.h"

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
    assert_true(kernel_reads_output(s));
    assert_ptr_equal(kernel_signature_ref(s), s);
    assert_null(kernel_signature_unref(s));
    assert_string_equal(s->params[1].name, "x"); /* still there */
    assert_null(kernel_signature_unref(NULL));
    d = declaration_of(ADD, 4);
    s = signature_of(&d);
    assert_false(kernel_reads_output(s));
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
