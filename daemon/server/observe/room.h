/* The state of this room: statistics, and the requests that wait for them. Only files of this folder include it.
 * Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_ROOM_H
#define KOPS_SERVER_OBSERVE_ROOM_H

#include "backend/conditions.h"
#include "server/exec/run.h"
#include "server/observe/latency.h"
#include "server/observe/profile.h"
#include "server/peer/request.h"
#include "util/loop.h"

/* Numbers that only the system or a driver knows, asked for on the pool. See sampling.c. */
struct sampling {
    struct work work;
    bool busy;
    struct list waiting; /* requests, by queue_link */
    uv_timer_t timer;
    /* The last sample; UINT64_MAX: not known. The fresh_ ones belong to the pool while it is busy. */
    uint64_t memory_free[BACKEND_MAX_DEVICES], resident_bytes, open_fds;
    uint64_t fresh_free[BACKEND_MAX_DEVICES], fresh_resident_bytes, fresh_open_fds;
    /* Samples of devices, read at most once a second. */
    struct backend_conditions conditions[BACKEND_MAX_DEVICES], fresh_conditions[BACKEND_MAX_DEVICES];
    uint64_t conditions_ns; /* time of the request for them; the pool's while it is busy */
};

/* Readings of devices for the method `conditions`. */
struct readings {
    struct work work;
    bool busy;
    struct list waiting, asked;      /* requests by queue_link: for the next reading, and for the one under way */
    uv_timer_t late, pause;          /* the reading takes too long; the next one may begin */
    uint32_t devices;                /* a bit for each device that is read; the pool's while it is busy */
    uint64_t took_ns, next_ns;       /* time that the last reading took; earliest time of the next one */
    struct backend_conditions *read; /* by device; the pool's while it is busy */
};

/* A reply of `clients` while it is built, piece by piece, along the list of connections. */
struct clients_walk {
    struct list link; /* in the room's walks */
    struct list *at;  /* the next connection */
    size_t count_at;  /* place for the number of rows */
    uint32_t n_clients;
};

/* Times of runs that come after their replies. Those of the last LATE_MAX runs are expected; a time that has not come
 * by then is lost. */
enum { LATE_MAX = 1024 };

/* The time of a run that ended with timed_later. */
struct late {
    uint64_t token;        /* 0: none */
    uint64_t row;          /* row of the profile; 0: none */
    struct connection *of; /* NULL: it is gone */
    struct latency_op *op; /* or NULL */
};

struct observe {
    struct server *server;
    struct profile *profile;
    struct latency_table *latencies;      /* by op, dtype and device */
    struct server_counters counters_then; /* at the last reset of stats */
    struct sampling sampling;
    struct readings readings;
    struct late late[LATE_MAX];               /* by token */
    struct list traces;                       /* struct trace: those that record */
    struct list walks;                        /* struct clients_walk: replies under way */
    double executor_device_us[ISOLATE_COUNT]; /* device time of runs in executors, by the kind of their domain */
    struct {
        uint64_t requests, at_ns;
    } status_then; /* at the last status line */
};

struct connection_statistics {
    double device_us;
    uint64_t here;               /* launches in its own context that it told of */
    struct latencies *latencies; /* NULL before the first run */
    struct trace *trace;         /* a reference; NULL: it never began one */
    uint32_t traced;             /* the traces that know it, a bit each */
};

/* ---- sampling.c: numbers that only the system or a driver knows ---- */

void sampling_init(struct server *s);
void sampling_close(struct server *s);

/* Takes a new sample, then calls long_reply_enqueue(). If the sample is late, the reply has the last one. */
void sampling_enqueue(struct request *r, bool (*first)(struct long_reply *reply));

/* Readings for the method `conditions`. */
int readings_init(struct server *s, struct error *e);
void readings_close(struct server *s);

/* The conditions map of results.json. */
struct conditions_map conditions_reply(const struct backend_conditions *c);

/* ---- trace.c ---- */

/* Whether a trace records the user's work. */
bool trace_records(const struct server *s, uid_t uid);

/* A run has ended. */
void trace_run(const struct request *r, const struct run *run, uint64_t now_ns);
/* A compilation has ended. `started_ns` 0: the code was cached. */
void trace_compile(const struct request *r, const char *name, uint64_t started_ns, bool failed);

/* The times of a run that ended with timed_later are there. */
void trace_timed(struct server *s, uint64_t token, const struct backend_times *times);

/* The connection has ended. */
void trace_leave(struct connection *c);

#endif
