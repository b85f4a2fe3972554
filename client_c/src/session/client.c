/* A client: making and freeing it, its lock, forks, and its table of calls. */
#include "client.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"

/* ---- the table of calls. A msgid is a place in the table, and the number of times that the place was used. ---- */

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

/* Resets the table in the child of a fork: waiting callers are threads of the parent. `intact`: the table was not being
 * changed. */
static void calls_fork(struct calls *t, bool intact)
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

static void calls_free(struct calls *t)
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

enum {
    DEFAULT_TIMEOUT_MS = KOPS_FOREVER, /* kops.h says why */
    DEFAULT_CONNECT_TIMEOUT_MS = 30000,
    DEFAULT_RECONNECT_TIMEOUT_MS = 10000,
    FIRST_MESSAGE_MAX = 65536,
    MAX_RECONNECT_S = 1000000
};

/* ---- lock and fork ---- */

static int init_lock(struct kops_client *c)
{
    pthread_condattr_t attr;
    int r = pthread_mutex_init(&c->lock, NULL);

    if (r)
        return r;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    r = pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (r)
        pthread_mutex_destroy(&c->lock);
    return r;
}

/* Leaves alone (and leaks, once) data that a fork copied while another thread of the parent was changing it. */
static void drop_torn(struct kops_client *c)
{
    c->held_back.notifications = (struct bytes){.data = NULL};
}

/* Makes the client this process's after a fork. The socket is the parent's: the child closes its descriptor and sends
 * nothing on it. Threads of the parent do not exist here, and one of them may have held the lock. */
static void take_over(struct kops_client *c)
{
    bool intact = pthread_mutex_trylock(&c->lock) == 0;
    struct kops_error gone;

    fail(&gone, KOPS_ERR_CONNECTION_LOST, "the request was sent by the parent process");
    init_lock(c);
    if (!intact || c->reading) {
        const struct ring_link ring = c->t.ring;
        int fd = c->t.fd;

        transport_init(&c->t);
        c->t.fd = fd;
        c->t.ring = ring;
    }
    if (!intact)
        drop_torn(c);
    transport_close(&c->t);
    fail_clear(&c->reason);
    if (c->ordered)
        c->forget_ordered(c); /* CUDA does not survive a fork */
    c->held_back.holders = 0;
    c->held_back.notifications.length = 0;
    c->alone = 0;
    c->ends_by = 0;
    c->lost = c->reading = c->sending = c->greeting = false;
    c->users = c->waiters = 0;
    calls_fork(&c->calls, intact);
    calls_end_all(&c->calls, &gone, NULL);
}

void client_enter(struct kops_client *c, struct kops_error *e)
{
    pid_t self = process_id(), owner = atomic_load_explicit(&c->owner, memory_order_acquire);

    fail_clear(e);
    while (owner != self) {
        if (owner != -1 && atomic_compare_exchange_strong(&c->owner, &owner, -1)) {
            take_over(c);
            atomic_store_explicit(&c->owner, self, memory_order_release);
            break;
        }
        sched_yield();
        owner = atomic_load_explicit(&c->owner, memory_order_acquire);
    }
    pthread_mutex_lock(&c->lock);
}

