/* The daemon's server: listens, owns connections and devices, runs requests.
 *
 * Everything here runs on one libuv loop, in the thread that calls server_run(); nothing on it blocks. */
#ifndef KOPS_SERVER_SERVER_H
#define KOPS_SERVER_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/backend.h"
#include "compile/service.h"
#include "server/access_list.h"
#include "server/account.h"
#include "util/error.h"

struct server;

enum server_exit {
    SERVER_EXIT_OK = 0,
    SERVER_EXIT_FAILED = 1,
    SERVER_EXIT_DEVICE_LOST = 75, /* EX_TEMPFAIL: start again and it will work */
};

/* Strings live as long as the server. main/settings.c has defaults, ranges and documentation. */
/* Whose code runs in the daemon's context. */
enum user_kernels {
    USER_KERNELS_OFF,
    USER_KERNELS_OWNER, /* root's and the daemon's own user's */
    USER_KERNELS_GROUP, /* and that of the members of a group */
    USER_KERNELS_ALL,
    USER_KERNELS_COUNT,
};
/* As the configuration and hello say them. */
extern const char *const user_kernels_names[USER_KERNELS_COUNT];

struct server_config {
    const char *default_device; /* UUID or index; NULL: the first */
    uint64_t max_connections;
    uint64_t message_bytes;     /* of one request */
    uint64_t inflight;          /* unanswered requests a connection */
    uint64_t buffers;           /* a connection */
    uint64_t programs;          /* a connection */
    uint64_t kernels;           /* a connection, and as many modules */
    uint64_t inline_mappings;   /* a connection */
    uint64_t output_bytes;      /* replies waiting for a slow reader, before it is not read any more */
    uint64_t stuck_reader_s;    /* … and before it is dropped; 0: never */
    uint64_t partial_message_s; /* a message whose rest does not come; 0: for ever */
    uint64_t spin_us;           /* polling for a completion before sleeping */
    uint64_t idle_close_s;      /* unused mappings are closed after it; 0: never */
    uint64_t stall_timeout_ms;  /* an ordered op waits so long for its stream; 0: for ever */
    uint64_t shutdown_grace_ms;
    uint64_t job_timeout_s; /* a device that ends nothing for so long is given up; 0: never */
    enum user_kernels user_kernels;
    gid_t user_kernels_group;
    struct access_policy access;
    struct quota_limits quota; /* of each user */
    struct code_service_config code;
    struct backend_config backend_config;
    const struct backend *backends[4]; /* in the order of hello's devices; the rest NULL */
};

/* `listener` is a listening, non-blocking socket whose ownership passes here. `on_ready` is called once requests are
 * taken. */
int server_new(const struct server_config *config, int listener, struct server **ret_server, struct error *e);

/* Until SIGTERM or SIGINT, or a lost device. Returns an exit status (enum server_exit). */
int server_run(struct server *server, void (*on_ready)(void *context), void *context);

/* After server_run(). NULL is allowed; returns NULL. */
struct server *server_free(struct server *server);

#endif
