/* Kernels of users: an entry of a module with the signature that its client declared, as an op with arguments.
 *
 * A kernel is counted: the connection's id for it, programs and runs hold references. Thread: loop. */
#ifndef KOPS_SERVER_CODE_KERNEL_H
#define KOPS_SERVER_CODE_KERNEL_H

#include "core/kernel.h"
#include "server/code/module.h"

/* A connection's id for a module: the result of `compile`. */
struct client_module {
    uint64_t id;
    struct module *module;        /* a reference */
    struct shared_charge *shared; /* a reference to the user's shared charge for the module */
};

struct kernel {
    uint64_t id;
    unsigned refs;
    struct module *module;                   /* a reference */
    struct shared_charge *shared;            /* a reference to the user's shared charge for the module */
    const struct backend_function *function; /* in the module */
    struct kernel_signature *signature;      /* a reference */
    struct kernel_limits limits;
};

struct kernel *kernel_ref(struct kernel *k);
void kernel_unref(struct kernel *k);

/* The connection's kernel with this id; NULL: none. */
struct kernel *connection_kernel(const struct connection *c, uint64_t id);

/* The entry of one of the connection's modules that the args name. Errors: unknown_kernel. */
int connection_find_entry(const struct connection *c, const struct rpc_arg *module, const struct rpc_arg *entry,
                          const struct client_module **ret_module, unsigned *ret_entry, struct error *e);

/* Tells the kernel from others of the same name (op.code): a part of the binary's key, which is a hash, plus the
 * entry's index. Never 0, which the ops have. */
uint64_t kernel_identity(const struct compiled *c, unsigned entry);

/* The key in errors, such as "args[2]", of operand `o` in a launch of the kernel. */
const char *kernel_operand_key(const struct kernel *k, unsigned o, char into[16]);

#endif
