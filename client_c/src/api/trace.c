/* Recording a trace. */
#include <stdlib.h>

#include "base/fail.h"
#include "session/call.h"
#include "session/exchange.h"
#include "wire/wire.h"

/* The connection on which a trace began. */
struct beginning {
    struct wire_trace reply;
    const struct kops_client *client;
    uint32_t generation;
};

/* Before another thread may connect anew. */
static bool decode_beginning(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    struct beginning *b = into;

    b->generation = b->client->generation;
    return wire_decode_trace(result, fds, nfds, &b->reply);
}

enum kops_code kops_trace_begin(kops_client *client, const struct kops_trace_options *options,
                                struct kops_error *ret_error)
{
    static const struct kops_trace_options defaults;
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct beginning b = {.client = client};
    enum kops_code r;

    client_enter(client, e);
    r = session_call(client, wire_pack_trace_begin, options ? options : &defaults, -1, decode_beginning, &b,
                     client_deadline(client, 0), SESSION_ONCE, e);
    if (!r)
        client->traced = b.generation;
    client_leave(client);
    arena_free(&b.reply.arena);
    return fail_older(e, r, "trace");
}

/* On the connection that began the trace, and on no other: another daemon knows nothing of it. */
static enum kops_code read_trace(struct kops_client *c, bool end, struct wire_trace *into, struct kops_error *e)
{
    const struct exchange x = {wire_pack_trace_read, &end, -1, wire_decode_trace, into};
    const uint32_t generation = c->traced;
    struct kops_error why;

    if (!generation)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "this client records no trace: call kops_trace_begin() first");
    fail_clear(&why);
    exchange_here(c, generation, &x, client_deadline(c, 0), &why);
    if (why.code && (!client_is_connected(c) || c->generation != generation))
        return fail(e, KOPS_ERR_CONNECTION_LOST,
                    "the trace has ended with its connection, and the events that were not read are lost; begin "
                    "another one: %.300s",
                    why.message);
    *e = why;
    return why.code;
}

enum kops_code kops_trace_read(kops_client *client, bool end, struct kops_trace **ret_trace,
                               struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct wire_trace *w = calloc(1, sizeof(*w));
    enum kops_code r;

    if (!w)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a trace");
    client_enter(client, e);
    r = read_trace(client, end, w, e);
    client_leave(client);
    if (r)
        kops_trace_free(&w->trace);
    else
        *ret_trace = &w->trace;
    return r;
}

struct kops_trace *kops_trace_free(struct kops_trace *trace)
{
    struct wire_trace *w = (struct wire_trace *)(void *)trace;

    if (!w)
        return NULL;
    arena_free(&w->arena);
    free(w);
    return NULL;
}
