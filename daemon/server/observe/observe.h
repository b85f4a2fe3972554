/* Statistics: this room's functions for the rooms above. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_OBSERVE_H
#define KOPS_SERVER_OBSERVE_OBSERVE_H

#include "server/peer/request.h"

struct compile_observer;
struct run_observer;

int observe_new(struct server *s, struct error *e);
/* Closes the room's handles: the loop is about to end. */
void observe_stop(struct server *s);
/* Whether the pool is working for the room. */
bool observe_is_busy(const struct server *s);
/* NULL is allowed. */
void observe_free(struct server *s);

extern const struct connection_part connection_statistics_part;
extern const struct run_observer observe_runs;
/* timed() of struct backend_host. */
void observe_timed(void *server, uint64_t token, const struct backend_times *times);
extern const struct compile_observer observe_compiles;

/* Sizes of the requests' states. */
extern const size_t stats_state_bytes, trace_state_bytes, conditions_state_bytes;

/* "serving; 3 clients, 2 jobs running, 1.2k requests/s": the rate since the last call. */
void server_status_text(struct server *s, char *into, size_t size);

#endif
