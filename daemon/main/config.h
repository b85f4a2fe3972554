/* The daemon's settings: defaults, then the file, then the environment, then flags. Each setting is declared once, in
 * the table of settings.c. Strings are owned by the struct. Thread: main, before the loop starts. */
#ifndef KOPS_MAIN_CONFIG_H
#define KOPS_MAIN_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "compile/signed.h"
#include "server/account/access_list.h"
#include "server/account/account.h"
#include "server/account/identity.h"
#include "util/error.h"

struct setting;

/* [quota], what one user may have: each may be set for a socket as quota_NAME, see QUOTAS in settings.c. */
struct quota_settings {
    uint64_t connections, buffers, mappings, mapped_mib, allocated_mib, host_mib, daemon_mib, inflight, fds,
        messages_per_s, device_share;
};

/* [socket NAME], the socket of an identity, or [socket *], whose settings hold where a section leaves them out and for
 * the folders that its path stands for. NULL and CONFIG_UNSAID: left out. */
enum { SOCKET_SECTIONS_MAX = 1024, SOCKET_PATH_BYTES = 108 /* size of sun_path */ };
#define CONFIG_UNSAID UINT64_MAX
struct socket_section {
    char *name; /* name of the identity; NULL: [socket *] */
    char *path, *group, *classes, *isolate, *user_kernels, *hand_out;
    uint64_t mode;
    struct quota_settings quota;
};

struct config {
    bool root; /* the process was root's when it began: where things are by default */
    /* server */
    char *socket, *socket_group, *log_level;
    char *user, *sandbox, *backend;
    long polling_clients; /* no setting: of the machine */
    uint64_t socket_mode, max_connections, spin_us, shutdown_grace_ms, stall_timeout_ms, loop_timeout_s, idle_exit_s,
        log_kib;
    /* limits */
    uint64_t tuning_idle_runs, tuning_budget_ms;
    bool tuning_ready;
    uint64_t message_bytes, inflight, peer_timeout_s, idle_close_s;
    /* host */
    bool host_choose;
    uint64_t host_threads;
    char *host_blas, *host_onednn;
    /* cuda */
    bool executors_counters_privileged;
    char *cuda_driver, *cuda_blaslt;
    char *executors_isolate, *executors_user, *executors_cupti;
    uint64_t executors_max, executors_active, executors_exclusive_ms, executors_late_ms, executors_longest_s,
        executors_spares, executors_faults;
    uint64_t cuda_repack_bytes;
    /* kernels */
    uint64_t job_timeout_s, helpers, compile_memory_mib, compile_time_s, compile_keep_s;
    char *user_kernels, *hand_out, *nvrtc, *include, *include_extra;
    /* cache */
    char *cache_directory; /* "": none */
    uint64_t cache_disk_mib;
    char *cache_remote, *cache_remote_trust, *cache_remote_key, *cache_remote_credentials, *cache_remote_ca,
        *cache_remote_helper;
    uint64_t cache_remote_wait_ms, cache_remote_timeout_ms, cache_remote_max_days;
    /* access */
    char *subuid;
    struct subordinates subordinates;
    char *access_allow, *access_deny, *access_tune, *access_administer;
    struct access_policy access;
    /* quota */
    struct quota_settings quota;
    uint64_t quota_host_all_mib;
    /* sockets */
    uint64_t sockets_max;
    struct socket_section any_socket, *sockets;
    unsigned n_sockets;
    /* Made from texts by config_finish(): enum user_kernels twice, compiler_sandbox, isolation, executor_sandbox; the
     * group. */
    bool has_host, has_cuda; /* `backend` names the device */
    unsigned policy, hand_out_policy, sandbox_mode, isolate, executors_sandbox_mode;
    gid_t user_kernels_gid, hand_out_gid; /* where the policy is a group */
    /* Made from settings and files by config_finish_remote(). */
    struct signed_trust remote_trust;
    struct signing_key remote_key;
    bool remote_signs;                           /* a key exists, and this process may have it */
    char remote_authorization[SECRET_FILE_SIZE]; /* "": none */
};

