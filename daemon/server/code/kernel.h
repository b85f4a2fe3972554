/* Kernels of users, and the modules that they are entries of. Thread: loop; loading and unloading run on the pool. */
#ifndef KOPS_SERVER_CODE_KERNEL_H
#define KOPS_SERVER_CODE_KERNEL_H

#include "compile/compiled.h"
#include "core/kernel.h"
#include "server/account/account.h"
#include "server/peer/connection.h"
#include "util/loop.h"

/* ---- modules ----
 *
 * Binaries of users' kernels that are loaded on devices. A binary is loaded once a device and domain, for all
 * connections there. Connections' ids, kernels, programs and runs hold references. A module without references stays
 * loaded for the next user of its binary, if it is small and few such modules are kept, and if its domain is not one
 * connection's. */

enum module_state { MODULE_LOADING, MODULE_READY, MODULE_FAILED };

/* Waits until a module is loaded. */
struct module_waiter {
    struct list link;
    void (*ready)(struct module_waiter *waiter); /* the module is loaded, or failed to load */
};

struct module {
    struct list link; /* in the room's used or idle list */
    struct server *server;
    unsigned refs;
    enum module_state state;
    struct compiled *compiled;          /* a reference */
    struct backend_device *device;      /* NULL: no device here runs the binary, and it is not loaded */
    uint64_t domain;                    /* jobs of this domain launch it */
    struct backend_code *loaded;        /* NULL: not loaded */
    struct backend_function *functions; /* owned: one for each of compiled->entries */
    struct error error;                 /* set with MODULE_FAILED */
    struct list waiters;                /* struct module_waiter */
    struct work work;
    struct backend_work domain_work; /* loads it for a domain that has a process */
};

/* Unloads the idle modules, once no work runs any more. */
void modules_unload(struct server *s);

/* A reference to the module of the binary on the device (NULL: not loaded) for a domain's jobs. NULL: no memory. */
struct module *module_take(struct server *s, struct compiled *compiled, struct backend_device *device, uint64_t domain);
struct module *module_ref(struct module *module);
void module_unref(struct module *module);
/* Only while it is MODULE_LOADING. */
void module_wait(struct module *module, struct module_waiter *waiter);

/* Whether a binary for `arch` ("sm_90a") runs on the device. */
bool module_runs_on(const char *arch, const struct backend_device *device);
/* The architecture that sources are compiled for by default: the device's own, with all its features. "" for a device
 * that runs no kernels of users. */
void module_default_arch(const struct backend_device *device, char into[COMPILED_ARCH_SIZE]);

/* ---- kernels ----
 *
 * An entry of a module with the signature that its client declared, as an op with arguments. A kernel is counted: the
 * connection's id for it, programs and runs hold references. */

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
