/* Kernels of users: an entry of loaded code with the signature that its client declared, as an op with arguments.
 *
 * A kernel is counted: its connection's id, programs and runs hold references. Thread: loop. */
#ifndef KOPS_SERVER_KERNEL_H
#define KOPS_SERVER_KERNEL_H

#include "core/kernel.h"
#include "server/exec/command_list.h"

struct code;

/* What `compile` gave: a connection's name for code. */
struct module {
    uint64_t id;
    struct code *code;            /* a reference */
    struct shared_charge *shared; /* a reference: the user's on the code */
};

struct kernel {
    uint64_t id;
    unsigned refs;
    struct code *code;                       /* a reference */
    struct shared_charge *shared;            /* a reference: the user's on the code */
    const struct backend_function *function; /* in the code */
    struct kernel_signature *signature;      /* a reference */
    struct kernel_limits limits;
};

struct kernel *kernel_ref(struct kernel *k);
void kernel_unref(struct kernel *k);

/* The connection gives up its id. */
void module_drop(struct connection *c, struct module *m);
void kernel_drop(struct connection *c, struct kernel *k);

/* launch_decode.c */
/* "args[2]" for the tensor of a kernel's call that is operand `o`. */
const char *kernel_operand_key(const struct kernel *k, unsigned o, char into[16]);
/* Fills the i-th call from an op map of a sequence, whose `kernel` is there; makes its plan. */
int launch_decode_step(struct connection *c, struct command_list *commands, unsigned i, const struct rpc_arg *args,
                       struct error *e);
/* After memory was bound anew: whether the addresses are still aligned as declared. */
int launch_check_alignment(const struct command_list *commands, unsigned i, struct error *e);

#endif
