/* Modules and kernels, as launches, sequences and programs use them. Lock held. */
#ifndef KOPS_CLIENT_KERNEL_H
#define KOPS_CLIENT_KERNEL_H

#include <stdatomic.h>

#include "here/kernel.h"
#include "session/connect.h"

/* The source is kept, so that a new connection can be told. Guarded by the client's lock, or constant. */
struct kops_module {
    struct kops_client *client; /* a reference */
    unsigned references;        /* the caller's, and each kernel's */
    struct arena arena;         /* of `source` */
    struct kops_source source;
    struct wire_module known; /* info: of the first compilation */
    struct remote remote;
};

struct kops_kernel {
    struct kops_client *client;
    unsigned references; /* the caller's, and each program's */
    struct kops_module *module;
    struct arena arena; /* of `signature` */
    struct kops_signature signature;
    const char *name; /* lives as long as the client */
    struct remote remote;
    /* Owned; NULL until the kernel is launched in this process, then constant: launches look at it without the lock. */
    _Atomic(struct here_kernel *) here;
    struct kops_kernel *next_here; /* of the client's that are */
};

/* Makes a module; *log as kops_compile() has it. module_unref() lets go of it, and takes NULL. */
enum kops_code module_compile(struct kops_client *c, const struct kops_source *source, uint64_t deadline,
                              struct kops_module **ret_module, char **log, struct kops_error *e);
void module_unref(struct kops_module *m);

/* Makes it known to the present connection. */
enum kops_code module_ensure(struct kops_module *m, uint64_t deadline, struct kops_error *e);
enum kops_code kernel_ensure(struct kops_kernel *k, uint64_t deadline, struct kops_error *e);

/* Makes k->here: has the binary handed out where this process does not have it. May drop the lock. Errors: unsupported,
 * permission_denied, those of `compile`. */
enum kops_code kernel_ensure_here(struct kops_kernel *k, uint64_t deadline, struct kops_error *e);

/* Takes NULL. The caller has a reference to the client besides. */
void kernel_unref(struct kops_kernel *k);

/* Of a sequence; `place` is for messages. */
enum kops_code kernel_check_step(const struct kops_client *c, const struct kops_step *step, size_t place,
                                 struct kops_error *e);

#endif
