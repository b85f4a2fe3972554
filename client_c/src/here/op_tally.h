/* Launches of built-in ops in this process, of one client: a tally for each op, dtypes and device, for the daemon's
 * statistics. Thread: any. */
#ifndef KOPS_CLIENT_HERE_OP_TALLY_H
#define KOPS_CLIENT_HERE_OP_TALLY_H

#include "tally.h"

struct here_ops;
struct here_op_last;

struct here_ops *here_ops_new(void); /* NULL: no memory */
/* NULL is allowed; returns NULL. */
struct here_ops *here_ops_free(struct here_ops *o);

/* The tally of an op on tensors of these dtypes, inputs and then outputs, on a device, an ordinal of this process's;
 * NULL: no memory. */
struct here_tally *here_ops_tally(struct here_ops *o, const struct cuda_driver *d, const struct op *op,
                                  const enum dtype *dtypes, cuda_device device);

/* The client's last executions. */
struct here_op_last *here_ops_last(struct here_ops *o);

/* As here_tally_read(), of all of them. */
void here_ops_read(struct here_ops *o);

/* Calls tell() with the params of a notification `launched` for each tally that has something to tell. */
typedef void here_ops_told(void *to, const void *params, size_t length);
void here_ops_tell(struct here_ops *o, here_ops_told *tell, void *to);

#endif
