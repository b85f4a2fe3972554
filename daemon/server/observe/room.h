/* The state of this room: statistics, and who waits to be told of them. Only files of this folder include it.
 * Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_ROOM_H
#define KOPS_SERVER_OBSERVE_ROOM_H

#include "server/observe/latency.h"
#include "server/observe/profile.h"
#include "util/work.h"

/* What takes a call to the system or a driver to find out, asked for on the pool. See sampling.c. */
struct sampling {
    struct work work;
    bool busy;
    struct list waiting; /* requests */
    uv_timer_t timer;
    /* Of the last time; UINT64_MAX: not known. The fresh ones are the pool's while it is busy. */
    uint64_t memory_free[BACKEND_MAX_DEVICES], resident_bytes, open_fds;
    uint64_t fresh_free[BACKEND_MAX_DEVICES], fresh_resident_bytes, fresh_open_fds;
};

/* A reply of `clients` that is being built, piece by piece, along the list of connections. */
struct clients_walk {
    struct list link; /* in walks */
    struct list *at;  /* the connection that is next */
    size_t count_at;  /* where the number of rows is to be written */
    uint32_t n_clients;
};

struct observe {
    struct server *server;
    struct profile *profile;
    struct latency_table *latencies;      /* by op, dtype and device */
    struct server_counters counters_then; /* at the last reset of stats */
    struct sampling sampling;
    struct list walks; /* struct clients_walk: replies that go through the connections */
    struct {
        uint64_t requests, at_ns;
    } status_then; /* when the status line was last written */
};

struct connection_statistics {
    double device_us;
    struct latencies *latencies; /* NULL until something has run */
};

#endif
