#include "main/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "util/log.h"

/* The kernel's own numbers of states, which it shares with TCP. */
enum { STATE_CLOSED = 7, STATE_LISTENS = 10 };

enum { ANSWER_BYTES = 32768 };

static int ask(void)
{
    struct {
        struct nlmsghdr header;
        struct unix_diag_req request;
    } message = {.header = {.nlmsg_len = sizeof(message),
                            .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                            .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
                 .request = {.sdiag_family = AF_UNIX,
                             .udiag_states = 1U << STATE_CLOSED | 1U << STATE_LISTENS,
                             .udiag_show = UDIAG_SHOW_VFS}};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);

    if (fd >= 0 && send(fd, &message, sizeof(message), 0) < 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* The kernel has its own encoding of devices, and tells 32 bits of an inode's number. */
static bool is_file(const struct nlmsghdr *header, const struct stat *st)
{
    const struct unix_diag_msg *body = NLMSG_DATA(header);
    const struct rtattr *attribute = (const struct rtattr *)(const void *)(body + 1);
    unsigned left = header->nlmsg_len - NLMSG_LENGTH(sizeof(*body));

    for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
        struct unix_diag_vfs vfs;

        if (attribute->rta_type != UNIX_DIAG_VFS || RTA_PAYLOAD(attribute) < sizeof(vfs))
            continue;
        memcpy(&vfs, RTA_DATA(attribute), sizeof(vfs));
        return vfs.udiag_vfs_ino == (uint32_t)st->st_ino &&
               vfs.udiag_vfs_dev == (major(st->st_dev) << 20 | minor(st->st_dev));
    }
    return false;
}

/* Tells whether a living process has a socket at a path, even one that does not listen (yet). `st` is the socket's
 * file. Asks the kernel, for this network namespace; false also where it does not tell. */
static bool socket_is_bound(const struct stat *st)
{
    _Alignas(struct nlmsghdr) unsigned char answer[ANSWER_BYTES];
    const int fd = ask();
    bool bound = false, more = fd >= 0;

    while (more) {
        const struct nlmsghdr *header = (const struct nlmsghdr *)(const void *)answer;
        ssize_t n = recv(fd, answer, sizeof(answer), 0);
        unsigned left = n > 0 ? (unsigned)n : 0;

        if (n < 0 && errno == EINTR)
            continue;
        more = n > 0;
        for (; NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
            if (header->nlmsg_type == SOCK_DIAG_BY_FAMILY)
                bound = bound || is_file(header, st);
            else if (header->nlmsg_type == NLMSG_DONE || header->nlmsg_type == NLMSG_ERROR)
                more = false;
        }
    }
    if (fd >= 0)
        close(fd);
    return bound;
}

/* THREATS: a user who may write to the socket's directory can put a file, a link or a socket in its place at any
 * moment. So such a directory is refused unless it is sticky, where only a file's owner replaces it; links are not
 * followed; the socket listens only once its mode and owner are right; and a file is checked before it is removed. */

enum { SD_LISTEN_FDS_START = 3, STALE_TRIES = 20, STALE_WAIT_MS = 50 };

/* ---- from the service manager ---- */

static bool is_number(const char *text, long number)
{
    char *end;
    long value = text ? strtol(text, &end, 10) : -1;

    return text && *text && !*end && value == number;
}

static int option(int fd, int name)
{
    int value = -1;
    socklen_t length = sizeof(value);

    return getsockopt(fd, SOL_SOCKET, name, &value, &length) < 0 ? -1 : value;
}

static int check_inherited(const char *fds, struct error *e)
{
    if (!is_number(fds, 1))
        return error_set(e, ERROR_INVALID_ARGUMENT, "the service manager passed \"%.20s\" sockets; kopsd takes one",
                         fds);
    if (option(SD_LISTEN_FDS_START, SO_ACCEPTCONN) != 1)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the descriptor from the service manager is no listening socket (Accept=no is needed)");
    if (option(SD_LISTEN_FDS_START, SO_DOMAIN) != AF_UNIX || option(SD_LISTEN_FDS_START, SO_TYPE) != SOCK_STREAM)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the socket from the service manager is no Unix stream socket (ListenStream=/path)");
    return 0;
}

/* sd_listen_fds(3), without the library: *ret_fd is -1 when there is none. */
static int inherited_socket(int *ret_fd, struct error *e)
{
    const char *fds = getenv("LISTEN_FDS");
    bool ours = fds && is_number(getenv("LISTEN_PID"), getpid()) && !is_number(fds, 0);
    int r = ours ? check_inherited(fds, e) : 0;

    *ret_fd = -1;
    /* Child processes do not inherit them. */
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    unsetenv("LISTEN_PIDFDID");
    if (!ours || r < 0)
        return r;
    fcntl(SD_LISTEN_FDS_START, F_SETFD, FD_CLOEXEC);
    fcntl(SD_LISTEN_FDS_START, F_SETFL, fcntl(SD_LISTEN_FDS_START, F_GETFL) | O_NONBLOCK);
    *ret_fd = SD_LISTEN_FDS_START;
    return 0;
}

static void name_inherited(struct listener *l)
{
    struct sockaddr_un address = {0};
    socklen_t length = sizeof(address);

    if (getsockname(l->fd, (struct sockaddr *)&address, &length) == 0)
        snprintf(l->path, sizeof(l->path), "%s%.*s", *address.sun_path ? "" : "@", (int)sizeof(address.sun_path) - 2,
                 address.sun_path + !*address.sun_path);
}

/* ---- of our own ---- */

/* The directory, opened once: later changes of its name do not matter. */
static int open_directory(const char *path, const struct privileges *owner, int *ret_fd, struct error *e)
{
    char copy[sizeof(((struct sockaddr_un *)0)->sun_path)];
    const char *directory;
    struct stat st;
    int fd;

    if (!strcmp(path, "/run/kopsd/kopsd.sock") && mkdir("/run/kopsd", 0755) == 0 && owner->drop) {
        /* Where no service manager has made it. */
        if (chown("/run/kopsd", owner->uid, owner->gid) < 0)
            log_warning("socket", "why=\"/run/kopsd cannot be given away: %s\"", strerror(errno));
    }
    snprintf(copy, sizeof(copy), "%s", path);
    directory = dirname(copy);
    fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        error_set(e, ERROR_INVALID_ARGUMENT, "the socket's directory %s: %s", directory, strerror(errno));
        goto close_fd;
    }
    if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX)) {
        error_set(e, ERROR_PERMISSION_DENIED,
                  "everybody may write to %s, and so put another socket in the place of this; take that right away "
                  "(chmod o-w, or +t), or choose another --socket",
                  directory);
        goto close_fd;
    }
    if (st.st_uid != 0 && st.st_uid != geteuid() && st.st_uid != owner->uid)
        log_warning("socket", "why=\"uid %u owns the socket's directory and may replace the socket\"",
                    (unsigned)st.st_uid);
    *ret_fd = fd;
    return 0;

