/* Modules and kernels, as launches, sequences and programs use them. Lock held. */
#ifndef KOPS_CLIENT_KERNEL_H
#define KOPS_CLIENT_KERNEL_H

#include <stdatomic.h>

#include "here/kernel.h"
#include "session/connect.h"

/* A module. Its source is kept, so that it can be made known to a new connection. Guarded by the client's lock, or
 * constant. */
struct kops_module {
    struct kops_client *client; /* a reference */
    unsigned references;        /* the caller's, and each kernel's */
    struct bytes source;        /* the params of `compile` */
    struct wire_module known;   /* info: from the first compilation */
    struct remote remote;
};

struct kops_kernel {
    struct kops_client *client;
    unsigned references; /* the caller's, and each program's */
    struct kops_module *module;
    char *entry;
    struct bytes signature; /* the params of `kernel`, without `module` */
    const char *name;       /* lives as long as the client */
    struct remote remote;
    /* Owned. NULL until the kernel is first launched in this process, then constant: launches read it without the lock.
     */
    _Atomic(struct here_kernel *) here;
    struct kops_kernel *next_here; /* next kernel of the client that is launched here */
};

/* Drops a reference; takes NULL. */
void module_unref(struct kops_module *m);

/* Makes the module known to the present connection. */
enum kops_code module_ensure(struct kops_module *m, uint64_t deadline, struct kops_error *e);
enum kops_code kernel_ensure(struct kops_kernel *k, uint64_t deadline, struct kops_error *e);

/* Makes k->here: fetches the binary where this process does not have it. May drop the lock. Errors: unsupported,
 * permission_denied, those of `compile`. */
enum kops_code kernel_ensure_here(struct kops_kernel *k, uint64_t deadline, struct kops_error *e);

/* Drops a reference; NULL is allowed. The caller must have a reference to the client, too. */
void kernel_unref(struct kops_kernel *k);

/* Checks a kernel's step of a sequence; `place` is for messages. */
enum kops_code kernel_check_step(const struct kops_client *c, const struct kops_step *step, size_t place,
                                 struct kops_error *e);

#endif
