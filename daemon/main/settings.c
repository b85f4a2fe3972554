#include "main/settings.h"

#include "main/config.h"

/* Whether a reload takes a change over. */
enum { FIXED = false, LIVE = true };

#define AT(field) offsetof(struct config, field)

/* The quotas of one user, of which a socket may have its own: name, default, largest value, text. */
#define QUOTAS(X)                                                                                                      \
    X(connections, NULL, 1000000,                                                                                      \
      "Connections of one user; a quarter of server.max_connections by default. In all of this section 0 means no "    \
      "limit.")                                                                                                        \
    X(buffers, "65536", 1U << 30, "Buffers of one user.")                                                              \
    X(mappings, NULL, 1U << 30,                                                                                        \
      "Pieces of memory of one user that are registered, referred to or made by alloc; a quarter of the daemon's "     \
      "49152 by default.")                                                                                             \
    X(mapped_mib, "0", 1U << 30, "Memory of one user that is registered or referred to, each mapping counted once.")   \
    X(allocated_mib, "0", 1U << 30, "Memory that alloc made for one user, for as long as the daemon has it.")          \
    X(host_mib, NULL, 1U << 30,                                                                                        \
      "The host's memory that the daemon has mapped for one user: registered shared memory, counted in full "          \
      "before a page of it is touched, and host memory of alloc. Half of the memory by default, which is the "         \
      "control group's or the machine's.")                                                                             \
    X(daemon_mib, NULL, 1U << 30,                                                                                      \
      "Memory of the daemon that one user takes of each kind: programs (256 by default, and at most 128 for each "     \
      "connection), waiting requests and unread replies (64; above it the daemon stops reading the user's "            \
      "connections), compiled code that modules and kernels keep (1024).")                                             \
    X(inflight, "32768", 1U << 30, "Unanswered requests of one user.")                                                 \
    X(fds, NULL, 1U << 30,                                                                                             \
      "Descriptors that the daemon holds for one user: two a connection, and two more with shared memory. A "          \
      "quarter of the daemon's by default, at most 16384.")                                                            \
    X(messages_per_s, "0", 10000000, "Requests of one user in a second; as many may come in one burst.")               \
    X(device_share, "0", 100 * 64,                                                                                     \
      "Percent of one device's time in the last second; a user above it gets no new run while others have work.")
