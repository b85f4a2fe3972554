#include "pair.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int receive_all(int fd, char *buffer, size_t bytes)
{
    size_t got = 0;

    while (got < bytes) {
        ssize_t r = recv(fd, buffer + got, bytes - got, 0);

        if (r == 0)
            return -ECONNRESET;
        if (r < 0 && errno != EINTR)
            return -errno;
        if (r > 0)
            got += (size_t)r;
    }
    return 0;
}

static int send_all(int fd, const char *buffer, size_t bytes)
{
    size_t sent = 0;

    while (sent < bytes) {
        ssize_t r = send(fd, buffer + sent, bytes - sent, MSG_NOSIGNAL);

        if (r < 0 && errno != EINTR)
            return -errno;
        if (r > 0)
            sent += (size_t)r;
    }
    return 0;
}

static void answer_until_closed(int fd, size_t request_bytes, size_t reply_bytes)
{
    char buffer[PAIR_MAX_BYTES] = {0};

    while (!receive_all(fd, buffer, request_bytes) && !send_all(fd, buffer, reply_bytes)) {
    }
}

int pair_start(struct pair *pair, size_t request_bytes, size_t reply_bytes)
{
    int fds[2], r;
    pid_t parent = getpid(), child;

    if (request_bytes > PAIR_MAX_BYTES || reply_bytes > PAIR_MAX_BYTES)
        return -EINVAL;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return -errno;
    child = fork();
    if (child < 0) {
        r = -errno;
        goto close_both;
    }
    if (child == 0) {
        close(fds[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent)
            answer_until_closed(fds[1], request_bytes, reply_bytes);
        _exit(0);
    }
    close(fds[1]);
    *pair = (struct pair){.fd = fds[0], .child = child, .request_bytes = request_bytes, .reply_bytes = reply_bytes};
    return 0;

close_both:
    close(fds[0]);
    close(fds[1]);
    return r;
}

int pair_call(const struct pair *pair)
{
    static const char request[PAIR_MAX_BYTES];
    char reply[PAIR_MAX_BYTES];
    int r = send_all(pair->fd, request, pair->request_bytes);

    return r ? r : receive_all(pair->fd, reply, pair->reply_bytes);
}

void pair_stop(struct pair *pair)
{
    close(pair->fd);
    while (waitpid(pair->child, NULL, 0) < 0 && errno == EINTR) {
    }
}
