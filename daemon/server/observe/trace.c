/* Traces: the times of every run and compilation, recorded for the clients that ask. Each connection may have one
 * trace. Its events wait in a ring of their own until they are read; without room they are dropped, and counted. While
 * nobody traces, a run costs one look at an empty list. Thread: loop. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/generated/results.h"
#include "server/observe/profile.h"
#include "server/observe/room.h"
#include "server/peer/access.h"
#include "server/peer/request.h"
#include "util/clock.h"

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

/* Finds out which events are whole now. */
static void trace_settle(struct trace *t);

enum {
    TRACES_OF_USER = 4, /* each is work for the loop at every run of the user */
    TRACES_MAX = 32,    /* traces of all users */
    CLIENTS_MAX = 4096  /* clients of a trace; others are not described */
};
/* For times that do not come: an executor was lost, or the driver has lost a record. */
static const uint64_t patience_ns = 200 * 1000 * 1000;

/* ---- a trace's life ---- */

static struct trace *trace_unref(struct trace *t)
{
    if (!t || --t->references)
        return NULL;
    list_remove(&t->link);
    for (uint32_t i = 1; i < t->n_kinds; i++)
        free(t->kinds[i]);
    charge_free(&t->charge);
    free(t->clients);
    free(t->events);
    free(t);
    return NULL;
}

void trace_leave(struct connection *c)
{
    if (c->statistics->trace)
        list_remove(&c->statistics->trace->link);
    c->statistics->trace = trace_unref(c->statistics->trace);
}

/* The number of traces is bounded: at every run the loop does something for each that records it. Subordinate users
 * count for their owner, as in all quotas. */
static int check_number(const struct connection *c, struct error *e)
{
    unsigned all = 0, own = 0;

    list_for_each_safe (node, after, &c->server->observe->traces) {
        struct trace *t = list_entry(node, struct trace, link);

        if (t->over)
            trace_settle(t); /* the client may read no more */
        if (t == c->statistics->trace || list_empty(&t->link))
            continue;
        all++;
        own += t->charge.account == c->account;
    }
    if (own < TRACES_OF_USER && all < TRACES_MAX)
        return 0;
    return error_set(e, ERROR_QUOTA_EXCEEDED,
                     own < TRACES_OF_USER ? "%u traces are being recorded, and no more are possible: try again later"
                                          : "your user records %u traces, and no more are possible: end one",
                     own < TRACES_OF_USER ? all : own);
}

static struct trace *trace_new(struct connection *c, bool everybody, uint32_t room, struct error *e)
{
    const size_t bytes = sizeof(struct trace) + room * sizeof(struct trace_event);
    struct trace *t = calloc(1, sizeof(*t));

    if (!t)
        goto no_memory;
    t->references = 1;
    list_init(&t->link);
    for (unsigned i = 0; i < TRACE_KINDS_BUCKETS; i++)
        list_init(&t->buckets[i]);
    if (charge_take(&t->charge, c->account, c->pid, QUOTA_WAITING, bytes, e) < 0)
        goto unref;
    t->events = malloc(room * sizeof(*t->events));
    if (!t->events)
        goto no_memory;
    t->everybody = everybody;
    t->uid = c->uid;
    t->room = room;
    t->n_kinds = 1;
    t->origin_ns = clock_now_ns() - 1; /* no event has the time 0 */
    return t;

no_memory:
    error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a trace of %u events; ask for fewer", room);
unref:
    return trace_unref(t);
}

static unsigned free_slot(const struct server *s)
{
    uint32_t taken = 0;

    list_for_each_safe (node, after, &s->observe->traces) {
        taken |= 1U << list_entry(node, struct trace, link)->slot;
    }
    return (unsigned)__builtin_ctz(~taken);
}

/* A new trace of the connection, in place of the one that it had. */
static int trace_begin(struct connection *c, bool everybody, uint32_t room, struct error *e)
{
    struct server *s = c->server;
    struct trace *t;

    if (everybody && !access_allows(c, ACCESS_ADMINISTER))
        return access_refuse(c, "trace", ACCESS_ADMINISTER, e);
    if (check_number(c, e) < 0)
        return -1;
    t = trace_new(c, everybody, room, e);
    if (!t)
        return -1;
    trace_leave(c);
    t->slot = free_slot(s);
    list_for_each_safe (node, after, peers_connections(s)) {
        list_entry(node, struct connection, link)->statistics->traced &= ~(1U << t->slot);
    }
    list_append(&s->observe->traces, &t->link);
    c->statistics->trace = t;
    return 0;
}

