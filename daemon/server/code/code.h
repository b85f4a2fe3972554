/* Kernels of users, from sources to modules on devices: this room's functions for the rooms above. Thread: loop. */
#ifndef KOPS_SERVER_CODE_CODE_H
#define KOPS_SERVER_CODE_CODE_H

#include "compile/service.h"
#include "server/peer/request.h"

/* The observer of compilations: observe/. */
struct compile_observer {
    /* A compilation has ended, its request lives. `name` of its first kernel; "" of one that failed. `started_ns` 0:
     * the binary was cached. */
    void (*ended)(const struct request *r, const char *name, uint64_t started_ns, bool failed);
};

/* `observer` lives as long as the server. */
int modules_new(struct server *s, const struct compile_observer *observer, struct error *e);
/* Ends the compiler: the loop is about to end. */
void modules_stop(struct server *s);
/* Whether one is being loaded. */
bool modules_are_loading(const struct server *s);
/* Unloads all modules, after the loop's end and before the devices close. NULL is allowed. */
void modules_free(struct server *s);

extern const struct connection_part connection_code_part;

/* Sizes of the requests' states. */
extern const size_t compile_state_bytes, cache_state_bytes, hand_out_state_bytes;

/* Apply a changed configuration: the limits of a connection, and those of sources. */
void code_limit_connection(struct connection *c);
void code_reload(struct server *s);

/* Release by id: 0, or -1 and unknown_kernel. */
int connection_release_module(struct connection *c, uint64_t id, struct error *e);
int connection_release_kernel(struct connection *c, uint64_t id, struct error *e);

/* Number of kernels that the connection has declared. */
unsigned code_kernels(const struct connection *c);

/* Cancel a compile that waits for the compiler or the cache: it ends with *e, and its work stops. */
bool compile_can_cancel(const struct request *r); /* false: too late, or no compile */
bool compile_cancel(struct request *r, const struct error *e);
void compiles_cancel_all(struct connection *c, const struct error *e);

/* Whether the connection may bring kernels (kernels.user_kernels): 0, or -1 and permission_denied. */
int user_code_check(const struct connection *c, struct error *e);
/* Whether it may have their code handed out (kernels.hand_out, too). */
int user_code_check_hand_out(const struct connection *c, struct error *e);
bool user_code_hands_out(const struct connection *c);
/* The first device that runs kernels of users; NULL: none. */
struct backend_device *user_code_device(const struct server *s);
/* A backend with a device here whose own kernels clients may load; NULL: none. */
const struct backend *user_code_image_backend(const struct server *s);
/* Whether the connection may compile, and a compiler was found. */
bool user_code_compiles(const struct connection *c);
/* Texts that a struct kernels_map points to. */
struct user_code_texts {
    struct error why;
    struct remote_report remote;
};
/* `kernels` of hello and of stats. */
struct kernels_map user_code_hello(const struct connection *c, struct user_code_texts *texts);
struct kernel_counters_map user_code_stats(const struct server *s, uint64_t launches);
struct code_counters code_counters_of(const struct server *s);
/* As code_service_remote(). */
bool code_remote_of(const struct server *s, struct code_remote_counters *ret_counters,
                    struct remote_report *ret_report);

#endif
