#include "clients.h"

#include <math.h>

#include "base/json.h"
#include "conditions.h"

static void quantiles_json(const char *key, const struct kops_quantiles *q)
{
    json_begin(key, '{');
    json_uint("count", q->count);
    json_number("p50", q->p50);
    json_number("p90", q->p90);
    json_number("p99", q->p99);
    json_number("p999", q->p999);
    json_number("max", q->max);
    json_end('}');
}

void view_client_json(const struct kops_client_info *c)
{
    json_int("pid", c->pid);
    json_int("uid", c->uid);
    if (*c->identity)
        json_text("identity", c->identity);
    json_int("gid", c->gid);
    json_text("client", c->client);
    json_text("comm", c->comm);
    json_number("connected_s", c->connected_s);
    json_uint("requests", c->requests);
    json_uint("errors", c->errors);
    json_uint("inflight", c->inflight);
    json_uint("queued", c->queued);
    json_uint("buffers", c->buffers);
    json_uint("mapped_bytes", c->mapped_bytes);
    json_uint("allocated_bytes", c->allocated_bytes);
    json_uint("programs", c->programs);
    json_uint("kernels", c->kernels);
    json_uint("bytes_in", c->bytes_in);
    json_uint("bytes_out", c->bytes_out);
    json_uint("output_bytes", c->output_bytes);
    json_bool("paused", c->paused);
    json_bool("shm", c->shm);
    json_number("device_us", c->device_us);
    json_uint("here", c->here);
    if (*c->isolation)
        json_text("isolation", c->isolation);
    if (c->executor)
        json_int("executor", c->executor);
    json_begin("latency", '{');
    quantiles_json("queue", &c->latency.queue);
    quantiles_json("device", &c->latency.device);
    quantiles_json("total", &c->latency.total);
    json_end('}');
}

void view_device_json(const struct kops_device_load *d)
{
    json_uint("index", d->index);
    json_text("name", d->name);
    json_text("uuid", d->uuid);
    json_number("busy_us", d->busy_us);
    json_uint("running", d->running);
    if (d->memory_total) {
        json_uint("memory_total", d->memory_total);
        json_uint("memory_free", d->memory_free);
    }
    if (*d->conditions.missing || !isnan(d->conditions.clock_mhz) || !isnan(d->conditions.temperature_c))
        conditions_json("conditions", &d->conditions);
}

static void limit_json(const char *key, uint64_t limit)
{
    if (limit != KOPS_NO_LIMIT)
        json_uint(key, limit);
}

static void user_json(const struct kops_user_info *u)
{
    json_begin(NULL, '{');
    json_int("uid", u->uid);
    if (*u->identity)
        json_text("identity", u->identity);
    json_uint("connections", u->connections);
    json_uint("buffers", u->buffers);
    json_uint("mappings", u->mappings);
    json_uint("mapped_bytes", u->mapped_bytes);
    json_uint("allocated_bytes", u->allocated_bytes);
    json_uint("host_bytes", u->host_bytes);
    json_uint("program_bytes", u->program_bytes);
    json_uint("waiting_bytes", u->waiting_bytes);
    json_uint("inflight", u->inflight);
    json_uint("fds", u->fds);
    json_uint("kernel_bytes", u->kernel_bytes);
    json_uint("requests", u->requests);
    json_uint("refused", u->refused);
    json_number("device_us", u->device_us);
    json_begin("limits", '{');
    limit_json("connections", u->limits.connections);
    limit_json("buffers", u->limits.buffers);
    limit_json("mappings", u->limits.mappings);
    limit_json("mapped_bytes", u->limits.mapped_bytes);
    limit_json("allocated_bytes", u->limits.allocated_bytes);
    limit_json("host_bytes", u->limits.host_bytes);
    limit_json("program_bytes", u->limits.program_bytes);
    limit_json("waiting_bytes", u->limits.waiting_bytes);
    limit_json("inflight", u->limits.inflight);
    limit_json("fds", u->limits.fds);
    limit_json("kernel_bytes", u->limits.kernel_bytes);
    limit_json("messages_per_s", u->limits.messages_per_s);
    limit_json("device_share", u->limits.device_share);
    json_end('}');
    json_end('}');
}

void view_users_json(const struct kops_clients *s)
{
    json_begin("users", '[');
    for (const struct kops_user_info *const *u = s->users; *u; u++)
        user_json(*u);
    json_end(']');
}

const char *view_client_state(const struct kops_client_info *c)
{
    return c->paused ? "paused" : c->inflight ? "busy" : "idle";
}
