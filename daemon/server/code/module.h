/* Code of users that is loaded on devices: a compiled source is loaded once a device, whoever asks.
 *
 * A connection's modules and kernels, programs and runs hold references. Code that nobody refers to any more stays
 * loaded for whoever comes next, unless it is large, up to a number. Thread: loop; loading and unloading run on the
 * pool. */
#ifndef KOPS_SERVER_CODE_H
#define KOPS_SERVER_CODE_H

#include "compile/compiled.h"
#include "server/types.h"

enum code_state { CODE_LOADING, CODE_READY, CODE_FAILED };

struct code {
    struct list link; /* in the server's codes, or in its idle ones */
    struct server *server;
    unsigned refs;
    enum code_state state;
    struct compiled *compiled;          /* a reference */
    struct backend_device *device;      /* NULL: it is not for any device here, and loaded nowhere */
    struct backend_code *loaded;        /* NULL then, too */
    struct backend_function *functions; /* owned: of compiled->entries */
    struct error error;                 /* CODE_FAILED */
    struct list waiters;                /* struct code_waiter */
    struct work work;
};

void codes_init(struct server *s);
/* When nothing runs any more: unloads what is left. */
void codes_free(struct server *s);

/* A reference to the code on that device (NULL: none). NULL when memory is short. */
struct code *code_take(struct server *s, struct compiled *compiled, struct backend_device *device);
struct code *code_ref(struct code *code);
void code_unref(struct code *code);
/* Only while it is LOADING. */
void code_wait(struct code *code, struct code_waiter *waiter);

/* Whether a binary for `arch` ("sm_90a") runs on the device. */
bool code_runs_on(const char *arch, const struct backend_device *device);
/* What sources are compiled for when nobody says: the device's own architecture, with all it has. "" for a device
 * without code of users. */
void code_default_arch(const struct backend_device *device, char into[COMPILED_ARCH_SIZE]);

/* user_code.c: who may bring code. 0, or -1 and permission_denied. */
int user_code_check(const struct connection *c, struct error *e);
/* The first device that runs code of users; NULL: none. */
struct backend_device *user_code_device(const struct server *s);
/* Whether it may compile here, and a compiler is there. */
bool user_code_compiles(const struct connection *c);
/* hello's `kernels`. */
void user_code_write_hello(struct rpc_output *out, const struct connection *c);
/* For stats. */
void user_code_write_stats(struct rpc_output *out, const struct server *s);

/* compile.c: requests that wait for a compiler or for the cache end with this error; their work is stopped. */
bool compile_stop(struct request *r, const struct error *e); /* false: it is past that */
void compiles_stop(struct connection *c, const struct error *e);

#endif
