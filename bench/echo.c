/* A server that does nothing: it sleeps in epoll_wait() and answers each 14 bytes, a ping's, with 9, as its reply
 * has. A daemon that decodes, checks and keeps nothing would be as fast. The arguments are descriptors of connected
 * sockets, which it inherits; it ends when all are closed. */
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"

enum { PING_BYTES = 14, PONG_BYTES = 9, EVENTS = 64, READ_BYTES = 65536 };

/* Whether the socket is still open. */
static int answer(int fd)
{
    static unsigned char request[READ_BYTES / PING_BYTES * PING_BYTES], reply[READ_BYTES];
    ssize_t n = recv(fd, request, sizeof(request), MSG_DONTWAIT);
    size_t replies = n > 0 ? (size_t)n / PING_BYTES : 0;

    /* No part of a request is left over: clients send whole ones. They read all replies, so that each fits. */
    if (n != 0 && (!replies || send(fd, reply, replies * PONG_BYTES, MSG_NOSIGNAL) >= 0))
        return 1;
    close(fd);
    return 0;
}

int main(int argc, char **argv)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);

    for (int i = 1; i < argc; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = (int)parse_count("descriptor", argv[i])};

        if (epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event) < 0)
            return 1;
    }
    for (int left = argc - 1; left > 0;) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(epoll, events, EVENTS, -1);

        for (int i = 0; i < n; i++)
            left -= !answer(events[i].data.fd);
    }
    return 0;
}
