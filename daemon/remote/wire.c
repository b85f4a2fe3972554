#include "remote/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/error.h"
#include "util/process.h"

enum { FDS_MAX = 4, SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL };

int remote_send(int socket, const void *packet, size_t size, int flags, int fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {(void *)(uintptr_t)packet, size};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    ssize_t n;

    if (fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof(control.space);
        control.header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
    }
    do
        n = sendmsg(socket, &message, MSG_NOSIGNAL | flags);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -1 : 0;
}

/* The descriptors of a message, of which at most one is kept. Returns how many there were. */
static unsigned take_fds(struct msghdr *message, int *ret_fd)
{
    unsigned n = 0;

    *ret_fd = -1;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h; h = CMSG_NXTHDR(message, h)) {
        const size_t count = h->cmsg_len >= CMSG_LEN(0) ? (h->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;

        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < count; i++, n++) {
            int fd;

            memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
            if (*ret_fd < 0)
                *ret_fd = fd;
            else
                close(fd);
        }
    }
    return n;
}

long remote_receive(int socket, void *packet, size_t size, int flags, int *ret_fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct iovec data = {packet, size};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.space)};
    ssize_t n;

    *ret_fd = -1;
    do
        n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -1;
    if (take_fds(&message, ret_fd) > 1 || message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        if (*ret_fd >= 0)
            close(*ret_fd);
        *ret_fd = -1;
        return 1;
    }
    return n;
}

int64_t remote_body_size(int fd, uint64_t max, const char **ret_why)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) < 0 || st.st_size < 0)
        *ret_why = "the helper's file is not sealed";
    else if ((uint64_t)st.st_size > max)
        *ret_why = "it is too long";
    else
        return st.st_size;
    return -1;
}

int remote_body_seal(int fd)
{
    return fcntl(fd, F_ADD_SEALS, SEALS);
}

int remote_start(const char *what, const char *program, char *const *arguments, char *const *environment, int there,
                 struct remote_process *ret, struct error *e)
{
    struct remote_process p;
    int sockets[2], error;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
        return error_shortage(e, errno, what);
    error = spawn_process(program, arguments, environment, &(struct spawn_fd){sockets[1], there}, 1, &p.pid);
    close(sockets[1]);
    if (error) {
        close(sockets[0]);
        return error_set(e, ERROR_UNSUPPORTED, "%s cannot be started: %.80s: %s", what, program, strerror(error));
    }
    p.fd = sockets[0];
    p.pidfd = (int)syscall(SYS_pidfd_open, p.pid, 0);
    if (p.pidfd >= 0) {
        *ret = p;
        return 0;
    }
    error_set(e, ERROR_UNSUPPORTED, "%s cannot be watched: %s", what, strerror(errno));
    close(p.fd); /* the process sees that, and ends */
    waitpid(p.pid, NULL, 0);
    return -1;
}
