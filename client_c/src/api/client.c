/* Connecting and closing, and calls for bindings (native.h). */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "jobs/job.h"
#include "jobs/ordered.h"
#include "native.h"
#include "run/here.h"
#include "session/connect.h"
#include "session/session.h"

/* Returns the decoder for a method whose reply brings an id: a late reply's id must be released. */
static wire_decode *decode_late(const char *method)
{
    static const struct {
        const char *method;
        wire_decode *decode;
    } table[] = {{"register", wire_decode_register},
                 {"alloc", wire_decode_alloc},
                 {"program", wire_decode_program},
                 {"compile", wire_decode_module},
                 {"kernel", wire_decode_kernel}};

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (!strcmp(method, table[i].method))
            return table[i].decode;
    return wire_decode_nothing;
}

static bool same_connection(struct kops_client *c, struct job *job)
{
    const uint32_t *generation = job->context;

    return *generation == c->generation;
}

/* Fails a job that was not sent since its connection is over: the binding may repeat it. */
static enum kops_code not_sent(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_error *e)
{
    (void)c;
    (void)job;
    (void)deadline;
    fail(e, KOPS_ERR_CONNECTION_LOST, "the connection to the daemon was lost");
    return fail_number(e, KOPS_ERR_CONNECTION_LOST, "ran", 0);
}

enum kops_code native_submit(kops_client *client, const struct native_raw *request, kops_ticket *ret_ticket,
                             struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const struct wire_raw raw = {.method = request->method, .params = request->params, .length = request->length};
    uint32_t generation = request->generation;
    struct job job = {.pack = wire_pack_raw,
                      .wire = &raw,
                      .resolve = generation ? same_connection : NULL,
                      .ensure = not_sent,
                      .context = &generation,
                      .decode = decode_late(request->method),
                      .keeps_reply = true,
                      .fds = request->fds,
                      .n_fds = request->n_fds};
    enum kops_code r;

    client_enter(client, e);
    r = job_submit(client, &job, client_deadline(client, request->timeout_ms), ret_ticket, e);
    client_leave(client);
    return r;
}

enum kops_code native_wait(kops_client *client, kops_ticket ticket, int64_t timeout_ms, struct native_reply *reply,
                           struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const uint64_t deadline = client_deadline(client, timeout_ms);
    struct call *call;
    enum kops_code r;

    client_enter(client, e);
    call = call_by_ticket(&client->calls, ticket);
    if (!call || !call->owns_reply || call->waited) {
        r = fail(e, KOPS_ERR_BAD_ARGUMENT, "no such ticket, or another thread waits for it");
    } else if (call->waited = true, !session_wait(client, call, deadline)) {
        call->waited = false;
        r = fail(e, KOPS_ERR_TIMEOUT, "the call has not ended yet");
    } else {
        native_reply_free(reply);
        *reply = *call->reply;
        *call->reply = (struct native_reply){.data = NULL};
        r = session_finish(client, call, e);
        reply->generation = client->generation;
    }
    client_leave(client);
    return r;
}

void native_notify(kops_client *client, uint32_t generation, const char *method, const void *params, size_t length,
                   bool dispensable)
{
    client_enter(client, NULL);
    if (client->generation == generation && client_is_connected(client) &&
        !(dispensable && session_is_behind(client))) {
        const struct notice n = session_notice(client);

        wire_pack_notification(n.out, method, params, length);
        session_notify(client, &n);
    }
    client_leave(client);
}

bool native_hello(kops_client *client, struct bytes *out)
{
    bool kept;

    client_enter(client, NULL);
    kept = bytes_append(out, client->hello.data, client->hello.length);
    client_leave(client);
    return kept;
}

int native_socket(kops_client *client)
{
    int fd;

    client_enter(client, NULL);
    fd = client_is_connected(client) ? client->t.fd : -1;
    client_leave(client);
    return fd;
}

