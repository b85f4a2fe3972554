/* What a server is given when it starts: its settings, and the functions that it tells its process about itself. */
#ifndef KOPS_SERVER_BASE_CONFIG_H
#define KOPS_SERVER_BASE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/backend.h"
#include "compile/service.h"
#include "server/account/access_list.h"
#include "server/account/account.h"

enum server_exit {
    SERVER_EXIT_OK = 0,
    SERVER_EXIT_FAILED = 1,
    SERVER_EXIT_LOOP_BLOCKED = 70, /* EX_SOFTWARE: the loop did not turn any more */
    SERVER_EXIT_DEVICE_LOST = 75,  /* EX_TEMPFAIL: start again and it will work */
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
    uint64_t job_timeout_s;  /* a device that ends nothing for so long is given up; 0: never */
    uint64_t loop_timeout_s; /* a loop that does not turn for so long ends the process; 0: never */
    uint64_t watchdog_us;    /* the manager wants to hear so often that all is well; 0: it does not */
    enum user_kernels user_kernels;
    gid_t user_kernels_group;
    struct access_policy access;
    struct quota_limits quota; /* of each user */
    struct code_service_config code;
    struct backend_config backend_config;
    const struct backend *backends[4]; /* in the order of hello's devices; the rest NULL */
};

/* What a server tells whoever runs it, on the loop's thread but for read() and alive(). NULL ones are left out. */
struct server_hooks {
    void (*ready)(void *context);                         /* requests are taken */
    void (*served)(void *context);                        /* the first request has ended */
    void (*read)(void *context);                          /* a thread of the pool: SIGHUP came */
    void (*reload)(void *context);                        /* after that */
    void (*status)(void *context, const char *text);      /* what it is doing, in a few words; when that has changed */
    void (*stopping)(void *context, uint64_t at_most_ms); /* the end has begun, or takes so much longer */
    void (*alive)(void *context);                         /* any thread: the loop turns, or waits for a busy device */
    void *context;
};

#endif
