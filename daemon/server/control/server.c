#include "server/control/server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/code/code.h"
#include "server/control/room.h"
#include "server/exec/exec.h"
#include "server/exec/run.h"
#include "server/memory/connection_resources.h"
#include "server/observe/observe.h"
#include "server/peer/back_pressure.h"
#include "server/peer/listener.h"
#include "server/peer/peers.h"
#include "server/tune/tune.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/loop.h"

/* ---- the sockets of identities, and the folder where they come and go ---- */

/* A folder is made, gets its mode and its owner: one look for all of that. */
enum { GATHER_MS = 50 };

static void on_gathered(uv_timer_t *timer)
{
    struct server *s = timer->data;

    if (s->admission.stopping)
        return;
    if (s->control->reading_settings) /* the reading under way may have looked before the change */
        uv_timer_start(timer, on_gathered, GATHER_MS, 0);
    else
        server_read_settings(s, true);
}

static void on_change(uv_fs_event_t *folder, const char *name, int events, int status)
{
    struct server *s = folder->data;

    (void)name;
    (void)events;
    (void)status;
    if (uv_is_active((uv_handle_t *)&s->control->socket_folder.timer))
        return;
    uv_update_time(&s->loop);
    uv_timer_start(&s->control->socket_folder.timer, on_gathered, GATHER_MS, 0);
}

static void socket_folder_init(struct server *s)
{
    uv_fs_event_init(&s->loop, &s->control->socket_folder.watch);
    uv_timer_init(&s->loop, &s->control->socket_folder.timer);
    s->control->socket_folder.watch.data = s->control->socket_folder.timer.data = s;
}

void socket_folder_close(struct server *s)
{
    uv_close((uv_handle_t *)&s->control->socket_folder.watch, NULL);
    uv_close((uv_handle_t *)&s->control->socket_folder.timer, NULL);
}

static void socket_folder_free(struct server *s)
{
    if (s->control)
        free(s->control->socket_folder.path);
}

static bool is_watched(const struct server *s, const char *path, const struct stat *st)
{
    const char *now = s->control->socket_folder.path;

    return path && now && !strcmp(path, now) && st->st_dev == s->control->socket_folder.device &&
           st->st_ino == s->control->socket_folder.inode;
}

/* A path may be another folder's by now. */
static void watch_folder(struct server *s, const char *path)
{
    struct stat st = {0};
    char *copy;
    int r = 0;

    if (path && stat(path, &st) < 0)
        r = uv_translate_sys_error(errno);
    if (is_watched(s, path, &st))
        return;
    copy = path ? strdup(path) : NULL;
    uv_fs_event_stop(&s->control->socket_folder.watch);
    free(s->control->socket_folder.path);
    s->control->socket_folder.path = copy;
    s->control->socket_folder.device = st.st_dev;
    s->control->socket_folder.inode = st.st_ino;
    if (!path)
        return;
    if (r == 0)
        r = copy ? uv_fs_event_start(&s->control->socket_folder.watch, on_change, copy, 0) : UV_ENOMEM;
    if (r == 0) /* once more: a folder may have come before the watch */
        on_change(&s->control->socket_folder.watch, NULL, 0, 0);
    else
        log_warning("socket", "folder=%s why=\"it cannot be watched, so that new sockets come at a reload only: %s\"",
                    path, uv_strerror(r));
}

void server_serve_sockets(struct server *s, const struct server_socket *sockets, unsigned n, const char *watched)
{
    peers_set_sockets(s, sockets, n);
    watch_folder(s, watched);
}

/* ---- the server ---- */

static void choose_instance(struct server *s)
{
    unsigned char bytes[16];

    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) { /* never on Linux after its boot */
        memset(bytes, 0, sizeof(bytes));
        memcpy(bytes, &s->started_ns, sizeof(s->started_ns));
        bytes[15] = (unsigned char)getpid();
    }
    for (unsigned i = 0; i < sizeof(bytes); i++)
        snprintf(s->instance + 2 * (size_t)i, 3, "%02x", bytes[i]);
}

/* A connection needs two watched descriptors, its socket's and its pidfd. Descriptors with other uses have numbers in
 * the same range. */
static unsigned descriptors_watched(const struct server *s)
{
    enum { A_CONNECTION = 8, LEAST = 16384, MOST = 1 << 22 };
    uint64_t wanted = s->config.max_connections * A_CONNECTION;

    return wanted < LEAST ? LEAST : wanted > MOST ? MOST : (unsigned)wanted;
}

