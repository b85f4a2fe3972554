/* Code of users that is loaded on devices: a compiled source is loaded once a device, whoever asks.
 *
 * A connection's modules and kernels, programs and runs hold references. Code that nobody refers to any more stays
 * loaded for whoever comes next, unless it is large, up to a number. Thread: loop; loading and unloading run on the
 * pool. */
#ifndef KOPS_SERVER_CODE_MODULE_H
#define KOPS_SERVER_CODE_MODULE_H

#include "compile/compiled.h"
#include "server/account/shared_charge.h"
#include "server/peer/connection.h"
#include "util/work.h"

enum module_state { MODULE_LOADING, MODULE_READY, MODULE_FAILED };

/* Waits until code is loaded. */
struct module_waiter {
    struct list link;
    void (*ready)(struct module_waiter *waiter); /* the code is loaded, or cannot be */
};

struct module {
    struct list link; /* in the room's used, or in its idle ones */
    struct server *server;
    unsigned refs;
    enum module_state state;
    struct compiled *compiled;          /* a reference */
    struct backend_device *device;      /* NULL: it is not for any device here, and loaded nowhere */
    struct backend_code *loaded;        /* NULL then, too */
    struct backend_function *functions; /* owned: of compiled->entries */
    struct error error;                 /* MODULE_FAILED */
    struct list waiters;                /* struct module_waiter */
    struct work work;
};

/* When nothing runs any more: unloads what is left. */
void modules_unload(struct server *s);

/* A reference to the code on that device (NULL: none). NULL when memory is short. */
struct module *module_take(struct server *s, struct compiled *compiled, struct backend_device *device);
struct module *module_ref(struct module *module);
void module_unref(struct module *module);
/* Only while it is LOADING. */
void module_wait(struct module *module, struct module_waiter *waiter);

/* Whether a binary for `arch` ("sm_90a") runs on the device. */
bool module_runs_on(const char *arch, const struct backend_device *device);
/* What sources are compiled for when nobody says: the device's own architecture, with all it has. "" for a device
 * without code of users. */
void module_default_arch(const struct backend_device *device, char into[COMPILED_ARCH_SIZE]);

#endif
