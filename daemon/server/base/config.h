/* The input of a server: its settings, and the hooks by which it tells its process about itself. Strings live until the
 * next reload; main/settings.c has defaults, ranges and documentation. Thread: loop, but for two hooks. */
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
    SERVER_EXIT_DEVICE_LOST = 75,  /* EX_TEMPFAIL: a new start will work */
};

/* The users whose kernels run in the daemon's context. */
enum user_kernels {
    USER_KERNELS_OFF,
    USER_KERNELS_OWNER, /* root and the daemon's own user */
    USER_KERNELS_GROUP, /* and the members of a group */
    USER_KERNELS_ALL,
    USER_KERNELS_COUNT,
};
/* The names in the configuration and in hello. */
extern const char *const user_kernels_names[USER_KERNELS_COUNT];

/* executors.isolate: whose GPU work shares a process. */
enum isolation {
    ISOLATE_NONE,       /* all users share an executor */
    ISOLATE_USER,       /* kernels of users run in executors of their own, one a user */
    ISOLATE_CONNECTION, /* each connection has an executor */
    ISOLATE_COUNT,
};
/* The names in the configuration and in hello. */
extern const char *const isolation_names[ISOLATE_COUNT];

struct server_config {
    uint64_t max_connections;
    uint64_t message_bytes;    /* bytes of one request */
    uint64_t inflight;         /* unanswered requests a connection */
    uint64_t buffers;          /* a connection */
    uint64_t programs;         /* a connection */
    uint64_t kernels;          /* a connection, and as many modules */
    uint64_t inline_mappings;  /* a connection */
    uint64_t output_bytes;     /* waiting replies of a connection, beyond which it is not read */
    uint64_t peer_timeout_s;   /* time for a stuck reader, and for the rest of a partial message; 0: for ever */
    uint64_t spin_us;          /* busy poll before the loop sleeps */
    unsigned polling_clients;  /* clients that the processors bear polling: with more runs under way clients sleep */
    uint64_t idle_close_s;     /* time after which unused mappings are closed; 0: never */
    uint64_t stall_timeout_ms; /* time an ordered op waits for its stream; 0: for ever */
    uint64_t shutdown_grace_ms;
    uint64_t tuning_idle_runs; /* runs of a problem before it is tuned while nothing else runs; 0: never */
    uint64_t tuning_budget_ms; /* from when a tuning is asked for to its last measurement */
    bool tuning_ready;         /* a process for it is kept ready */
    uint64_t job_timeout_s;    /* time without an ended execution after which a device is given up; 0: never */
    uint64_t loop_timeout_s;   /* time without a turn of the loop after which the process ends; 0: never */
    uint64_t idle_exit_s;      /* time without a connection after which the server ends; 0: never */
    uint64_t watchdog_us;      /* how often the service manager wants a sign of life; 0: it wants none */
    enum isolation isolation;
    enum user_kernels user_kernels, hand_out;
    gid_t user_kernels_group, hand_out_group;
    struct access_policy access;
    struct quota_limits quota; /* limits of each user */
    struct code_service_config code;
    struct backend_config backend_config;
    const struct backend *backends[4]; /* in the order of hello's devices; the rest NULL */
};

/* The socket of an identity. */
struct server_socket {
    const char *identity;
    int fd; /* listening, non-blocking; -1: it is as it was */
    struct identity_rights rights;
    struct quota_limits limits;
};

/* Functions by which a server reports to its process. They are called on the loop's thread, but for read() and alive().
 * NULL: left out. */
struct server_hooks {
    void (*ready)(void *context);  /* the server takes requests */
    void (*served)(void *context); /* the first request has ended */
    /* On a thread of the pool: SIGHUP came; or, with `only_sockets`, something changed in the folder of sockets. */
    void (*read)(void *context, bool only_sockets);
    void (*reload)(void *context);                   /* after read() */
    void (*status)(void *context, const char *text); /* a few words about the server's state, when it has changed */
    void (*stopping)(void *context, uint64_t at_most_ms); /* the shutdown has begun, or takes this much longer */
    void (*alive)(void *context); /* on any thread: the loop turns, or waits for a busy device */
    void *context;
};

#endif
