#include "main/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/mapping.h"
#include "executor/executor.h"
#include "main/listen.h"
#include "main/notify.h"
#include "main/sockets.h"
#include "server/control/server.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/process.h"

/* ---- the server's settings ---- */

/* Bounds of a connection. They are no settings, since the quotas of its user bound it, too. */
enum {
    BUFFERS_MAX = 8192,
    PROGRAMS_MAX = 1024,
    KERNELS_MAX = 4096,
    INLINE_MAPPINGS_MAX = 1024,
    OUTPUT_BYTES_MAX = 262144
};

/* How long an executor polls for work, and for its end, before it sleeps: also where server.spin_us is 0, since a
 * GPU's user has a core to spare. */
enum { EXECUTOR_SPIN_US = 100 };

/* Bytes of a source with its files. Everything else in its request has the rest. */
static uint64_t source_bytes_of(const struct config *c)
{
    return c->message_bytes * 15625 / 16384; /* 1000000 by default */
}

/* Compiled code that is kept in memory. */
enum { CODE_IN_MEMORY = 256 << 20 };

/* How kernels of users are compiled and kept. */
static struct code_service_config code_config_of(const struct config *c)
{
    const bool off = c->policy == USER_KERNELS_OFF;
    struct code_remote_config remote;

    config_remote(c, &remote);
    if (off)
        remote.server.url = NULL;
    return (struct code_service_config){.remote = remote,
                                        .compiler = {.nvrtc = off ? "none" : c->nvrtc,
                                                     .include = c->include,
                                                     .include_extra = off ? NULL : c->include_extra,
                                                     .user = "nobody",
                                                     .sandbox = (enum compiler_sandbox)c->sandbox_mode,
                                                     .helpers = (unsigned)c->helpers,
                                                     .memory_mib = (unsigned)c->compile_memory_mib,
                                                     .time_s = (unsigned)c->compile_time_s,
                                                     .keep_s = (unsigned)c->compile_keep_s},
                                        .directory = off || !*c->cache_directory ? NULL : c->cache_directory,
                                        .disk_bytes = c->cache_disk_mib << 20,
                                        .memory_bytes = CODE_IN_MEMORY,
                                        .source_bytes = source_bytes_of(c)};
}

/* quota.daemon_mib, for a kind with its own default. */
static uint64_t daemon_mib(const struct config *c, uint64_t by_default)
{
    return c->quota.daemon_mib == CONFIG_UNSAID ? by_default : c->quota.daemon_mib;
}

struct quota_limits quota_limits_of(const struct config *c)
{
    return (struct quota_limits){.subordinates = c->subordinates,
                                 .of = {[QUOTA_CONNECTIONS] = c->quota.connections,
                                        [QUOTA_BUFFERS] = c->quota.buffers,
                                        [QUOTA_MAPPINGS] = c->quota.mappings,
                                        [QUOTA_MAPPED] = c->quota.mapped_mib << 20,
                                        [QUOTA_ALLOCATED] = c->quota.allocated_mib << 20,
                                        [QUOTA_HOST] = c->quota.host_mib << 20,
                                        [QUOTA_PROGRAMS] = daemon_mib(c, 256) << 20,
                                        [QUOTA_WAITING] = daemon_mib(c, 64) << 20,
                                        [QUOTA_INFLIGHT] = c->quota.inflight,
                                        [QUOTA_FDS] = c->quota.fds,
                                        [QUOTA_KERNEL] = daemon_mib(c, 1024) << 20},
                                 .of_all = {[QUOTA_CONNECTIONS] = c->max_connections,
                                            [QUOTA_MAPPINGS] = MAPPINGS_MAX,
                                            [QUOTA_HOST] = c->quota_host_all_mib << 20,
                                            [QUOTA_FDS] = config_descriptors()},
                                 .messages_per_s = c->quota.messages_per_s,
                                 .device_share = c->quota.device_share,
                                 .faults = c->executors_faults};
}

