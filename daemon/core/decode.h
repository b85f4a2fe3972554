/* Declarations of this layer as messages have them: dtypes by name, attributes of ops, and the params of the method
 * `kernel`. Nothing here depends on a connection. */
#ifndef KOPS_CORE_DECODE_H
#define KOPS_CORE_DECODE_H

#include "core/kernel.h"
#include "core/op.h"
#include "core/tensor.h"
#include "proto/generated/methods.h"
#include "rpc/value.h"

/* Finds a dtype by its name; `path` comes before "dtype" in errors. */
int dtype_decode(const struct rpc_arg *name, const char *path, enum dtype *ret, struct error *e);

/* Fills the op's attributes, as many as it declares, from a map of them (NULL: none is given); *ret_variant gets
 * `variant`, if it is there. Errors: unknown_key, wrong_type, invalid_argument. */
int op_attrs_decode(const struct op *op, const struct rpc_value *map, union op_attr_value *into,
                    struct rpc_arg *ret_variant, struct error *e);

/* Fills what the params say: all members but entry, code and those of the binary. Texts are the message's, `params` the
 * caller's. Errors: wrong_type, invalid_argument, unknown_dtype, limit_exceeded, those of rpc_decode_map(). */
int kernel_declaration_decode(const struct rpc_arg *args, struct kernel_param_declaration params[KERNEL_MAX_PARAMS],
                              struct kernel_declaration *d, struct error *e);

#endif
