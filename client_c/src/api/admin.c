/* The administrator's view of the daemon. */
#include <stdlib.h>

#include "base/fail.h"
#include "session/call.h"
#include "wire/wire.h"

enum { LONGEST_DRAIN_MS = 86400000 }; /* a day, as for every time on the wire */

/* `timeout_ms` 0: the client's own. */
static enum kops_code call_admin(kops_client *client, const char *method, wire_pack *pack, const void *request,
                                 wire_decode *decode, void *into, int64_t timeout_ms, unsigned attempts,
                                 struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    enum kops_code r;

    client_enter(client, e);
    r = session_call(client, pack, request, -1, decode, into, client_deadline(client, timeout_ms), attempts, e);
    client_leave(client);
    return fail_older(e, r, method);
}

enum kops_code kops_clients(kops_client *client, struct kops_clients **ret_clients, struct kops_error *ret_error)
{
    struct wire_clients *w = calloc(1, sizeof(*w));
    enum kops_code r;

    if (!w)
        return fail(ret_error, KOPS_ERR_NO_MEMORY, "there is no memory for the list of clients");
    r = call_admin(client, "clients", wire_pack_plain, "clients", wire_decode_clients, w, 0, SESSION_ATTEMPTS,
                   ret_error);
    if (r)
        kops_clients_free(&w->clients);
    else
        *ret_clients = &w->clients;
    return r;
}

struct kops_clients *kops_clients_free(struct kops_clients *clients)
{
    struct wire_clients *w = (struct wire_clients *)clients;

    if (!w)
        return NULL;
    arena_free(&w->arena);
    free(w);
    return NULL;
}

enum kops_code kops_conditions(kops_client *client, const char *device, struct kops_conditions **ret_conditions,
                               struct kops_error *ret_error)
{
    struct wire_conditions *w = calloc(1, sizeof(*w));
    enum kops_code r;

    if (!w)
        return fail(ret_error, KOPS_ERR_NO_MEMORY, "there is no memory for a device's conditions");
    r = call_admin(client, "conditions", wire_pack_conditions, device, wire_decode_conditions, w, 0, SESSION_ATTEMPTS,
                   ret_error);
    if (r)
        kops_conditions_free(&w->conditions);
    else
        *ret_conditions = &w->conditions;
    return r;
}

struct kops_conditions *kops_conditions_free(struct kops_conditions *conditions)
{
    struct wire_conditions *w = (struct wire_conditions *)conditions;

    if (!w)
        return NULL;
    arena_free(&w->arena);
    free(w);
    return NULL;
}

enum kops_code kops_metrics(kops_client *client, char **ret_text, struct kops_error *ret_error)
{
    char *text = NULL;
    enum kops_code r = call_admin(client, "metrics", wire_pack_plain, "metrics", wire_decode_metrics, &text, 0,
                                  SESSION_ATTEMPTS, ret_error);

    if (r)
        free(text);
    else
        *ret_text = text;
    return r;
}

char *kops_metrics_free(char *text)
{
    free(text);
    return NULL;
}

/* The daemon answers when its time is over; the client waits so much longer as it does for any answer. */
static int64_t patience_for(const kops_client *client, int64_t timeout_ms)
{
    if (!timeout_ms || client->timeout_ms < 0)
        return KOPS_FOREVER;
    return timeout_ms + client->timeout_ms;
}

enum kops_code kops_drain(kops_client *client, const struct kops_drain_options *options,
                          struct kops_drain_result *ret_result, struct kops_error *ret_error)
{
    static const struct kops_drain_options defaults;
    const struct kops_drain_options *o = options ? options : &defaults;
    struct kops_drain_result result = {0};
    enum kops_code r;

    if (o->stop && o->resume)
        return fail(ret_error, KOPS_ERR_BAD_ARGUMENT, "a daemon can stop or resume, not both");
    if (o->timeout_ms < 0 || o->timeout_ms > LONGEST_DRAIN_MS)
        return fail(ret_error, KOPS_ERR_BAD_ARGUMENT, "the time to drain is 0 (no limit) to %d ms, not %lld",
                    LONGEST_DRAIN_MS, (long long)o->timeout_ms);
    r = call_admin(client, "drain", wire_pack_drain, o, wire_decode_drain, &result, patience_for(client, o->timeout_ms),
                   SESSION_ONCE, ret_error);
    if (!r && ret_result)
        *ret_result = result;
    return r;
}
