/* Checks beyond a setting's own row: defaults that depend on the machine, names that must exist, settings that need one
 * another. */
#include <ctype.h>
#include <grp.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "executor/executor.h"
#include "main/config.h"
#include "server/control/server.h"
#include "util/log.h"

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

static int check_kernels(struct config *c, struct error *e)
{
    static const char *const sandboxes[] = {[COMPILER_SANDBOX_REQUIRED] = "required",
                                            [COMPILER_SANDBOX_BEST_EFFORT] = "best_effort",
                                            [COMPILER_SANDBOX_OFF] = "off"};
    enum { AUTO = USER_KERNELS_COUNT };
    const char *group = c->user_kernels_group, *policies[AUTO + 1] = {[AUTO] = "auto"};

    memcpy(policies, user_kernels_names, sizeof(user_kernels_names));
    if (find_choice("kernels.user_kernels", c->user_kernels, policies, AUTO + 1, &c->policy, e) < 0 ||
        find_choice("kernels.hand_out", c->hand_out, user_kernels_names, USER_KERNELS_COUNT, &c->hand_out_policy, e) <
            0 ||
        find_choice("kernels.sandbox", c->sandbox, sandboxes, 3, &c->sandbox_mode, e) < 0)
        return -1;
    if (c->policy == AUTO)
        c->policy = c->isolate == ISOLATE_NONE ? USER_KERNELS_OWNER : USER_KERNELS_ALL;
    if (c->policy == USER_KERNELS_GROUP && !group)
        return error_set(e, ERROR_INVALID_ARGUMENT, "kernels.user_kernels = group needs kernels.user_kernels_group");
    if (c->hand_out_policy == USER_KERNELS_GROUP && !group)
        return error_set(e, ERROR_INVALID_ARGUMENT, "kernels.hand_out = group needs kernels.user_kernels_group");
    return 0;
}

static int check_executors(struct config *c, struct error *e)
{
    static const char *const sandboxes[] = {
        [EXECUTOR_SANDBOX_AUTO] = "auto", [EXECUTOR_SANDBOX_REQUIRED] = "required", [EXECUTOR_SANDBOX_OFF] = "off"};

    if (find_choice("executors.isolate", c->executors_isolate, isolation_names, ISOLATE_COUNT, &c->isolate, e) < 0)
        return -1;
    return find_choice("executors.sandbox", c->executors_sandbox, sandboxes, 3, &c->executors_sandbox_mode, e);
}

int config_resolve_names(struct config *c, struct error *e)
{
    const char *group = c->user_kernels_group;

    if (group && config_find_group(group, &c->kernels_gid) < 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "kernels.user_kernels_group: there is no group \"%.40s\"", group);
    subordinates_free(&c->subordinates);
    if (strcmp(c->subuid, "none") != 0 && subordinates_read(&c->subordinates, c->subuid) < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the configuration");
    return config_resolve_access(c, e);
}

int config_finish(struct config *c, struct error *e)
{
    enum log_level level;

    if (choose_socket(c, e) < 0 || choose_cache(c, e) < 0 || check_executors(c, e) < 0 || check_kernels(c, e) < 0)
        return -1;
    if (config_check_named(c, e) < 0 || config_finish_remote(c, e) < 0)
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
