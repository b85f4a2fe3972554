/* Making and closing a client, forks, and what the daemon said of itself. Connecting is connect.c. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/process.h"
#include "session.h"
#include "work/ordered.h"

enum {
    DEFAULT_TIMEOUT_MS = KOPS_FOREVER, /* kops.h says why */
    DEFAULT_CONNECT_TIMEOUT_MS = 5000,
    DEFAULT_RECONNECT_TIMEOUT_MS = 10000,
    FIRST_MESSAGE_MAX = 65536,
    MAX_RECONNECT_S = 1000000
};

const char *kops_version(void)
{
    return KOPS_VERSION;
}

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

/* This process is a fork of the one that connected. The socket is the parent's: our descriptor of it is closed and
 * nothing is said on it. Threads of the parent do not exist here; where one of them held the lock, what it was changing
 * is left alone (and leaks, once). */
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
    if (!intact) {
        struct wire_decoder *decoder = wire_decoder_new();

        if (decoder)
            c->decoder = decoder;
    }
    transport_close(&c->t);
    fail_clear(&c->reason);
    ordered_forget(c); /* CUDA does not survive a fork */
    c->alone = 0;
    c->ends_by = 0;
    c->lost = c->reading = c->sending = c->greeting = false;
    c->users = c->waiters = 0;
    if (!intact) {
        c->calls = NULL;
        c->free_calls = NULL;
        c->n_calls = c->inflight = 0;
    }
    for (uint32_t i = 0; i < c->n_calls; i++) {
        c->calls[i]->waited = false;
        if (!c->calls[i]->ticket && c->calls[i]->state == CALL_SENT)
            c->calls[i]->state = CALL_LATE; /* its caller is no thread of ours */
    }
    calls_end_all(c, &gone, false);
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

void client_leave(struct kops_client *c)
{
    pthread_mutex_unlock(&c->lock);
}

static void client_free(struct kops_client *c)
{
    transport_free(&c->t);
    calls_free(c);
    wire_decoder_free(c->decoder);
    arena_free(&c->info.arena);
    free(c->socket_option);
    free(c->name);
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

uint64_t client_deadline(const struct kops_client *c, int64_t timeout_ms)
{
    return deadline_in(timeout_ms ? timeout_ms : c->timeout_ms);
}

const char *client_priority(const struct kops_client *c, const struct kops_options *options)
{
    static const char *const names[] = {[KOPS_PRIORITY_HIGH] = "high", [KOPS_PRIORITY_LOW] = "low"};

    return c->features & FEATURE_PRIORITY && options ? names[options->priority] : NULL;
}

const char *client_op_name(const struct kops_client *c, const char *op)
{
    const struct kops_op *known = kops_info_op(c, op);

    return known ? known->name : NULL;
}

/* ---- making and closing one ---- */

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

static struct kops_client *client_new(const struct kops_connect_options *o)
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
    c->max_inflight = 1;
    c->max_message = FIRST_MESSAGE_MAX;
    c->name = strdup(o->name ? o->name : "libkops " KOPS_VERSION);
    c->socket_option = o->socket ? strdup(o->socket) : NULL;
    c->decoder = wire_decoder_new();
    if (c->name && c->decoder && (c->socket_option || !o->socket))
        return c;
    client_free(c);
    return NULL;

free_client:
    free(c);
    return NULL;
}

enum kops_code kops_connect(const struct kops_connect_options *options, kops_client **ret_client,
                            struct kops_error *ret_error)
{
    static const struct kops_connect_options defaults;
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const struct kops_connect_options *o = options ? options : &defaults;
    struct kops_client *c;
    enum kops_code r;

    for (size_t i = 0; i < sizeof(o->reserved) / sizeof(o->reserved[0]); i++)
        if (o->reserved[i])
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "options.reserved is not zero: initialise the struct with {0}");
    if (o->transport < KOPS_TRANSPORT_AUTO || o->transport > KOPS_TRANSPORT_SHM)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "options.transport is none of enum kops_transport");
    if (o->reconnect_timeout_ms < KOPS_NO_RECONNECT)
        return fail(e, KOPS_ERR_BAD_ARGUMENT,
                    "options.reconnect_timeout_ms is negative, and neither KOPS_FOREVER nor KOPS_NO_RECONNECT");
    c = client_new(o);
    if (!c)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a client");
    client_enter(c, e);
    r = session_connect(c, deadline_in(c->connect_timeout_ms), e);
    if (r) {
        client_leave_unref(c);
        return r;
    }
    client_leave(c);
    *ret_client = c;
    return KOPS_OK;
}

kops_client *kops_close(kops_client *client)
{
    if (!client)
        return NULL;
    client_enter(client, NULL);
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
    r = session_call(client, wire_pack_ping, NULL, -1, wire_decode_nothing, NULL, client_deadline(client, timeout_ms),
                     SESSION_ATTEMPTS, e);
    client_leave(client);
    return r;
}

/* ---- what the daemon has ---- */

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