/* ---- recording ---- */

static bool records(const struct trace *t, uid_t uid)
{
    return !t->over && (t->everybody || t->uid == uid);
}

bool trace_records(const struct server *s, uid_t uid)
{
    list_for_each_safe (node, after, &s->observe->traces) {
        if (records(list_entry(node, struct trace, link), uid))
            return true;
    }
    return false;
}

static uint32_t kind_number(struct trace *t, const struct op_key *key)
{
    struct list *bucket = &t->buckets[op_key_hash(key) % TRACE_KINDS_BUCKETS];
    struct trace_kind *kind;

    list_for_each_safe (node, after, bucket) {
        kind = list_entry(node, struct trace_kind, bucket);
        if (op_key_is(key, &kind->head, kind->words) && !strncmp(kind->name, key->name, sizeof(kind->name) - 1))
            return kind->number;
    }
    if (t->n_kinds == TRACE_KINDS_MAX)
        return 0;
    kind = calloc(1, sizeof(*kind) + key->head.words * sizeof(kind->words[0]));
    if (!kind)
        return 0;
    kind->head = key->head;
    kind->number = t->n_kinds;
    snprintf(kind->name, sizeof(kind->name), "%s", key->name);
    memcpy(kind->words, key->words, key->head.words * sizeof(kind->words[0]));
    list_append(bucket, &kind->bucket);
    t->kinds[t->n_kinds++] = kind;
    return kind->number;
}

/* Remembers the connection for the replies, once a trace. */
static void announce(struct trace *t, struct connection *c)
{
    struct trace_client *all = t->clients;

    if (c->statistics->traced & 1U << t->slot || t->n_clients == CLIENTS_MAX)
        return;
    if (t->n_clients == t->clients_room) {
        all = realloc(all, (2 * t->clients_room + 8) * sizeof(*all));
        if (!all)
            return;
        t->clients = all;
        t->clients_room = 2 * t->clients_room + 8;
    }
    connection_name_process(c);
    all += t->n_clients++;
    *all = (struct trace_client){.number = c->number, .pid = c->pid, .uid = c->uid};
    snprintf(all->name, sizeof(all->name), "%s", c->client);
    snprintf(all->comm, sizeof(all->comm), "%s", c->comm);
    c->statistics->traced |= 1U << t->slot;
}

/* In the trace's time; 0 stays 0. What was before the trace was at its beginning. */
static uint64_t time_of(const struct trace *t, uint64_t ns)
{
    return !ns ? 0 : ns > t->origin_ns ? ns - t->origin_ns : 1;
}

/* When the device had the work. Its clock is known within microseconds: the times are put between those of the host. */
static void set_device_times(const struct trace *t, struct trace_event *event, uint64_t begin_ns, uint64_t end_ns)
{
    const uint64_t began = time_of(t, begin_ns), finished = time_of(t, end_ns);

    if (!event->started || !began || finished < began) {
        event->began = event->finished = 0;
        return;
    }
    event->began = began < event->started ? event->started : began > event->ended ? event->ended : began;
    event->finished = finished > event->ended ? event->ended : finished < event->began ? event->began : finished;
}

static void record(struct trace *t, struct connection *c, const struct op_key *key, const struct trace_event *absolute)
{
    struct trace_event *event;

    if (t->written - t->read == t->room) {
        t->dropped++;
        return;
    }
    announce(t, c);
    if (absolute->token) {
        t->late[absolute->token % LATE_MAX].token = absolute->token;
        t->late[absolute->token % LATE_MAX].index = t->written;
    }
    event = &t->events[t->written++ % t->room];
    *event = *absolute;
    event->kind = kind_number(t, key);
    event->received = time_of(t, absolute->received);
    event->ready = time_of(t, absolute->ready);
    event->started = time_of(t, absolute->started);
    event->ended = time_of(t, absolute->ended);
    set_device_times(t, event, absolute->began, absolute->finished);
}

/* ---- times that come later ---- */

static void trace_settle(struct trace *t)
{
    const uint64_t now = clock_now_ns() - t->origin_ns;

    for (; t->settled < t->written; t->settled++) {
        const struct trace_event *event = &t->events[t->settled % t->room];

        if (event->token && now - event->ended < patience_ns)
            return;
    }
    if (t->over)
        list_remove(&t->link);
}