struct server_config server_config_of(const struct config *c)
{
    struct server_config s = {
        .max_connections = c->max_connections,
        .message_bytes = c->message_bytes,
        .inflight = c->inflight,
        .buffers = BUFFERS_MAX,
        .programs = PROGRAMS_MAX,
        .stall_timeout_ms = c->stall_timeout_ms,
        .inline_mappings = INLINE_MAPPINGS_MAX,
        .output_bytes = OUTPUT_BYTES_MAX,
        .peer_timeout_s = c->peer_timeout_s,
        .spin_us = c->spin_us,
        .polling_clients = (unsigned)c->polling_clients,
        .idle_close_s = c->idle_close_s,
        .shutdown_grace_ms = c->shutdown_grace_ms,
        .tuning_idle_runs = c->tuning_idle_runs,
        .tuning_budget_ms = c->tuning_budget_ms,
        .tuning_ready = c->tuning_ready,
        .job_timeout_s = c->job_timeout_s,
        .loop_timeout_s = c->loop_timeout_s,
        .idle_exit_s = c->idle_exit_s,
        .kernels = KERNELS_MAX,
        .isolation = (enum isolation)c->isolate,
        .user_kernels = (enum user_kernels)c->policy,
        .hand_out = (enum user_kernels)c->hand_out_policy,
        .user_kernels_group = c->user_kernels_gid,
        .hand_out_group = c->hand_out_gid,
        .access = c->access,
        .quota = quota_limits_of(c),
        .code = code_config_of(c),
        .backend_config = {.host_threads = (unsigned)c->host_threads,
                           .host_blas = c->host_blas,
                           .host_onednn = c->host_onednn,
                           .host_first_variant = !c->host_choose,
                           .cuda_driver = c->cuda_driver,
                           .cuda_blaslt = c->cuda_blaslt,
                           .cuda_cupti = c->executors_cupti,
                           .cuda_repack_bytes = c->cuda_repack_bytes,
                           .spin_us = EXECUTOR_SPIN_US,
                           .may_poll = c->spin_us != 0,
                           .executors_max = (unsigned)c->executors_max,
                           .executors_active = (unsigned)c->executors_active,
                           .executors_exclusive_ms = (unsigned)c->executors_exclusive_ms,
                           .executors_late_ms = (unsigned)c->executors_late_ms,
                           .executors_longest_s = (unsigned)c->executors_longest_s,
                           .executors_spares = c->isolate >= ISOLATE_USER ? (unsigned)c->executors_spares : 0,
                           .executors_sandbox = c->executors_sandbox_mode,
                           .executors_user = c->executors_user,
                           .executors_counters_privileged = c->executors_counters_privileged},
    };
    unsigned n = 0;

#ifdef KOPS_HAVE_CUDA
    if (c->has_cuda)
        s.backends[n++] = executor_backend(&cuda_backend);
#endif
    if (c->has_host)
        s.backends[n++] = &host_backend;
    return s;
}

/* ---- the process ---- */

/* The hooks' context. */
struct daemon {
    const struct flags *flags;
    struct config *config;
    struct listener listener;
    struct sockets sockets;
    struct notifier notifier;
    int served_fd; /* see take_served_file() */
    struct server *server;
    struct config fresh; /* from on_read() to on_reload() */
    bool unreadable, only_sockets;
    struct error error; /* then */
};

static void prepare_process(void)
{
    struct rlimit files;
    sigset_t hangup;

    prctl(PR_SET_NAME, "kopsd"); /* also when it was started by another name */
    signals_ignore_stray();
    /* Until there is a server to tell: the settings may be new ones since they were read. */
    sigemptyset(&hangup);
    sigaddset(&hangup, SIGHUP);
    sigprocmask(SIG_BLOCK, &hangup, NULL);
    /* A connection takes two descriptors, each shared memory one on its way in. */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    setenv("UV_THREADPOOL_SIZE", "8", 0); /* opens, copies and allocations that may all block */
    host_backend.prepare_process();
}

/* ---- hooks ---- */

static void on_ready(void *context)
{
    const struct daemon *d = context;

    log_info("ready", "version=%s socket=%s pid=%d", KOPS_VERSION, d->listener.path, (int)getpid());
    notify(&d->notifier, "READY=1");
}

/* The file that shows an answered request; -1: none is wanted. See deploy/kopsd-backoff. */
static int take_served_file(void)
{
    const char *path = getenv("KOPS_SERVED_FILE");
    const int fd = path && *path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;

    if (path && *path && fd < 0)
        log_warning("served_file", "why=\"%s\"", strerror(errno));
    unsetenv("KOPS_SERVED_FILE");
    return fd;
}

static void on_served(void *context)
{
    const struct daemon *d = context;

    notify_maybe(&d->notifier, NOTIFIER_SERVED);
    if (d->served_fd >= 0 && write(d->served_fd, "1\n", 2) < 0)
        log_warning("served_file", "why=\"%s\"", strerror(errno));
}