close_fd:
    if (fd >= 0)
        close(fd);
    return -1;
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* The lock, not the socket, says whether a daemon is alive: it goes with the process, however that ends. A process that
 * the daemon was just starting has the lock, too, until it runs its own program: it is given a moment. */
static int take_lock(const struct privileges *owner, struct listener *l, struct error *e)
{
    char lock[sizeof(l->path) + 8];
    unsigned tries = 0;
    struct stat st;
    int fd;

    snprintf(lock, sizeof(lock), "%s.lock", file_name(l->path));
    fd = openat(l->directory_fd, lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (fd < 0)
        return error_set(e, ERROR_PERMISSION_DENIED, "%s.lock: %s", l->path, strerror(errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
        (st.st_uid != 0 && st.st_uid != geteuid() && st.st_uid != owner->uid)) {
        error_set(e, ERROR_PERMISSION_DENIED, "%s.lock is not kopsd's own; remove it, or choose another --socket",
                  l->path);
        goto close_fd;
    }
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (tries++ < STALE_TRIES) {
            poll(NULL, 0, STALE_WAIT_MS);
            continue;
        }
        error_set(e, ERROR_PERMISSION_DENIED, "another kopsd listens on %s; stop it, or choose another --socket",
                  l->path);
        goto close_fd;
    }
    l->lock_fd = fd;
    return 0;

close_fd:
    close(fd);
    return -1;
}

/* Whether the socket is stale: 1, 0, or -1 when unknown. */
static int is_stale(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), r = -1;

    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 || errno == EAGAIN ||
        errno == EINPROGRESS || errno == EPROTOTYPE)
        r = 0;
    else if (errno == ECONNREFUSED || errno == ENOENT)
        r = 1;
    close(fd);
    return r;
}

