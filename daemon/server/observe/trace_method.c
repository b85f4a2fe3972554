/* The method `trace`: beginning, reading and ending one. */
#include <stdlib.h>

#include "server/observe/room.h"
#include "server/observe/trace_state.h"
#include "server/peer/access.h"
#include "server/peer/long_reply.h"
#include "util/clock.h"

enum {
    COLUMNS = 13,
    PIECE = 512 /* events of one piece of a reply */
};

/* ---- the reply ---- */

static void write_kind(struct rpc_output *out, const struct server *s, uint32_t number, const struct trace_kind *kind)
{
    static const struct op_key_head others = {.what = METHOD_RUN};
    const struct op_key_head *head = kind ? &kind->head : &others;

    rpc_write_map(out, 8);
    rpc_write_entry_uint(out, "kind", number);
    rpc_write_entry_text(out, "what", request_method_name(s, head->what));
    rpc_write_text(out, "op");
    rpc_write_any_text(out, kind ? kind->name : "other");
    rpc_write_entry_uint(out, "ops", head->ops);
    rpc_write_entry_text(out, "device", head->device ? head->device->info.uuid : "");
    rpc_write_entry_text(out, "variant", head->variant);
    rpc_write_entry_text(out, "dtype", head->dtype ? dtype_name(head->dtype) : "");
    rpc_write_text(out, "shapes");
    if (kind)
        op_key_write_shapes(out, head, kind->words);
    else
        rpc_write_array(out, 0);
}

static void write_client(struct rpc_output *out, const struct server *s, const struct trace_client *client)
{
    rpc_write_map(out, 5 + uid_is_identity(client->uid));
    rpc_write_entry_uint(out, "client", client->number);
    rpc_write_entry_uint(out, "pid", (uint64_t)client->pid);
    rpc_write_entry_uint(out, "uid", client->uid);
    write_identity(out, s, client->uid);
    rpc_write_text(out, "name");
    rpc_write_any_text(out, client->name);
    rpc_write_text(out, "comm");
    rpc_write_any_text(out, client->comm);
}

static void write_event(struct rpc_output *out, const struct trace_event *event)
{
    const uint64_t columns[COLUMNS] = {event->kind,   event->client,  event->call,    event->stream, event->received,
                                       event->ready,  event->started, event->ended,   event->busy,   event->executions,
                                       event->failed, event->began,   event->finished};

    rpc_write_array(out, COLUMNS);
    for (unsigned i = 0; i < COLUMNS; i++)
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
    struct rpc_output *out = &reply->out;

    if (!reading) {
        reply->failed = true;
        return true;
    }
    trace_settle(t);
    *reading = (struct reading){.trace = t, .end = nothing ? t->read : t->settled};
    t->references++;
    reply->state = reading;
    reply->free_state = reading_free;
    rpc_write_map(out, 8);
    rpc_write_entry_bool(out, "recording", !t->over);
    rpc_write_entry_uint(out, "origin_ns", t->origin_ns);
    rpc_write_entry_uint(out, "now_ns", clock_now_ns() - t->origin_ns);
    rpc_write_entry_uint(out, "dropped", t->dropped);
    rpc_write_entry_uint(out, "pending", t->written - t->settled);
    rpc_write_text(out, "kinds");
    rpc_write_array(out, nothing ? 0 : t->n_kinds - t->kinds_read);
    for (; !nothing && t->kinds_read < t->n_kinds; t->kinds_read++)
        write_kind(out, c->server, t->kinds_read, t->kinds[t->kinds_read]);
    rpc_write_text(out, "clients");
    rpc_write_array(out, nothing ? 0 : t->n_clients - t->clients_read);
    for (; !nothing && t->clients_read < t->n_clients; t->clients_read++)
        write_client(out, c->server, &t->clients[t->clients_read]);
    rpc_write_text(out, "events");
    rpc_write_array(out, (uint32_t)(reading->end - t->read));
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
