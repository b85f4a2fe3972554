/* The method `trace`: beginning, reading and ending one. */
#include <stdlib.h>

#include "proto/generated/results.h"
#include "server/observe/room.h"
#include "server/observe/trace_state.h"
#include "server/peer/access.h"
#include "server/peer/long_reply.h"
#include "util/clock.h"

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

/* A reply while it is built: of what was recorded when it began. */
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
