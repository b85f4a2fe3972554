/* Requests of administrators, and the daemon's state: clients, the cache, statistics, tuning, traces. */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "run/here.h"
#include "run/run.h"
#include "session/connect.h"
#include "wire/wire.h"

/* ---- administration ---- */

enum { LONGEST_DRAIN_MS = 86400000 }; /* a day, as for every time on the wire */

/* `younger`: the method's name, where a daemon may be older than the method; NULL: every daemon has it. `timeout_ms` 0:
 * the client's own. */
static enum kops_code call(kops_client *client, const char *younger, wire_pack *pack, const void *request, int fd,
                           wire_decode *decode, void *into, int64_t timeout_ms, unsigned attempts,
                           struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    enum kops_code r;

    client_enter(client, e);
    r = session_call(client, pack, request, fd, decode, into, client_deadline(client, timeout_ms), attempts, e);
    client_leave(client);
    return younger ? fail_older(e, r, younger) : r;
}

static void *new_result(size_t size, enum kops_code *ret_code, struct kops_error *e)
{
    void *result = calloc(1, size);

    *ret_code = result ? KOPS_OK : fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for the result");
    return result;
}

/* Returns the public struct behind a result's arena; NULL where the call failed. */
static void *kept(struct arena *result, enum kops_code code)
{
    return code ? wire_result_free(result + 1) : result + 1;
}

/* Calls with a result of `size` bytes that begins with an arena. */
static void *ask(kops_client *client, const char *younger, wire_pack *pack, const void *request, wire_decode *decode,
                 size_t size, unsigned attempts, enum kops_code *ret_code, struct kops_error *ret_error)
{
    void *result = new_result(size, ret_code, ret_error);

    if (!result)
        return NULL;
    *ret_code = call(client, younger, pack, request, -1, decode, result, 0, attempts, ret_error);
    return kept(result, *ret_code);
}

/* ---- clients, conditions, metrics, draining ---- */

enum kops_code kops_clients(kops_client *client, struct kops_clients **ret_clients, struct kops_error *ret_error)
{
    enum kops_code r;
    struct kops_clients *got = ask(client, "clients", wire_pack_plain, "clients", wire_decode_clients,
                                   sizeof(struct wire_clients), SESSION_ATTEMPTS, &r, ret_error);

    if (got)
        *ret_clients = got;
    return r;
}

struct kops_clients *kops_clients_free(struct kops_clients *clients)
{
    return wire_result_free(clients);
}

enum kops_code kops_conditions(kops_client *client, const char *device, struct kops_conditions **ret_conditions,
                               struct kops_error *ret_error)
{
    const struct wire_conditions_of request = {device};
    enum kops_code r;
    struct kops_conditions *got = ask(client, "conditions", wire_pack_conditions, &request, wire_decode_conditions,
                                      sizeof(struct wire_conditions), SESSION_ATTEMPTS, &r, ret_error);

    if (got)
        *ret_conditions = got;
    return r;
}

struct kops_conditions *kops_conditions_free(struct kops_conditions *conditions)
{
    return wire_result_free(conditions);
}

