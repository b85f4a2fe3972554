/* What every kind of execution costs: one row per user, op, device, dtype, variant and shapes, with percentiles.
 * At most PROFILE_MAX_ROWS rows; the least recently used makes room. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_PROFILE_H
#define KOPS_SERVER_OBSERVE_PROFILE_H

#include <sys/types.h>

#include "backend/backend.h"
#include "core/op.h"
#include "rpc/output.h"
#include "util/list.h"

enum { PROFILE_MAX_ROWS = 1024, PROFILE_NAME_MAX = 128 /* longer ones are cut */ };

struct profile;

struct profile *profile_new(void);
struct profile *profile_free(struct profile *p); /* NULL is allowed; returns NULL */

struct latency; /* server/observe/latency.h */

/* Records one op of a user that ended: its executions' samples (µs), and how long the request waited and took in all.
 */
void profile_add(struct profile *p, uid_t uid, const struct op_call *call, const struct backend_device *device,
                 const char *variant, const double *samples, uint32_t n_samples, const struct latency *latency);
/* The same for `count` ops that nothing was measured of. */
void profile_count(struct profile *p, uid_t uid, const struct op_call *call, const struct backend_device *device,
                   const char *variant, uint64_t count);
void profile_add_error(struct profile *p, uid_t uid, const struct op_call *call, const struct backend_device *device,
                       const char *variant);

struct profile_filter {
    bool everybody;                      /* rows of all users, else … */
    uid_t uid;                           /* … of this one */
    char op[PROFILE_NAME_MAX];           /* "": every op; the name of an op or of a user kernel */
    enum dtype dtype;                    /* 0: every dtype */
    const struct backend_device *device; /* NULL: every device */
};

/* Whether there is a row of filter->op, among those of the users that the filter lets through. */
bool profile_knows(const struct profile *p, const struct profile_filter *filter);

/* Writes the list of rows, most recently used first. */
void profile_write(const struct profile *p, const struct profile_filter *filter, struct rpc_output *out);
uint64_t profile_rows_dropped(const struct profile *p);
void profile_reset(struct profile *p);

#endif
