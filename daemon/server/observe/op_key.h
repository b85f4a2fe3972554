/* A key of ops and kernels tells the profile's rows and the kinds of a trace apart. Thread: any.
 */
#ifndef KOPS_SERVER_OBSERVE_OP_KEY_H
#define KOPS_SERVER_OBSERVE_OP_KEY_H

#include <sys/types.h>

#include "backend/backend.h"
#include "core/op.h"
#include "rpc/record.h"

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
