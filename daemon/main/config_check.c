/* Checks beyond a setting's own row: defaults that depend on the machine, names that must exist, settings that need one
 * another; who may change the configuration file and the files that it names, since they decide over the daemon. */
#include <ctype.h>
#include <grp.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "executor/executor.h"
#include "main/config.h"
#include "server/control/server.h"
#include "util/log.h"
#include "util/path_trust.h"

static void warn(const char *path, const char *why)
{
    char shown[300], quoted[2 * ERROR_MESSAGE_MAX];

    log_warning("config", "path=%s why=%s", log_quote(shown, sizeof(shown), path, strlen(path)),
                log_quote(quoted, sizeof(quoted), why, strlen(why)));
}

int config_check_trust(int fd, const char *path, bool root, struct error *e)
{
    bool closed = false;
    struct stat st;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || !st.st_nlink)
        return 0; /* a pipe, or memory: made by the process that started the daemon */
    if (path_trust(path, &st, geteuid(), PATH_WRITERS, &closed, e) == 0)
        return 0;
    if (root && !closed)
        return -1;
    warn(path, e->message);
    return 0;
}

static int check_named(const char *setting, const char *path, bool only_warns, struct error *e)
{
    bool closed = false;
    struct stat st;

    if (!path || !strchr(path, '/') || stat(path, &st) < 0) /* others say that a file is missing */
        return 0;
    if (path_trust(path, &st, geteuid(), PATH_WRITERS, &closed, e) == 0)
        return 0;
    error_prefix(e, setting);
    if (!closed && !only_warns)
        return -1;
    warn(path, e->message);
    return 0;
}

static int check_all_named(const struct config *c, struct error *e)
{
    /* Libraries are often those of a user's Python environment, and are loaded after root's rights are given up. */
    const struct {
        const char *setting, *path;
        bool only_warns;
    } files[] = {
        {"access.subuid: ", c->subuid, false},
        {"cache.remote_ca: ", c->cache_remote_ca, false},
        {"cache.remote_helper: ", c->cache_remote_helper, false},
        {"host.blas: ", c->host_blas, true},
        {"host.onednn: ", c->host_onednn, true},
        {"cuda.driver: ", c->cuda_driver, true},
        {"cuda.blaslt: ", c->cuda_blaslt, true},
        {"kernels.nvrtc: ", c->nvrtc, true},
        {"executors.cupti: ", c->executors_cupti, true},
    };

    for (size_t i = 0; c->root && i < sizeof(files) / sizeof(files[0]); i++)
        if (check_named(files[i].setting, files[i].path, files[i].only_warns, e) < 0)
            return -1;
    return 0;
}

static int choose_socket(struct config *c, struct error *e)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)] = "/run/kopsd/kopsd.sock";

    if (c->socket)
        return 0;
    if (!c->root) {
        /* Without a place: the socket may come from the service manager. */
        *path = '\0';
        if (runtime && *runtime && snprintf(path, sizeof(path), "%s/kopsd.sock", runtime) >= (int)sizeof(path))
            return error_set(e, ERROR_INVALID_ARGUMENT, "XDG_RUNTIME_DIR is too long for a socket in it");
    }
    return config_set_text(&c->socket, path, e);
}

/* No place at all is no error: there is no cache on disk then. */
static int choose_cache(struct config *c, struct error *e)
{
    const char *system = getenv("CACHE_DIRECTORY"), *user = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char path[PATH_MAX];

    if (c->cache_directory)
        return strcmp(c->cache_directory, "none") == 0 ? config_set_text(&c->cache_directory, "", e) : 0;
    if (system && *system)
        snprintf(path, sizeof(path), "%.*s", (int)strcspn(system, ":"), system);
    else if (c->root)
        snprintf(path, sizeof(path), "/var/cache/kopsd");
    else if (user && *user)
        snprintf(path, sizeof(path), "%s/kopsd", user);
    else if (home && *home)
        snprintf(path, sizeof(path), "%s/.cache/kopsd", home);
    else
        *path = '\0';
    return config_set_text(&c->cache_directory, path, e);
}

static int find_choice(const char *setting, const char *value, const char *const *names, unsigned n, unsigned *ret,
                       struct error *e)
{
    char all[80] = "";
    size_t length = 0;

    for (unsigned i = 0; i < n; i++) {
        if (!strcmp(value, names[i])) {
            *ret = i;
            return 0;
        }
        length += (size_t)snprintf(all + length, sizeof(all) - length, "%s%s", i ? ", " : "", names[i]);
    }
    return error_set(e, ERROR_INVALID_ARGUMENT, "%s: \"%.40s\" is none of %s", setting, value, all);
}

int config_find_group(const char *name, gid_t *ret)
{
    const struct group *group = getgrnam(name);
    unsigned long number;
    char *end;

    if (group) {
        *ret = group->gr_gid;
        return 0;
    }
    number = strtoul(name, &end, 10);
    if (!isdigit((unsigned char)*name) || *end || number > UINT32_MAX)
        return -1;
    *ret = (gid_t)number;
    return 0;
}

