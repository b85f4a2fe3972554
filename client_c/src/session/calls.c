/* The table of calls. A msgid is a place in the table, and the number of times that the place was used. */
#include "calls.h"

#include <stdlib.h>

#include "base/fail.h"

enum { INDEX_BITS = 16, MAX_CALLS = 1 << INDEX_BITS };

static bool grow(struct calls *t)
{
    uint32_t n = t->n_places ? t->n_places * 2 : 16;
    struct call **places;

    if (t->n_places == MAX_CALLS)
        return false;
    places = realloc(t->places, n * sizeof(struct call *));
    if (!places)
        return false;
    t->places = places;
    while (t->n_places < n) {
        struct call *call = calloc(1, sizeof(*call));

        if (!call)
            return t->free != NULL;
        call->index = t->n_places;
        call->next_free = t->free;
        t->free = call;
        places[t->n_places++] = call;
    }
    return true;
}

/* The last msgid of this thread, for observers of its calls. The TLS model keeps libkops free of the dynamic linker's
 * functions. */
static _Thread_local uint32_t last_msgid __attribute__((tls_model("initial-exec")));

uint32_t call_last(void)
{
    return last_msgid;
}

struct call *call_new(struct calls *t)
{
    struct call *call;

    if (!t->free && !grow(t))
        return NULL;
    call = t->free;
    t->free = call->next_free;
    call->uses++;
    call->msgid = last_msgid = call->index | call->uses << INDEX_BITS;
    call->ticket = 0;
    call->waited = false;
    call->state = CALL_SENT;
    call->code = KOPS_OK;
    call->decode = wire_decode_nothing;
    call->into = NULL;
    call->reply = NULL;
    call->owns_reply = false;
    call->ended = NULL;
    call->timings.samples = NULL;
    call->timings.samples_room = 0;
    call->timings.sent_ns = 0;
    t->inflight++;
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

void call_free(struct calls *t, struct call *call)
{
    if (call->state == CALL_SENT || call->state == CALL_LATE)
        t->inflight--;
    free(call->error);
    call->error = NULL;
    drop_reply(call);
    call->ended = NULL;
    call->ticket = 0;
    call->state = CALL_FREE;
    call->next_free = t->free;
    t->free = call;
}

struct call *call_by_msgid(const struct calls *t, uint32_t msgid)
{
    uint32_t index = msgid & (MAX_CALLS - 1);
    struct call *call = index < t->n_places ? t->places[index] : NULL;

    return call && call->msgid == msgid && (call->state == CALL_SENT || call->state == CALL_LATE) ? call : NULL;
}

struct call *call_by_ticket(const struct calls *t, kops_ticket ticket)
{
    uint32_t index = (uint32_t)ticket & (MAX_CALLS - 1);
    struct call *call = index < t->n_places ? t->places[index] : NULL;

    return ticket && call && call->ticket == ticket ? call : NULL;
}

void call_end(struct calls *t, struct call *call, const struct kops_error *error)
{
    const bool unattended = call->ended != NULL;

    if (unattended)
        call->ended(call->owner, call, error);
    if (call->state == CALL_LATE || unattended) {
        call_free(t, call);
        return;
    }
    t->inflight--;
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

/* A writer to the ring does not notice that an idle daemon died. A request that the dead daemon never read did not run;
 * a daemon that still lives may be about to read it. */
static void end_unanswered(struct calls *t, struct call *call, const struct kops_error *error,
                           const struct ring_link *hung_up)
{
    const bool unread = hung_up && hung_up->memory && call->ring_end && ring_link_unread(hung_up, call->ring_end);

    call_end(t, call, error);
    call->fate = unread ? FATE_UNREAD : FATE_UNANSWERED;
    if (unread && call->error)
        fail_number(call->error, call->error->code, "ran", 0);
}

void calls_end_all(struct calls *t, const struct kops_error *error, const struct ring_link *hung_up)
{
    for (uint32_t i = 0; i < t->n_places; i++)
        if (t->places[i]->state == CALL_SENT || t->places[i]->state == CALL_LATE)
            end_unanswered(t, t->places[i], error, hung_up);
}

void calls_fork(struct calls *t, bool intact)
{
    if (!intact)
        *t = (struct calls){.places = NULL};
    for (uint32_t i = 0; i < t->n_places; i++) {
        struct call *call = t->places[i];

        call->waited = false;
        if (!call->ticket && call->state == CALL_SENT)
            call->state = CALL_LATE;
    }
}

void calls_free(struct calls *t)
{
    for (uint32_t i = 0; i < t->n_places; i++) {
        free(t->places[i]->error);
        free(t->places[i]->notes);
        drop_reply(t->places[i]);
        free(t->places[i]);
    }
    free(t->places);
    *t = (struct calls){.places = NULL};
}
