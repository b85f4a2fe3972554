/* The profile: the cost of every kind of execution. One row for each user, op, device, dtype, variant and shapes, with
 * percentiles. At most PROFILE_MAX_ROWS rows; the least recently used row makes room, for users that have half of them
 * one of their own. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_PROFILE_H
#define KOPS_SERVER_OBSERVE_PROFILE_H

#include <sys/types.h>

#include "backend/backend.h"
#include "core/op.h"
#include "rpc/output.h"
#include "rpc/record.h"
#include "server/account/identity.h"
#include "util/list.h"

enum { PROFILE_MAX_ROWS = 1024, PROFILE_NAME_MAX = 128 /* longer names are cut */ };

struct profile;

struct profile *profile_new(void);
struct profile *profile_free(struct profile *p); /* NULL is allowed; returns NULL. */

struct latency; /* server/observe/latency.h */

/* Records an op of a user that ended: the samples of its executions (µs), and the request's queue and total times.
 * Returns the row's number, which is never given twice; 0: no memory. */
uint64_t profile_add(struct profile *p, uid_t uid, const struct op_call *call, const struct backend_device *device,
                     const char *variant, const double *samples, uint32_t n_samples, const struct latency *latency);
/* Adds the time of an execution that was recorded without it, unless the row is gone. */
void profile_time(struct profile *p, uint64_t row, double us);
/* Counts `count` ops without measured times. */
void profile_count(struct profile *p, uid_t uid, const struct op_call *call, const struct backend_device *device,
                   const char *variant, uint64_t count);
/* Records `count` ops that the user tells of, with the times (µs) of `n` of them. */
void profile_tell(struct profile *p, uid_t uid, const struct op_call *call, const struct backend_device *device,
                  const char *variant, uint64_t count, const double *us, unsigned n);
void profile_add_error(struct profile *p, uid_t uid, const struct op_call *call, const struct backend_device *device,
                       const char *variant);

struct profile_filter {
    bool everybody;                      /* rows of all users, or only … */
    uid_t uid;                           /* … of this user */
    char op[PROFILE_NAME_MAX];           /* "": every op; the name of an op or of a user kernel */
    enum dtype dtype;                    /* 0: every dtype */
    const struct backend_device *device; /* NULL: every device */
};

/* Whether a row of filter->op exists, among the users that the filter lets through. */
bool profile_knows(const struct profile *p, const struct profile_filter *filter);

/* The rows that a filter lets through, the most recently used first. */
struct profile_walk {
    const struct server *server;
    const struct profile_filter *filter;
    const struct list **at; /* the last row that was written */
};
struct rpc_values profile_rows(const struct profile *p, const struct profile_walk *walk);
uint64_t profile_rows_dropped(const struct profile *p);
void profile_reset(struct profile *p);

/* ---- keys ---- */

/* A key of ops and kernels tells the profile's rows and the kinds of a trace apart. */
/* The part of a key beside the shapes. An op has an id. User kernels come and go, and have the `code` of their
 * signature. Padding is zero too: heads are compared as bytes. */
struct op_key_head {
    uint64_t code;
    uid_t uid;
    const struct backend_device *device;
    char variant[STEP_VARIANT_BYTES]; /* "" when none was chosen */
    enum op_id op;
    enum dtype dtype, out_dtype; /* dtype of the first tensor, and of an op's outputs */
    unsigned operands;
    unsigned words; /* words of the shapes */
    unsigned what;  /* the caller's own */
    unsigned ops;   /* the caller's own */
};

enum { OP_KEY_WORDS_MAX = STEP_MAX_OPERANDS * (1 + TENSOR_MAX_RANK) };

struct op_key {
    struct op_key_head head;
    const char *name;                /* name of the op; owned by the caller */
    int64_t words[OP_KEY_WORDS_MAX]; /* for each operand its rank, then its shape */
};

void op_key_make(struct op_key *key, uid_t uid, const struct op_call *call, const struct backend_device *device,
                 const char *variant);
uint64_t op_key_hash(const struct op_key *key);
bool op_key_is(const struct op_key *key, const struct op_key_head *head, const int64_t *words);

/* Writes a shape of a list; `of` are the words. */
rpc_each op_key_each_shape;

#endif
