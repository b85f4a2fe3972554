/* Signatures of user kernels: the parameter list and launch geometry that a client declared once, checked against the
 * binary, and against every call. A signature becomes, with a call's arguments, a plan (core/plan.h).
 *
 * A signature is counted: the kernel's id, programs and running jobs hold references; loop thread only. It holds a
 * struct op of its own, so that a user kernel goes the way of the ops: the op's inputs are the `in` tensors in the
 * order of the parameters, its outputs the `out` and `inout` ones. That is the order of operands everywhere. */
#ifndef KOPS_CORE_KERNEL_H
#define KOPS_CORE_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/expr.h"
#include "core/op.h"
#include "core/plan.h"
#include "core/tensor.h"
#include "proto/generated/kernels.h"
#include "util/error.h"

enum {
    KERNEL_MAX_PARAMS = KERNELS_PARAMS_MAX,
    KERNEL_MAX_TENSORS = STEP_MAX_OPERANDS,
    KERNEL_MAX_NAME = KERNELS_PARAM_NAME_MAX + 1, /* with the terminating 0 */
    KERNEL_MAX_ALIGN = KERNELS_ALIGN_MAX,         /* the alignment of every allocation of the device */
};

enum kernel_param_kind { KERNEL_IN, KERNEL_OUT, KERNEL_INOUT, KERNEL_SCALAR };

/* ---- A client's declaration. Texts are borrowed for kernel_signature_new() and need no terminating 0. ---- */

enum kernel_value_type { KERNEL_ABSENT, KERNEL_NUMBER, KERNEL_TEXT };

struct kernel_value {
    enum kernel_value_type type;
    int64_t number;
    const char *text; /* an expression (core/expr.h) */
    size_t length;
};

/* A tensor map in place of a pointer; dimensions as the tensor's, the outermost first. Sizes are bytes, 0: none. */
struct kernel_map_declaration {
    unsigned n_box; /* the tensor's rank; 0: there is no map */
    struct kernel_value box[PLAN_MAP_RANK];
    unsigned n_steps; /* 0: 1 in each dimension */
    int64_t steps[PLAN_MAP_RANK];
    uint64_t swizzle, interleave, l2;
    bool nan, tf32;
};

struct kernel_param_declaration {
    const char *name;
    size_t name_length;
    enum kernel_param_kind kind;
    enum dtype dtype;
    /* The rest is for tensors; zeroes for scalars, but rank and n_shape are -1. */
    int rank;                                   /* -1: any, or n_shape's */
    int n_shape;                                /* -1: no shape declared */
    struct kernel_value shape[TENSOR_MAX_RANK]; /* exactly so large; absent: any size */
    struct kernel_value elements;               /* at least so many; absent: any number */
    uint64_t align;                             /* bytes; 0: the element's size */
    bool strided;                               /* any strides; false: row-major and dense */
    struct kernel_map_declaration map;
    /* Of a scalar: so many of the dtype, a structure, where there is more than 1. */
    uint64_t lanes;
};

/* One number for each dimension; n = 0: not declared. */
struct kernel_dimensions_declaration {
    unsigned n;
    struct kernel_value at[3];
};

struct kernel_declaration {
    const char *entry;
    size_t entry_length;
    uint64_t code; /* op.code */
    unsigned n_params;
    const struct kernel_param_declaration *params;
    struct kernel_dimensions_declaration grid, block, cluster;
    struct kernel_value shared; /* dynamic bytes; absent: 0 */
    bool alias;                 /* written tensors may overlap other tensors and themselves */
    bool cooperative, pdl;      /* see struct plan_kernel */
    /* Of the parameters in the binary. With offsets NULL the binary does not tell: parameters are then laid out as C
     * lays out a struct of them. */
    unsigned n_binary;
    const uint32_t *offsets, *sizes;
};

/* ---- The checked signature. ---- */

/* Enumerations by CUDA's numbers; the rest as declared. */
struct kernel_map {
    uint8_t rank; /* 0: a pointer */
    uint8_t type, interleave, swizzle, promotion, fill;
    uint8_t steps[PLAN_MAP_RANK];
    struct expr *box[PLAN_MAP_RANK]; /* owned */
};

struct kernel_param {
    char name[KERNEL_MAX_NAME];
    unsigned index; /* among the parameters: args[index] */
    enum kernel_param_kind kind;
    enum dtype dtype;
    int rank; /* -1: any */
    bool has_shape, strided;
    struct expr *shape[TENSOR_MAX_RANK]; /* owned; NULL: any size */
    struct expr *elements;               /* owned; NULL: any number */
    unsigned align;                      /* 0: the element's size is enough */
    unsigned operand;                    /* of a tensor: its place among the operands */
    uint16_t offset, size;               /* in the kernel's parameter bytes */
    bool structure;                      /* a scalar of several lanes, whose argument is bytes */
    struct kernel_map map;
};