/* Ends the recording. Runs that have ended may still get their times. */
static void trace_end(struct trace *t)
{
    t->over = true;
    trace_settle(t);
}

void trace_timed(struct server *s, uint64_t token, const struct backend_times *times)
{
    list_for_each_safe (node, after, &s->observe->traces) {
        struct trace *t = list_entry(node, struct trace, link);
        const uint64_t index = t->late[token % LATE_MAX].index;
        struct trace_event *event = &t->events[index % t->room];

        if (t->late[token % LATE_MAX].token != token || index < t->settled || event->token != token)
            continue;
        event->token = 0;
        set_device_times(t, event, times->begin_ns, times->end_ns);
        event->busy = (uint64_t)(times->us * 1e3);
    }
}

static void record_for_all(struct connection *c, const struct op_key *key, const struct trace_event *event)
{
    list_for_each_safe (node, after, &c->server->observe->traces) {
        struct trace *t = list_entry(node, struct trace, link);

        if (records(t, c->uid))
            record(t, c, key, event);
    }
}

/* The first of several ops stands for all. */
static void key_of_run(struct op_key *key, const struct request *r, const struct run *run)
{
    const struct command_list *b = &run->commands;

    if (b->n_steps) {
        const struct op_call call = command_list_call(b, 0);

        op_key_make(key, r->connection->uid, &call, run->device, b->n_steps == 1 ? b->steps[0].variant_used : "");
    } else {
        memset(key, 0, sizeof(*key));
        key->head.device = run->device;
        key->name = "";
    }
    key->head.what = r->method;
    key->head.ops = b->n_steps;
}

static uint64_t busy_ns(const struct run *run)
{
    double us = 0;

    for (uint32_t i = 0; i < run->job.n_samples; i++)
        us += run->samples[i];
    return (uint64_t)(us * 1e3);
}

static void record_run(const struct request *r, const struct run *run, uint64_t now_ns)
{
    const struct trace_event event = {
        .client = r->connection->number,
        .call = r->msgid,
        .stream = run->stream ? run->stream->number : 0,
        .received = r->received_ns,
        .ready = run->ready_ns,
        .started = run->job.started_ns,
        .began = run->job.gpu_begin_ns,
        .finished = run->job.gpu_end_ns,
        .token = run->job.timed_later ? run->job.token : 0,
        .ended = now_ns,
        .busy = busy_ns(run),
        .executions = run->job.repeat,
        .failed = run->failed,
    };
    struct op_key key;

    key_of_run(&key, r, run);
    record_for_all(r->connection, &key, &event);
}

void trace_run(const struct request *r, const struct run *run, uint64_t now_ns)
{
    if (trace_records(r->connection->server, r->connection->uid))
        record_run(r, run, now_ns);
}

void trace_compile(const struct request *r, const char *name, uint64_t started_ns, bool failed)
{
    const struct trace_event event = {
        .client = r->connection->number,
        .call = r->msgid,
        .received = r->received_ns,
        .started = started_ns,
        .ended = clock_now_ns(),
        .executions = 1,
        .failed = failed,
    };
    struct op_key key;

    if (!trace_records(r->connection->server, r->connection->uid))
        return;
    memset(&key.head, 0, sizeof(key.head));
    key.head.what = r->method;
    key.head.uid = r->connection->uid;
    key.name = name;
    record_for_all(r->connection, &key, &event);
}

/* The method `trace`: beginning, reading and ending one. */

enum { PIECE = 512 /* events of one piece of a reply */ };

/* ---- the reply ---- */

struct trace_read {
    const struct server *server;
    const struct trace *trace;
};

static void write_kind(struct rpc_output *out, const void *of, uint32_t i)
{
    static const struct op_key_head others = {.what = METHOD_RUN};
    const struct trace_read *read = of;
    const uint32_t number = read->trace->kinds_read + i;
    const struct trace_kind *kind = read->trace->kinds[number];
    const struct op_key_head *head = kind ? &kind->head : &others;

    rpc_write_record(out, RECORD(trace_kind_map, .kind = number, .what = request_method_name(read->server, head->what),
                                 .op = kind ? kind->name : "other", .ops = head->ops,
                                 .device = head->device ? head->device->info.uuid : NULL, .variant = head->variant,
                                 .dtype = head->dtype ? dtype_name(head->dtype) : NULL,
                                 .shapes = {head->operands, op_key_each_shape, kind ? kind->words : NULL}));
}