int config_init(struct config *c, struct error *e);
void config_free(struct config *c);

/* Sets one setting by its full name, "section.key". Errors name the setting and its allowed values. */
int config_set(struct config *c, const char *name, const char *value, struct error *e);

/* Replaces a text of the struct by a copy of `value`. */
int config_set_text(char **text, const char *value, struct error *e);

/* Sets the setting at its offset from `base`. */
int config_apply(void *base, const struct setting *s, const char *value, struct error *e);

/* Reads an INI file; errors say the line. A file that other users than root and the process's may change or replace is
 * an error for a process that root started (c->root), otherwise a line in the log. */
int config_read_file(struct config *c, const char *path, struct error *e);

/* Reads KOPSD_<SECTION>_<KEY> for every setting, and KOPS_SOCKET. Another KOPSD_… is an error that names the setting it
 * may be meant to be. */
int config_read_environment(struct config *c, struct error *e);

/* Fills in settings that depend on the machine (the socket's path) and checks settings against each other. */
int config_finish(struct config *c, struct error *e);

/* Takes over the live settings of `fresh`, which has been finished, and logs the changes, and changes that need a
 * restart. `fresh` then holds the replaced values. No lookups, so it does not block. */
void config_take_live(struct config *c, struct config *fresh);

/* Applies the log's level and size, which are the process's, not the struct's. */
void config_apply_log(const struct config *c);

/* A group by name or number; -1: there is none. */
int config_find_group(const char *name, gid_t *ret);

/* Looks up the users and groups that the settings name. Thread: any but the loop's, since they may be in a directory on
 * the network. */
int config_resolve_names(struct config *c, struct error *e);
/* config_shares.c: a user's share of the resources that all users share. config_finish() fills in the shares without a
 * setting. */
void config_init_shares(struct config *c);
void config_finish_shares(struct config *c);
/* Logs each share that is so large that one user can leave others next to nothing. */
void config_log_shares(const struct config *c);
/* Returns the descriptors that all users together may have: the daemon's limit without those that it keeps for itself.
 */
uint64_t config_descriptors(void);
/* Checks an open file, see config_read_file(). */
int config_check_trust(int fd, const char *path, bool root, struct error *e);
/* config_remote.c: reads the files of the remote cache's settings, for config_finish(). */
int config_finish_remote(struct config *c, struct error *e);
/* Takes over the settings that a reload may change, before texts are replaced. */
void config_take_remote(struct config *c, const struct config *fresh);
/* Texts are those of `c`. */
struct code_remote_config;
void config_remote(const struct config *c, struct code_remote_config *ret);
/* config_sockets.c: the sections of sockets. `name` is "socket NAME" of `length` bytes. */
bool config_is_socket(const char *name, size_t length);
/* Makes a section that says nothing, and takes over the name. */
void config_init_socket(struct socket_section *s, char *name);
/* Adds the section "socket NAME" where there is none. */
int config_add_socket(struct config *c, const char *section, struct error *e);
/* Sets "socket NAME.key"; adds the section where there is none. */
int config_set_socket(struct config *c, const char *name, const char *value, struct error *e);
void config_free_sockets(struct config *c);
void config_print_sockets(const struct config *c, FILE *to);
int config_finish_sockets(const struct config *c, struct error *e);
/* Settings of one identity: its section's, with those of [socket *] for what it leaves out. */
struct socket_settings {
    char path[SOCKET_PATH_BYTES];
    uint64_t mode;
    const char *group; /* NULL: none is named; lives as long as the configuration */
    struct identity_rights rights;
};
int config_socket(const struct config *c, const char *name, struct socket_settings *ret, struct error *e);
/* Makes *ret a copy of *c, which shares its texts, with the quotas of that identity. */
void config_with_quotas(const struct config *c, const char *name, struct config *ret);

/* Prints every setting with its value, default and meaning, as a file that config_read_file() reads. */
void config_print(const struct config *c, FILE *to);

#endif