struct kernel_dimensions {
    unsigned n; /* 0: not declared; missing ones are 1 */
    struct expr *at[3];
};

struct kernel_signature {
    struct op op; /* of id OP_COUNT; its inputs and outputs are counted, but not named */
    unsigned refs;
    char *entry; /* op.name */
    struct kernel_dimensions grid, block, cluster;
    struct expr *shared; /* NULL: 0 */
    bool alias, cooperative, pdl;
    unsigned n_params, n_tensors;
    unsigned param_bytes; /* up to the end of the last */
    bool has_maps;
    uint32_t integers;                                       /* parameters that expressions read: a bit each */
    const struct kernel_param *operands[KERNEL_MAX_TENSORS]; /* the parameter of each operand */
    struct kernel_param params[];
};

/* Limits of the device and of the compiled function. */
struct kernel_limits {
    unsigned max_threads; /* a block */
    unsigned max_block[3], max_grid[3];
    unsigned max_shared; /* bytes of a block, static and dynamic */
    unsigned multiprocessors;
    unsigned max_cluster;  /* blocks; 0: the device has no clusters */
    unsigned max_map_rank; /* dimensions of a tensor map; 0: the device, or its driver, has none */
    unsigned cooperative;  /* whether there are cooperative launches, and */
    unsigned pdl;          /* programmatic dependent ones: without these such kernels begin in order */
    /* Of the function; 0: not known. */
    unsigned function_threads, static_shared;
};

/* One argument of a call. For a tensor `value` is unused: the tensor itself is among the call's operands. */
struct kernel_arg {
    unsigned char value[8]; /* of a scalar: its bytes, as kernel_scalar_… wrote them */
    const void *bytes;      /* of a structure: as large as its parameter; borrowed for kernel_plan() */
};

/* Geometry that a launch gives in place of the declared one. */
struct kernel_launch_dimensions {
    unsigned n; /* 0: as declared */
    int64_t at[3];
};

struct kernel_launch {
    struct kernel_launch_dimensions grid, block, cluster;
    bool has_shared;
    int64_t shared;
};

/* The caller gets the one reference. Errors name keys as `params[2].shape[0]` and `grid[1]`: signature_mismatch (the
 * binary has other parameters), invalid_argument, limit_exceeded, unknown_dtype, those of expr_parse(). */
int kernel_signature_new(const struct kernel_declaration *d, struct kernel_signature **ret, struct error *e);

struct kernel_signature *kernel_signature_ref(struct kernel_signature *s);
/* Takes NULL; returns NULL. */
struct kernel_signature *kernel_signature_unref(struct kernel_signature *s);

/* Whether a kernel reads its outputs, so that a second execution would see the results of the first. */
bool kernel_reads_output(const struct kernel_signature *s);

/* The bytes of a scalar parameter of the value. Errors, with the key `args[i]`: out_of_range (with min and max, or a
 * number too large for the floating-point type), wrong_type: a fraction or any other float for an integer, a bool for a
 * float. A bool is 0 or 1 for an integer, and those are the integers that a bool takes. Floats are rounded to nearest,
 * ties to even; NaN and infinities stay. */
int kernel_scalar_from_int(const struct kernel_param *p, int64_t value, unsigned char ret[8], struct error *e);
int kernel_scalar_from_uint(const struct kernel_param *p, uint64_t value, unsigned char ret[8], struct error *e);
int kernel_scalar_from_float(const struct kernel_param *p, double value, unsigned char ret[8], struct error *e);
int kernel_scalar_from_bool(const struct kernel_param *p, bool value, unsigned char ret[8], struct error *e);

/* The bytes of a structure, `length` of them; NULL: the argument is something else. Error: wrong_type. */
int kernel_scalar_from_bytes(const struct kernel_param *p, const void *bytes, size_t length, struct kernel_arg *ret,
                             struct error *e);

/* Checks a call, evaluates its geometry and fills ret_plan, all but plan.kernel.function. `tensors` are measured, in
 * the order of operands, NULL for a null pointer; `args` are as many as the parameters. Allocates nothing: every launch
 * comes here. When the grid is empty and so is every tensor that is written, the plan is (plan_is_empty()).
 * Errors name keys as `args[2]`, `grid[0]`, `block`, `shared`. */
int kernel_plan(const struct kernel_signature *s, const struct tensor *const *tensors, const struct kernel_arg *args,
                const struct kernel_launch *launch, const struct kernel_limits *limits, struct plan *ret_plan,
                struct error *e);

/* Refuses a cooperative launch of more blocks than the device runs at one time, `most`. Error: out_of_range, key
 * `grid`. */
int kernel_check_cooperative(const struct plan_kernel *k, uint64_t most, struct error *e);

#endif