static void on_status(void *context, const char *text)
{
    const struct daemon *d = context;

    notify_maybe(&d->notifier, "STATUS=%s", text);
}

static void on_stopping(void *context, uint64_t at_most_ms)
{
    const struct daemon *d = context;

    notify(&d->notifier, "STOPPING=1\nSTATUS=stopping\nEXTEND_TIMEOUT_USEC=%llu",
           (unsigned long long)at_most_ms * 1000);
}

static void on_alive(void *context)
{
    const struct daemon *d = context;

    notify_maybe(&d->notifier, "WATCHDOG=1");
}

static void on_read(void *context, bool only_sockets)
{
    struct daemon *d = context;

    d->only_sockets = only_sockets;
    if (only_sockets) {
        sockets_look(&d->sockets, d->config);
        return;
    }
    notify(&d->notifier, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)clock_now_ns() / 1000);
    d->unreadable = flags_load(d->flags, &d->fresh, &d->error) < 0;
    if (!d->unreadable)
        sockets_look(&d->sockets, &d->fresh);
}

static void on_reload(void *context)
{
    struct daemon *d = context;
    struct server_config settings;
    char quoted[2 * ERROR_MESSAGE_MAX];

    if (d->only_sockets) {
        sockets_serve(&d->sockets, d->config, d->server);
        return;
    }
    if (d->unreadable) {
        log_error("reload", "why=%s", log_quote(quoted, sizeof(quoted), d->error.message, strlen(d->error.message)));
        notify(&d->notifier, "READY=1\nSTATUS=the settings are the old ones: %s", d->error.message);
    } else {
        config_take_live(d->config, &d->fresh);
        settings = server_config_of(d->config);
        server_reload(d->server, &settings);
        sockets_serve(&d->sockets, d->config, d->server);
        config_apply_log(d->config);
        config_log_shares(d->config);
        log_info("reload", "done=true");
        notify(&d->notifier, "READY=1");
    }
    config_free(&d->fresh);
    d->fresh = (struct config){0};
}

/* ---- life ---- */

/* The user that started the process makes the socket; the user that it becomes does all the rest. */
static int open_all(struct daemon *d, struct error *e)
{
    struct server_config settings = server_config_of(d->config);
    struct privileges privileges;
    int r = -1;

    if (privileges_find(d->config, &privileges, e) < 0)
        return -1;
    if (listener_open(d->config, &privileges, &d->listener, e) < 0)
        goto free_privileges;
    if (sockets_begin(&d->sockets, d->config, &privileges, e) < 0)
        goto close_listener;
    if (!privileges_give_cache(&privileges, settings.code.directory ? settings.code.directory : ""))
        settings.code.directory = NULL;
    if (privileges_drop(&privileges, e) < 0)
        goto close_listener;
    settings.watchdog_us = notify_take_watchdog();
    r = server_new(&settings, d->listener.fd, &d->server, e);
    d->listener.fd = -1;
    if (r == 0) {
        sockets_serve(&d->sockets, d->config, d->server);
        goto free_privileges;
    }

close_listener:
    sockets_close(&d->sockets);
    listener_close(&d->listener);
free_privileges:
    privileges_free(&privileges);
    return r;
}

int serve(const struct flags *flags, struct config *config)
{
    struct daemon d = {.flags = flags, .config = config};
    struct server_hooks hooks = {.ready = on_ready,
                                 .served = on_served,
                                 .read = on_read,
                                 .reload = on_reload,
                                 .stopping = on_stopping,
                                 .context = &d};
    struct error e;
    int status;

    prepare_process();
    notifier_open(&d.notifier);
    d.served_fd = take_served_file();
    if (d.notifier.fd >= 0) {
        hooks.status = on_status;
        hooks.alive = on_alive;
    }
    config_log_shares(config);
    if (open_all(&d, &e) < 0) {
        log_error("start", "why=\"%s\"", e.message);
        notify(&d.notifier, "STATUS=cannot start: %s", e.message);
        notifier_close(&d.notifier);
        return SERVER_EXIT_FAILED;
    }
    status = server_run(d.server, &hooks);
    sockets_close(&d.sockets);
    listener_close(&d.listener);
    if (status == SERVER_EXIT_DEVICE_LOST) {
        /* Threads may be in calls of the driver that never return, and exit() would wait for them. */
        log_info("stopped", "status=%d", status);
        _exit(status);
    }
    server_free(d.server);
    config_free(&d.fresh); /* where the end came first */
    log_info("stopped", "status=%d", status);
    notifier_close(&d.notifier);
    return status;
}
