/* Shared by the files of core/kernel.h. */
#ifndef KOPS_CORE_KERNEL_INTERNAL_H
#define KOPS_CORE_KERNEL_INTERNAL_H

#include "core/kernel.h"

/* Puts the key before an error's message and adds it as a detail. Returns -1. */
int kernel_at_key(const char *key, struct error *e);

/* Tells whether the type is an integer or bool: the types that expressions can read. */
bool kernel_is_integer(enum dtype dtype);

/* Reads the value of an integer parameter. Error: out_of_range, for a u64 of 2^63 or more. */
int kernel_scalar_to_int(const struct kernel_param *p, const unsigned char value[8], int64_t *ret, struct error *e);

/* Checks the declaration of a tensor map (kernel_map.c), all but its expressions, and sets the parameter's rank. */
int kernel_map_declare(struct kernel_param *p, const struct kernel_map_declaration *d, struct error *e);

/* Describes a call's tensor as a map: a struct plan_map at `into`, without its address. The tensor is NULL for a null
 * pointer. Errors name `args[i]`. */
int kernel_map_describe(const struct kernel_param *p, const struct tensor *t, const struct expr_inputs *inputs,
                        const struct kernel_limits *limits, unsigned char *into, struct error *e);

#endif
