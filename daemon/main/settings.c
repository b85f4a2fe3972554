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
     "Permissions of the socket, octal; under systemd the socket unit sets them."},
    {"server", "socket_group", TEXT, AT(socket_group), NULL, 0, 0, FIXED,
     "Group of the socket: its members may connect; the daemon's own group by default."},
    {"server", "user", TEXT, AT(user), NULL, 0, 0, FIXED,
     "User that the daemon becomes when root starts it, once the socket is made; root stays root by default."},
    {"server", "group", TEXT, AT(group), NULL, 0, 0, FIXED,
     "Group that the daemon gets with server.user; that user's own by default."},
    {"server", "backlog", NUMBER, AT(backlog), "4096", 1, 65535, FIXED, "Connections that may wait to be accepted."},
    {"server", "log_level", TEXT, AT(log_level), "info", 0, 0, LIVE, "error, warning, info or debug."},
    {"server", "max_connections", NUMBER, AT(max_connections), "4096", 1, 1000000, LIVE, "Connections at one time."},
    {"server", "default_device", TEXT, AT(default_device), NULL, 0, 0, FIXED,
     "UUID or index of the device that runs requests with all tensors in shared host memory; the first by default."},
    {"server", "spin_us", NUMBER, AT(spin_us), NULL, 0, 1000000, LIVE,
     "Microseconds of polling for requests and completions before the daemon sleeps; 100 where it may use 4 cores or "
     "more, else 0. The daemon polls for less time while polling finds no work."},
    {"server", "shutdown_grace_ms", NUMBER, AT(shutdown_grace_ms), "5000", 1, 3600000, LIVE,
     "Time that running jobs have after SIGTERM before they are cancelled."},
    {"server", "stall_timeout_ms", NUMBER, AT(stall_timeout_ms), "0", 0, 86400000, LIVE,
     "Longest time that an ordered op may wait for its client's stream; then its connection is closed. 0: no limit; a "
     "waiting op costs little."},
    {"server", "job_timeout_s", NUMBER, AT(job_timeout_s), "60", 0, 86400, LIVE,
     "When a GPU that has work ends none of it for this time, the daemon reports the running work and ends the job, "
     "with the executor that has it; 0: never."},
    {"server", "loop_timeout_s", NUMBER, AT(loop_timeout_s), "30", 0, 86400, FIXED,
     "When the event loop is blocked for this time, the daemon ends with status 70; 0: never."},
    {"server", "idle_exit_s", NUMBER, AT(idle_exit_s), "0", 0, 31536000, LIVE,
     "Seconds without a connection after which the daemon ends with status 0; 0: never. For daemons that something "
     "starts again when a client comes: kopsd --autostart, which sets 300 unless this is set, or a socket unit."},
    {"server", "log_kib", NUMBER, AT(log_kib), "0", 0, 1U << 30, LIVE,
     "Size of a log that is a file (stderr), above which only its end is kept, half as long; 0: no limit. kopsd "
     "--autostart sets 1024."},
    {"limits", "message_bytes", NUMBER, AT(message_bytes), "1048576", 4096, 1U << 30, LIVE,
     "Bytes of one request; a new value applies to new connections."},
    {"limits", "inflight", NUMBER, AT(inflight), "256", 1, 65536, LIVE, "Unanswered requests of a connection."},
    {"limits", "buffers", NUMBER, AT(buffers), "8192", 1, 1000000, LIVE, "Registered buffers of a connection."},
    {"limits", "programs", NUMBER, AT(programs), "1024", 1, 65536, LIVE, "Programs of a connection."},
    {"limits", "kernels", NUMBER, AT(kernels), "4096", 1, 1000000, LIVE,
     "Modules of a connection, and the same number of kernels."},
    {"limits", "source_bytes", NUMBER, AT(source_bytes), "1000000", 1024, 1U << 26, LIVE,
     "Bytes of one source with the files that it includes; it must also fit into one request (message_bytes)."},
    {"limits", "inline_mappings", NUMBER, AT(inline_mappings), "1024", 1, 65536, LIVE,
     "Inline references that a connection keeps."},
    {"limits", "output_bytes", NUMBER, AT(output_bytes), "262144", 4096, 1U << 26, LIVE,
     "Bytes of replies that a client has not read; above it the daemon stops reading the client's requests."},
    {"limits", "stuck_reader_s", NUMBER, AT(stuck_reader_s), "30", 0, 86400, LIVE,
     "Seconds after which a client with too many unread replies is dropped, unless it reads 1 KiB a second of them "
     "(the "
     "kernel tells this in steps of up to 40 KB); 0: never."},
    {"limits", "partial_message_s", NUMBER, AT(partial_message_s), "60", 0, 86400, LIVE,
     "Seconds after which a client that has sent only part of a message is dropped; 0: never."},
    {"limits", "idle_close_s", NUMBER, AT(idle_close_s), "30", 0, 86400, LIVE,
     "Seconds after which an unused CUDA IPC mapping is closed, so that its owner's free gives memory back; 0: never."},
    {"host", "enabled", SWITCH, AT(host_enabled), "true", 0, 0, FIXED, "Serve the host as a device."},
    {"host", "threads", NUMBER, AT(host_threads), "0", 0, 4096, FIXED, "Worker threads; 0: one a usable core."},
    {"host", "blas", TEXT, AT(host_blas), "auto", 0, 0, FIXED,
     "auto, none, or the path of a library with cblas_sgemm."},
    {"host", "onednn", TEXT, AT(host_onednn), "auto", 0, 0, FIXED, "auto, none, or the path of oneDNN (libdnnl)."},
    {"host", "choose", SWITCH, AT(host_choose), "true", 0, 0, FIXED,
     "gemm: measure its variants while they serve, and use the fastest for each size; false: the first that \"kopsctl "
     "ops\" lists, so that equal calls give equal bits."},
    {"cuda", "enabled", SWITCH, AT(cuda_enabled), "true", 0, 0, FIXED, "Serve the visible GPUs."},
    {"cuda", "driver", TEXT, AT(cuda_driver), NULL, 0, 0, FIXED,
     "Path of the CUDA driver library; libcuda.so.1 by default."},
    {"cuda", "blaslt", TEXT, AT(cuda_blaslt), NULL, 0, 0, FIXED,
     "Path of cuBLASLt, or none; the usual names by default. Without it gemm uses kopsd's own kernel."},
    {"cuda", "nvml", TEXT, AT(cuda_nvml), NULL, 0, 0, FIXED,
     "Path of NVML, or none; libnvidia-ml.so.1 by default. It tells clocks, temperature and power beside profiles."},
    {"cuda", "workspace_bytes", NUMBER, AT(cuda_workspace_bytes), "33554432", 0, 1U << 30, FIXED,
     "Scratch memory for cuBLASLt, for each stream in use."},
    {"cuda", "repack_bytes", NUMBER, AT(cuda_repack_bytes), "1073741824", 0, UINT64_C(1) << 36, FIXED,
     "Scratch memory on each GPU for copies of gemm's operands, which make misaligned ones and f32 in pieces fast; 0: "
     "none is copied. Each executor may use as much, and keeps it until it ends."},
    {"tuning", "idle_runs", NUMBER, AT(tuning_idle_runs), "1000", 0, 1U << 31, LIVE,
     "Runs of an op with equal shapes and layouts, after which the daemon measures what runs them fastest, while "
     "neither it "
     "nor anybody else has work on the GPU; 0: only when a client asks for it."},
    {"tuning", "budget_ms", NUMBER, AT(tuning_budget_ms), "800", 100, 600000, LIVE,
     "Time from when a tuning is asked for to its last measurement; its reply comes 150 ms later at most. Candidates "
     "that there is no time for, the least promising ones, have their turn in a later tuning of the same shapes."},
    {"tuning", "ready", SWITCH, AT(tuning_ready), "true", 0, 0, FIXED,
     "Keep a process ready that tunes: the first tuning does not wait for libraries to be loaded. It takes memory of "
     "the "
     "host, and none of a GPU before it tunes."},
    {"executors", "isolate", TEXT, AT(executors_isolate), "user", 0, 0, FIXED,
     "Whose GPU work shares a process: user (kernels of users run in executors of their own, one a user), connection "
     "(one a connection), or none (one executor does the work of all users)."},
    {"executors", "max", NUMBER, AT(executors_max), "8", 2, 60, FIXED,
     "Executors at one time, the common one and the spares included. Each takes about 0.5 GB of a GPU's memory."},
    {"executors", "active", NUMBER, AT(executors_active), "1", 1, 60, FIXED,
     "Users (or connections) whose own kernels run on one GPU at one time; others wait for their turn there. GPUs know "
     "nothing of each other's turns."},
    {"executors", "exclusive_ms", NUMBER, AT(executors_exclusive_ms), "50", 1, 5000, FIXED,
     "Milliseconds that work of others waits at most for a client's exclusive work, which is alone on its GPU that "
     "long; "
     "then others have as long before the next."},
    {"executors", "late_ms", NUMBER, AT(executors_late_ms), "25", 1, 3600000, FIXED,
     "Milliseconds that others wait for the end of what a user has on a GPU when the user's turn is over: then the "
     "next "
     "turn begins beside it, and both share the GPU by time slices."},
    {"executors", "longest_s", NUMBER, AT(executors_longest_s), "2", 1, 3600, FIXED,
     "Seconds that a user's kernel, or other work of its executor, may run on while kernels of others wait for the "
     "GPU or run beside it; "
     "then it is ended. Where nobody waits it goes on, see server.job_timeout_s."},
    {"executors", "spares", NUMBER, AT(executors_spares), "1", 0, 8, FIXED,
     "Executors that are kept ready: after a fault, and for a user's first kernel, one begins at once."},
    {"executors", "faults", NUMBER, AT(executors_faults), "3", 0, ACCOUNT_FAULTS_MAX, LIVE,
     "Faults and hangs of one user's kernels within a minute; after that many the daemon refuses the user's kernels "
     "for a minute, then for twice as long each time, up to an hour. 0: no bound."},
    {"executors", "spin_us", NUMBER, AT(executors_spin_us), "100", 0, 1000000, FIXED,
     "Microseconds that an executor polls for work and for its end before it sleeps."},
    {"executors", "sandbox", TEXT, AT(executors_sandbox), "auto", 0, 0, FIXED,
     "auto: executors are confined by what the system has of Landlock, seccomp and, for root, another user; required: "
     "GPUs are served only where it has all of them; off: executors may do what the daemon may."},
    {"executors", "user", TEXT, AT(executors_user), NULL, 0, 0, FIXED,
     "User of the executors when the daemon is root, one that may open the GPUs' device files; none: root. "
     "kops-executor, or nobody where there is no such user, by default."},
    {"executors", "cupti", TEXT, AT(executors_cupti), NULL, 0, 0, FIXED,
     "Path of CUPTI's library, which tells exact times of kernels and reads counters; off: do without, so that another "
     "tool can use CUPTI "
     "in the executors; the usual names and places by default."},
    {"executors", "counters_privileged", SWITCH, AT(executors_counters_privileged), "false", 0, 0, FIXED,
     "Where the GPU's driver lets only administrators read counters (RmProfilingAdminOnly: 1): true: all users of the "
     "daemon read those of their own work, by the daemon's CAP_PERFMON (root has it), which the process that counts "
     "gives "
     "up before it knows code of users; false: nobody reads any."},
    {"kernels", "user_kernels", TEXT, AT(user_kernels), "auto", 0, 0, FIXED,
     "Users that may bring kernels: off, owner (root and the daemon's own user), group (also members of "
     "user_kernels_group), all, or auto: all where executors.isolate is user or connection, else owner. Without such "
     "executors kernels run in one context, and can read and write all clients' shared memory."},
    {"kernels", "user_kernels_group", TEXT, AT(user_kernels_group), NULL, 0, 0, FIXED,
     "A group, by name or number, for user_kernels = group."},
    {"kernels", "hand_out", TEXT, AT(hand_out), "all", 0, 0, FIXED,
     "Users that may have code handed out, to launch it in a CUDA context of their own: off, owner, group or all, as "
     "in "
     "user_kernels. The daemon's own kernels, and those that they bring, where user_kernels allows that."},
    {"kernels", "nvrtc", TEXT, AT(nvrtc), NULL, 0, 0, FIXED,
     "Path of NVRTC's library, or none; the usual names and places by default."},
    {"kernels", "include", TEXT, AT(include), NULL, 0, 0, FIXED,
     "Directory of the CUDA toolkit's headers; beside NVRTC by default."},
    {"kernels", "include_extra", TEXT, AT(include_extra), NULL, 0, 0, FIXED,
     "Further folders of headers that every source may include, such as CUTLASS's, with colons between them, at most "
     "8. "
     "They belong to root or the daemon's user, and nobody else can write them. After a change of theirs the daemon "
     "must be "
     "started anew."},
    {"kernels", "sandbox", TEXT, AT(sandbox), "required", 0, 0, FIXED,
     "required: sources are compiled only where Landlock and seccomp confine the compiler; best_effort: with those "
     "of them that the system has; off: without them."},
    {"kernels", "user", TEXT, AT(compile_user), "nobody", 0, 0, FIXED,
     "User of the compiler processes when the daemon is root."},
    {"kernels", "helpers", NUMBER, AT(helpers), NULL, 1, 256, FIXED,
     "Compiles at one time; one a usable core by default."},
    {"kernels", "memory_mib", NUMBER, AT(compile_memory_mib), "4096", 256, 1U << 20, FIXED,
     "Memory that one compile may take. As many compiles as run may be stopped for other users' and keep theirs."},
    {"kernels", "time_s", NUMBER, AT(compile_time_s), "120", 1, 86400, FIXED, "Seconds that one compile may take."},
    {"kernels", "keep_s", NUMBER, AT(compile_keep_s), "600", 0, 86400, FIXED,
     "Seconds after which unused compiler processes end (they take some 100 MB); 0: never."},
    {"cache", "directory", TEXT, AT(cache_directory), NULL, 0, 0, FIXED,
     "Directory for compiled code, or none. Default: $CACHE_DIRECTORY (systemd's), else /var/cache/kopsd for root, "
     "else $XDG_CACHE_HOME/kopsd or ~/.cache/kopsd."},
    {"cache", "disk_mib", NUMBER, AT(cache_disk_mib), "1024", 0, 1U << 20, FIXED,
     "Size of the directory; 0: no code is kept there."},
    {"cache", "memory_mib", NUMBER, AT(cache_memory_mib), "256", 0, 1U << 20, FIXED,
     "Size of the compiled code that is kept in memory."},
    {"cache", "remote", TEXT, AT(cache_remote), NULL, 0, 0, LIVE,
     "URL (https://… or http://…) of a folder that several machines keep compiled code in, on a server that answers "
     "GET "
     "and, for machines that publish, PUT. It is asked after memory and disk. none: there is none, the default."},
    {"cache", "remote_trust", LIST, AT(cache_remote_trust), "", 0, 0, LIVE,
     "Public keys (ed25519:…) of those whose code is taken from there, separated by commas or blanks. Whoever has such "
     "a "
     "key's private half can have code run here, as the users who ask for it."},
    {"cache", "remote_key", TEXT, AT(cache_remote_key), NULL, 0, 0, LIVE,
     "File of a private key (kopsd --cache-keygen FILE makes one), mode 0600 and the daemon's user's or root's. With "
     "it "
     "the code that is compiled here is signed and put on the server; without it nothing is put there."},
    {"cache", "remote_credentials", TEXT, AT(cache_remote_credentials), NULL, 0, 0, LIVE,
     "File, mode 0600, whose first line is what the server wants to hear: bearer TOKEN, or basic USER:PASSWORD."},
    {"cache", "remote_ca", TEXT, AT(cache_remote_ca), NULL, 0, 0, LIVE,
     "File of the certificates of authorities that the server's is checked by; the system's by default."},
    {"cache", "remote_wait_ms", NUMBER, AT(cache_remote_wait_ms), "50", 0, 60000, LIVE,
     "Milliseconds that a compile waits for the server; then it begins, and whichever is first answers. 0: both begin "
     "at "
     "once."},
    {"cache", "remote_timeout_ms", NUMBER, AT(cache_remote_timeout_ms), "10000", 100, 600000, LIVE,
     "Milliseconds that one transfer may take; a third of them until the server has accepted the connection."},
    {"cache", "remote_max_days", NUMBER, AT(cache_remote_max_days), "0", 0, 36500, LIVE,
     "Days after which code on the server is too old to be taken; 0: never."},
    {"cache", "remote_helper", TEXT, AT(cache_remote_helper), NULL, 0, 0, LIVE,
     "Socket of the helper that speaks HTTP, where that is a service of its own (kopsd-cache.socket makes "
     "/run/kopsd-cache.sock). By default the daemon starts one, which its own systemd unit does not let reach a "
     "network."},
    {"access", "allow", LIST, AT(access_allow), "*", 0, 0, LIVE,
     "Users that may connect: users, numbers, @groups, @numbers, * for all users, owner for only root and the daemon's "
     "own user, which always may; separated by commas or blanks."},
    {"access", "deny", LIST, AT(access_deny), "", 0, 0, LIVE, "Users that may not connect, even if allowed."},
    {"access", "tune", LIST, AT(access_tune), "owner", 0, 0, LIVE,
     "Users that may also reset the statistics of all users (PROTOCOL.md, Access)."},
    {"access", "administer", LIST, AT(access_administer), "owner", 0, 0, LIVE,
     "Users that may also administer: the cache of compiled code, draining, the figures of all users."},
    {"access", "subuid", TEXT, AT(subuid), "/etc/subuid", 0, 0, LIVE,
     "File of the ranges of users that a user may become (subuid(5)): their use counts as that user's; none: they "
     "count as users of their own."},
    {"quota", "connections", NUMBER, AT(quota_connections), NULL, 0, 1000000, LIVE,
     "Connections of one user; a quarter of server.max_connections by default. In all of this section 0 means no "
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
     "The host's memory that the daemon has mapped for one user: registered shared memory, counted in full before a "
     "page of it is touched, and host memory of alloc. Half of the memory by default, which is the control group's "
     "or the machine's."},
    {"quota", "host_all_mib", NUMBER, AT(quota_host_all_mib), NULL, 0, 1U << 30, LIVE,
     "The same for all users together; three quarters of the memory by default. One user may have at most twice the "
     "amount that is left to others: two thirds, when it is alone."},
    {"quota", "program_mib", NUMBER, AT(quota_program_mib), "256", 0, 1U << 30, LIVE,
     "Memory of the daemon that programs of one user take; at most 128 for each connection."},
    {"quota", "waiting_mib", NUMBER, AT(quota_waiting_mib), "64", 0, 1U << 30, LIVE,
     "Memory of the daemon that waiting requests and unread replies of one user take; above it the daemon stops "
     "reading the user's connections."},
    {"quota", "inflight", NUMBER, AT(quota_inflight), "32768", 0, 1U << 30, LIVE, "Unanswered requests of one user."},
    {"quota", "fds", NUMBER, AT(quota_fds), NULL, 0, 1U << 30, LIVE,
     "Descriptors that the daemon holds for one user: two a connection, and two more with shared memory. A quarter of "
     "the daemon's by default, at most 16384."},
    {"quota", "kernel_mib", NUMBER, AT(quota_kernel_mib), "1024", 0, 1U << 30, LIVE,
     "Compiled code that modules and kernels of one user keep."},
    {"quota", "messages_per_s", NUMBER, AT(quota_messages_per_s), "0", 0, 10000000, LIVE,
     "Requests of one user in a second; as many may come in one burst."},
    {"quota", "device_share", NUMBER, AT(quota_device_share), "0", 0, 100 * 64, LIVE,
     "Percent of one device's time in the last second; a user above it gets no new run while others have work."},
    {"sockets", "max", NUMBER, AT(sockets_max), "256", 0, SOCKET_SECTIONS_MAX, LIVE,
     "Sockets of identities at one time, those of sections and those that the path of [socket *] stands for; 0: "
     "none is made. A daemon that a client starts (--autostart) makes none."},
    {"socket *", "path", TEXT, AT(any_socket.path), NULL, 0, 0, LIVE,
     "A section [socket NAME] makes one more socket at its path. Its peers count as the identity NAME: their user "
     "has no part in accounts, rights and isolation, and root is nobody. This section, [socket *], has the values "
     "for all such sockets that their own sections leave out. A path here has * in the place of one folder, as in "
     "/run/kopsd/namespaces/*/kopsd.sock: each such folder whose name could be NAME has a socket, as soon as it "
     "is made. The daemon's user makes the socket, so that it must be able to write there. Default: only the "
     "sockets of sections."},
    {"socket *", "mode", OCTAL, AT(any_socket.mode), NULL, 0, 0777, LIVE,
     "Permissions of the socket, octal; 0660 by default. 0666 where the folder alone says who may come, as in "
     "containers."},
    {"socket *", "group", TEXT, AT(any_socket.group), NULL, 0, 0, LIVE,
     "Group of the socket; the daemon's own by default."},
    {"socket *", "classes", TEXT, AT(any_socket.classes), NULL, 0, 0, LIVE,
     "Access classes of the peers: use, tune, administer, separated by commas; use by default."},
    {"socket *", "isolate", TEXT, AT(any_socket.isolate), NULL, 0, 0, LIVE,
     "connection: each peer's kernels have an executor of their own; user: those of the identity share one; "
     "connection by default, where executors.isolate is user or connection. New connections have it."},
    {"socket *", "user_kernels", TEXT, AT(any_socket.user_kernels), NULL, 0, 0, LIVE,
     "Whether peers may bring kernels: on, off, or auto: on where executors.isolate is user or connection; auto "
     "by default. Never where kernels.user_kernels is off."},
    {"socket *", "hand_out", TEXT, AT(any_socket.hand_out), NULL, 0, 0, LIVE,
     "Whether peers may have code handed out: on, off, or auto: on where kernels.hand_out is all; auto by "
     "default. Never where kernels.hand_out is off."},
    {"socket *", "quota_connections", NUMBER, AT(any_socket.quotas[0]), NULL, 0, 1000000, LIVE,
     "As quota.connections, of one identity; that setting's value by default."},
    {"socket *", "quota_buffers", NUMBER, AT(any_socket.quotas[1]), NULL, 0, 1U << 30, LIVE,
     "As quota.buffers, of one identity; that setting's value by default."},
    {"socket *", "quota_mappings", NUMBER, AT(any_socket.quotas[2]), NULL, 0, 1U << 30, LIVE,
     "As quota.mappings, of one identity; that setting's value by default."},
    {"socket *", "quota_mapped_mib", NUMBER, AT(any_socket.quotas[3]), NULL, 0, 1U << 30, LIVE,
     "As quota.mapped_mib, of one identity; that setting's value by default."},
    {"socket *", "quota_allocated_mib", NUMBER, AT(any_socket.quotas[4]), NULL, 0, 1U << 30, LIVE,
     "As quota.allocated_mib, of one identity; that setting's value by default."},
    {"socket *", "quota_host_mib", NUMBER, AT(any_socket.quotas[5]), NULL, 0, 1U << 30, LIVE,
     "As quota.host_mib, of one identity; that setting's value by default."},
    {"socket *", "quota_program_mib", NUMBER, AT(any_socket.quotas[6]), NULL, 0, 1U << 30, LIVE,
     "As quota.program_mib, of one identity; that setting's value by default."},
    {"socket *", "quota_waiting_mib", NUMBER, AT(any_socket.quotas[7]), NULL, 0, 1U << 30, LIVE,
     "As quota.waiting_mib, of one identity; that setting's value by default."},
    {"socket *", "quota_inflight", NUMBER, AT(any_socket.quotas[8]), NULL, 0, 1U << 30, LIVE,
     "As quota.inflight, of one identity; that setting's value by default."},
    {"socket *", "quota_fds", NUMBER, AT(any_socket.quotas[9]), NULL, 0, 1U << 30, LIVE,
     "As quota.fds, of one identity; that setting's value by default."},
    {"socket *", "quota_kernel_mib", NUMBER, AT(any_socket.quotas[10]), NULL, 0, 1U << 30, LIVE,
     "As quota.kernel_mib, of one identity; that setting's value by default."},
    {"socket *", "quota_messages_per_s", NUMBER, AT(any_socket.quotas[11]), NULL, 0, 10000000, LIVE,
     "As quota.messages_per_s, of one identity; that setting's value by default."},
    {"socket *", "quota_device_share", NUMBER, AT(any_socket.quotas[12]), NULL, 0, 100 * 64, LIVE,
     "As quota.device_share, of one identity; that setting's value by default."},
#undef AT
};
const unsigned n_settings = sizeof(settings) / sizeof(settings[0]);
