#include "main/autostart_place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/places.h"

/* THREATS: everybody may make files in /tmp, under any name, at any moment. So a directory counts only once it is open,
 * by what is open: it is no link, belongs to this user, and nobody else may write to it. One that is not so is an
 * error, never used. /tmp is sticky, so that nobody else can move what was found good. */

static const char log_name[] = "kopsd.log";

/* ---- directories ---- */

static bool never(const char *folder)
{
    (void)folder;
    return false;
}

static bool is_safe_parent(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && (st.st_uid == 0 || st.st_uid == geteuid()) &&
           (!(st.st_mode & (S_IWGRP | S_IWOTH)) || st.st_mode & S_ISVTX);
}

/* NULL: the socket's folder is taken; otherwise why not. A folder in /tmp is made. */
static const char *take(struct place *p, const char *socket)
{
    const char *slash = strrchr(socket, '/'), *why;
    char folder[PLACE_BYTES];

    if (snprintf(p->socket, sizeof(p->socket), "%s", socket) >= (int)sizeof(p->socket))
        return "the path of a socket in it would be too long";
    snprintf(folder, sizeof(folder), "%.*s", (int)(slash - socket), socket);
    if (!strncmp(folder, "/tmp/.kopsd-", strlen("/tmp/.kopsd-"))) {
        if (!is_safe_parent("/tmp"))
            return "everybody may move what is in /tmp";
        if (mkdir(folder, 0700) < 0 && errno != EEXIST)
            return strerror(errno);
    }
    p->directory_fd = places_open_private(folder, &why);
    return p->directory_fd < 0 ? why : NULL;
}

int place_find(struct place *ret, char tried[PLACE_TRIED_BYTES], struct error *e)
{
    char sockets[PLACES_MAX][PLACE_BYTES];
    const unsigned n = places_list(getenv("XDG_RUNTIME_DIR"), geteuid(), never, sockets) - 1; /* not the system's */
    size_t used = 0;

    for (unsigned i = 0; i < n; i++) {
        const char *why = take(ret, sockets[i]);

        if (!why) {
            *tried = '\0';
            return 0;
        }
        used += (size_t)snprintf(tried + used, PLACE_TRIED_BYTES - used, "\n  %.*s: %s",
                                 (int)(strrchr(sockets[i], '/') - sockets[i]), sockets[i], why);
    }
    return error_set(e, ERROR_PERMISSION_DENIED,
                     "no directory for the socket of a daemon of your own; set XDG_RUNTIME_DIR to a directory that "
                     "only you may write to:");
}

void place_close(struct place *p)
{
    close(p->directory_fd);
    p->directory_fd = -1;
}

/* ---- files ---- */

static int open_file(int at, const char *name, int flags)
{
    const int fd = openat(at, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags, 0600);
    struct stat st;

    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_nlink == 1)
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

int place_open(const struct place *p, const char *name, int flags)
{
    return open_file(p->directory_fd, name, flags);
}

/* ---- the log ---- */

/* Every directory of the path; errors show when the last one is opened. */
static void make_directories(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    mkdir(path, 0700);
}

/* False: there is none, or it cannot be written. */
static bool open_state_log(char path[PATH_MAX], int *ret_fd)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME"), *why;
    const bool named = state && *state == '/';
    int directory, n;

    if (!named && (!home || *home != '/'))
        return false;
    n = snprintf(path, PATH_MAX, "%s%s/kopsd", named ? state : home, named ? "" : "/.local/state");
    if (n < 0 || n + (int)sizeof(log_name) >= PATH_MAX)
        return false;
    make_directories(path);
    directory = places_open_private(path, &why);
    if (directory < 0)
        return false;
    *ret_fd = open_file(directory, log_name, O_APPEND);
    close(directory);
    snprintf(path + n, (size_t)(PATH_MAX - n), "/%s", log_name);
    return *ret_fd >= 0;
}

int place_open_log(const struct place *p, char path[PATH_MAX], int *ret_fd, struct error *e)
{
    if (open_state_log(path, ret_fd))
        return 0;
    snprintf(path, PATH_MAX, "%.*s/%s", (int)(strrchr(p->socket, '/') - p->socket), p->socket, log_name);
    *ret_fd = place_open(p, log_name, O_APPEND);
    if (*ret_fd < 0)
        return error_set(e, ERROR_PERMISSION_DENIED, "the log %s: %s", path, strerror(errno));
    return 0;
}
