/* What the symbols of kernels say: the op, the dtype and how the work is laid out. The rest of a symbol says how a real
 * kernel goes about it and is accepted as it is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

_Static_assert(sizeof(struct cuda_ops_gemm_scaled) <= MAX_PARAMS && sizeof(struct cuda_ops_strided) <= MAX_PARAMS,
               "an operation has room for every kernel's parameters");

static bool parse_element(const char *name, struct kernel *k)
{
    static const struct {
        const char *name;
        enum element element;
        unsigned size;
        bool raw;
    } elements[] = {{"f32", ELEMENT_F32, 4, false}, {"tf32", ELEMENT_F32, 4, false},  {"f64", ELEMENT_F64, 8, false},
                    {"f16", ELEMENT_F16, 2, false}, {"bf16", ELEMENT_BF16, 2, false}, {"u8", ELEMENT_RAW, 1, false},
                    {"u16", ELEMENT_RAW, 2, false}, {"u32", ELEMENT_RAW, 4, false},   {"u64", ELEMENT_RAW, 8, false},
                    {"1", ELEMENT_RAW, 1, true},    {"2", ELEMENT_RAW, 2, true},      {"4", ELEMENT_RAW, 4, true},
                    {"8", ELEMENT_RAW, 8, true}};

    for (size_t i = 0; i < sizeof(elements) / sizeof(*elements); i++)
        if (strcmp(elements[i].name, name) == 0 && elements[i].raw == (k->op == KERNEL_COPY)) {
            k->element = elements[i].element;
            k->size = elements[i].size;
            return true;
        }
    return false;
}

/* "<op>_<element>_<layout>" of this op. */
static bool parse_op(const char *symbol, const char *op, enum kernel_op id, unsigned inputs, struct kernel *k)
{
    static const char *const layouts[] = {"strided", "rows", "tiles"};
    const size_t length = strlen(op);
    char element[16], layout[64];

    k->op = id;
    k->inputs = inputs;
    if (strncmp(symbol, op, length) != 0 || sscanf(symbol + length, "_%15[a-z0-9]_%63s", element, layout) != 2 ||
        !parse_element(element, k))
        return false;
    if (id == KERNEL_GEMM) {
        k->layout = strncmp(layout, "hopper_", 7) == 0 ? LAYOUT_MAPPED : LAYOUT_GEMM;
        return k->layout == LAYOUT_MAPPED || strncmp(layout, "tiled_", 6) == 0 || strncmp(layout, "skinny_", 7) == 0 ||
               strncmp(layout, "small_", 6) == 0;
    }
    k->plain = strcmp(layout, "plain") == 0;
    k->layout = k->plain || strcmp(layout, "vector") == 0 ? LAYOUT_VECTOR : LAYOUT_STRIDED;
    for (size_t i = 0; i < sizeof(layouts) / sizeof(*layouts); i++)
        if (strncmp(layout, layouts[i], strlen(layouts[i])) == 0)
            return true;
    return k->layout == LAYOUT_VECTOR;
}

static bool parse_repack(const char *symbol, struct kernel *k)
{
    static const struct {
        const char *name;
        unsigned size, pieces;
    } kinds[] = {{"kops_repack_2", 2, 0},
                 {"kops_repack_4", 4, 0},
                 {"kops_repack_8", 8, 0},
                 {"kops_repack_bf16x2", 4, 2},
                 {"kops_repack_bf16x3", 4, 3}};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        if (strcmp(kinds[i].name, symbol) == 0) {
            k->layout = LAYOUT_REPACK;
            k->size = kinds[i].size;
            k->pieces = kinds[i].pieces;
            return true;
        }
    return false;
}

static bool parse_symbol(const char *symbol, struct kernel *k)
{
    static const struct {
        const char *name;
        unsigned inputs;
    } ops[] = {[KERNEL_ADD] = {"add", 2},       [KERNEL_ADD_SQUARE] = {"add_square", 2},
               [KERNEL_SQUARE] = {"square", 1}, [KERNEL_SUB_SQUARE] = {"sub_square", 2},
               [KERNEL_COPY] = {"copy", 1},     [KERNEL_GELU] = {"gelu", 1},
               [KERNEL_GEMM] = {"gemm", 2}};

    if (strlen(symbol) >= sizeof(k->symbol) || strncmp(symbol, "kops_", 5) != 0)
        return false;
    snprintf(k->symbol, sizeof(k->symbol), "%s", symbol);
    symbol += 5;
    if (strcmp(symbol, "gate") == 0) {
        k->layout = LAYOUT_GATE;
        return true;
    }
    if (strcmp(symbol, "move") == 0) {
        k->layout = LAYOUT_MOVE;
        return true;
    }
    if (parse_repack(k->symbol, k))
        return true;
    if (strncmp(symbol, "scaled_gemm_f8_tiled_", 21) == 0) {
        k->layout = LAYOUT_SCALED;
        return true;
    }
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
        if (parse_op(symbol, ops[i].name, (enum kernel_op)i, ops[i].inputs, k))
            return true;
    return parse_op(symbol, "linear", KERNEL_GEMM, 2, k);
}

const struct kernel *kernel_find(const char *symbol)
{
    static struct kernel *known;
    struct kernel parsed = {0}, *k;

    for (k = known; k; k = k->next)
        if (strcmp(k->symbol, symbol) == 0)
            return k;
    if (!parse_symbol(symbol, &parsed))
        return NULL;
    k = malloc(sizeof(*k));
    if (!k)
        return NULL;
    *k = parsed;
    k->next = known;
    known = k;
    return k;
}

size_t kernel_params_size(const struct kernel *kernel)
{
    static const size_t sizes[] = {
        [LAYOUT_VECTOR] = sizeof(struct cuda_ops_vector),      [LAYOUT_STRIDED] = sizeof(struct cuda_ops_strided),
        [LAYOUT_GEMM] = sizeof(struct cuda_ops_gemm),          [LAYOUT_MAPPED] = sizeof(struct cuda_ops_gemm_mapped),
        [LAYOUT_SCALED] = sizeof(struct cuda_ops_gemm_scaled), [LAYOUT_GATE] = sizeof(struct cuda_ops_gate),
        [LAYOUT_MOVE] = sizeof(struct cuda_ops_move),          [LAYOUT_REPACK] = sizeof(struct cuda_ops_repack)};

    return sizes[kernel->layout];
}
