#include "main/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { SD_LISTEN_FDS_START = 3 };

/* sd_listen_fds(3), without the library: -1 when there is none. */
static int inherited_socket(struct error *e, int *ret_fd)
{
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
    int listening = 0;
    socklen_t length = sizeof(listening);

    *ret_fd = -1;
    if (!pid || !fds || strtol(pid, NULL, 10) != getpid() || strtol(fds, NULL, 10) < 1)
        return 0;
    if (strtol(fds, NULL, 10) > 1)
        return error_set(e, ERROR_INVALID_ARGUMENT, "the service manager passed %s sockets; kopsd takes one", fds);
    if (getsockopt(SD_LISTEN_FDS_START, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) < 0 || !listening)
        return error_set(e, ERROR_INVALID_ARGUMENT, "the descriptor from the service manager is no listening socket");
    fcntl(SD_LISTEN_FDS_START, F_SETFD, FD_CLOEXEC);
    fcntl(SD_LISTEN_FDS_START, F_SETFL, fcntl(SD_LISTEN_FDS_START, F_GETFL) | O_NONBLOCK);
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    *ret_fd = SD_LISTEN_FDS_START;
    return 0;
}

/* The lock, not the socket, says whether a daemon is alive: it goes with the process, however that ends. */
static int take_lock(const char *path, int *ret_fd, struct error *e)
{
    char lock[sizeof(((struct sockaddr_un *)0)->sun_path) + 8];
    int fd;

    if (!strcmp(path, "/run/kopsd/kopsd.sock"))
        mkdir("/run/kopsd", 0755); /* where no service manager has made it */
    snprintf(lock, sizeof(lock), "%s.lock", path);
    fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return error_set(e, ERROR_PERMISSION_DENIED, "%s: %s", lock, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        close(fd);
        return error_set(e, ERROR_PERMISSION_DENIED, "another kopsd listens on %s; stop it, or choose another --socket",
                         path);
    }
    *ret_fd = fd;
    return 0;
}

/* With the lock held a socket in the way is a dead daemon's, unless something else answers there. */
static int clear_stale(const struct sockaddr_un *address, struct error *e)
{
    struct stat st;
    int fd, refused;

    if (lstat(address->sun_path, &st) < 0)
        return 0;
    if (!S_ISSOCK(st.st_mode))
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s exists and is no socket; remove it, or choose another --socket",
                         address->sun_path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    refused = fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0;
    if (fd >= 0)
        close(fd);
    if (!refused)
        return error_set(e, ERROR_PERMISSION_DENIED, "another program listens on %s", address->sun_path);
    unlink(address->sun_path);
    return 0;
}

static int set_group(const struct config *config, struct error *e)
{
    const struct group *group;

    if (!config->socket_group || !*config->socket_group)
        return 0;
    group = getgrnam(config->socket_group);
    if (!group)
        return error_set(e, ERROR_INVALID_ARGUMENT, "server.socket_group: no group \"%.40s\"", config->socket_group);
    if (lchown(config->socket, (uid_t)-1, group->gr_gid) < 0)
        return error_set(e, ERROR_PERMISSION_DENIED, "giving %s to group %.40s: %s", config->socket,
                         config->socket_group, strerror(errno));
    return 0;
}

static int bind_and_listen(const struct config *config, int *ret_fd, struct error *e)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd, bound;
    mode_t mask;

    strncpy(address.sun_path, config->socket, sizeof(address.sun_path) - 1);
    if (clear_stale(&address, e) < 0)
        return -1;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(e, ERROR_INTERNAL, "socket: %s", strerror(errno));
    mask = umask(0777 & ~(mode_t)config->socket_mode); /* the mode holds from the first moment */
    bound = bind(fd, (const struct sockaddr *)&address, sizeof(address));
    umask(mask);
    if (bound < 0) {
        error_set(e, ERROR_PERMISSION_DENIED, "binding %s: %s", config->socket, strerror(errno));
        goto close_fd;
    }
    if (set_group(config, e) < 0)
        goto unlink_socket;
    if (listen(fd, (int)config->backlog) < 0) {
        error_set(e, ERROR_INTERNAL, "listening on %s: %s", config->socket, strerror(errno));
        goto unlink_socket;
    }
    *ret_fd = fd;
    return 0;

unlink_socket:
    unlink(config->socket);
close_fd:
    close(fd);
    return -1;
}

int listener_open(const struct config *config, struct listener *ret_listener, struct error *e)
{
    struct listener l = {.fd = -1, .lock_fd = -1};

    if (inherited_socket(e, &l.fd) < 0)
        return -1;
    if (l.fd < 0) {
        if (take_lock(config->socket, &l.lock_fd, e) < 0)
            return -1;
        if (bind_and_listen(config, &l.fd, e) < 0) {
            close(l.lock_fd);
            return -1;
        }
        l.path = config->socket;
    }
    *ret_listener = l;
    return 0;
}

void listener_close(struct listener *listener)
{
    if (listener->path)
        unlink(listener->path);
    if (listener->lock_fd >= 0)
        close(listener->lock_fd);
    listener->path = NULL;
    listener->lock_fd = -1;
}

/* sd_notify(3), without the library. */
void notify_manager(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = path ? strlen(path) : 0;
    int fd;

    if (!length || length >= sizeof(address.sun_path))
        return;
    memcpy(address.sun_path, path, length);
    if (*path == '@')
        address.sun_path[0] = '\0';
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&address,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
    close(fd);
}