static void client_free(struct kops_client *c)
{
    transport_free(&c->t);
    calls_free(&c->calls);
    bytes_free(&c->held_back.notifications);
    arena_free(&c->info.arena);
    free(c->socket_option);
    free(c->name);
    free(c->isolate);
    bytes_free(&c->hello);
    free(c->started);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void client_leave_unref(struct kops_client *c)
{
    bool last = --c->references == 0;

    pthread_mutex_unlock(&c->lock);
    if (last)
        client_free(c);
}

static int64_t reconnect_timeout_ms(const struct kops_connect_options *o)
{
    const char *given = getenv("KOPS_RECONNECT_TIMEOUT");
    char *end = NULL;
    double seconds = given && *given ? strtod(given, &end) : 0;

    if (o->reconnect_timeout_ms)
        return o->reconnect_timeout_ms == KOPS_NO_RECONNECT ? 0 : o->reconnect_timeout_ms;
    if (!end || end == given || *end || !(seconds >= 0 && seconds <= MAX_RECONNECT_S))
        return DEFAULT_RECONNECT_TIMEOUT_MS;
    return (int64_t)(seconds * 1000);
}

struct kops_client *client_new(const struct kops_connect_options *o)
{
    struct kops_client *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    transport_init(&c->t);
    if (init_lock(c))
        goto free_client;
    atomic_init(&c->owner, process_id());
    c->references = 1;
    c->timeout_ms = o->timeout_ms ? o->timeout_ms : DEFAULT_TIMEOUT_MS;
    c->connect_timeout_ms = o->connect_timeout_ms ? o->connect_timeout_ms : DEFAULT_CONNECT_TIMEOUT_MS;
    c->reconnect_timeout_ms = reconnect_timeout_ms(o);
    c->spin_option = o->spin_us;
    c->transport = o->transport;
    c->no_autostart = o->no_autostart;
    c->goes_here = o->where == KOPS_WHERE_HERE;
    c->max_inflight = 1;
    c->max_message = FIRST_MESSAGE_MAX;
    c->name = strdup(o->name ? o->name : "libkops " KOPS_VERSION);
    c->socket_option = o->socket ? strdup(o->socket) : NULL;
    c->isolate = o->isolate ? strdup(o->isolate) : NULL;
    if (c->name && (c->socket_option || !o->socket) && (c->isolate || !o->isolate))
        return c;
    client_free(c);
    return NULL;

free_client:
    free(c);
    return NULL;
}

/* ---- what the daemon said of itself ---- */

const struct kops_info *kops_info(const kops_client *client)
{
    return &client->info.info;
}

const struct kops_device *kops_info_device(const kops_client *client, const char *device)
{
    char *end = NULL;
    unsigned long index = device ? strtoul(device, &end, 10) : 0;
    bool is_index = device && *device && !*end;

    for (const struct kops_device *const *d = client->info.info.devices; *d; d++)
        if (!device ? (*d)->is_default : is_index ? (*d)->index == index : !strcmp((*d)->uuid, device))
            return *d;
    return NULL;
}

const struct kops_op *kops_info_op(const kops_client *client, const char *name)
{
    for (const struct kops_op *const *op = client->info.info.ops; *op; op++)
        if (!strcmp((*op)->name, name))
            return *op;
    return NULL;
}

bool kops_info_feature(const kops_client *client, const char *feature)
{
    for (const char *const *f = client->info.info.features; *f; f++)
        if (!strcmp(*f, feature))
            return true;
    return false;
}

const char *client_priority(const struct kops_client *c, const struct kops_options *options)
{
    static const char *const names[] = {[KOPS_PRIORITY_HIGH] = "high", [KOPS_PRIORITY_LOW] = "low"};

    return c->features & FEATURE_PRIORITY && options ? names[options->priority] : NULL;
}

struct wire_how client_how(const struct kops_client *c, const struct kops_options *options)
{
    return (struct wire_how){.options = options,
                             .stream = options ? options->stream : 0,
                             .no_timing = options && options->no_timing,
                             .exact = options && options->exact && c->features & FEATURE_EXACT,
                             .exclusive = options && options->exclusive,
                             .priority = client_priority(c, options)};
}

const char *client_op_name(const struct kops_client *c, const char *op)
{
    const struct kops_op *known = kops_info_op(c, op);

    return known ? known->name : NULL;
}

/* ---- names for messages ---- */

const char *names_keep(struct kops_client *c, const char *kernel)
{
    char *kept;

    for (unsigned i = 0; i < c->names.n_kernels; i++)
        if (!strcmp(c->names.kernels[i], kernel))
            return c->names.kernels[i];
    kept = c->names.n_kernels < NAMES_MAX_KERNELS ? arena_text(&c->info.arena, kernel, strlen(kernel)) : NULL;
    if (!kept)
        return "a kernel";
    c->names.kernels[c->names.n_kernels++] = kept;
    return kept;
}

unsigned char names_place(const struct kops_client *c, const char *name)
{
    unsigned n_ops = 0;

    for (; c->info.info.ops[n_ops]; n_ops++)
        if (n_ops < NAMES_NONE && !strcmp(c->info.info.ops[n_ops]->name, name))
            return (unsigned char)n_ops;
    for (unsigned i = 0; i < c->names.n_kernels && n_ops + i < NAMES_NONE; i++)
        if (!strcmp(c->names.kernels[i], name))
            return (unsigned char)(n_ops + i);
    return NAMES_NONE;
}

const char *names_at(const struct kops_client *c, unsigned char place)
{
    unsigned n_ops = 0;

    for (; c->info.info.ops[n_ops]; n_ops++)
        if (n_ops == place)
            return c->info.info.ops[n_ops]->name;
    return place != NAMES_NONE && place - n_ops < c->names.n_kernels ? c->names.kernels[place - n_ops] : NULL;
}
