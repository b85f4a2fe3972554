/* The processes that work for backends (executors), as `stats`, `clients` and `metrics` show them. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_EXECUTORS_H
#define KOPS_SERVER_OBSERVE_EXECUTORS_H

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

/* Writes the entries `executors` and `executor_counts` of `stats`. A viewer who may not see all users gets no row of a
 * domain of others. */
void executors_write(struct rpc_output *out, const struct connection *viewer);

#endif