#define OF_USER(key, fallback, max, text) {"quota", #key, NUMBER, AT(quota.key), fallback, 0, max, LIVE, text},
#define OF_SOCKET(key, fallback, max, text)                                                                            \
    {"socket *", "quota_" #key, NUMBER, AT(any_socket.quota.key), NULL, 0, max, LIVE, NULL},

const struct setting settings[] = {
    {"server", "socket", TEXT, AT(socket), NULL, 0, 0, FIXED,
     "Path of the socket; under systemd the socket unit makes it. Default: /run/kopsd/kopsd.sock for root, else "
     "$XDG_RUNTIME_DIR/kopsd.sock."},
    {"server", "socket_mode", OCTAL, AT(socket_mode), "0660", 0, 0777, FIXED,
     "Permissions of the socket, octal; under systemd the socket unit sets them."},
    {"server", "socket_group", TEXT, AT(socket_group), NULL, 0, 0, FIXED,
     "Group of the socket: its members may connect; the daemon's own group by default."},
    {"server", "user", TEXT, AT(user), NULL, 0, 0, FIXED,
     "User that the daemon becomes when root starts it, once the socket is made; root stays root by default."},
    {"server", "sandbox", TEXT, AT(sandbox), "auto", 0, 0, FIXED,
     "How processes are confined that compile sources or run work of users on GPUs, by Landlock, seccomp and, for "
     "root, another user. auto: sources are compiled only where the system has Landlock and seccomp, executors do "
     "with what there is; required: there are no executors without all of it either; best_effort: both do with what "
     "there is; off: they may do what the daemon may, for debuggers."},
    {"server", "log_level", TEXT, AT(log_level), "info", 0, 0, LIVE, "error, warning, info or debug."},
    {"server", "max_connections", NUMBER, AT(max_connections), "4096", 1, 1000000, LIVE,
     "Connections at one time, of all users. More for a machine of thousands of processes."},
    {"server", "backend", TEXT, AT(backend), "auto", 0, 0, FIXED,
     "Devices that are served: host, cuda (the visible GPUs), or auto: both."},
    {"server", "spin_us", NUMBER, AT(spin_us), NULL, 0, 1000000, LIVE,
     "Microseconds of polling for requests and completions before the daemon sleeps; 100 where it may use 4 cores or "
     "more, else 0. The daemon polls for less time while polling finds no work. 0 saves power, more saves a "
     "wake-up's time."},
    {"server", "shutdown_grace_ms", NUMBER, AT(shutdown_grace_ms), "5000", 1, 3600000, LIVE,
     "Time that running jobs have after SIGTERM before they are cancelled."},
    {"server", "stall_timeout_ms", NUMBER, AT(stall_timeout_ms), "0", 0, 86400000, LIVE,
     "Longest time that an ordered op may wait for its client's stream; then its connection is closed. 0: no limit, "
     "since a waiting op costs little; for operators who want no work that waits for ever."},
    {"server", "job_timeout_s", NUMBER, AT(job_timeout_s), "60", 0, 86400, LIVE,
     "When a GPU that has work ends none of it for this time, the daemon reports the running work and ends the job, "
     "with the executor that has it; 0: never."},
    {"server", "loop_timeout_s", NUMBER, AT(loop_timeout_s), "30", 0, 86400, FIXED,
     "When the event loop is blocked for this time, the daemon ends with status 70; 0: never, for whoever stops the "
     "daemon in a debugger."},
    {"server", "idle_exit_s", NUMBER, AT(idle_exit_s), "0", 0, 31536000, LIVE,
     "Seconds without a connection after which the daemon ends with status 0; 0: never. For daemons that something "
     "starts again when a client comes: kopsd --autostart, which sets 300 unless this is set, or a socket unit."},
    {"server", "log_kib", NUMBER, AT(log_kib), "0", 0, 1U << 30, LIVE,
     "Size of a log that is a file (stderr), above which only its end is kept, half as long; 0: no limit. kopsd "
     "--autostart sets 1024."},
    {"limits", "message_bytes", NUMBER, AT(message_bytes), "1048576", 4096, 1U << 30, LIVE,
     "Bytes of one request; a new value applies to new connections. For large sources of kernels, which have at most "
     "95 percent of it with the files that they include."},
    {"limits", "inflight", NUMBER, AT(inflight), "256", 1, 65536, LIVE,
     "Unanswered requests of a connection. More for clients that send long batches, fewer where users should wait "
     "for their answers."},
    {"limits", "peer_timeout_s", NUMBER, AT(peer_timeout_s), "30", 0, 86400, LIVE,
     "Seconds after which a client is dropped that has sent only part of a message, or that leaves too many replies "
     "unread, unless it reads 1 KiB a second of them (the kernel tells this in steps of up to 40 KB); 0: never, for "
     "whoever stops clients in a debugger."},
    {"limits", "idle_close_s", NUMBER, AT(idle_close_s), "30", 0, 86400, LIVE,
     "Seconds after which an unused CUDA IPC mapping is closed, so that its owner's free gives memory back; 0: "
     "never. Fewer where programs need all memory of a GPU in turn."},
    {"host", "threads", NUMBER, AT(host_threads), "0", 0, 4096, FIXED, "Worker threads; 0: one a usable core."},
    {"host", "blas", TEXT, AT(host_blas), "auto", 0, 0, FIXED,
     "auto, none, or the path of a library with cblas_sgemm."},
    {"host", "onednn", TEXT, AT(host_onednn), "auto", 0, 0, FIXED, "auto, none, or the path of oneDNN (libdnnl)."},
    {"host", "choose", SWITCH, AT(host_choose), "true", 0, 0, FIXED,
     "gemm: measure its variants while they serve, and use the fastest for each size; false: the first that "
     "\"kopsctl ops\" lists, so that equal calls give equal bits."},
    {"cuda", "driver", TEXT, AT(cuda_driver), NULL, 0, 0, FIXED,
     "Path of the CUDA driver library; libcuda.so.1 by default."},
    {"cuda", "blaslt", TEXT, AT(cuda_blaslt), NULL, 0, 0, FIXED,
     "Path of cuBLASLt, or none; the usual names by default. Without it gemm uses kopsd's own kernel."},
    {"cuda", "repack_bytes", NUMBER, AT(cuda_repack_bytes), "1073741824", 0, UINT64_C(1) << 36, FIXED,
     "Scratch memory on each GPU for copies of gemm's operands, which make misaligned ones and f32 in pieces fast; "
     "0: none is copied. Each executor may use as much, and keeps it until it ends: less for small GPUs."},
    {"tuning", "idle_runs", NUMBER, AT(tuning_idle_runs), "1000", 0, 1U << 31, LIVE,
     "Runs of an op with equal shapes and layouts, after which the daemon measures what runs them fastest, while "
     "neither it nor anybody else has work on the GPU; 0: only when a client asks for it."},
    {"tuning", "budget_ms", NUMBER, AT(tuning_budget_ms), "800", 100, 600000, LIVE,
     "Time from when a tuning is asked for to its last measurement; its reply comes 150 ms later at most. Candidates "
     "that there is no time for, the least promising ones, have their turn in a later tuning of the same shapes."},
    {"tuning", "ready", SWITCH, AT(tuning_ready), "true", 0, 0, FIXED,
     "Keep a process ready that tunes: the first tuning does not wait for libraries to be loaded. It takes memory of "
     "the host, and none of a GPU before it tunes."},
    {"executors", "isolate", TEXT, AT(executors_isolate), "user", 0, 0, FIXED,
     "Whose GPU work shares a process: user (kernels of users run in executors of their own, one a user), connection "
     "(one a connection), or none (one executor does the work of all users)."},
    {"executors", "max", NUMBER, AT(executors_max), "8", 2, 60, FIXED,
     "Executors at one time, the common one and the spares included. Each takes about 0.5 GB of a GPU's memory."},
    {"executors", "active", NUMBER, AT(executors_active), "1", 1, 60, FIXED,
     "Users (or connections) whose own kernels run on one GPU at one time; others wait for their turn there. GPUs "
     "know nothing of each other's turns."},
    {"executors", "exclusive_ms", NUMBER, AT(executors_exclusive_ms), "50", 1, 5000, FIXED,
     "Milliseconds that work of others waits at most for a client's exclusive work, which is alone on its GPU that "
     "long; then others have as long before the next."},
    {"executors", "late_ms", NUMBER, AT(executors_late_ms), "25", 1, 3600000, FIXED,
     "Milliseconds that others wait for the end of what a user has on a GPU when the user's turn is over: then the "
     "next turn begins beside it, and both share the GPU by time slices. More for measurements without others, fewer "
     "for short waits."},
    {"executors", "longest_s", NUMBER, AT(executors_longest_s), "2", 1, 3600, FIXED,
     "Seconds that a user's kernel, or other work of its executor, may run on while kernels of others wait for the "
     "GPU or run beside it; then it is ended. Where nobody waits it goes on, see server.job_timeout_s."},
    {"executors", "spares", NUMBER, AT(executors_spares), "1", 0, 8, FIXED,
     "Executors that are kept ready: after a fault, and for a user's first kernel, one begins at once."},
    {"executors", "faults", NUMBER, AT(executors_faults), "3", 0, ACCOUNT_FAULTS_MAX, LIVE,
     "Faults and hangs of one user's kernels within a minute; after that many the daemon refuses the user's kernels "
     "for a minute, then for twice as long each time, up to an hour. 0: no bound."},
    {"executors", "user", TEXT, AT(executors_user), NULL, 0, 0, FIXED,
     "User of the executors when the daemon is root, one that may open the GPUs' device files; none: root. "
     "kops-executor, or nobody where there is no such user, by default."},
    {"executors", "cupti", TEXT, AT(executors_cupti), NULL, 0, 0, FIXED,
     "Path of CUPTI's library, which tells exact times of kernels and reads counters; off: do without, so that "
     "another tool can use CUPTI in the executors; the usual names and places by default."},
    {"executors", "counters_privileged", SWITCH, AT(executors_counters_privileged), "false", 0, 0, FIXED,
     "Where the GPU's driver lets only administrators read counters (RmProfilingAdminOnly: 1): true: all users of "
     "the daemon read those of their own work, by the daemon's CAP_PERFMON (root has it), which the process that "
     "counts gives up before it knows code of users; false: nobody reads any."},
    {"kernels", "user_kernels", TEXT, AT(user_kernels), "auto", 0, 0, FIXED,
     "Users that may bring kernels: off, owner (root and the daemon's own user), @GROUP (also members of the group, "
     "by name or number), all, or auto: all where executors.isolate is user or connection, else owner. Without such "
     "executors kernels run in one context, and can read and write all clients' shared memory."},
    {"kernels", "hand_out", TEXT, AT(hand_out), "all", 0, 0, FIXED,
     "Users that may have code handed out, to launch it in a CUDA context of their own: off, owner, @GROUP or all, "
     "as in user_kernels. The daemon's own kernels, and those that they bring, where user_kernels allows that."},
    {"kernels", "nvrtc", TEXT, AT(nvrtc), NULL, 0, 0, FIXED,
     "Path of NVRTC's library, or none; the usual names and places by default."},
    {"kernels", "include", TEXT, AT(include), NULL, 0, 0, FIXED,
     "Directory of the CUDA toolkit's headers; beside NVRTC by default."},
    {"kernels", "include_extra", TEXT, AT(include_extra), NULL, 0, 0, FIXED,
     "Further folders of headers that every source may include, such as CUTLASS's, with colons between them, at most "
     "8. They belong to root or the daemon's user, and nobody else can write them. After a change of theirs the "
     "daemon must be started anew."},
    {"kernels", "helpers", NUMBER, AT(helpers), NULL, 1, 256, FIXED,
     "Compiles at one time; one a usable core by default. Fewer leave cores to other programs."},
    {"kernels", "memory_mib", NUMBER, AT(compile_memory_mib), "4096", 256, 1U << 20, FIXED,
     "Memory that one compile may take: more for large templates such as CUTLASS's. As many compiles as run may be "
     "stopped for other users' and keep theirs."},
    {"kernels", "time_s", NUMBER, AT(compile_time_s), "120", 1, 86400, FIXED,
     "Seconds that one compile may take: more for large templates."},
    {"kernels", "keep_s", NUMBER, AT(compile_keep_s), "600", 0, 86400, FIXED,
     "Seconds after which unused compiler processes end; 0: never. They take some 100 MB: fewer where memory is "
     "scarce."},
    {"cache", "directory", TEXT, AT(cache_directory), NULL, 0, 0, FIXED,
     "Directory for compiled code, or none. Default: $CACHE_DIRECTORY (systemd's), else /var/cache/kopsd for root, "
     "else $XDG_CACHE_HOME/kopsd or ~/.cache/kopsd."},
    {"cache", "disk_mib", NUMBER, AT(cache_disk_mib), "1024", 0, 1U << 20, FIXED,
     "Size of the directory; 0: no code is kept there."},
    {"cache", "remote", TEXT, AT(cache_remote), NULL, 0, 0, LIVE,
     "URL (https://… or http://…) of a folder that several machines keep compiled code in, on a server that answers "
     "GET and, for machines that publish, PUT. It is asked after memory and disk. none: there is none, the default."},
    {"cache", "remote_trust", LIST, AT(cache_remote_trust), "", 0, 0, LIVE,
     "Public keys (ed25519:…) of those whose code is taken from there, separated by commas or blanks. Whoever has "
     "such a key's private half can have code run here, as the users who ask for it."},
    {"cache", "remote_key", TEXT, AT(cache_remote_key), NULL, 0, 0, LIVE,
     "File of a private key (kopsd --cache-keygen FILE makes one), mode 0600 and the daemon's user's or root's. With "
     "it the code that is compiled here is signed and put on the server; without it nothing is put there."},
    {"cache", "remote_credentials", TEXT, AT(cache_remote_credentials), NULL, 0, 0, LIVE,
     "File, mode 0600, whose first line is what the server wants to hear: bearer TOKEN, or basic USER:PASSWORD."},
    {"cache", "remote_ca", TEXT, AT(cache_remote_ca), NULL, 0, 0, LIVE,
     "File of the certificates of authorities that the server's is checked by; the system's by default."},
    {"cache", "remote_wait_ms", NUMBER, AT(cache_remote_wait_ms), "50", 0, 60000, LIVE,
     "Milliseconds that a compile waits for the server; then it begins, and whichever is first answers. 0: both "
     "begin at once. More for a server that is far away."},
    {"cache", "remote_timeout_ms", NUMBER, AT(cache_remote_timeout_ms), "10000", 100, 600000, LIVE,
     "Milliseconds that one transfer may take, more for slow networks; a third of them until the server has accepted "
     "the connection."},
    {"cache", "remote_max_days", NUMBER, AT(cache_remote_max_days), "0", 0, 36500, LIVE,
     "Days after which code on the server is too old to be taken; 0: never."},
    {"cache", "remote_helper", TEXT, AT(cache_remote_helper), NULL, 0, 0, LIVE,
     "Socket of the helper that speaks HTTP, where that is a service of its own (kopsd-cache.socket makes "
     "/run/kopsd-cache.sock). By default the daemon starts one, which its own systemd unit does not let reach a "
     "network."},
    {"access", "allow", LIST, AT(access_allow), "*", 0, 0, LIVE,
     "Users that may connect: users, numbers, @groups, @numbers, * for all users, owner for only root and the "
     "daemon's own user, which always may; separated by commas or blanks."},
    {"access", "deny", LIST, AT(access_deny), "", 0, 0, LIVE, "Users that may not connect, even if allowed."},
    {"access", "tune", LIST, AT(access_tune), "owner", 0, 0, LIVE,
     "Users that may also reset the statistics of all users (PROTOCOL.md, Access)."},
    {"access", "administer", LIST, AT(access_administer), "owner", 0, 0, LIVE,
     "Users that may also administer: the cache of compiled code, draining, the figures of all users."},
    {"access", "subuid", TEXT, AT(subuid), "/etc/subuid", 0, 0, LIVE,
     "File of the ranges of users that a user may become (subuid(5)): their use counts as that user's; none: they "
     "count as users of their own."},
    QUOTAS(OF_USER){
        "quota", "host_all_mib", NUMBER, AT(quota_host_all_mib), NULL, 0, 1U << 30, LIVE,
        "As host_mib, for all users together; three quarters of the memory by default. One user may have at most twice "
        "the amount that is left to others: two thirds, when it is alone."},
    {"sockets", "max", NUMBER, AT(sockets_max), "256", 0, SOCKET_SECTIONS_MAX, LIVE,
     "Sockets of identities at one time, those of sections and those that the path of [socket *] stands for; 0: none "
     "is made. A daemon that a client starts (--autostart) makes none."},
    {"socket *", "path", TEXT, AT(any_socket.path), NULL, 0, 0, LIVE,
     "A section [socket NAME] makes one more socket at its path. Its peers count as the identity NAME: their user "
     "has no part in accounts, rights and isolation, and root is nobody. This section, [socket *], has the values "
     "for all such sockets that their own sections leave out. A path here has * in the place of one folder, as in "
     "/run/kopsd/namespaces/*/kopsd.sock: each such folder whose name could be NAME has a socket, as soon as it is "
     "made. The daemon's user makes the socket, so that it must be able to write there. Default: only the sockets of "
     "sections."},
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
     "Whether peers may bring kernels: on, off, or auto: on where executors.isolate is user or connection; auto by "
     "default. Never where kernels.user_kernels is off."},
    {"socket *", "hand_out", TEXT, AT(any_socket.hand_out), NULL, 0, 0, LIVE,
     "Whether peers may have code handed out: on, off, or auto: on where kernels.hand_out is all; auto by default. "
     "Never where kernels.hand_out is off."},
    QUOTAS(OF_SOCKET)};
const unsigned n_settings = sizeof(settings) / sizeof(settings[0]);
