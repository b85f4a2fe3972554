/* Files of executors: those that a driver reads.
 *
 * Not /dev/shm, but for MPS: all executors have one user, so what one makes there others could open; and each driver
 * that starts looks there for a library to load (cuda_injection_path_shm). Not the driver's cache of compiled code
 * either: one user's executor would write what another's runs. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "executor/confine.h"
#include "sandbox/files.h"
#include "util/packages.h"

enum { OF_DEVICE = FILES_READ | FILES_WRITE | FILES_DEVICE };

static const struct {
    const char *path;
    unsigned what;
} places[] = {
    /* Libraries, and what finds them. */
    {"/usr", FILES_READ},
    {"/lib", FILES_READ},
    {"/lib32", FILES_READ},
    {"/lib64", FILES_READ},
    {"/opt/cuda", FILES_READ},
    {"/etc/ld.so.cache", FILES_READ},
    {"/etc/ld.so.conf", FILES_READ},
    {"/etc/ld.so.conf.d", FILES_READ},
    {"/etc/ld.so.preload", FILES_READ},
    {"/etc/nvidia", FILES_READ},
    {"/etc/localtime", FILES_READ},
    /* The machine. */
    {"/sys", FILES_READ},
    {"/dev/null", FILES_READ | FILES_WRITE},
    {"/dev/zero", FILES_READ | FILES_WRITE},
    {"/dev/random", FILES_READ},
    {"/dev/urandom", FILES_READ},
};

/* Of /proc all that is about the machine, and the process itself. */
static const char *const of_proc[] = {"/proc/self",    "/proc/cpuinfo",    "/proc/devices", "/proc/driver",
                                      "/proc/meminfo", "/proc/modules",    "/proc/stat",    "/proc/sys",
                                      "/proc/version", "/proc/filesystems"};

/* What is not there need not be allowed. */
static int allow(struct files *f, const char *path, unsigned what, int *ret_fd, struct error *e)
{
    if (files_allow(f, path, what, ret_fd) == 0 || errno == ENOENT || errno == ENOTDIR || errno == EACCES)
        return 0;
    return error_set(e, ERROR_UNSUPPORTED, "Landlock: %.100s: %s", path, strerror(errno));
}

static int allow_places(struct files *f, struct error *e)
{
    int kept = -1; /* never closed, see files.h */

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        if (allow(f, places[i].path, places[i].what, NULL, e) < 0)
            return -1;
    for (size_t i = 0; i < sizeof(of_proc) / sizeof(of_proc[0]); i++)
        if (allow(f, of_proc[i], FILES_READ, &kept, e) < 0)
            return -1;
    return allow(f, "/proc/self/task", FILES_READ | FILES_WRITE, &kept, e); /* a driver names its threads there */
}

static int allow_devices(struct files *f, struct error *e)
{
    DIR *folder = opendir("/dev");
    const struct dirent *entry;
    char path[PATH_MAX];
    int r = 0;

    if (!folder && (errno == ENOENT || errno == ENOTDIR || errno == EACCES))
        return 0;
    if (!folder)
        return error_set(e, ERROR_UNSUPPORTED, "opening /dev: %s", strerror(errno));
    for (errno = 0; r == 0 && (entry = readdir(folder)); errno = 0) {
        if (strncmp(entry->d_name, "nvidia", 6) != 0)
            continue;
        snprintf(path, sizeof(path), "/dev/%s", entry->d_name);
        r = allow(f, path, OF_DEVICE, NULL, e);
    }
    if (r == 0 && errno)
        r = error_set(e, ERROR_UNSUPPORTED, "reading /dev: %s", strerror(errno));
    closedir(folder);
    return r;
}

/* The folder of a library that is named by its path: the library's own needs may be beside it. */
static int allow_library(struct files *f, const char *path, struct error *e)
{
    char real[PATH_MAX], *slash;

    if (!path || !strchr(path, '/') || !realpath(path, real))
        return 0;
    slash = strrchr(real, '/');
    slash[slash == real] = '\0';
    return allow(f, real, FILES_READ, NULL, e);
}

/* The folders of a list with colons. */
static int allow_list(struct files *f, const char *list, struct error *e)
{
    char path[PATH_MAX];
    size_t length;

    for (; list && *list; list += length + (list[length] == ':')) {
        length = strcspn(list, ":");
        snprintf(path, sizeof(path), "%.*s", (int)length, list);
        if (*path == '/' && allow(f, path, FILES_READ, NULL, e) < 0)
            return -1;
    }
    return 0;
}

static int allow_mps(struct files *f, struct error *e)
{
    const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");

    if (allow(f, pipes ? pipes : "/tmp/nvidia-mps", FILES_READ | FILES_WRITE, NULL, e) < 0)
        return -1;
    return allow(f, "/dev/shm", FILES_READ | FILES_WRITE | FILES_MAKE, NULL, e);
}

int confine_files(const struct backend_config *config, bool mps, struct error *e)
{
    /* Of a driver for tests: its control page, and its GPU's memory. */
    const char *control = getenv("KOPS_STANDIN_CONTROL"), *memory = getenv("KOPS_STANDIN_MEMORY");
    char packages[PATH_MAX];
    struct files files;

    if (files_begin(&files, e) < 0)
        return -1;
    if (allow_places(&files, e) < 0 ||
        (packages_folder(packages) && allow(&files, packages, FILES_READ, NULL, e) < 0) ||
        allow_devices(&files, e) < 0 || allow_library(&files, config->cuda_driver, e) < 0 ||
        allow_library(&files, config->cuda_blaslt, e) < 0 || allow_library(&files, config->cuda_cupti, e) < 0 ||
        allow_list(&files, getenv("LD_LIBRARY_PATH"), e) < 0 || (mps && allow_mps(&files, e) < 0) ||
        (control && allow(&files, control, FILES_READ | FILES_WRITE, NULL, e) < 0) ||
        (memory && allow(&files, memory, FILES_READ | FILES_WRITE, NULL, e) < 0)) {
        files_abandon(&files);
        return -1;
    }
    return files_enter(&files, e);
}
