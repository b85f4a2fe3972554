/* New settings for a server that runs. Thread: loop. */
#include "server/control/event_loop.h"
#include "server/control/shutdown.h"
#include "server/control/watchdog.h"
#include "server/peer/access.h"
#include "server/peer/connection.h"
#include "server/peer/peer_timeouts.h"

static void limit_connection(struct connection *c, const struct server_config *config)
{
    c->buffers.max = (uint32_t)config->buffers;
    c->programs.max = (uint32_t)config->programs;
    c->modules.max = c->kernels.max = (uint32_t)config->kernels;
    connection_mark_dirty(c); /* it may be allowed to go on */
}

/* Files, and names that are looked up, may take long. */
static void read_run(struct work *work)
{
    const struct server *s = list_entry(work, struct server, read_settings);

    s->hooks.read(s->hooks.context);
}

static void read_done(struct work *work)
{
    struct server *s = list_entry(work, struct server, read_settings);

    s->reading_settings = false;
    if (!s->stopping)
        s->hooks.reload(s->hooks.context);
}

void server_read_settings(struct server *s)
{
    if (!s->hooks.read || !s->hooks.reload)
        return;
    s->reading_settings = true;
    work_submit(&s->loop, &s->read_settings, read_run, read_done);
}

void server_reload(struct server *s, const struct server_config *config)
{
    const uint64_t watchdog_us = s->config.watchdog_us; /* the manager's, not the file's */

    s->config = *config;
    s->config.watchdog_us = watchdog_us;
    s->spin_ns = config->spin_us * 1000;
    mapping_registry_set_idle(&s->mappings, config->idle_close_s * UINT64_C(1000000000));
    code_service_limit_source(s->code_service, config->code.source_bytes);
    list_for_each_safe (node, after, &s->connections)
        limit_connection(list_entry(node, struct connection, link), config);
    access_reload(s);
    device_watchdog_reload(s);
    peer_timeouts_reload(s);
    watchdog_reload(s);
}
