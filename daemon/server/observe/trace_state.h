/* A trace in memory, for trace.c, which records, and trace_method.c, which answers. */
#ifndef KOPS_SERVER_OBSERVE_TRACE_STATE_H
#define KOPS_SERVER_OBSERVE_TRACE_STATE_H

#include "server/observe/clients.h"
#include "server/observe/late.h"
#include "server/observe/op_key.h"
#include "server/observe/profile.h"
#include "server/observe/trace.h"

enum {
    TRACE_KINDS_MAX = 4096, /* kinds of a trace; others have the number 0 */
    TRACE_KINDS_BUCKETS = 1024
};

/* The op, variant and shapes that events of one kind share. */
struct trace_kind {
    struct list bucket;
    uint32_t number;
    struct op_key_head head;
    char name[PROFILE_NAME_MAX];
    int64_t words[];
};

/* Times are the trace's; 0: there is none. */
struct trace_event {
    uint64_t client, received, ready, started, began, finished, ended, busy;
    uint64_t token; /* token of the device's times, which are still to come; 0: none */
    uint32_t kind, call, stream, executions;
    bool failed;
};

struct trace_client {
    uint64_t number;
    pid_t pid;
    uid_t uid;
    char name[CLIENT_NAME_MAX + 1], comm[COMM_MAX + 1];
};

struct trace {
    unsigned references; /* the connection's, and those of replies */
    struct list link;    /* in the room's traces while it records or waits for times */
    bool over;           /* the trace records no more */
    unsigned slot;       /* the trace's bit in connections' `traced` */
    bool everybody;
    uid_t uid; /* user of the client that records */
    uint64_t origin_ns, dropped;
    struct trace_event *events; /* a ring of `room` */
    uint32_t room;
    uint64_t written, settled, read; /* counts of events; those before `settled` are whole */
    struct {
        uint64_t token, index;
    } late[LATE_MAX]; /* events whose times are still to come */
    struct trace_kind *kinds[TRACE_KINDS_MAX];
    struct list buckets[TRACE_KINDS_BUCKETS];
    uint32_t n_kinds, kinds_read; /* number 0 is for all that have no place */
    struct trace_client *clients;
    uint32_t n_clients, clients_read, clients_room;
    struct charge charge;
};

/* A new trace of the connection, in place of the one that it had. */
int trace_begin(struct connection *c, bool everybody, uint32_t room, struct error *e);
/* Ends the recording. Runs that have ended may still get their times. */
void trace_end(struct trace *t);
/* Finds out which events are whole now. */
void trace_settle(struct trace *t);
/* Returns NULL. */
struct trace *trace_unref(struct trace *t);

#endif
