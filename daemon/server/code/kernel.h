/* Kernels of users: an entry of loaded code with the signature that its client declared, as an op with arguments.
 *
 * A kernel is counted: its connection's id, programs and runs hold references. Thread: loop. */
#ifndef KOPS_SERVER_CODE_KERNEL_H
#define KOPS_SERVER_CODE_KERNEL_H

#include "core/kernel.h"
#include "server/code/module.h"

/* What `compile` gave: a connection's name for code. */
struct client_module {
    uint64_t id;
    struct module *module;        /* a reference */
    struct shared_charge *shared; /* a reference: the user's on the code */
};

struct kernel {
    uint64_t id;
    unsigned refs;
    struct module *module;                   /* a reference */
    struct shared_charge *shared;            /* a reference: the user's on the code */
    const struct backend_function *function; /* in the code */
    struct kernel_signature *signature;      /* a reference */
    struct kernel_limits limits;
};

struct kernel *kernel_ref(struct kernel *k);
void kernel_unref(struct kernel *k);

/* The connection's kernel of that id; NULL: none. */
struct kernel *connection_kernel(const struct connection *c, uint64_t id);

/* "args[2]" for the tensor of a call of the kernel that is operand `o`. */
const char *kernel_operand_key(const struct kernel *k, unsigned o, char into[16]);

#endif