enum kops_code native_look(kops_client *client, uint32_t generation, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    enum kops_code r = KOPS_OK;

    client_enter(client, e);
    if (client->generation == generation)
        session_poll(client);
    if (client->generation != generation || !client_is_connected(client)) {
        if (client->generation == generation && client->reason.code)
            *e = client->reason;
        else
            fail(e, KOPS_ERR_CONNECTION_LOST, "the connection to the daemon was lost");
        r = e->code;
    }
    client_leave(client);
    return r;
}

bool native_has_ended(kops_client *client, kops_ticket ticket)
{
    const struct call *call;
    bool ended;

    client_enter(client, NULL);
    call = call_by_ticket(&client->calls, ticket);
    ended = !call || call->state == CALL_DONE;
    client_leave(client);
    return ended;
}

uint32_t native_last_call(void)
{
    return call_last();
}

uint32_t native_generation(kops_client *client, const struct patience *patience, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    uint32_t generation;

    client_enter(client, e);
    generation = session_connect_for(client, DEADLINE_NEVER, patience, e) ? 0 : client->generation;
    client_leave(client);
    return generation;
}

/* ---- runs by ids ---- */

/* Completes a run of a binding's. Lock held. */
static struct wire_run wire_of(const struct kops_client *c, const struct wire_run *run)
{
    struct wire_run wire = *run;

    wire.how = client_how(c, run->how.options);
    return wire;
}

enum kops_code native_submit_run(kops_client *client, uint32_t generation, const struct wire_run *run,
                                 kops_ticket *ret_ticket, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const struct kops_options *o = run->how.options;
    const uint64_t deadline = client_deadline(client, o ? o->timeout_ms : 0);
    struct wire_run wire;
    struct job job = {.pack = wire_pack_run,
                      .wire = &wire,
                      .resolve = generation ? same_connection : NULL,
                      .ensure = not_sent,
                      .context = &generation,
                      .decode = o && o->no_timing ? wire_decode_nothing : wire_decode_run};
    enum kops_code r;

    client_enter(client, e);
    wire = wire_of(client, run);
    r = job_submit(client, &job, deadline, ret_ticket, e);
    client_leave(client);
    return r;
}

enum kops_code native_enqueue(kops_client *client, uint32_t generation, const struct wire_run *run, void *cuda_stream,
                              struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const struct kops_options *o = run->how.options;
    const uint64_t deadline = client_deadline(client, o ? o->timeout_ms : 0);
    struct wire_run wire;
    struct job job = {.pack = wire_pack_run,
                      .wire = &wire,
                      .resolve = same_connection,
                      .ensure = not_sent,
                      .context = &generation,
                      .options = o,
                      .decode = wire_decode_run,
                      .how = &wire.how,
                      .run = &wire};
    enum kops_code r;

    client_enter(client, e);
    r = enqueue_check(o, e);
    if (!r) {
        wire = wire_of(client, run);
        job.name = run->kernel ? names_keep(client, run->op) : client_op_name(client, run->op);
        r = enqueue_work(client, &job, cuda_stream, deadline, e);
    }
    client_leave(client);
    return r;
}

enum kops_code native_enqueue_call(kops_client *client, uint32_t generation, const char *method, const char *name,
                                   const void *params, size_t length, void *cuda_stream, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct wire_raw raw = {.method = method, .params = params, .length = length};
    struct job job = {.pack = wire_pack_raw,
                      .wire = &raw,
                      .resolve = same_connection,
                      .ensure = not_sent,
                      .context = &generation,
                      .raw = &raw,
                      .name = name};
    enum kops_code r;

    client_enter(client, e);
    r = enqueue_work(client, &job, cuda_stream, client_deadline(client, 0), e);
    client_leave(client);
    return r;
}

uint64_t native_enqueued(kops_client *client)
{
    uint64_t number;

    client_enter(client, NULL);
    number = client->ordered ? client->ordered->number : 0;
    client_leave(client);
    return number;
}

bool native_completed(kops_client *client, uint64_t number)
{
    uint64_t oldest;

    client_enter(client, NULL);
    ordered_collect_all(client);
    oldest = ordered_oldest(client);
    client_leave(client);
    return !oldest || oldest > number;
}

/* ---- connecting and closing ---- */

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
