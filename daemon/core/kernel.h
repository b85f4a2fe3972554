/* Signatures of users' kernels: a parameter list and launch geometry that a client declared once, checked against the
 * binary, and against every call. A signature with a call's arguments becomes a plan (core/plan.h).
 *
 * A signature is counted: the kernel's id, programs and running jobs hold references; loop thread only. It has a struct
 * op of its own, so that users' kernels are handled like ops: the op's inputs are the `in` tensors in the order of the
 * parameters, its outputs the `out` and `inout` ones. Operands have this order everywhere. */
#ifndef KOPS_CORE_KERNEL_H
#define KOPS_CORE_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* A tensor map in place of a pointer. Dimensions are ordered as the tensor's, the outermost first. Sizes are in bytes,
 * 0: none. */
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
    /* The members below are for tensors. Scalars have zeroes there, but -1 in rank and n_shape. */
    int rank;                                   /* -1: any, or n_shape's */
    int n_shape;                                /* -1: no shape declared */
    struct kernel_value shape[TENSOR_MAX_RANK]; /* exact sizes; absent: any size */
    struct kernel_value elements;               /* least number; absent: any number */
    uint64_t align;                             /* bytes; 0: the element's size */
    bool strided;                               /* any strides; false: row-major and dense */
    struct kernel_map_declaration map;
    /* Elements of a scalar, which is a structure where there is more than 1. */
    uint64_t lanes;
};

/* A number for each dimension; n = 0: not declared. */
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
    /* Parameters of the binary. With offsets NULL the binary does not tell: parameters are then laid out as C lays out
     * a struct of them. */
    unsigned n_binary;
    const uint32_t *offsets, *sizes;
};

/* ---- The checked signature. ---- */

/* A checked map: enumerations are CUDA's numbers; the rest is as declared. */
struct kernel_map {
    uint8_t rank; /* 0: a pointer */
    uint8_t type, interleave, swizzle, promotion, fill;
    uint8_t steps[PLAN_MAP_RANK];
    struct expr *box[PLAN_MAP_RANK]; /* owned */
};

struct kernel_param {
    char name[KERNEL_MAX_NAME];
    unsigned index; /* index among the parameters: args[index] */
    enum kernel_param_kind kind;
    enum dtype dtype;
    int rank; /* -1: any */
    bool has_shape, strided;
    struct expr *shape[TENSOR_MAX_RANK]; /* owned; NULL: any size */
    struct expr *elements;               /* owned; NULL: any number */
    unsigned align;                      /* 0: the element's size */
    unsigned operand;                    /* a tensor's index among the operands */
    uint16_t offset, size;               /* place in the kernel's parameter bytes */
    bool structure;                      /* a scalar of several lanes, whose argument is bytes */
    struct kernel_map map;
};

struct kernel_dimensions {
    unsigned n; /* 0: not declared; missing dimensions are 1 */
    struct expr *at[3];
};

struct kernel_signature {
    struct op op; /* op with id OP_COUNT; its inputs and outputs are counted, but not named */
    char *entry;  /* op.name */
    struct kernel_dimensions grid, block, cluster;
    struct expr *shared; /* NULL: 0 */
    bool alias, cooperative, pdl;
    unsigned n_params, n_tensors;
    unsigned param_bytes; /* bytes up to the end of the last parameter */
    bool has_maps;
    uint32_t integers;                                       /* parameters that expressions read, a bit each */
    const struct kernel_param *operands[KERNEL_MAX_TENSORS]; /* the parameter of each operand */
    struct kernel_param params[];
};

/* Limits of the device and of the compiled function. */
struct kernel_limits {
    unsigned max_threads; /* threads of a block */
    unsigned max_block[3], max_grid[3];
    unsigned max_shared; /* bytes of a block, static and dynamic */
    unsigned multiprocessors;
    unsigned max_cluster;  /* blocks; 0: the device has no clusters */
    unsigned max_map_rank; /* dimensions of a tensor map; 0: the device, or its driver, has none */
    unsigned cooperative;  /* 1: there are cooperative launches */
    unsigned pdl;          /* 1: there are programmatic dependent launches; without them such kernels begin in order */
    /* The compiled function's limits; 0: not known. */
    unsigned function_threads, static_shared;
};

