/* What every kind of execution costs: one row per op, device, dtype, variant and shapes, with percentiles.
 * At most PROFILE_MAX_ROWS rows; the least recently used makes room. Thread: loop. */
#ifndef KOPS_SERVER_PROFILE_H
#define KOPS_SERVER_PROFILE_H

#include "backend/backend.h"
#include "core/op.h"
#include "rpc/output.h"
#include "util/list.h"

enum { PROFILE_MAX_ROWS = 1024 };

struct profile;

struct profile *profile_new(void);
struct profile *profile_free(struct profile *p); /* NULL is allowed; returns NULL */

/* Records one op that ended: its executions' samples (µs) and the request's total.
 */
void profile_add(struct profile *p, const struct op_call *call, const struct backend_device *device,
                 const char *variant, const double *samples, uint32_t n_samples, double total_us);
/* The same for `count` ops that nothing was measured of. */
void profile_count(struct profile *p, const struct op_call *call, const struct backend_device *device,
                   const char *variant, uint64_t count);
void profile_add_error(struct profile *p, const struct op_call *call, const struct backend_device *device,
                       const char *variant);

struct profile_filter {
    const struct op *op;                 /* NULL: every op */
    enum dtype dtype;                    /* 0: every dtype */
    const struct backend_device *device; /* NULL: every device */
};

/* Writes the list of rows, most recently used first. */
void profile_write(const struct profile *p, const struct profile_filter *filter, struct rpc_output *out);
uint64_t profile_rows_dropped(const struct profile *p);
void profile_reset(struct profile *p);

#endif
