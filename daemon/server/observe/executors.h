/* The processes that work for backends (executors), as `stats`, `clients` and `metrics` show them. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_EXECUTORS_H
#define KOPS_SERVER_OBSERVE_EXECUTORS_H

#include "rpc/record.h"
#include "server/peer/connection.h"

struct executors {
    unsigned n;
    struct backend_process all[BACKEND_MAX_PROCESSES];
    struct backend_process_counts counts;
};

/* The present ones, of all backends. */
void executors_look(const struct server *s, struct executors *ret);

/* The process that serves a domain; 0: none. */
int executors_pid(const struct executors *x, uint64_t domain);

/* Names of domains by kind (ISOLATE_NONE: `common`), and of states. */
extern const char *const executor_domain_names[ISOLATE_COUNT];
extern const char *const executor_state_names[PROCESS_ENDING + 1];

/* A process and whose it is. */
struct executor_row {
    const struct backend_process *process;
    bool has_domain;
    enum isolation kind;
    uint64_t number;
    uid_t uid;                       /* or an identity's number; (uid_t)-1: not known */
    const struct connection *client; /* with ISOLATE_CONNECTION, while the client is connected */
};

/* The rows of `stats.executors`. A viewer who may not see all users gets no row of a domain of others. */
struct executor_rows {
    const struct server *server;
    uint64_t now_ns;
    struct executors all;
    unsigned n;
    struct executor_row rows[BACKEND_MAX_PROCESSES];
};

/* Finds the rows, and returns `stats.executor_counts`. */
struct executor_counters_map executors_rows(const struct connection *viewer, struct executor_rows *ret);
rpc_each executors_each; /* of a struct executor_rows */

#endif
