/* Checks of the writers of the configuration file and of files that it names: they decide over the daemon. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "main/config.h"
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

int config_check_named(const struct config *c, struct error *e)
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
