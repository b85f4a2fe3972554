/* Connecting and closing. */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "jobs/batch.h"
#include "native.h"
#include "run/here.h"
#include "session/call.h"
#include "session/connect.h"

const char *kops_version(void)
{
    return KOPS_VERSION;
}

/* Finds the place of calls that name none: *where, or KOPS_WHERE in the environment. */
static enum kops_code find_place(enum kops_where *where, struct kops_error *e)
{
    static const struct {
        const char *name;
        enum kops_where where;
    } places[] = {
        {"", KOPS_WHERE_DAEMON}, {"daemon", KOPS_WHERE_DAEMON}, {"auto", KOPS_WHERE_DAEMON}, {"here", KOPS_WHERE_HERE}};
    const char *named = getenv("KOPS_WHERE");

    if (*where > KOPS_WHERE_HERE)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "options.where is none of enum kops_where");
    for (size_t i = 0; *where == KOPS_WHERE_DEFAULT && i < sizeof(places) / sizeof(places[0]); i++)
        if (!strcmp(named ? named : "", places[i].name))
            *where = places[i].where;
    if (*where == KOPS_WHERE_DEFAULT)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "KOPS_WHERE must be one of daemon, here, auto, not \"%.40s\"", named);
    return KOPS_OK;
}

enum kops_code native_connect(const struct kops_connect_options *options, const struct patience *patience,
                              kops_client **ret_client, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct kops_connect_options found = {0}, *o = &found;
    struct patience own = {.ms = 0};
    struct kops_client *c;
    enum kops_code r;

    if (options)
        found = *options;
    r = fail_reserved(e, o->reserved, sizeof(o->reserved), "options");
    if (r)
        return r;
    if (o->transport < KOPS_TRANSPORT_AUTO || o->transport > KOPS_TRANSPORT_SHM)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "options.transport is none of enum kops_transport");
    if (o->reconnect_timeout_ms < KOPS_NO_RECONNECT)
        return fail(e, KOPS_ERR_BAD_ARGUMENT,
                    "options.reconnect_timeout_ms is negative, and neither KOPS_FOREVER nor KOPS_NO_RECONNECT");
    r = find_place(&found.where, e);
    if (r)
        return r;
    c = client_new(o);
    if (!c)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a client");
    client_enter(c, e);
    own.ms = c->reconnect_timeout_ms;
    c->bound = patience != NULL;
    /* A try takes the default time at most; starting a daemon may take longer. Who follows has patience instead. */
    r = session_connect_for(
        c,
        deadline_in(o->connect_timeout_ms && !(patience && patience->follows) ? o->connect_timeout_ms : KOPS_FOREVER),
        patience ? patience : &own, e);
    if (r) {
        client_leave_unref(c);
        return r;
    }
    client_leave(c);
    *ret_client = c;
    return KOPS_OK;
}

enum kops_code kops_connect(const struct kops_connect_options *options, kops_client **ret_client,
                            struct kops_error *ret_error)
{
    return native_connect(options, NULL, ret_client, ret_error);
}

kops_client *kops_close(kops_client *client)
{
    kops_buffer *staging;

    if (!client)
        return NULL;
    client_enter(client, NULL);
    staging = client->staging;
    client->staging = NULL;
    client_leave(client);
    kops_buffer_release(staging);
    client_enter(client, NULL);
    kernels_tell_here(client);
    ops_close_here(client);
    batch_close_all(client);
    ordered_close(client);
    transport_close(&client->t);
    client_leave_unref(client);
    return NULL;
}

enum kops_code kops_ping(kops_client *client, int64_t timeout_ms, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    enum kops_code r;

    client_enter(client, e);
    r = session_call(client, wire_pack_plain, "ping", -1, wire_decode_nothing, NULL,
                     client_deadline(client, timeout_ms), SESSION_ATTEMPTS, e);
    client_leave(client);
    return r;
}
