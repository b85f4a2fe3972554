#include "server/peer/long_reply.h"

#include <stdlib.h>

#include "server/peer/back_pressure.h"

static struct request *first_request(const struct connection *c)
{
    return list_entry(list_first(&c->long_replies), struct request, queue_link);
}

void long_reply_enqueue(struct request *r, bool (*first)(struct long_reply *reply))
{
    struct connection *c = r->connection;

    if (c->closed) {
        request_abandon(r);
        return;
    }
    r->first_piece = first;
    list_append(&c->long_replies, &r->queue_link);
    connection_mark_dirty(c);
}

static void reply_free(struct long_reply *reply)
{
    if (reply->free_state)
        reply->free_state(reply->state);
    rpc_output_free(&reply->out);
    free(reply);
}

/* Lets the user's next connection that waits build its long reply. */
static void release(struct connection *c)
{
    struct account *a = c->account;
    struct list *next;

    list_remove(&c->long_reply_link);
    if (a->builds_reply == c)
        a->builds_reply = NULL;
    next = a->builds_reply ? NULL : list_first(&a->reply_queue);
    if (next)
        connection_mark_dirty(list_entry(next, struct connection, long_reply_link));
}

/* Whether the user's long reply under way is this connection's. If not, the connection waits for its turn. */
static bool may_build(struct connection *c)
{
    struct account *a = c->account;

    if (!a->builds_reply) {
        list_remove(&c->long_reply_link);
        a->builds_reply = c;
    }
    if (a->builds_reply != c && list_empty(&c->long_reply_link))
        list_append(&a->reply_queue, &c->long_reply_link);
    return a->builds_reply == c;
}

static struct long_reply *reply_new(struct request *r)
{
    struct long_reply *reply = calloc(1, sizeof(*reply));

    if (!reply)
        return NULL;
    reply->request = r;
    reply->step = r->first_piece;
    rpc_output_init(&reply->out, OUTPUT_MAX);
    return reply;
}

/* Answers with the result, or with out_of_memory. */
static void finish(struct connection *c)
{
    struct long_reply *reply = c->long_reply;
    struct request *r = reply ? reply->request : first_request(c);
    struct error e;

    list_remove(&r->queue_link);
    c->long_reply = NULL;
    if (!reply || reply->failed || reply->out.bytes.failed) {
        error_set(&e, ERROR_OUT_OF_MEMORY, "no memory for so long an answer");
        request_error(r, &e);
    } else {
        struct rpc_output *out = request_result(r);

        if (out)
            rpc_write_raw(out, reply->out.bytes.data, buffer_length(&reply->out.bytes));
    }
    if (reply)
        reply_free(reply);
    release(c);
    request_end(r);
}

void long_replies_step(struct connection *c)
{
    if (list_empty(&c->long_replies))
        return;
    if (!c->long_reply && connection_is_stuck(c) && !c->server->admission.cancelled) {
        release(c);
        return;
    }
    if (!may_build(c))
        return;
    if (!c->long_reply)
        c->long_reply = reply_new(first_request(c));
    while (c->long_reply && !c->long_reply->step(c->long_reply))
        if (schedule_is_over_now(&c->server->schedule)) {
            connection_mark_dirty(c);
            return;
        }
    finish(c);
    if (!list_empty(&c->long_replies))
        connection_mark_dirty(c);
}

void long_replies_abandon(struct connection *c)
{
    if (c->long_reply)
        reply_free(c->long_reply);
    c->long_reply = NULL;
    release(c);
    while (!list_empty(&c->long_replies)) {
        struct request *r = first_request(c);

        list_remove(&r->queue_link);
        request_abandon(r);
    }
}

bool long_replies_may_go_on(const struct connection *c)
{
    return !list_empty(&c->long_replies) && list_empty(&c->long_reply_link) && !connection_is_stuck(c);
}
