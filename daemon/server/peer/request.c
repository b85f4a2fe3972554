#include "server/peer/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/control/drain.h"
#include "server/exec/run.h"
#include "server/peer/access.h"
#include "server/peer/connection.h"
#include "util/clock.h"

enum { FREE_REQUESTS_KEPT = 1024, MAX_FIELDS = 16 };

/* ---- methods ---- */

static const struct rpc_field hello_fields[] = {KOPS_PARAMS_HELLO(RPC_FIELD)};
static const struct rpc_field register_fields[] = {KOPS_PARAMS_REGISTER(RPC_FIELD)};
static const struct rpc_field alloc_fields[] = {KOPS_PARAMS_ALLOC(RPC_FIELD)};
static const struct rpc_field release_fields[] = {KOPS_PARAMS_RELEASE(RPC_FIELD)};
static const struct rpc_field run_fields[] = {KOPS_PARAMS_RUN(RPC_FIELD)};
static const struct rpc_field sequence_fields[] = {KOPS_PARAMS_SEQUENCE(RPC_FIELD)};
static const struct rpc_field program_fields[] = {KOPS_PARAMS_PROGRAM(RPC_FIELD)};
static const struct rpc_field run_program_fields[] = {KOPS_PARAMS_RUN_PROGRAM(RPC_FIELD)};
static const struct rpc_field cancel_fields[] = {KOPS_PARAMS_CANCEL(RPC_FIELD)};
static const struct rpc_field stats_fields[] = {KOPS_PARAMS_STATS(RPC_FIELD)};

static const struct rpc_field compile_fields[] = {KOPS_PARAMS_COMPILE(RPC_FIELD)};
static const struct rpc_field kernel_fields[] = {KOPS_PARAMS_KERNEL(RPC_FIELD)};
static const struct rpc_field launch_fields[] = {KOPS_PARAMS_LAUNCH(RPC_FIELD)};
static const struct rpc_field cache_fields[] = {KOPS_PARAMS_CACHE(RPC_FIELD)};
static const struct rpc_field drain_fields[] = {KOPS_PARAMS_DRAIN(RPC_FIELD)};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
static const struct {
    const char *name;
    request_handler *handler;
    const struct rpc_field *fields;
    unsigned n_fields;
    bool any_params;     /* the handler gets the map itself, as args[0].items, and its bytes, as text */
    bool while_stopping; /* answered also while the daemon is ending */
    bool work;           /* not begun while the daemon drains, and what that waits for */
    bool brings_fds;     /* its reply goes over the socket, whichever way the request came */
} methods[METHOD_COUNT] = {
    [METHOD_HELLO] = {"hello", handle_hello, hello_fields, COUNT(hello_fields), .while_stopping = true,
                      .brings_fds = true},
    [METHOD_PING] = {"ping", handle_ping, .any_params = true, .while_stopping = true},
    [METHOD_REGISTER] = {"register", handle_register, register_fields, COUNT(register_fields), .work = true},
    [METHOD_ALLOC] = {"alloc", handle_alloc, alloc_fields, COUNT(alloc_fields), .work = true, .brings_fds = true},
    [METHOD_RELEASE] = {"release", handle_release, release_fields, COUNT(release_fields), .while_stopping = true},
    [METHOD_RUN] = {"run", handle_run, run_fields, COUNT(run_fields), .work = true},
    [METHOD_SEQUENCE] = {"sequence", handle_sequence, sequence_fields, COUNT(sequence_fields), .work = true},
    [METHOD_PROGRAM] = {"program", handle_program, program_fields, COUNT(program_fields), .work = true},
    [METHOD_RUN_PROGRAM] = {"run_program", handle_run_program, run_program_fields, COUNT(run_program_fields),
                            .work = true},
    [METHOD_COMPILE] = {"compile", handle_compile, compile_fields, COUNT(compile_fields), .work = true},
    [METHOD_KERNEL] = {"kernel", handle_kernel, kernel_fields, COUNT(kernel_fields), .work = true},
    [METHOD_LAUNCH] = {"launch", handle_launch, launch_fields, COUNT(launch_fields), .work = true},
    [METHOD_CACHE] = {"cache", handle_cache, cache_fields, COUNT(cache_fields), .brings_fds = true},
    [METHOD_TIMELINES] = {"timelines", handle_timelines, .work = true, .brings_fds = true},
    [METHOD_CANCEL] = {"cancel", handle_cancel, cancel_fields, COUNT(cancel_fields), .while_stopping = true},
    [METHOD_TRIM] = {"trim", handle_trim},
    [METHOD_STATS] = {"stats", handle_stats, stats_fields, COUNT(stats_fields), .while_stopping = true},
    [METHOD_CLIENTS] = {"clients", handle_clients, .while_stopping = true},
    [METHOD_METRICS] = {"metrics", handle_metrics, .while_stopping = true},
    [METHOD_DRAIN] = {"drain", handle_drain, drain_fields, COUNT(drain_fields), .while_stopping = true},
};
_Static_assert(COUNT(run_fields) <= MAX_FIELDS && COUNT(register_fields) <= MAX_FIELDS, "raise MAX_FIELDS");

