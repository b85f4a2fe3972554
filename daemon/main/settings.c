#include "main/settings.h"

#include "main/config.h"

/* Whether a reload takes a change over. */
enum { FIXED = false, LIVE = true };

const struct setting settings[] = {
#define AT(field) offsetof(struct config, field)
    {"server", "socket", TEXT, AT(socket), NULL, 0, 0, FIXED,
     "Path of the socket; under systemd the socket unit makes it. Default: /run/kopsd/kopsd.sock for root, else "
     "$XDG_RUNTIME_DIR/kopsd.sock."},
    {"server", "socket_mode", OCTAL, AT(socket_mode), "0660", 0, 0777, FIXED,
     "Permissions of the socket, octal; under systemd the socket unit's business."},
    {"server", "socket_group", TEXT, AT(socket_group), NULL, 0, 0, FIXED,
     "Group of the socket, which may connect; the daemon's own by default."},
    {"server", "user", TEXT, AT(user), NULL, 0, 0, FIXED,
     "Whom the daemon becomes when root starts it, once the socket is made; root stays root by default."},
    {"server", "group", TEXT, AT(group), NULL, 0, 0, FIXED, "With which group; the user's own by default."},
    {"server", "backlog", NUMBER, AT(backlog), "4096", 1, 65535, FIXED, "Connections that may wait to be accepted."},
    {"server", "log_level", TEXT, AT(log_level), "info", 0, 0, LIVE, "error, warning, info or debug."},
    {"server", "max_connections", NUMBER, AT(max_connections), "4096", 1, 1000000, LIVE, "Connections at one time."},
    {"server", "default_device", TEXT, AT(default_device), NULL, 0, 0, FIXED,
     "UUID or index of the device for requests whose tensors are all shared host memory; the first by default."},
    {"server", "spin_us", NUMBER, AT(spin_us), NULL, 0, 1000000, LIVE,
     "Microseconds of polling for requests and completions before sleeping; 50 where 4 cores or more may be used, else "
     "0. It shrinks by itself while polling finds nothing."},
    {"server", "shutdown_grace_ms", NUMBER, AT(shutdown_grace_ms), "5000", 1, 3600000, LIVE,
     "How long running jobs may take after SIGTERM before they are cancelled."},
    {"server", "stall_timeout_ms", NUMBER, AT(stall_timeout_ms), "0", 0, 86400000, LIVE,
     "How long an ordered op may wait for its client's stream before its connection is closed; 0: for ever, which "
     "costs nothing but a look now and then."},
    {"server", "job_timeout_s", NUMBER, AT(job_timeout_s), "60", 0, 86400, LIVE,
     "A GPU that has work and ends none of it for so long is given up: the daemon reports what runs there and ends "
     "with status 75, which frees the GPU; 0: never."},
    {"server", "loop_timeout_s", NUMBER, AT(loop_timeout_s), "30", 0, 86400, FIXED,
     "A server that serves nobody for so long, because something holds its loop, ends with status 70; 0: never. "
     "Waiting "
     "for a GPU that has work is not that: see job_timeout_s."},
    {"limits", "message_bytes", NUMBER, AT(message_bytes), "1048576", 4096, 1U << 30, LIVE,
     "Bytes of one request; a new value counts for new connections."},
    {"limits", "inflight", NUMBER, AT(inflight), "256", 1, 65536, LIVE, "Unanswered requests of a connection."},
    {"limits", "buffers", NUMBER, AT(buffers), "8192", 1, 1000000, LIVE, "Registered buffers of a connection."},
    {"limits", "programs", NUMBER, AT(programs), "1024", 1, 65536, LIVE, "Programs of a connection."},
    {"limits", "kernels", NUMBER, AT(kernels), "4096", 1, 1000000, LIVE,
     "Modules of a connection, and as many kernels."},
    {"limits", "source_bytes", NUMBER, AT(source_bytes), "1000000", 1024, 1U << 26, LIVE,
     "Bytes of one source with the files that it includes; a request must hold it, too (message_bytes)."},
    {"limits", "inline_mappings", NUMBER, AT(inline_mappings), "1024", 1, 65536, LIVE,
     "Inline references that a connection keeps."},
    {"limits", "output_bytes", NUMBER, AT(output_bytes), "262144", 4096, 1U << 26, LIVE,
     "Replies waiting for a client that does not read, in bytes, after which its requests are not read either."},
    {"limits", "stuck_reader_s", NUMBER, AT(stuck_reader_s), "30", 0, 86400, LIVE,
     "Seconds after which a client that is not read is dropped unless it took 1 KiB a second of the replies that wait, "
     "as far as the kernel tells, in steps of up to 40 KB; 0: never."},
    {"limits", "partial_message_s", NUMBER, AT(partial_message_s), "60", 0, 86400, LIVE,
     "Seconds after which a client is dropped that has sent a part of a message and not the rest; 0: never."},
    {"limits", "idle_close_s", NUMBER, AT(idle_close_s), "30", 0, 86400, LIVE,
     "Seconds after which an unused CUDA IPC mapping is closed, so that its owner's free gives memory back; 0: never."},
    {"host", "enabled", SWITCH, AT(host_enabled), "true", 0, 0, FIXED, "Serve the host as a device."},
    {"host", "threads", NUMBER, AT(host_threads), "0", 0, 4096, FIXED, "Worker threads; 0: one a usable core."},
    {"host", "blas", TEXT, AT(host_blas), "auto", 0, 0, FIXED,
     "auto, none, or the path of a library with cblas_sgemm."},
    {"cuda", "enabled", SWITCH, AT(cuda_enabled), "true", 0, 0, FIXED, "Serve the GPUs that are visible."},
    {"cuda", "driver", TEXT, AT(cuda_driver), NULL, 0, 0, FIXED,
     "Path of the CUDA driver library; libcuda.so.1 by default."},
    {"cuda", "blaslt", TEXT, AT(cuda_blaslt), NULL, 0, 0, FIXED,
     "Path of cuBLASLt, or none; the usual names by default. Without it gemm uses kopsd's own kernel."},
    {"cuda", "workspace_bytes", NUMBER, AT(cuda_workspace_bytes), "33554432", 0, 1U << 30, FIXED,
     "Scratch memory for cuBLASLt, for each stream in use."},
    {"kernels", "user_kernels", TEXT, AT(user_kernels), "owner", 0, 0, FIXED,
     "Who may bring kernels: off, owner (root and the daemon's own user), group (also members of "
     "user_kernels_group), or all. They run in the daemon's context and can read what others share with it."},
    {"kernels", "user_kernels_group", TEXT, AT(user_kernels_group), NULL, 0, 0, FIXED,
     "A group, by name or number, for user_kernels = group."},
    {"kernels", "nvrtc", TEXT, AT(nvrtc), NULL, 0, 0, FIXED,
     "Path of NVRTC's library, or none; the usual names and places by default."},
    {"kernels", "include", TEXT, AT(include), NULL, 0, 0, FIXED,
     "Directory of the CUDA toolkit's headers; beside NVRTC by default."},
    {"kernels", "sandbox", TEXT, AT(sandbox), "required", 0, 0, FIXED,
     "required: sources are compiled only where Landlock and seccomp confine the compiler; best_effort: with what "
     "there is of them; off: without."},
    {"kernels", "user", TEXT, AT(compile_user), "nobody", 0, 0, FIXED,
     "Whom compilers run as when the daemon is root."},
    {"kernels", "helpers", NUMBER, AT(helpers), NULL, 1, 256, FIXED,
     "Compiles at one time; one a usable core by default."},
    {"kernels", "memory_mib", NUMBER, AT(compile_memory_mib), "4096", 256, 1U << 20, FIXED,
     "Memory that one compile may take."},
    {"kernels", "time_s", NUMBER, AT(compile_time_s), "120", 1, 86400, FIXED, "Seconds that one compile may take."},
    {"kernels", "keep_s", NUMBER, AT(compile_keep_s), "600", 0, 86400, FIXED,
     "Seconds after which compilers that nobody uses end (they take some 100 MB); 0: never."},
    {"cache", "directory", TEXT, AT(cache_directory), NULL, 0, 0, FIXED,
     "Where compiled code is kept, or none. Default: $CACHE_DIRECTORY (systemd's), else /var/cache/kopsd for root, "
     "else "
     "$XDG_CACHE_HOME/kopsd or ~/.cache/kopsd."},
    {"cache", "disk_mib", NUMBER, AT(cache_disk_mib), "1024", 0, 1U << 20, FIXED,
     "Size of the directory; 0: nothing is kept."},
    {"cache", "memory_mib", NUMBER, AT(cache_memory_mib), "256", 0, 1U << 20, FIXED,
     "Compiled code that is kept in memory."},
    {"access", "allow", LIST, AT(access_allow), "*", 0, 0, LIVE,
     "Who may connect: users, numbers, @groups, @numbers, * for everybody, owner for nobody but root and the daemon's "
     "own user, who always may; separated by commas or blanks."},
    {"access", "deny", LIST, AT(access_deny), "", 0, 0, LIVE, "Who may not, even if allowed."},
    {"access", "tune", LIST, AT(access_tune), "owner", 0, 0, LIVE,
     "Who may also change what others see (PROTOCOL.md, Access)."},
    {"access", "administer", LIST, AT(access_administer), "owner", 0, 0, LIVE,
     "Who may also administer: the cache of compiled code, ending the daemon's work, everybody's figures."},
    {"access", "subuid", TEXT, AT(subuid), "/etc/subuid", 0, 0, LIVE,
     "File of the ranges of users that a user may become (subuid(5)): what those have counts as that user's; none: "
     "they "
     "count as users of their own."},
    {"quota", "connections", NUMBER, AT(quota_connections), NULL, 0, 1000000, LIVE,
     "Connections of one user; a quarter of server.max_connections by default. As all of this section: 0 means no "
     "limit."},
    {"quota", "buffers", NUMBER, AT(quota_buffers), "65536", 0, 1U << 30, LIVE, "Buffers of one user."},
    {"quota", "mappings", NUMBER, AT(quota_mappings), NULL, 0, 1U << 30, LIVE,
     "Pieces of memory of one user that are registered, referred to or made by alloc; a quarter of the daemon's 49152 "
     "by default."},
    {"quota", "mapped_mib", NUMBER, AT(quota_mapped_mib), "0", 0, 1U << 30, LIVE,
     "Memory of one user that is registered or referred to, each mapping counted once."},
    {"quota", "allocated_mib", NUMBER, AT(quota_allocated_mib), "0", 0, 1U << 30, LIVE,
     "Memory that alloc made for one user, for as long as the daemon has it."},
    {"quota", "host_mib", NUMBER, AT(quota_host_mib), NULL, 0, 1U << 30, LIVE,
     "The host's memory that one user has mapped here: shared memory that is registered, counted in full before a page "
     "of it is touched, and what alloc made of it; half of the memory by default, which is the control group's or the "
     "machine's."},
    {"quota", "host_all_mib", NUMBER, AT(quota_host_all_mib), NULL, 0, 1U << 30, LIVE,
     "The same of all users together; three quarters of the memory by default. One user may have twice what is left of "
     "it to others at most: two thirds, when it is alone."},
    {"quota", "program_mib", NUMBER, AT(quota_program_mib), "256", 0, 1U << 30, LIVE,
     "Memory of the daemon's that programs of one user take; 128 a connection at most."},
    {"quota", "waiting_mib", NUMBER, AT(quota_waiting_mib), "64", 0, 1U << 30, LIVE,
     "Memory of the daemon's that requests which wait, and replies that are not read, of one user take; beyond it the "
     "user's connections are not read."},
    {"quota", "inflight", NUMBER, AT(quota_inflight), "32768", 0, 1U << 30, LIVE, "Unanswered requests of one user."},
    {"quota", "fds", NUMBER, AT(quota_fds), NULL, 0, 1U << 30, LIVE,
     "Descriptors that the daemon holds for one user: two a connection, and two more with shared memory; a quarter of "
     "the daemon's by default, 16384 at most."},
    {"quota", "kernel_mib", NUMBER, AT(quota_kernel_mib), "1024", 0, 1U << 30, LIVE,
     "Compiled code that modules and kernels of one user keep."},
    {"quota", "messages_per_s", NUMBER, AT(quota_messages_per_s), "0", 0, 10000000, LIVE,
     "Requests of one user in a second; as many may come at once."},
    {"quota", "device_share", NUMBER, AT(quota_device_share), "0", 0, 100 * 64, LIVE,
     "Percent of one device's last second that one user may have had, while others have work, to have more."},
#undef AT
};
const unsigned n_settings = sizeof(settings) / sizeof(settings[0]);
