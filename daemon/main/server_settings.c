#include "main/serve.h"

#include "backend/mapping.h"
#include "executor/executor.h"

/* Bounds of a connection. Nobody needs other values, as quotas bound its user, too. */
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
