/* Bodies: the tensors and ops of runs and programs. Thread: loop. */
#ifndef KOPS_SERVER_EXEC_COMMAND_LIST_H
#define KOPS_SERVER_EXEC_COMMAND_LIST_H

#include "backend/mapping.h"
#include "core/op.h"
#include "rpc/value.h"
#include "server/account/shared_charge.h"
#include "server/peer/connection.h"

enum { SEQUENCE_OPS_MAX = 512, SEQUENCE_TENSORS_MAX = 2048 };
/* Of a connection, for its programs. */
enum { PROGRAM_BYTES_MAX = 128 << 20 };

/* Of all checks of a body, its repetition's included: a millisecond. Where they do not suffice, byte ranges that meet
 * count as shared. */
enum { BODY_SEARCH_STEPS = 24 * 1024 };

/* Where a connection counts the memory of its command lists of one kind, and the quota that they count in. */
struct command_memory {
    struct account *account; /* the connection's */
    enum quota quota;
    uint64_t *bytes;
};

/* A run's use of one tensor's memory. */
struct operand_ref {
    struct mapping *mapping;      /* used; NULL for an empty tensor */
    struct shared_charge *shared; /* a reference; where there is a mapping */
    bool writable;                /* the reference allows writing */
    bool waiting;
    struct mapping_waiter waiter;
};

struct kernel;

/* What a run computes: tensors, and steps on them in order. */
struct command_list {
    unsigned n_tensors, n_steps;
    unsigned n_launches; /* of the steps: kernels of users */
    struct tensor *tensors;
    struct operand_ref *refs; /* of the tensors */
    struct backend_step *steps;
    struct kernel **kernels;    /* of the steps: references; NULL: one of the ops */
    void *memory;               /* what the arrays lie in; NULL: the run itself */
    size_t bytes;               /* of it */
    struct command_memory *pot; /* where they are counted, */
    struct charge charge;       /* and for their user */
    unsigned search_steps;      /* left for finding out which tensors share elements */
};

struct run;

/* The body of one op, in the run itself. */
void command_list_init_single(struct run *run, unsigned n_tensors);
/* Room for that much, counted in *pot and, without asking, for its user; tensors have no memory yet. -1: no memory. */
int command_list_new(struct command_list *ret_body, unsigned n_tensors, unsigned n_steps, struct command_memory *pot,
                     struct error *e);
/* Counts its memory there instead. */
void command_list_move(struct command_list *commands, struct command_memory *pot);
/* The i-th step as the shape rules see it, with its tensors; good as long as the list is unchanged. */
struct op_call command_list_call(const struct command_list *commands, unsigned i);

/* Gives the mappings back; what is computed stays. */
void command_list_unuse(struct command_list *commands);
/* Gives the mappings and the memory back. Harmless on zeroes and twice. */
void command_list_release(struct command_list *commands);

/* "tensors[7].", formatted once for all requests: where a tensor of a sequence lies, for errors. i <
 * SEQUENCE_TENSORS_MAX. */
const char *tensor_path(unsigned i);

/* tensor_decode.c: one tensor map; takes its mapping into use. `path` comes before its keys in errors ("in[0].").
 * *ret_buffer is the id of its buffer, 0 where it has none. */
int tensor_decode(struct connection *c, const struct rpc_value *value, const char *path, struct tensor *ret_tensor,
                  struct operand_ref *ref, uint64_t *ret_buffer, struct error *e);
/* Takes a buffer into use for the tensor's memory. `path` is put before the keys in errors ("in[0]."). */
int tensor_use_buffer(struct connection *c, uint64_t id, const char *path, struct operand_ref *ref, uint64_t *ret_size,
                      struct error *e);

/* step_decode.c */
/* Fills the step's attributes from the map (may be NULL); *ret_variant gets `variant`, if it is there. */
int step_decode_attrs(struct backend_step *step, const struct rpc_value *map, struct rpc_arg *ret_variant,
                      struct error *e);
/* After the step's tensors and attributes are known: shapes, overlap, what may be written; makes the plan. Again when
 * memory was bound anew. */
int step_plan(struct command_list *commands, unsigned i, struct error *e);
/* After the device is known: the kernel, where the operands lie, and what the device says to it. */
int step_place(struct command_list *commands, unsigned i, struct backend_device *device, const struct rpc_arg *variant,
               struct error *e);
/* Refuses to repeat what would not compute the same again. */
int command_list_check_repeat(struct command_list *commands, struct error *e);
/* Equal handle bytes with different ids in one request could never all be open. */
int command_list_check_handles(const struct command_list *commands, struct error *e);
/* Whether jobs of `device` can use memory of `owner`. */
bool device_can_access(struct backend_device *device, struct backend_device *owner);
/* The device that the tensors are on, or that `arg` asks for. */
int command_list_choose_device(struct server *s, const struct command_list *commands, const struct rpc_arg *arg,
                               struct backend_device **ret_device, struct error *e);

/* run_decode.c: a sequence's tensors and ops, for the device they are on. ret_buffers, room for as many as the list's
 * or SEQUENCE_TENSORS_MAX, or NULL, gets the tensors' buffers. After a failure the body must be released. */
int command_list_decode(struct connection *c, const struct rpc_arg *tensors, const struct rpc_arg *ops,
                        const struct rpc_arg *device, uint64_t *ret_buffers, struct command_memory *pot,
                        struct command_list *commands, struct backend_device **ret_device, struct error *e);

/* launch_decode.c */
/* Fills the i-th step from an op map of a sequence, whose `kernel` is there; makes its plan. */
int launch_decode_step(struct connection *c, struct command_list *commands, unsigned i, const struct rpc_arg *args,
                       struct error *e);
/* After memory was bound anew: whether the addresses are still aligned as declared. */
int launch_check_alignment(const struct command_list *commands, unsigned i, struct error *e);

#endif