/* Policies are names, or @GROUP, which config_resolve_names() looks up. */
static int find_policy(const char *setting, const char *value, unsigned n, unsigned *ret, struct error *e)
{
    const char *names[USER_KERNELS_COUNT + 1];

    memcpy(names, user_kernels_names, sizeof(user_kernels_names));
    names[USER_KERNELS_GROUP] = "@GROUP";
    names[USER_KERNELS_COUNT] = "auto";
    if (*value != '@')
        return find_choice(setting, value, names, n, ret, e);
    *ret = USER_KERNELS_GROUP;
    return 0;
}

static int check_kernels(struct config *c, struct error *e)
{
    enum { AUTO = USER_KERNELS_COUNT };

    if (find_choice("executors.isolate", c->executors_isolate, isolation_names, ISOLATE_COUNT, &c->isolate, e) < 0 ||
        find_policy("kernels.user_kernels", c->user_kernels, AUTO + 1, &c->policy, e) < 0 ||
        find_policy("kernels.hand_out", c->hand_out, AUTO, &c->hand_out_policy, e) < 0)
        return -1;
    if (c->policy == AUTO)
        c->policy = c->isolate == ISOLATE_NONE ? USER_KERNELS_OWNER : USER_KERNELS_ALL;
    return 0;
}

static int check_backend(struct config *c, struct error *e)
{
    enum { AUTO, HOST, CUDA };
    static const char *const names[] = {"auto", "host", "cuda"};
    unsigned i;

    if (find_choice("server.backend", c->backend, names, 3, &i, e) < 0)
        return -1;
    c->has_host = i != CUDA;
    c->has_cuda = i != HOST;
    return 0;
}

static int check_sandbox(struct config *c, struct error *e)
{
    static const char *const names[] = {"auto", "required", "best_effort", "off"};
    static const enum compiler_sandbox of_compilers[] = {COMPILER_SANDBOX_REQUIRED, COMPILER_SANDBOX_REQUIRED,
                                                         COMPILER_SANDBOX_BEST_EFFORT, COMPILER_SANDBOX_OFF};
    static const unsigned of_executors[] = {EXECUTOR_SANDBOX_AUTO, EXECUTOR_SANDBOX_REQUIRED, EXECUTOR_SANDBOX_AUTO,
                                            EXECUTOR_SANDBOX_OFF};
    unsigned i;

    if (find_choice("server.sandbox", c->sandbox, names, 4, &i, e) < 0)
        return -1;
    c->sandbox_mode = of_compilers[i];
    c->executors_sandbox_mode = of_executors[i];
    return 0;
}

static int find_policy_group(const char *setting, const char *value, gid_t *ret, struct error *e)
{
    if (*value != '@' || config_find_group(value + 1, ret) == 0)
        return 0;
    return error_set(e, ERROR_INVALID_ARGUMENT, "%s: there is no group \"%.40s\"", setting, value + 1);
}

/* Looks up the users and groups of [access]. */
static int resolve_access(struct config *c, struct error *e)
{
    struct access_policy policy;
    const struct {
        const char *name, *text;
        struct access_list *into;
    } lists[] = {
        {"access.allow", c->access_allow, &policy.allow},
        {"access.deny", c->access_deny, &policy.deny},
        {"access.tune", c->access_tune, &policy.tune},
        {"access.administer", c->access_administer, &policy.administer},
    };

    for (unsigned i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        if (access_list_parse(lists[i].name, lists[i].text, lists[i].into, e) < 0)
            return -1;
    c->access = policy;
    return 0;
}

int config_resolve_names(struct config *c, struct error *e)
{
    if (find_policy_group("kernels.user_kernels", c->user_kernels, &c->user_kernels_gid, e) < 0 ||
        find_policy_group("kernels.hand_out", c->hand_out, &c->hand_out_gid, e) < 0)
        return -1;
    subordinates_free(&c->subordinates);
    if (strcmp(c->subuid, "none") != 0 && subordinates_read(&c->subordinates, c->subuid) < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the configuration");
    return resolve_access(c, e);
}

int config_finish(struct config *c, struct error *e)
{
    enum log_level level;

    if (choose_socket(c, e) < 0 || choose_cache(c, e) < 0 || check_kernels(c, e) < 0 || check_sandbox(c, e) < 0 ||
        check_backend(c, e) < 0)
        return -1;
    if (check_all_named(c, e) < 0 || config_finish_remote(c, e) < 0)
        return -1;
    config_finish_shares(c);
    if (config_finish_sockets(c, e) < 0)
        return -1;
    if (strlen(c->socket) >= sizeof(((struct sockaddr_un *)0)->sun_path))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "server.socket: the path is too long, a socket's has at most %zu bytes",
                         sizeof(((struct sockaddr_un *)0)->sun_path) - 1);
    if (log_level_parse(c->log_level, &level) < 0)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "server.log_level: \"%.40s\" is none of error, warning, info, debug", c->log_level);
    return 0;
}

void config_apply_log(const struct config *c)
{
    enum log_level level;

    if (log_level_parse(c->log_level, &level) == 0)
        log_set_level(level);
    log_set_size(c->log_kib << 10);
}