static int look_up(const struct rpc_message *message)
{
    for (unsigned i = 0; i < METHOD_COUNT; i++)
        if (strlen(methods[i].name) == message->method_length &&
            !memcmp(methods[i].name, message->method, message->method_length))
            return (int)i;
    return -1;
}

bool request_takes_no_credit(const struct rpc_message *message)
{
    int method = look_up(message);

    return method == METHOD_CANCEL || method == METHOD_PING;
}

static int find_method(const struct rpc_message *message, struct error *e)
{
    char name[40];
    int method = look_up(message);
    unsigned n = 0;

    if (method >= 0)
        return method;
    for (; n < message->method_length && n < sizeof(name) - 1; n++)
        name[n] = message->method[n] >= 0x20 && message->method[n] < 0x7f ? message->method[n] : '?';
    name[n] = '\0';
    error_set(e, ERROR_UNKNOWN_METHOD, "no method \"%s\"; see PROTOCOL.md for the list", name);
    return error_detail_text(e, "method", name);
}

/* ---- life ---- */

static struct request *request_new(struct connection *c, const struct rpc_message *message)
{
    struct server *s = c->server;
    struct request *r = s->free_requests;

    if (r) {
        s->free_requests = r->next;
        s->n_free_requests--;
    } else {
        r = malloc(sizeof(*r));
        if (!r)
            return NULL;
    }
    r->connection = c;
    r->msgid = message->msgid;
    r->notification = message->notification;
    r->by_ring = c->from_ring;
    r->received_ns = clock_now_ns();
    schedule_note(&s->schedule, r->received_ns);
    r->sequence = c->next_sequence++;
    r->next = NULL;
    if (!r->notification) {
        r->next = c->by_msgid[r->msgid % MSGID_BUCKETS];
        c->by_msgid[r->msgid % MSGID_BUCKETS] = r;
    }
    r->work = r->answered = r->brings_fds = false;
    c->inflight++;
    c->requests++;
    charge_count(&r->charge, c->account, QUOTA_INFLIGHT, 1);
    s->counters.requests++;
    return r;
}

static void forget_msgid(struct request *r)
{
    struct request **at = &r->connection->by_msgid[r->msgid % MSGID_BUCKETS];

    if (r->notification || r->answered)
        return;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
}

void request_answered(struct request *r)
{
    forget_msgid(r);
    r->answered = true;
    connection_mark_dirty(r->connection);
}

void request_end(struct request *r)
{
    struct connection *c = r->connection;
    struct server *s = c->server;

    forget_msgid(r);
    if (!s->served && s->hooks.served)
        s->hooks.served(s->hooks.context);
    s->served = true;
    c->inflight--;
    c->fd_replies -= r->brings_fds;
    s->drain.work -= r->work;
    charge_free(&r->charge);
    if (s->n_free_requests < FREE_REQUESTS_KEPT) {
        r->next = s->free_requests;
        s->free_requests = r;
        s->n_free_requests++;
    } else {
        free(r);
    }
    connection_mark_dirty(c); /* input that had to wait for this may go on */
    if (c->closed)
        connection_free_if_done(c);
}