/* With the lock held a socket in the way is a dead daemon's, unless something else answers there. One that is only just
 * dying, with the process that held the lock, is given a moment. */
static int clear_stale(const struct listener *l, const struct sockaddr_un *address, struct error *e)
{
    const char *name = file_name(l->path);
    struct stat before, now;
    int stale = 0;

    if (fstatat(l->directory_fd, name, &before, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    if (!S_ISSOCK(before.st_mode))
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s exists and is no socket; remove it, or choose another --socket",
                         l->path);
    for (unsigned i = 0; i < STALE_TRIES && (stale = is_stale(address)) == 0; i++)
        poll(NULL, 0, STALE_WAIT_MS);
    if (stale < 0)
        return error_set(e, ERROR_PERMISSION_DENIED, "whether somebody listens on %s cannot be told: %s", l->path,
                         strerror(errno));
    if (!stale || socket_is_bound(&before))
        return error_set(e, ERROR_PERMISSION_DENIED, "another program %s %s; stop it, or choose another --socket",
                         stale ? "has its socket at" : "listens on", l->path);
    if (fstatat(l->directory_fd, name, &now, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    if (now.st_dev != before.st_dev || now.st_ino != before.st_ino)
        return error_set(e, ERROR_PERMISSION_DENIED, "somebody else makes a socket at %s", l->path);
    if (unlinkat(l->directory_fd, name, 0) < 0)
        return error_set(e, ERROR_PERMISSION_DENIED, "removing the stale socket %s: %s", l->path, strerror(errno));
    log_info("socket_cleared", "why=\"the daemon that made it is gone\"");
    return 0;
}

/* The file that bind() has made; no client can use it yet. */
static int own_file(const struct listener_place *place, const struct privileges *owner, struct listener *l,
                    struct error *e)
{
    const bool named = place->group && *place->group;
    gid_t gid = owner->drop ? owner->gid : (gid_t)-1;
    char by_number[40];
    struct stat st;
    int fd, r = -1;

    if (named && config_find_group(place->group, &gid) < 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: there is no group \"%.40s\"", l->path, place->group);
    fd = openat(l->directory_fd, file_name(l->path), O_PATH | O_NOFOLLOW | O_CLOEXEC);
    snprintf(by_number, sizeof(by_number), "/proc/self/fd/%d", fd);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISSOCK(st.st_mode) || st.st_nlink != 1 ||
        (st.st_uid != geteuid() && st.st_uid != owner->uid))
        error_set(e, ERROR_PERMISSION_DENIED, "somebody has put something else in the place of %s", l->path);
    else if (chmod(by_number, place->mode) < 0)
        error_set(e, ERROR_PERMISSION_DENIED, "giving %s its mode: %s", l->path, strerror(errno));
    else if ((named || owner->drop) && fchownat(fd, "", owner->drop ? owner->uid : (uid_t)-1, gid, AT_EMPTY_PATH) < 0)
        error_set(e, ERROR_PERMISSION_DENIED, "giving %s to group %u: %s", l->path, (unsigned)gid, strerror(errno));
    else
        r = 0;
    if (fd >= 0)
        close(fd);
    if (r == 0) {
        l->device = st.st_dev;
        l->inode = st.st_ino;
    }
    return r;
}

/* Nobody connects before listen(), so that the file may have another mode until then: one that fewer may use. The umask
 * stays, because other threads may make files at this time. */
/* Connections that may wait to be accepted; the system's net.core.somaxconn may be less. */
enum { BACKLOG = 4096 };

static int bind_and_listen(const struct listener_place *place, const struct privileges *owner, struct listener *l,
                           struct error *e)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memcpy(address.sun_path, l->path, sizeof(l->path));
    if (clear_stale(l, &address, e) < 0)
        return -1;
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return error_set(e, ERROR_INTERNAL, "socket: %s", strerror(errno));
    if (fchmod(l->fd, place->mode) < 0 || bind(l->fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
        return error_set(e, ERROR_PERMISSION_DENIED, "binding %s: %s", l->path, strerror(errno));
    if (own_file(place, owner, l, e) < 0) {
        unlinkat(l->directory_fd, file_name(l->path), 0);
        return -1;
    }
    if (listen(l->fd, BACKLOG) < 0)
        return error_set(e, ERROR_INTERNAL, "listening on %s: %s", l->path, strerror(errno));
    return 0;
}

int listener_make(const struct listener_place *place, const struct privileges *owner, struct listener *ret_listener,
                  struct error *e)
{
    struct listener l = {.fd = -1, .lock_fd = -1, .directory_fd = -1};

    snprintf(l.path, sizeof(l.path), "%s", place->path);
    if (open_directory(l.path, owner, &l.directory_fd, e) < 0 || take_lock(owner, &l, e) < 0 ||
        bind_and_listen(place, owner, &l, e) < 0) {
        listener_close(&l);
        return -1;
    }
    *ret_listener = l;
    return 0;
}

int listener_change(struct listener *l, const struct listener_place *place, const struct privileges *owner,
                    struct error *e)
{
    return own_file(place, owner, l, e);
}

int listener_open(const struct config *config, const struct privileges *owner, struct listener *ret_listener,
                  struct error *e)
{
    const struct listener_place place = {
        .path = config->socket, .group = config->socket_group, .mode = (mode_t)config->socket_mode};
    struct listener l = {.fd = -1, .lock_fd = -1, .directory_fd = -1};

    if (inherited_socket(&l.fd, e) < 0)
        return -1;
    if (l.fd < 0 && !*config->socket)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "XDG_RUNTIME_DIR is not set: say where to listen with --socket or KOPS_SOCKET");
    if (l.fd < 0)
        return listener_make(&place, owner, ret_listener, e);
    name_inherited(&l);
    *ret_listener = l;
    return 0;
}

bool listener_is_there(const struct listener *l)
{
    struct stat st;

    return lstat(l->path, &st) == 0 && st.st_dev == l->device && st.st_ino == l->inode;
}

static void remove_file(const struct listener *l)
{
    const char *name = file_name(l->path);
    struct stat st;

    if (fstatat(l->directory_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_dev != l->device || st.st_ino != l->inode)
        return;
    /* Without the right to, it is left to the next start, which finds it stale. */
    if (unlinkat(l->directory_fd, name, 0) < 0)
        log_info("socket_left", "why=\"%s\"", strerror(errno));
}

void listener_close(struct listener *l)
{
    if (l->inode)
        remove_file(l);
    if (l->fd >= 0)
        close(l->fd);
    if (l->directory_fd >= 0)
        close(l->directory_fd);
    if (l->lock_fd >= 0)
        close(l->lock_fd);
    l->fd = l->directory_fd = l->lock_fd = -1;
    l->inode = 0;
}
