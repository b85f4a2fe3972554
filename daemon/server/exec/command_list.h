/* Command lists: the tensors and steps of runs and programs. Thread: loop. */
#ifndef KOPS_SERVER_EXEC_COMMAND_LIST_H
#define KOPS_SERVER_EXEC_COMMAND_LIST_H

#include "backend/mapping.h"
#include "core/op.h"
#include "rpc/value.h"
#include "server/account/account.h"
#include "server/peer/connection.h"

enum { SEQUENCE_OPS_MAX = 512, SEQUENCE_TENSORS_MAX = 2048 };
/* The most that the programs of a connection may take. */
enum { PROGRAM_BYTES_MAX = 128 << 20 };

/* Steps of the overlap search for a whole command list, its repetition included: about a millisecond. When they are
 * used up, byte ranges that meet count as shared. */
enum { STEP_SEARCH_MAX = 24 * 1024 };

/* A count of the memory of a connection's command lists of one kind. */
struct command_memory {
    struct account *account; /* the connection's */
    enum quota quota;
    uint64_t *bytes;
};

/* A run's use of one tensor's memory. */
struct operand_ref {
    struct mapping *mapping;      /* a use; NULL for an empty tensor */
    struct shared_charge *shared; /* a reference; where there is a mapping */
    bool writable;                /* the reference allows writing */
    bool waiting;
    struct mapping_waiter waiter;
};

struct kernel;

/* A command list is what a run computes: tensors, and steps on them in order. */
struct command_list {
    unsigned n_tensors, n_steps;
    unsigned n_launches; /* steps that are kernels of users */
    struct tensor *tensors;
    struct operand_ref *refs; /* number of tensors */
    struct step *steps;
    const struct op **ops;   /* ops of the steps; a kernel has its own */
    struct kernel **kernels; /* references of the steps to kernels; NULL: a declared op */
    void *memory;            /* holds the arrays; NULL: the run itself does */
    size_t bytes;
    struct command_memory *counted_in; /* where `bytes` are counted */
    struct charge charge;              /* the user's charge for `bytes` */
    unsigned search_steps;             /* left for the overlap search */
};

struct run;

/* Makes the command list of one step, in the run itself. */
void command_list_init_single(struct run *run, unsigned n_tensors);
/* Room for that much, counted in *counted_in and, without asking, for its user; tensors have no memory yet. -1: no
 * memory. */
int command_list_new(struct command_list *ret_commands, unsigned n_tensors, unsigned n_steps,
                     struct command_memory *counted_in, struct error *e);
/* Counts the list's bytes elsewhere from now on. */
void command_list_move(struct command_list *commands, struct command_memory *counted_in);
/* The i-th step as the shape rules see it, with its tensors; good as long as the list is unchanged. */
struct op_call command_list_call(const struct command_list *commands, unsigned i);

/* Gives the uses of mappings back. Steps and their plans stay. */
void command_list_unuse(struct command_list *commands);
/* Gives the uses and the memory back. Harmless on a list of zeroes, and when called twice. */
void command_list_release(struct command_list *commands);

/* "tensors[7].": the prefix of a sequence's tensor in errors. i < SEQUENCE_TENSORS_MAX. */
const char *tensor_path(unsigned i);

/* step_decode.c: decodes one tensor map and takes its mapping into use. `path` is put before its keys in errors
 * ("in[0]."). *ret_buffer is the id of its buffer; 0: it has none. */
int tensor_decode(struct connection *c, const struct rpc_value *value, const char *path, struct tensor *ret_tensor,
                  struct operand_ref *ref, uint64_t *ret_buffer, struct error *e);
/* The layout alone: dtype, shape, strides, offset. `args` by TENSOR_…. The tensor is not measured yet. */
int tensor_decode_layout(const struct rpc_arg *args, const char *path, struct tensor *t, struct error *e);
/* Takes a buffer into use for the tensor's memory. `path` is put before the keys in errors ("in[0]."). */
int tensor_use_buffer(struct connection *c, uint64_t id, const char *path, struct operand_ref *ref, uint64_t *ret_size,
                      struct error *e);

/* Makes the step's plan, and checks shapes, overlap and writable memory, once its tensors and attributes are known;
 * again when memory was bound anew. */
int step_plan(struct command_list *commands, unsigned i, struct error *e);
/* Sets the kernel and the places of the operands, and asks the device, once the device is known. */
int step_place(struct command_list *commands, unsigned i, struct backend_device *device, const struct rpc_arg *variant,
               struct error *e);
/* Refuses a repetition that would not compute the same each time. */
int command_list_check_repeat(struct command_list *commands, struct error *e);
/* Refuses handles of equal bytes with different ids: such mappings are never open together. */
int command_list_check_handles(const struct command_list *commands, struct error *e);
/* Tells whether jobs of `device` can use memory of `owner`. */
bool device_can_access(struct backend_device *device, struct backend_device *owner);
/* Finds the device of the tensors, or the one that `arg` names. */
int command_list_choose_device(struct server *s, const struct command_list *commands, const struct rpc_arg *arg,
                               struct backend_device **ret_device, struct error *e);

/* run_decode.c: decodes a sequence's tensors and ops. ret_buffers gets the ids of the tensors' buffers: room for one
 * each, or NULL. After a failure the list must be released. */
int command_list_decode(struct connection *c, const struct rpc_arg *tensors, const struct rpc_arg *ops,
                        const struct rpc_arg *device, uint64_t *ret_buffers, struct command_memory *counted_in,
                        struct command_list *commands, struct backend_device **ret_device, struct error *e);

#endif