struct request *request_find(struct connection *c, uint32_t msgid)
{
    struct request *r = c->by_msgid[msgid % MSGID_BUCKETS];

    while (r && r->msgid != msgid)
        r = r->next;
    return r;
}

/* The stream that the reply goes into. */
static struct rpc_output *reply_output(struct request *r)
{
    struct connection *c = r->connection;

    return r->by_ring ? rpc_channel_begin(c->channel, &c->output) : &c->output;
}

static void count_error(struct connection *c, const struct error *e)
{
    struct server *s = c->server;

    c->errors++;
    s->counters.errors++;
    s->totals.errors[(int)e->code < ERROR_CODES_MAX ? e->code : ERROR_INTERNAL]++;
}

const char *request_method_name(unsigned method)
{
    return method < METHOD_COUNT ? methods[method].name : "unknown";
}

struct rpc_output *request_result(struct request *r)
{
    struct connection *c = r->connection;
    struct rpc_output *out;

    if (r->notification || c->closed)
        return NULL;
    c->server->counters.replies++;
    out = reply_output(r);
    rpc_write_result(out, r->msgid);
    return out;
}

void request_error(struct request *r, const struct error *e)
{
    struct connection *c = r->connection;

    count_error(c, e);
    if (r->notification || c->closed)
        return;
    c->server->counters.replies++;
    rpc_write_error(reply_output(r), r->msgid, e);
}

void request_error_log(struct request *r, const struct error *e, const char *reason, const char *log)
{
    struct connection *c = r->connection;

    count_error(c, e);
    if (r->notification || c->closed)
        return;
    c->server->counters.replies++;
    rpc_write_error_log(reply_output(r), r->msgid, e, reason, log);
}

void request_end_empty(struct request *r)
{
    struct rpc_output *out = request_result(r);

    if (out)
        rpc_write_map(out, 0);
    request_end(r);
}

void request_end_error(struct request *r, const struct error *e)
{
    request_error(r, e);
    request_end(r);
}

void request_abandon(struct request *r)
{
    struct error e;

    error_set(&e, ERROR_CANCELLED, "the connection ended");
    request_end_error(r, &e);
}

/* ---- dispatch ---- */

static int check_params(const struct rpc_message *message, int method, struct rpc_arg *args, struct error *e)
{
    if (message->values > RPC_MAX_VALUES) {
        error_set(e, ERROR_LIMIT_EXCEEDED, "a message has at most %d values (limits.message_values), this one has %llu",
                  RPC_MAX_VALUES, (unsigned long long)message->values);
        error_detail_number(e, "limit", RPC_MAX_VALUES);
        return error_detail_number(e, "value", (int64_t)message->values);
    }
    if (!message->params) {
        error_set(e, ERROR_WRONG_TYPE, "params must be a list of exactly one map");
        return error_detail_text(e, "key", "params");
    }
    if (methods[method].any_params) {
        args[0].items = message->params;
        args[0].text = (const char *)message->raw;
        args[0].length = (uint32_t)message->raw_length;
        return 0;
    }
    return rpc_decode_map(message->params, methods[method].fields, methods[method].n_fields, "", args, e);
}

bool request_is_run(const struct request *r)
{
    return r->method == METHOD_RUN || r->method == METHOD_SEQUENCE || r->method == METHOD_RUN_PROGRAM ||
           r->method == METHOD_LAUNCH;
}

/* A request that its handler never sees. */
static void refuse(struct request *r, const struct rpc_value *params, const struct error *e)
{
    if (request_is_run(r))
        run_refuse_undecoded(r, params, e);
    else
        request_end_error(r, e);
}

static const unsigned char classes[] = {
#define X(NAME, name, CLASS) ACCESS_##CLASS,
    KOPS_METHODS(X)
#undef X
};