static int open_devices(struct server *s, struct error *e)
{
    const struct backend_host host = {.wake = server_wake, .context = s, .timed = observe_timed};
    unsigned n = 0;

    while (n < sizeof(s->config.backends) / sizeof(s->config.backends[0]) && s->config.backends[n])
        n++;
    return devices_open(&s->devices, s->config.backends, n, &s->config.backend_config, &host, e);
}

static void close_handle(uv_handle_t *handle, void *context)
{
    (void)context;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* libuv makes a pipe for itself at its first call, and ends the process where that fails. */
static int probe_pipe(struct error *e)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return error_set(e, ERROR_QUOTA_EXCEEDED, "no descriptors to start with: %s", strerror(errno));
    close(ends[0]);
    close(ends[1]);
    return 0;
}

/* From the lowest room to the highest. */
static const struct connection_part *const parts[] = {&connection_memory_part, &connection_code_part,
                                                      &connection_exec_part,   &connection_statistics_part,
                                                      &connection_tune_part,   NULL};

/* Makes everything that needs no loop. */
static int prepare(struct server *s, int listener, struct error *e)
{
    struct timespec now;

    if (peers_new(s, listener, methods_table(), parts, e) < 0 || probe_pipe(e) < 0 ||
        loop_memory_reserve(descriptors_watched(s), e) < 0)
        return -1;
    s->control = calloc(1, sizeof(*s->control));
    if (!s->control)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start");
    s->control->server = s;
    accounts_init(&s->accounts, &s->config.quota);
    s->started_ns = clock_now_ns();
    clock_gettime(CLOCK_REALTIME, &now);
    s->started_s = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    choose_instance(s);
    schedule_init(&s->schedule, clock_now_ns, clock_thread_ns);
    return 0;
}

static int start(struct server *s, struct error *e)
{
    memory_init(s);
    s->accounts.close_queues = close_queues_new(&s->loop);
    if (!s->accounts.close_queues)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the event loop");
    trimming_init(&s->trimming, &s->loop);
    drain_init(s);
    idle_exit_init(s);
    socket_folder_init(s);
    if (observe_new(s, e) < 0 || peers_start(s, e) < 0 || exec_new(s, &tune_runs, e) < 0 || tune_new(s, e) < 0)
        return -1;
    if (event_loop_init(s, e) < 0)
        return -1;
    if (watch_loop(&s->loop) < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the event loop");
    if (open_devices(s, e) < 0 || event_loop_watch_devices(s, e) < 0 || listener_start(s, e) < 0)
        return -1;
    if (modules_new(s, &observe_compiles, e) < 0)
        return -1;
    shutdown_init(s);
    return 0;
}

static void free_rooms(struct server *s)
{
    peers_free(s);
    observe_free(s);
    socket_folder_free(s);
    free(s->control);
    free(s);
}

int server_new(const struct server_config *config, int listener, struct server **ret_server, struct error *e)
{
    struct server *s = calloc(1, sizeof(*s));
    int r;

    if (!s) {
        close(listener);
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start");
    }
    s->config = *config;
    if (prepare(s, listener, e) < 0)
        goto free_server;
    r = uv_loop_init(&s->loop);
    if (r < 0) {
        error_set(e, ERROR_INTERNAL, "the event loop cannot be set up: %s", uv_strerror(r));
        goto free_server;
    }
    if (start(s, e) < 0)
        goto close_loop;
    *ret_server = s;
    return 0;

close_loop:
    listener_stop(s);
    devices_close(&s->devices);
    uv_walk(&s->loop, close_handle, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop);
    tune_free(s);
    exec_free(s);
    modules_free(s);
    close_queues_free(s->accounts.close_queues);
free_server:
    free_rooms(s);
    return -1;
}

int server_run(struct server *server, const struct server_hooks *hooks)
{
    struct error e;

    server->hooks = *hooks;
    if (watchdog_start(server, hooks, &e) < 0) {
        log_error("start", "why=\"%s\"", e.message);
        server->control->exit_status = SERVER_EXIT_FAILED;
        shutdown_begin(server);
    } else if (hooks->ready) {
        hooks->ready(hooks->context);
    }
    uv_run(&server->loop, UV_RUN_DEFAULT); /* until shutdown_step() has closed every handle */
    return server->control->exit_status;
}

struct server *server_free(struct server *server)
{
    if (!server)
        return NULL;
    tune_free(server);
    exec_free(server);
    modules_free(server);
    devices_close(&server->devices);
    watchdog_stop(server);
    uv_loop_close(&server->loop);
    peers_free(server);
    accounts_free(&server->accounts);
    close_queues_free(server->accounts.close_queues);
    free_rooms(server);
    return NULL;
}

/* ---- reload ---- */

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
