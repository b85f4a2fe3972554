#include "server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/channel.h"
#include "server/code.h"
#include "server/connection.h"
#include "server/drain.h"
#include "server/latency.h"
#include "server/pump.h"
#include "server/queues.h"
#include "server/run.h"
#include "server/sampling.h"
#include "server/stop.h"
#include "server/timeline.h"
#include "util/clock.h"
#include "util/log.h"

enum { ACCEPTS_A_TURN = 64 };

/* ---- listening ---- */

/* Tells a newcomer why it cannot be served. */
static void refuse(int fd, unsigned limit)
{
    struct rpc_output out;
    struct error e;

    error_set(&e, ERROR_QUOTA_EXCEEDED, "the daemon has %u connections, the most it takes; try again later", limit);
    error_detail_number(&e, "limit", limit);
    rpc_output_init(&out, 4096);
    rpc_write_error_notification(&out, &e);
    rpc_output_flush(&out, fd);
    rpc_output_free(&out);
    close(fd);
}

/* Out of descriptors: the reserve makes room to take the newcomer off the queue and close it. */
static void shed(struct server *s)
{
    int fd;

    close(s->reserve_fd);
    fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        close(fd);
    s->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    s->totals.turned_away++;
    log_warning("refuse", "why=\"out of file descriptors\"");
}

static void on_listener(uv_poll_t *poll, int status, int events)
{
    struct server *s = poll->data;

    (void)status;
    (void)events;
    for (unsigned i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE)
                shed(s);
            return;
        }
        if (s->n_connections >= s->config.max_connections) {
            s->totals.turned_away++;
            log_warning("refuse", "why=\"too many connections\" limit=%llu",
                        (unsigned long long)s->config.max_connections);
            refuse(fd, (unsigned)s->config.max_connections);
            continue;
        }
        connection_new(s, fd);
    }
}

/* ---- life ---- */

static int choose_default_device(struct server *s, struct error *e)
{
    const char *name = s->config.default_device;
    struct backend_device *d;
    char *end;

    if (!name || !*name)
        return 0;
    d = devices_find_uuid(&s->devices, name, strlen(name));
    if (!d) {
        unsigned long index = strtoul(name, &end, 10);

        d = *end ? NULL : devices_find_index(&s->devices, index);
    }
    if (!d)
        return error_set(e, ERROR_UNKNOWN_DEVICE, "default_device: no device \"%s\" here", name);
    s->devices.fallback = d;
    return 0;
}

static void choose_instance(struct server *s)
{
    unsigned char bytes[16];

    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) { /* never on Linux, once it has booted */
        memset(bytes, 0, sizeof(bytes));
        memcpy(bytes, &s->started_ns, sizeof(s->started_ns));
        bytes[15] = (unsigned char)getpid();
    }
    for (unsigned i = 0; i < sizeof(bytes); i++)
        snprintf(s->instance + 2 * (size_t)i, 3, "%02x", bytes[i]);
}

static int open_devices(struct server *s, struct error *e)
{
    const struct backend_host host = {.wake = pump_wake, .context = s};
    unsigned n = 0;

    while (n < sizeof(s->config.backends) / sizeof(s->config.backends[0]) && s->config.backends[n])
        n++;
    if (devices_open(&s->devices, s->config.backends, n, &s->config.backend_config, &host, e) < 0)
        return -1;
    return choose_default_device(s, e);
}

int server_new(const struct server_config *config, int listener, struct server **ret_server, struct error *e)
{
    struct server *s = calloc(1, sizeof(*s));
    struct timespec now;

    if (!s || !(s->profile = profile_new()) || !(s->latencies = latency_table_new()) || !(s->arena = rpc_arena_new()) ||
        uv_loop_init(&s->loop) < 0) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start");
        goto free_server;
    }
    s->config = *config;
    s->listener = listener;
    accounts_init(&s->accounts, &s->config.quota);
    s->started_ns = clock_now_ns();
    clock_gettime(CLOCK_REALTIME, &now);
    s->started_s = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    choose_instance(s);
    list_init(&s->connections);
    list_init(&s->programs);
    codes_init(s);
    list_init(&s->yielding);
    if (pump_init(s, e) < 0)
        goto close_loop;
    if (open_devices(s, e) < 0)
        goto close_devices;
    s->code_service = code_service_new(&s->loop, &s->config.code, e);
    if (!s->code_service)
        goto close_devices;
    mapping_registry_init(&s->mappings, &s->loop, &s->devices, config->idle_close_s * UINT64_C(1000000000));
    deadlines_init(s);
    stop_init(s);
    drain_init(s);
    sampling_init(s);
    s->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    uv_poll_init(&s->loop, &s->listener_poll, listener);
    s->listener_poll.data = s;
    uv_poll_start(&s->listener_poll, UV_READABLE, on_listener);
    *ret_server = s;
    return 0;

close_devices:
    devices_close(&s->devices);
    pump_stop(s);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    channels_free(s);
close_loop:
    uv_loop_close(&s->loop);
free_server:
    if (s) {
        rpc_arena_free(s->arena);
        profile_free(s->profile);
        latency_table_free(s->latencies);
    }
    free(s);
    close(listener);
    return -1;
}

int server_run(struct server *server, void (*on_ready)(void *context), void *context)
{
    if (on_ready)
        on_ready(context);
    uv_run(&server->loop, UV_RUN_DEFAULT); /* until server_stop_step() has closed every handle */
    return server->exit_status;
}

struct server *server_free(struct server *server)
{
    if (!server)
        return NULL;
    queues_free(server);
    codes_free(server);
    devices_close(&server->devices);
    uv_loop_close(&server->loop);
    channels_free(server);
    timelines_free(server);
    accounts_free(&server->accounts);
    close(server->reserve_fd);
    while (server->free_requests) {
        struct request *r = server->free_requests;

        server->free_requests = r->next;
        free(r);
    }
    rpc_arena_free(server->arena);
    profile_free(server->profile);
    latency_table_free(server->latencies);
    free(server);
    return NULL;
}