/* Whether the user may call this, now. What takes nothing is answered however much the user has in flight. */
static int admit(struct connection *c, const struct request *r, struct error *e)
{
    struct account *a = c->account;
    const enum access_class class = classes[r->method];

    if (!access_allows(c, class))
        return access_refuse(c, methods[r->method].name, class, e);
    if (account_admit_message(a, c->pid, r->received_ns, e) < 0 ||
        (methods[r->method].work && account_check_inflight(a, c->pid, e) < 0))
        return -1;
    return request_is_run(r) ? account_check_share(a, c->pid, r->received_ns, e) : 0;
}

int dispatch(struct connection *c, const struct rpc_message *message, struct request_fds *fds, struct error *e)
{
    struct server *s = c->server; /* the connection may go with the request */
    struct rpc_arg args[MAX_FIELDS];
    struct error error;
    struct request *r;
    int method;

    if (!message->notification && request_find(c, message->msgid))
        return error_set(e, ERROR_PROTOCOL_ERROR, "msgid %u is that of a request without a reply yet", message->msgid);
    r = request_new(c, message);
    if (!r)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for another request");
    method = find_method(message, &error);
    if (method < 0) {
        r->method = METHOD_COUNT;
        c->server->totals.requests[METHOD_COUNT]++;
        account_admit_message(c->account, c->pid, r->received_ns, &error); /* or says that instead */
        request_end_error(r, &error);
        return 0;
    }
    r->method = (enum method)method;
    c->server->totals.requests[method]++;
    if (admit(c, r, &error) < 0 || check_params(message, method, args, &error) < 0) {
        refuse(r, message->params, &error);
        return 0;
    }
    r->by_ring = r->by_ring && !methods[method].brings_fds;
    if (c->server->stopping && !methods[method].while_stopping) {
        error_set(&error, ERROR_SHUTTING_DOWN, "the daemon is ending; connect again");
        refuse(r, message->params, &error);
        return 0;
    }
    if (methods[method].work && drain_refuses(c->server, &error)) {
        refuse(r, message->params, &error);
        return 0;
    }
    if (r->notification && (method == METHOD_CLIENTS || method == METHOD_METRICS)) {
        request_end(r); /* nobody would read what it has to tell, and telling takes long */
        return 0;
    }
    r->work = methods[method].work;
    r->brings_fds = methods[method].brings_fds;
    c->fd_replies += r->brings_fds;
    c->server->drain.work += r->work;
    activity_own(&s->activity.request, methods[method].name, c->pid, c->uid);
    methods[method].handler(r, args, fds);
    activity_disown(&s->activity.request);
    return 0;
}

/* ---- barriers ---- */

/* The first one, if nothing that was sent before it is unfinished. */
static struct request *ready_barrier(const struct connection *c)
{
    const struct list *node = list_first(&c->barriers);
    const struct run *oldest;
    struct request *r;

    if (!node)
        return NULL;
    r = (struct request *)(void *)((char *)node - offsetof(struct request, barrier.link));
    if (c->closed || list_empty(&c->runs))
        return r;
    oldest = list_entry(list_first(&c->runs), struct run, order_link);
    return list_entry(oldest, struct request, run)->sequence < r->sequence ? NULL : r;
}

/* A client that has not read what there is gets no more of it, unless the end does not wait for it any longer. */
static bool may_answer(const struct connection *c)
{
    return !connection_is_stuck(c) || c->server->cancelled_all;
}

/* Their answers may be long, so each is a piece of work of its own. */
void barriers_step(struct connection *c)
{
    struct request *r = ready_barrier(c);

    if (!r || !may_answer(c))
        return;
    list_remove(&r->barrier.link);
    if (r->method == METHOD_TRIM)
        trim_now(r);
    else
        stats_now(r);
}

void barriers_advance(struct connection *c)
{
    if (!c->closed && ready_barrier(c) && may_answer(c))
        connection_mark_dirty(c);
    while (c->closed && !list_empty(&c->barriers)) {
        struct request *r = ready_barrier(c);

        list_remove(&r->barrier.link);
        request_abandon(r);
    }
}

void barrier_enqueue(struct request *r)
{
    list_append(&r->connection->barriers, &r->barrier.link);
    barriers_advance(r->connection);
}
