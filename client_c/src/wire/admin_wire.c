#include "admin_wire.h"

#include <msgpack.h>

#include "wire_begin.h"
#include "wire_get.h"
#include "wire_list.h"

/* ---- requests ---- */

void wire_pack_clients(struct bytes *out, uint32_t msgid, const void *request)
{
    (void)request;
    WIRE_BEGIN(out, msgid, "clients");
    mp_map(out, 0);
}

void wire_pack_metrics(struct bytes *out, uint32_t msgid, const void *request)
{
    (void)request;
    WIRE_BEGIN(out, msgid, "metrics");
    mp_map(out, 0);
}

void wire_pack_drain(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct kops_drain_options *o = request;

    WIRE_BEGIN(out, msgid, "drain");
    mp_map(out, (size_t)o->stop + o->resume + (o->timeout_ms > 0));
    if (o->stop) {
        mp_key(out, "stop");
        mp_bool(out, true);
    }
    if (o->resume) {
        mp_key(out, "resume");
        mp_bool(out, true);
    }
    if (o->timeout_ms > 0) {
        mp_key(out, "timeout_ms");
        mp_uint(out, (uint64_t)o->timeout_ms);
    }
}

/* ---- clients ---- */

static void read_quantiles(const msgpack_object *o, struct kops_quantiles *ret)
{
    ret->count = uint_or_zero(map_find(o, "count"));
    ret->p50 = number_or_nan(map_find(o, "p50"));
    ret->p90 = number_or_nan(map_find(o, "p90"));
    ret->p99 = number_or_nan(map_find(o, "p99"));
    ret->p999 = number_or_nan(map_find(o, "p999"));
    ret->max = number_or_nan(map_find(o, "max"));
}

static const void *read_client(struct arena *a, const msgpack_object *o)
{
    struct kops_client_info *c = arena_new(a, sizeof(*c));
    const msgpack_object *latency = map_find(o, "latency");

    if (!c)
        return NULL;
    c->pid = (int64_t)uint_or_zero(map_find(o, "pid"));
    c->uid = (int64_t)uint_or_zero(map_find(o, "uid"));
    c->gid = (int64_t)uint_or_zero(map_find(o, "gid"));
    c->client = get_text(a, map_find(o, "client"));
    c->comm = get_text(a, map_find(o, "comm"));
    c->connected_s = number_or_nan(map_find(o, "connected_s"));
    c->requests = uint_or_zero(map_find(o, "requests"));
    c->errors = uint_or_zero(map_find(o, "errors"));
    c->inflight = uint_or_zero(map_find(o, "inflight"));
    c->queued = uint_or_zero(map_find(o, "queued"));
    c->buffers = uint_or_zero(map_find(o, "buffers"));
    c->mapped_bytes = uint_or_zero(map_find(o, "mapped_bytes"));
    c->allocated_bytes = uint_or_zero(map_find(o, "allocated_bytes"));
    c->programs = uint_or_zero(map_find(o, "programs"));
    c->kernels = uint_or_zero(map_find(o, "kernels"));
    c->bytes_in = uint_or_zero(map_find(o, "bytes_in"));
    c->bytes_out = uint_or_zero(map_find(o, "bytes_out"));
    c->output_bytes = uint_or_zero(map_find(o, "output_bytes"));
    c->paused = get_bool(map_find(o, "paused"));
    c->shm = get_bool(map_find(o, "shm"));
    c->device_us = number_or_nan(map_find(o, "device_us"));
    read_quantiles(map_find(latency, "queue"), &c->latency.queue);
    read_quantiles(map_find(latency, "device"), &c->latency.device);
    read_quantiles(map_find(latency, "total"), &c->latency.total);
    return c->client && c->comm ? c : NULL;
}

static uint64_t limit_of(const msgpack_object *limits, const char *key)
{
    uint64_t limit;

    return get_uint(map_find(limits, key), &limit) ? limit : KOPS_NO_LIMIT;
}

