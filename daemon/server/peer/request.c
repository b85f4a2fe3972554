#include "server/peer/request.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/peer/access.h"
#include "server/peer/back_pressure.h"
#include "server/peer/room.h"
#include "util/clock.h"

enum { FREE_REQUESTS_KEPT = 1024, MAX_FIELDS = 16 };

static int look_up(const struct server *s, const struct rpc_message *message)
{
    for (unsigned i = 0; i < METHOD_COUNT; i++)
        if (strlen(s->peers->methods[i].name) == message->method_length &&
            !memcmp(s->peers->methods[i].name, message->method, message->method_length))
            return (int)i;
    return -1;
}

bool request_takes_no_credit(const struct server *s, const struct rpc_message *message)
{
    int method = look_up(s, message);

    return method >= 0 && s->peers->methods[method].no_credit;
}

static int unknown_method(const struct rpc_message *message, struct error *e)
{
    char name[40];
    unsigned n = 0;

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
    struct peers *p = s->peers;
    struct request *r = p->free_requests;

    if (r) {
        p->free_requests = r->next;
        p->n_free_requests--;
    } else {
        r = malloc(sizeof(*r) + p->state_bytes);
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
    list_init(&r->queue_link);
    if (!r->notification) {
        r->next = c->by_msgid[r->msgid % MSGID_BUCKETS];
        c->by_msgid[r->msgid % MSGID_BUCKETS] = r;
    }
    r->work = r->answered = r->brings_fds = false;
    c->inflight++;
    c->server->peers->last_asker = c;
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
    struct peers *p = s->peers;

    forget_msgid(r);
    if (!p->served && s->hooks.served)
        s->hooks.served(s->hooks.context);
    p->served = true;
    c->inflight--;
    c->fd_replies -= r->brings_fds;
    s->admission.work -= r->work;
    charge_free(&r->charge);
    if (p->n_free_requests < FREE_REQUESTS_KEPT) {
        r->next = p->free_requests;
        p->free_requests = r;
        p->n_free_requests++;
    } else {
        free(r);
    }
    connection_mark_dirty(c); /* input that waited for credit may go on */
    connection_note_done(c);
}

struct request *request_find(struct connection *c, uint32_t msgid)
{
    struct request *r = c->by_msgid[msgid % MSGID_BUCKETS];

    while (r && r->msgid != msgid)
        r = r->next;
    return r;
}

/* Where the reply is written: the socket's output, or the ring's. */
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

const char *request_method_name(const struct server *s, unsigned method)
{
    return method < METHOD_COUNT ? s->peers->methods[method].name : "unknown";
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

/* Whether the daemon goes on after a fault: another executor takes the place of one that was lost. The daemon ends with
 * a device that no executor can serve, and when it was told to. */
static bool outlives_faults(const struct server *s)
{
    if (s->admission.stopping)
        return false;
    for (unsigned i = 0; i < s->devices.count; i++)
        if (s->devices.all[i]->lost)
            return false;
    return true;
}

void request_error(struct request *r, const struct error *e)
{
    struct connection *c = r->connection;
    struct error told;

    count_error(c, e);
    if (r->notification || c->closed)
        return;
    c->server->counters.replies++;
    if ((e->code == ERROR_DEVICE_LOST || e->code == ERROR_JOB_TIMEOUT) && outlives_faults(c->server)) {
        told = *e;
        error_detail_text(&told, "daemon", "goes_on");
        e = &told;
    }
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

void request_end_fds(struct request *r, const int *fds, unsigned n, const struct rpc_record *record, const void *values)
{
    const uint64_t start = rpc_output_position(&r->connection->output);
    struct rpc_output *out = request_result(r);

    if (out)
        rpc_write_record(out, record, values);
    for (unsigned i = 0; i < n; i++) {
        if (!out)
            close(fds[i]);
        else if (rpc_output_attach(&r->connection->output, start, fds[i]) < 0)
            out->bytes.failed = true;
    }
    request_end(r);
}

void request_end_record(struct request *r, const struct rpc_record *record, const void *values)
{
    request_end_fds(r, NULL, 0, record, values);
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

static int check_params(const struct rpc_message *message, const struct method_entry *method, struct rpc_arg *args,
                        struct error *e)
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
    if (method->any_params) {
        args[0].items = message->params;
        args[0].text = (const char *)message->raw;
        args[0].length = (uint32_t)message->raw_length;
        return 0;
    }
    return rpc_decode_map(message->params, method->fields, method->n_fields, "", args, e);
}

static const struct method_entry *method_of(const struct request *r)
{
    return &r->connection->server->peers->methods[r->method];
}

bool request_is_run(const struct request *r)
{
    return method_of(r)->runs;
}

/* Answers a request that its handler does not get. */
static void refuse(struct request *r, const struct rpc_value *params, const struct error *e)
{
    if (method_of(r)->refuse)
        method_of(r)->refuse(r, params, e);
    else
        request_end_error(r, e);
}

/* Whether the user may call this method now: access class, rate limit, quotas. A method that is no work is answered
 * however much the user has in flight. */
static int admit(struct connection *c, const struct request *r, const struct method_entry *method, struct error *e)
{
    struct account *a = c->account;

    if (!access_allows(c, method->access))
        return access_refuse(c, method->name, method->access, e);
    if (account_admit_message(a, c->pid, r->received_ns, e) < 0 ||
        (method->work && account_check_inflight(a, c->pid, e) < 0))
        return -1;
    return method->runs ? account_check_share(a, c->pid, r->received_ns, e) : 0;
}

/* Whether the daemon takes such requests while it drains or shuts down. */
static int admit_now(const struct server *s, const struct method_entry *method, struct error *e)
{
    if (s->admission.stopping && !method->while_stopping)
        return error_set(e, ERROR_SHUTTING_DOWN, "the daemon is ending; connect again");
    if (!method->work || !s->admission.draining)
        return 0;
    error_set(e, ERROR_SHUTTING_DOWN, "the daemon is being drained and begins nothing new; try again later");
    return error_detail_bool(e, "draining", true);
}

/* Counts the request as work and as a reply with descriptors, and calls its handler. */
static void handle(struct request *r, const struct method_entry *method, const struct rpc_arg *args,
                   struct request_fds *fds)
{
    struct connection *c = r->connection;
    struct server *s = c->server;

    r->work = method->work;
    r->brings_fds = method->brings_fds;
    c->fd_replies += r->brings_fds;
    s->admission.work += r->work;
    activity_begin(&s->activity, method->name, c->pid, c->uid);
    method->handler(r, args, fds);
    activity_end(&s->activity);
}

int dispatch(struct connection *c, const struct rpc_message *message, struct request_fds *fds, struct error *e)
{
    struct server *s = c->server;
    const struct method_entry *method;
    struct rpc_arg args[MAX_FIELDS];
    struct error error;
    struct request *r;
    int found;

    /* A duplicate msgid could not be told from the first in replies. */
    if (!message->notification && request_find(c, message->msgid))
        return error_set(e, ERROR_PROTOCOL_ERROR, "msgid %u is that of a request without a reply yet", message->msgid);
    r = request_new(c, message);
    if (!r)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for another request");
    found = look_up(s, message);
    r->method = found < 0 ? METHOD_COUNT : (enum method)found;
    s->totals.requests[r->method]++;
    if (found < 0) {
        unknown_method(message, &error);
        account_admit_message(c->account, c->pid, r->received_ns, &error); /* the rate limit's error takes precedence */
        request_end_error(r, &error);
        return 0;
    }
    method = method_of(r);
    if (admit(c, r, method, &error) < 0 || check_params(message, method, args, &error) < 0) {
        refuse(r, message->params, &error);
        return 0;
    }
    r->by_ring = r->by_ring && !method->brings_fds;
    if (admit_now(s, method, &error) < 0)
        refuse(r, message->params, &error);
    else if (r->notification && method->only_reply)
        request_end(r);
    else
        handle(r, method, args, fds);
    return 0;
}

/* ---- barrier ---- */

/* Returns the first barrier, if no earlier run is unfinished. */
static struct request *ready_barrier(const struct connection *c)
{
    const struct list *barrier = list_first(&c->barriers), *unfinished;
    struct request *r;

    if (!barrier)
        return NULL;
    r = list_entry(barrier, struct request, queue_link);
    unfinished = c->closed ? NULL : list_first(&c->unfinished);
    return unfinished && list_entry(unfinished, struct request, order_link)->sequence < r->sequence ? NULL : r;
}

/* A client that has not read its replies gets no more of them, unless the shutdown no longer waits for it. */
static bool may_answer(const struct connection *c)
{
    return !connection_is_stuck(c) || c->server->admission.cancelled;
}

void barriers_step(struct connection *c)
{
    struct request *r = ready_barrier(c);

    if (!r || !may_answer(c))
        return;
    list_remove(&r->queue_link);
    r->ready(r);
}

void barriers_advance(struct connection *c)
{
    if (list_empty(&c->barriers))
        return;
    if (!c->closed && ready_barrier(c) && may_answer(c))
        connection_mark_dirty(c);
    while (c->closed && !list_empty(&c->barriers)) {
        struct request *r = ready_barrier(c);

        list_remove(&r->queue_link);
        request_abandon(r);
    }
}

void barrier_enqueue(struct request *r, void (*ready)(struct request *r))
{
    r->ready = ready;
    list_append(&r->connection->barriers, &r->queue_link);
    barriers_advance(r->connection);
}

/* ---- long replies ---- */

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
