/* The table of unanswered requests. A msgid is a place in the table and how often that place was used. */
#include "base/fail.h"
#include "session.h"
#include "work/ordered.h"

#include <stdlib.h>
#include <string.h>

enum { INDEX_BITS = 16, MAX_CALLS = 1 << INDEX_BITS };

static bool grow(struct kops_client *c)
{
    uint32_t n = c->n_calls ? c->n_calls * 2 : 16;
    struct call **calls;

    if (c->n_calls == MAX_CALLS)
        return false;
    calls = realloc(c->calls, n * sizeof(*calls));
    if (!calls)
        return false;
    c->calls = calls;
    while (c->n_calls < n) {
        struct call *call = calloc(1, sizeof(*call));

        if (!call)
            return c->free_calls != NULL;
        call->index = c->n_calls;
        call->next_free = c->free_calls;
        c->free_calls = call;
        calls[c->n_calls++] = call;
    }
    return true;
}

struct call *call_new(struct kops_client *c)
{
    struct call *call;

    if (!c->free_calls && !grow(c))
        return NULL;
    call = c->free_calls;
    c->free_calls = call->next_free;
    call->uses++;
    call->msgid = call->index | call->uses << INDEX_BITS;
    call->ticket = 0;
    call->waited = false;
    call->state = CALL_SENT;
    call->code = KOPS_OK;
    call->decode = wire_decode_nothing;
    call->into = NULL;
    call->reply = NULL;
    call->owns_reply = false;
    call->lane = NULL;
    call->timings.samples = NULL;
    call->timings.samples_room = 0;
    c->inflight++;
    return call;
}

static void drop_reply(struct call *call)
{
    if (call->owns_reply) {
        native_reply_free(call->reply);
        free(call->reply);
    }
    call->reply = NULL;
    call->owns_reply = false;
}

void call_free(struct kops_client *c, struct call *call)
{
    if (call->state == CALL_SENT || call->state == CALL_LATE)
        c->inflight--;
    free(call->error);
    call->error = NULL;
    drop_reply(call);
    call->lane = NULL;
    call->ticket = 0;
    call->state = CALL_FREE;
    call->next_free = c->free_calls;
    c->free_calls = call;
}

struct call *call_by_msgid(struct kops_client *c, uint32_t msgid)
{
    uint32_t index = msgid & (MAX_CALLS - 1);
    struct call *call = index < c->n_calls ? c->calls[index] : NULL;

    return call && call->msgid == msgid && (call->state == CALL_SENT || call->state == CALL_LATE) ? call : NULL;
}

struct call *call_by_ticket(struct kops_client *c, kops_ticket ticket)
{
    uint32_t index = (uint32_t)ticket & (MAX_CALLS - 1);
    struct call *call = index < c->n_calls ? c->calls[index] : NULL;

    return ticket && call && call->ticket == ticket ? call : NULL;
}

void call_end(struct kops_client *c, struct call *call, const struct kops_error *error)
{
    if (call->lane)
        ordered_ended(c, call, error);
    if (call->state == CALL_LATE || call->lane) {
        call_free(c, call);
        return;
    }
    c->inflight--;
    call->state = CALL_DONE;
    call->into = NULL;
    call->code = error ? error->code : KOPS_OK;
    if (error) {
        call->fate = FATE_ANSWERED;
        call->error = malloc(sizeof(*error));
        if (call->error)
            *call->error = *error;
    }
}

/* A daemon that died while nothing was under way is not noticed by who writes to the ring: what it never read never
 * ran. One that is still there may be about to read it. */
static void end_unanswered(struct kops_client *c, struct call *call, const struct kops_error *error, bool hung_up)
{
    const bool unread = hung_up && c->t.ring.memory && call->ring_end && ring_link_unread(&c->t.ring, call->ring_end);

    call_end(c, call, error);
    call->fate = unread ? FATE_UNREAD : FATE_UNANSWERED;
    if (unread && call->error)
        fail_number(call->error, call->error->code, "ran", 0);
}

void calls_end_all(struct kops_client *c, const struct kops_error *error, bool hung_up)
{
    for (uint32_t i = 0; i < c->n_calls; i++)
        if (c->calls[i]->state == CALL_SENT || c->calls[i]->state == CALL_LATE) {
            end_unanswered(c, c->calls[i], error, hung_up);
        }
}

void calls_free(struct kops_client *c)
{
    for (uint32_t i = 0; i < c->n_calls; i++) {
        free(c->calls[i]->error);
        drop_reply(c->calls[i]);
        free(c->calls[i]);
    }
    free(c->calls);
    c->calls = NULL;
    c->n_calls = 0;
    c->free_calls = NULL;
}