static const void *read_user(struct arena *a, const msgpack_object *o)
{
    struct kops_user_info *u = arena_new(a, sizeof(*u));
    const msgpack_object *limits = map_find(o, "limits");

    if (!u)
        return NULL;
    u->uid = (int64_t)uint_or_zero(map_find(o, "uid"));
    u->connections = uint_or_zero(map_find(o, "connections"));
    u->buffers = uint_or_zero(map_find(o, "buffers"));
    u->mappings = uint_or_zero(map_find(o, "mappings"));
    u->mapped_bytes = uint_or_zero(map_find(o, "mapped_bytes"));
    u->allocated_bytes = uint_or_zero(map_find(o, "allocated_bytes"));
    u->host_bytes = uint_or_zero(map_find(o, "host_bytes"));
    u->program_bytes = uint_or_zero(map_find(o, "program_bytes"));
    u->waiting_bytes = uint_or_zero(map_find(o, "waiting_bytes"));
    u->inflight = uint_or_zero(map_find(o, "inflight"));
    u->fds = uint_or_zero(map_find(o, "fds"));
    u->kernel_bytes = uint_or_zero(map_find(o, "kernel_bytes"));
    u->requests = uint_or_zero(map_find(o, "requests"));
    u->refused = uint_or_zero(map_find(o, "refused"));
    u->device_us = number_or_nan(map_find(o, "device_us"));
    u->limits = (struct kops_user_limits){.connections = limit_of(limits, "connections"),
                                          .buffers = limit_of(limits, "buffers"),
                                          .mappings = limit_of(limits, "mappings"),
                                          .mapped_bytes = limit_of(limits, "mapped_bytes"),
                                          .allocated_bytes = limit_of(limits, "allocated_bytes"),
                                          .host_bytes = limit_of(limits, "host_bytes"),
                                          .program_bytes = limit_of(limits, "program_bytes"),
                                          .waiting_bytes = limit_of(limits, "waiting_bytes"),
                                          .inflight = limit_of(limits, "inflight"),
                                          .fds = limit_of(limits, "fds"),
                                          .kernel_bytes = limit_of(limits, "kernel_bytes"),
                                          .messages_per_s = limit_of(limits, "messages_per_s"),
                                          .device_share = limit_of(limits, "device_share")};
    return u;
}

static const void *read_load(struct arena *a, const msgpack_object *o)
{
    struct kops_device_load *d = arena_new(a, sizeof(*d));

    if (!d)
        return NULL;
    d->index = (unsigned)uint_or_zero(map_find(o, "index"));
    d->name = get_text(a, map_find(o, "name"));
    d->uuid = get_text(a, map_find(o, "uuid"));
    d->busy_us = number_or_nan(map_find(o, "busy_us"));
    d->running = uint_or_zero(map_find(o, "running"));
    d->memory_total = uint_or_zero(map_find(o, "memory_total"));
    d->memory_free = uint_or_zero(map_find(o, "memory_free"));
    return d->name && d->uuid ? d : NULL;
}

bool wire_decode_clients(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    struct wire_clients *w = into;

    (void)fds;
    (void)nfds;
    w->clients.clients = get_list(&w->arena, map_find(result, "clients"), read_client);
    w->clients.users = get_list(&w->arena, map_find(result, "users"), read_user);
    w->clients.devices = get_list(&w->arena, map_find(result, "devices"), read_load);
    w->clients.state = get_text(&w->arena, map_find(result, "state"));
    w->clients.uptime_s = number_or_nan(map_find(result, "uptime_s"));
    return w->clients.clients && w->clients.users && w->clients.devices && w->clients.state;
}

/* ---- metrics, drain ---- */

bool wire_decode_metrics(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    const msgpack_object *text = map_find(result, "text");
    char *copy;

    (void)fds;
    (void)nfds;
    if (!text || text->type != MSGPACK_OBJECT_STR)
        return false;
    copy = malloc((size_t)text->via.str.size + 1);
    if (!copy)
        return false;
    memcpy(copy, text->via.str.ptr, text->via.str.size);
    copy[text->via.str.size] = 0;
    *(char **)into = copy;
    return true;
}

bool wire_decode_drain(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    struct kops_drain_result *r = into;
    const msgpack_object *drained = map_find(result, "drained");

    (void)fds;
    (void)nfds;
    if (!drained || drained->type != MSGPACK_OBJECT_BOOLEAN)
        return false;
    r->drained = get_bool(drained);
    r->jobs = uint_or_zero(map_find(result, "jobs"));
    r->connections = uint_or_zero(map_find(result, "connections"));
    return true;
}
