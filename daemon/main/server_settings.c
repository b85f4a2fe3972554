#include "main/server_settings.h"

#include "backend/mapping.h"
#include "executor/executor.h"

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
                                                     .user = c->compile_user,
                                                     .sandbox = (enum compiler_sandbox)c->sandbox_mode,
                                                     .helpers = (unsigned)c->helpers,
                                                     .memory_mib = (unsigned)c->compile_memory_mib,
                                                     .time_s = (unsigned)c->compile_time_s,
                                                     .keep_s = (unsigned)c->compile_keep_s},
                                        .directory = off || !*c->cache_directory ? NULL : c->cache_directory,
                                        .disk_bytes = c->cache_disk_mib << 20,
                                        .memory_bytes = c->cache_memory_mib << 20,
                                        .source_bytes = c->source_bytes};
}

struct quota_limits quota_limits_of(const struct config *c)
{
    return (struct quota_limits){.subordinates = c->subordinates,
                                 .of = {[QUOTA_CONNECTIONS] = c->quota_connections,
                                        [QUOTA_BUFFERS] = c->quota_buffers,
                                        [QUOTA_MAPPINGS] = c->quota_mappings,
                                        [QUOTA_MAPPED] = c->quota_mapped_mib << 20,
                                        [QUOTA_ALLOCATED] = c->quota_allocated_mib << 20,
                                        [QUOTA_HOST] = c->quota_host_mib << 20,
                                        [QUOTA_PROGRAMS] = c->quota_program_mib << 20,
                                        [QUOTA_WAITING] = c->quota_waiting_mib << 20,
                                        [QUOTA_INFLIGHT] = c->quota_inflight,
                                        [QUOTA_FDS] = c->quota_fds,
                                        [QUOTA_KERNEL] = c->quota_kernel_mib << 20},
                                 .of_all = {[QUOTA_CONNECTIONS] = c->max_connections,
                                            [QUOTA_MAPPINGS] = MAPPINGS_MAX,
                                            [QUOTA_HOST] = c->quota_host_all_mib << 20,
                                            [QUOTA_FDS] = config_descriptors()},
                                 .messages_per_s = c->quota_messages_per_s,
                                 .device_share = c->quota_device_share,
                                 .faults = c->executors_faults};
}

struct server_config server_config_of(const struct config *c)
{
    struct server_config s = {
        .default_device = c->default_device,
        .max_connections = c->max_connections,
        .message_bytes = c->message_bytes,
        .inflight = c->inflight,
        .buffers = c->buffers,
        .programs = c->programs,
        .stall_timeout_ms = c->stall_timeout_ms,
        .inline_mappings = c->inline_mappings,
        .output_bytes = c->output_bytes,
        .stuck_reader_s = c->stuck_reader_s,
        .partial_message_s = c->partial_message_s,
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
        .kernels = c->kernels,
        .isolation = (enum isolation)c->isolate,
        .user_kernels = (enum user_kernels)c->policy,
        .hand_out = (enum user_kernels)c->hand_out_policy,
        .user_kernels_group = c->kernels_gid,
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
                           .cuda_nvml = c->cuda_nvml,
                           .cuda_workspace_bytes = c->cuda_workspace_bytes,
                           .cuda_repack_bytes = c->cuda_repack_bytes,
                           .spin_us = c->executors_spin_us,
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
    if (c->cuda_enabled)
        s.backends[n++] = executor_backend(&cuda_backend);
#endif
    if (c->host_enabled)
        s.backends[n++] = &host_backend;
    return s;
}