static void write_client(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct trace_read *read = of;
    const struct trace_client *client = &read->trace->clients[read->trace->clients_read + i];

    rpc_write_record(out, RECORD(trace_client_map, .client = client->number, .pid = (uint64_t)client->pid,
                                 .uid = client->uid, .identity = identity_of(read->server, client->uid),
                                 .name = client->name, .comm = client->comm));
}

static void write_event(struct rpc_output *out, const struct trace_event *event)
{
#define X(column) event->column,
    const uint64_t columns[] = {KOPS_COLUMNS_TRACE_EVENT(X)};
#undef X
    const unsigned n = sizeof(columns) / sizeof(columns[0]);

    rpc_write_array(out, n);
    for (unsigned i = 0; i < n; i++)
        rpc_write_uint(out, columns[i]);
}

/* The state of a trace request. */
struct trace_request {
    bool begins; /* the reply has no events: the client does not look for any */
};
const size_t trace_state_bytes = sizeof(struct trace_request);

static struct trace_request *trace_request_of(const struct request *r)
{
    return request_state(r);
}

/* A reply while it is built. Its events are those that were recorded before it began. */
struct reading {
    struct trace *trace;
    uint64_t end;
};

static void reading_free(void *state)
{
    struct reading *reading = state;

    trace_unref(reading->trace);
    free(reading);
}

static bool read_events(struct long_reply *reply)
{
    const struct reading *reading = reply->state;
    struct trace *t = reading->trace;

    for (unsigned i = 0; i < PIECE && t->read < reading->end; i++)
        write_event(&reply->out, &t->events[t->read++ % t->room]);
    return t->read == reading->end;
}

static bool read_begin(struct long_reply *reply)
{
    struct connection *c = reply->request->connection;
    struct reading *reading = calloc(1, sizeof(*reading));
    const bool nothing = trace_request_of(reply->request)->begins;
    struct trace *t = c->statistics->trace;
    const struct trace_read read = {c->server, t};

    if (!reading) {
        reply->failed = true;
        return true;
    }
    trace_settle(t);
    *reading = (struct reading){.trace = t, .end = nothing ? t->read : t->settled};
    t->references++;
    reply->state = reading;
    reply->free_state = reading_free;
    rpc_write_record(&reply->out, RECORD(trace_reply, .recording = !t->over, .origin_ns = t->origin_ns,
                                         .now_ns = clock_now_ns() - t->origin_ns, .dropped = t->dropped,
                                         .pending = {true, t->written - t->settled},
                                         .kinds = {nothing ? 0 : t->n_kinds - t->kinds_read, write_kind, &read},
                                         .clients = {nothing ? 0 : t->n_clients - t->clients_read, write_client, &read},
                                         .events = {.n = (uint32_t)(reading->end - t->read)}));
    if (!nothing) {
        t->kinds_read = t->n_kinds;
        t->clients_read = t->n_clients;
    }
    reply->step = read_events;
    return t->read == reading->end;
}

void handle_trace(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct connection *c = r->connection;
    int ok = 0;
    struct error e;

    (void)fds;
    if (args[TRACE_begin].b && args[TRACE_end].b)
        ok = error_set(&e, ERROR_INVALID_ARGUMENT, "begin and end: a trace begins or ends, not both");
    else if (args[TRACE_begin].b)
        ok = trace_begin(c, args[TRACE_everybody].b, (uint32_t)args[TRACE_events].u, &e);
    else if (c->statistics->trace && c->statistics->trace->everybody && !access_allows(c, ACCESS_ADMINISTER)) {
        /* The lists in the configuration have changed. It stays, for replies under way. */
        trace_end(c->statistics->trace);
        ok = access_refuse(c, "trace", ACCESS_ADMINISTER, &e);
    } else if (!c->statistics->trace)
        ok = error_set(&e, ERROR_INVALID_ARGUMENT, "this connection records no trace: call trace with begin first");
    if (ok < 0) {
        request_end_error(r, &e);
        return;
    }
    if (args[TRACE_end].b)
        trace_end(c->statistics->trace);
    trace_request_of(r)->begins = args[TRACE_begin].b;
    long_reply_enqueue(r, read_begin);
}