enum kops_code kops_metrics(kops_client *client, char **ret_text, struct kops_error *ret_error)
{
    char *text = NULL;
    enum kops_code r = call(client, "metrics", wire_pack_plain, "metrics", -1, wire_decode_metrics, &text, 0,
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

enum kops_code kops_drain(kops_client *client, const struct kops_drain_options *options,
                          struct kops_drain_result *ret_result, struct kops_error *ret_error)
{
    static const struct kops_drain_options defaults;
    const struct kops_drain_options *o = options ? options : &defaults;
    /* The daemon answers when `timeout_ms` is over; the client waits its usual timeout longer. */
    const int64_t patience_ms =
        o->timeout_ms && client->timeout_ms >= 0 ? o->timeout_ms + client->timeout_ms : KOPS_FOREVER;
    struct kops_drain_result result = {0};
    enum kops_code r;

    if (o->stop && o->resume)
        return fail(ret_error, KOPS_ERR_BAD_ARGUMENT, "a daemon can stop or resume, not both");
    if (o->timeout_ms < 0 || o->timeout_ms > LONGEST_DRAIN_MS)
        return fail(ret_error, KOPS_ERR_BAD_ARGUMENT, "the time to drain is 0 (no limit) to %d ms, not %lld",
                    LONGEST_DRAIN_MS, (long long)o->timeout_ms);
    r = call(client, "drain", wire_pack_drain, o, -1, wire_decode_drain, &result, patience_ms, SESSION_ONCE, ret_error);
    if (!r && ret_result)
        *ret_result = result;
    return r;
}

/* ---- the cache ---- */

static enum kops_code check_cache(const struct kops_client *c, struct kops_error *e)
{
    if (c->info.info.kernels)
        return KOPS_OK;
    return fail(e, KOPS_ERR_UNSUPPORTED, "the daemon is older than kernels of one's own: install a newer one");
}

/* `attempts`: a cache request is not repeated, since its counts would differ the second time. */
static enum kops_code call_cache(kops_client *client, const struct wire_cache *request, int fd, wire_decode *decode,
                                 void *into, unsigned attempts, struct kops_error *ret_error)
{
    enum kops_code r = check_cache(client, ret_error);

    return r ? r : call(client, NULL, wire_pack_cache, request, fd, decode, into, 0, attempts, ret_error);
}

enum kops_code kops_cache_list(kops_client *client, struct kops_cache **ret_cache, struct kops_error *ret_error)
{
    const struct wire_cache request = {.action = "list"};
    enum kops_code r = check_cache(client, ret_error);
    struct kops_cache *got = r ? NULL
                               : ask(client, NULL, wire_pack_cache, &request, wire_decode_cache_list,
                                     sizeof(struct wire_cache_list), SESSION_ATTEMPTS, &r, ret_error);

    if (got)
        *ret_cache = got;
    return r;
}

struct kops_cache *kops_cache_free(struct kops_cache *cache)
{
    return wire_result_free(cache);
}

enum kops_code kops_cache_clear(kops_client *client, const char *key, uint64_t *ret_removed,
                                struct kops_error *ret_error)
{
    const struct wire_cache request = {.action = "clear", .key = key};
    struct wire_cache_counts counts = {0};
    enum kops_code r = call_cache(client, &request, -1, wire_decode_cache_counts, &counts, SESSION_ONCE, ret_error);

    if (!r && ret_removed)
        *ret_removed = counts.removed;
    return r;
}

enum kops_code kops_cache_export(kops_client *client, const char *key, int *ret_fd, uint64_t *ret_bytes,
                                 struct kops_error *ret_error)
{
    const struct wire_cache request = {.action = "export", .key = key};
    struct wire_cache_file file = {.fd = -1};
    enum kops_code r = call_cache(client, &request, -1, wire_decode_cache_file, &file, SESSION_ATTEMPTS, ret_error);

    if (r)
        return r;
    *ret_fd = file.fd;
    *ret_bytes = file.bytes;
    return KOPS_OK;
}

enum kops_code kops_cache_import(kops_client *client, int fd, uint64_t *ret_imported, uint64_t *ret_skipped,
                                 struct kops_error *ret_error)
{
    const struct wire_cache request = {.action = "import", .fd = true};
    struct wire_cache_counts counts = {0};
    enum kops_code r = call_cache(client, &request, fd, wire_decode_cache_counts, &counts, SESSION_ONCE, ret_error);

    if (!r && ret_imported)
        *ret_imported = counts.imported;
    if (!r && ret_skipped)
        *ret_skipped = counts.skipped;
    return r;
}

/* ---- statistics ---- */

enum kops_code kops_trim(kops_client *client, uint64_t *ret_bytes, struct kops_error *ret_error)
{
    uint64_t bytes = 0;
    enum kops_code r =
        call(client, NULL, wire_pack_plain, "trim", -1, wire_decode_trim, &bytes, 0, SESSION_ATTEMPTS, ret_error);

    if (!r && ret_bytes)
        *ret_bytes = bytes;
    return r;
}

enum kops_code kops_stats_get(kops_client *client, const struct kops_stats_filter *filter,
                              struct kops_stats **ret_stats, struct kops_error *ret_error)
{
    static const struct kops_stats_filter everything;
    struct kops_stats *got;
    enum kops_code r;

    client_enter(client, NULL);
    kernels_tell_here(client);
    ops_tell_here(client);
    client_leave(client);
    got = ask(client, NULL, wire_pack_stats, filter ? filter : &everything, wire_decode_stats,
              sizeof(struct wire_stats), SESSION_ATTEMPTS, &r, ret_error);
    if (got)
        *ret_stats = got;
    return r;
}

struct kops_stats *kops_stats_free(struct kops_stats *stats)
{
    return wire_result_free(stats);
}

/* ---- tuning ---- */

static enum kops_code check_feature(const struct kops_client *c, struct kops_error *e)
{
    if (kops_info_feature(c, "tune"))
        return KOPS_OK;
    return fail(
        e, KOPS_ERR_UNSUPPORTED,
        "this daemon does not tune (it lists no feature `tune`): it is older than tuning, or has no device with a "
        "choice among kernels, such as a GPU");
}

/* Returns the device that the request would run on: the named one, the one that holds its memory, or NULL for the
 * default. */
static const char *device_of(const struct kops_request *r)
{
    const char *device = r->options.device;

    for (size_t i = 0; !device && i < r->n_inputs + r->n_outputs; i++) {
        const kops_buffer *b = request_tensor(r, i)->buffer;

        device = b ? kops_buffer_device(b) : NULL;
    }
    return device;
}

static enum kops_code call_tune(struct kops_client *c, const struct kops_request *r, struct wire_tuned *into,
                                struct kops_error *e)
{
    struct native_tensor tensors[KOPS_MAX_OPERANDS];
    const struct kops_options options = {.device = device_of(r)};
    const struct wire_run wire = {.op = r->op,
                                  .n_inputs = (unsigned)r->n_inputs,
                                  .n_outputs = (unsigned)r->n_outputs,
                                  .tensors = tensors,
                                  .attrs = r->attrs,
                                  .n_attrs = r->n_attrs,
                                  .how = {.options = &options}};

    for (size_t i = 0; i < r->n_inputs + r->n_outputs; i++) {
        operand_resolve(c, request_tensor(r, i), &tensors[i]);
        tensors[i].buffer = 0; /* the offset keeps the place in memory, and with it the alignment */
    }
    return session_call(c, wire_pack_tune, &wire, -1, wire_decode_tune, into, client_deadline(c, r->options.timeout_ms),
                        SESSION_ATTEMPTS, e);
}

enum kops_code kops_tune(kops_client *client, const struct kops_request *request, struct kops_tune **ret_tune,
                         struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    enum kops_code r;
    struct wire_tuned *w = new_result(sizeof(*w), &r, e);
    struct kops_tune *got;

    if (!w)
        return r;
    client_enter(client, e);
    r = request_check(client, request, e);
    if (!r && request->options.variant)
        r = fail(e, KOPS_ERR_BAD_ARGUMENT, "options.variant must be NULL: it is what tuning chooses");
    if (!r)
        r = check_feature(client, e);
    if (!r)
        r = call_tune(client, request, w, e);
    client_leave(client);
    got = kept(&w->arena, r);
    if (got)
        *ret_tune = got;
    return fail_older(e, r, "tune");
}

struct kops_tune *kops_tune_free(struct kops_tune *tune)
{
    return wire_result_free(tune);
}

enum kops_code kops_tuning(kops_client *client, uint64_t from, bool clear, struct kops_tuning **ret_tuning,
                           struct kops_error *ret_error)
{
    const struct wire_tuning request = {from, clear};
    enum kops_code r = check_feature(client, ret_error);
    /* `clear` is not sent again after a lost connection: it would also delete newer choices. */
    struct kops_tuning *got =
        r ? NULL
          : ask(client, "tuning", wire_pack_tuning, &request, wire_decode_tuning, sizeof(struct wire_choices),
                clear ? SESSION_ONCE : SESSION_ATTEMPTS, &r, ret_error);

    if (got)
        *ret_tuning = got;
    return r;
}

struct kops_tuning *kops_tuning_free(struct kops_tuning *tuning)
{
    return wire_result_free(tuning);
}

/* ---- traces ---- */

/* The connection on which a trace began. */
struct beginning {
    struct wire_trace reply;
    const struct kops_client *client;
    uint32_t generation;
};

/* Notes the connection of the reply, before another thread may connect anew. */
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
    const struct kops_trace_options *o = options ? options : &defaults;
    const struct wire_tracing request = {.begin = true, .everybody = o->everybody, .events = o->events};
    struct beginning b = {.client = client};
    enum kops_code r;

    client_enter(client, e);
    r = session_call(client, wire_pack_trace, &request, -1, decode_beginning, &b, client_deadline(client, 0),
                     SESSION_ONCE, e);
    if (!r)
        client->traced = b.generation;
    client_leave(client);
    arena_free(&b.reply.arena);
    return fail_older(e, r, "trace");
}

/* Reads on the connection that began the trace only: another daemon knows nothing of the trace. */
static enum kops_code read_trace(struct kops_client *c, bool end, struct wire_trace *into, struct kops_error *e)
{
    const struct wire_tracing request = {.end = end};
    const struct exchange x = {wire_pack_trace, &request, -1, wire_decode_trace, into};
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
    enum kops_code r;
    struct wire_trace *w = new_result(sizeof(*w), &r, e);
    struct kops_trace *got;

    if (!w)
        return r;
    client_enter(client, e);
    r = read_trace(client, end, w, e);
    client_leave(client);
    got = kept(&w->arena, r);
    if (got)
        *ret_trace = got;
    return r;
}

struct kops_trace *kops_trace_free(struct kops_trace *trace)
{
    return wire_result_free(trace);
}
