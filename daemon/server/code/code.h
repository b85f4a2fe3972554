/* Kernels of users, from source to modules on devices: what the rooms above use of this one. Thread: loop. */
#ifndef KOPS_SERVER_CODE_CODE_H
#define KOPS_SERVER_CODE_CODE_H

#include "compile/service.h"
#include "server/peer/request.h"

int modules_new(struct server *s, struct error *e);
/* The loop ends: the compiler ends, too. */
void modules_stop(struct server *s);
/* After the loop's end, before the devices close: unloads what is left. NULL is allowed. */
void modules_free(struct server *s);

extern const struct connection_part connection_code_part;

/* Of the requests' states. */
extern const size_t compile_state_bytes, cache_state_bytes;

/* The configuration has changed: its limits on the connection, and those of sources. */
void code_limit_connection(struct connection *c);
void code_reload(struct server *s);

/* Releases by id: 0, or -1 and unknown_kernel. */
int connection_release_module(struct connection *c, uint64_t id, struct error *e);
int connection_release_kernel(struct connection *c, uint64_t id, struct error *e);

/* Kernels that the connection has declared. */
unsigned code_kernels(const struct connection *c);

/* Ends requests that wait for a compiler or for the cache with this error; their work is stopped. */
bool compile_can_cancel(const struct request *r); /* false: it is past that, or no compile */
bool compile_cancel(struct request *r, const struct error *e);
void compiles_cancel_all(struct connection *c, const struct error *e);

/* Who may bring code: 0, or -1 and permission_denied. */
int user_code_check(const struct connection *c, struct error *e);
/* The first device that runs code of users; NULL: none. */
struct backend_device *user_code_device(const struct server *s);
/* Whether the connection may compile here, and a compiler is there. */
bool user_code_compiles(const struct connection *c);
/* hello's `kernels`. */
void user_code_write_hello(struct rpc_output *out, const struct connection *c);
/* For stats and metrics. */
void user_code_write_stats(struct rpc_output *out, const struct server *s, uint64_t launches);
struct code_counters code_counters_of(const struct server *s);

#endif
