/* Declarations of this layer as messages have them: dtypes by name, and the params of the method `kernel`. Nothing here
 * depends on a connection. */
#ifndef KOPS_CORE_DECODE_H
#define KOPS_CORE_DECODE_H

#include "core/dtype.h"
#include "core/kernel.h"
#include "proto/generated/methods.h"
#include "rpc/value.h"

/* The places of `kernel`'s params in `args`. */
#define X(key, ...) KERNEL_##key,
enum { KOPS_PARAMS_KERNEL(X) };
#undef X

/* Finds a dtype by its name; `path` comes before "dtype" in errors. */
int dtype_decode(const struct rpc_arg *name, const char *path, enum dtype *ret, struct error *e);

/* Fills what the params say: all members but entry, code and those of the binary. Texts are the message's, `params` the
 * caller's. Errors: wrong_type, invalid_argument, unknown_dtype, limit_exceeded, those of rpc_decode_map(). */
int kernel_declaration_decode(const struct rpc_arg *args, struct kernel_param_declaration params[KERNEL_MAX_PARAMS],
                              struct kernel_declaration *d, struct error *e);

#endif
