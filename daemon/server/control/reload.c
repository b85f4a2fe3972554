/* The reload: applies new settings to a running server. Thread: loop; the settings are read on the pool. */

#include "server/code/code.h"
#include "server/control/idle_exit.h"
#include "server/control/room.h"
#include "server/control/server.h"
#include "server/control/shutdown.h"
#include "server/exec/exec.h"
#include "server/memory/connection_resources.h"
#include "server/peer/back_pressure.h"
#include "server/peer/peers.h"

static void limit_connection(struct connection *c)
{
    memory_limit_connection(c);
    code_limit_connection(c);
    exec_limit_connection(c);
    connection_mark_dirty(c); /* a higher limit may resume it */
}

/* Reading files and looking up names may take long. */
static void read_run(struct work *work)
{
    const struct server *s = list_entry(work, struct control, read_settings)->server;

    s->hooks.read(s->hooks.context, s->control->only_sockets);
}

static void read_done(struct work *work)
{
    struct server *s = list_entry(work, struct control, read_settings)->server;

    s->control->reading_settings = false;
    if (!s->admission.stopping)
        s->hooks.reload(s->hooks.context);
}

void server_read_settings(struct server *s, bool only_sockets)
{
    if (!s->hooks.read || !s->hooks.reload)
        return;
    s->control->only_sockets = only_sockets;
    s->control->reading_settings = true;
    work_submit(&s->loop, &s->control->read_settings, read_run, read_done);
}

void server_reload(struct server *s, const struct server_config *config)
{
    const uint64_t watchdog_us = s->config.watchdog_us; /* comes from the service manager, not from the file */

    s->config = *config;
    s->config.watchdog_us = watchdog_us;
    s->control->busy_poll_ns = config->spin_us * 1000;
    mapping_registry_set_idle(&s->mappings, config->idle_close_s * UINT64_C(1000000000));
    code_reload(s);
    list_for_each_safe (node, after, peers_connections(s))
        limit_connection(list_entry(node, struct connection, link));
    peers_reload(s);
    exec_reload(s);
    idle_exit_reload(s);
}