/* An argument of a call. A tensor's `value` is unused: the tensor is among the call's operands. */
struct kernel_arg {
    unsigned char value[8]; /* a scalar's bytes, as kernel_scalar_…() wrote them */
    const void *bytes;      /* a structure's bytes, as many as its parameter has; borrowed for kernel_plan() */
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

/* Makes a signature, which is the caller's. Errors name keys as `params[2].shape[0]` and `grid[1]`:
 * signature_mismatch (the binary has other parameters), invalid_argument, limit_exceeded, unknown_dtype, those of
 * expr_parse(). */
int kernel_signature_new(const struct kernel_declaration *d, struct kernel_signature **ret, struct error *e);

/* NULL is allowed; returns NULL. */
struct kernel_signature *kernel_signature_free(struct kernel_signature *s);

/* Write the bytes of a scalar parameter. Errors, with the key `args[i]`: out_of_range (with min and max, or a number
 * too large for the floating-point type), wrong_type (a fraction or any other float for an integer, a bool for a
 * float). A bool is 0 or 1 for an integer, and a bool takes only these integers. Floats are rounded to nearest, ties to
 * even; NaN and infinities stay. */
int kernel_scalar_from_int(const struct kernel_param *p, int64_t value, unsigned char ret[8], struct error *e);
int kernel_scalar_from_uint(const struct kernel_param *p, uint64_t value, unsigned char ret[8], struct error *e);
int kernel_scalar_from_float(const struct kernel_param *p, double value, unsigned char ret[8], struct error *e);
int kernel_scalar_from_bool(const struct kernel_param *p, bool value, unsigned char ret[8], struct error *e);

/* Sets a structure's argument to `length` bytes; NULL: the argument is something else. Error: wrong_type. */
int kernel_scalar_from_bytes(const struct kernel_param *p, const void *bytes, size_t length, struct kernel_arg *ret,
                             struct error *e);

/* Checks a call, evaluates its geometry and fills ret_plan, all but plan.kernel.function. `tensors` are measured, in
 * the order of operands, NULL for a null pointer; `args` has one for each parameter. Allocates nothing, since every
 * launch comes here. Where the grid and every written tensor are empty, the plan is empty (plan_is_empty()). Errors
 * name keys as `args[2]`, `grid[0]`, `block`, `shared`. */
int kernel_plan(const struct kernel_signature *s, const struct tensor *const *tensors, const struct kernel_arg *args,
                const struct kernel_launch *launch, const struct kernel_limits *limits, struct plan *ret_plan,
                struct error *e);

/* Refuses a cooperative launch of more blocks than the device runs at one time, `most`. Error: out_of_range, key
 * `grid`. */
int kernel_check_cooperative(const struct plan_kernel *k, uint64_t most, struct error *e);

/* ---- of the files of this header, for each other ---- */

/* Puts the key before an error's message and adds it as a detail. Returns -1. */
int kernel_at_key(const char *key, struct error *e);

/* Tells whether the type is an integer or bool: the types that expressions can read. */
bool kernel_is_integer(enum dtype dtype);

/* Reads the value of an integer parameter. Error: out_of_range, for a u64 of 2^63 or more. */
int kernel_scalar_to_int(const struct kernel_param *p, const unsigned char value[8], int64_t *ret, struct error *e);

/* Describes a call's tensor as a map: a struct plan_map at `into`, without its address. The tensor is NULL for a null
 * pointer. Errors name `args[i]`. */
int kernel_map_describe(const struct kernel_param *p, const struct tensor *t, const struct expr_inputs *inputs,
                        const struct kernel_limits *limits, unsigned char *into, struct error *e);

#endif
