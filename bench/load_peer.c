#include "load_peer.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "load_wire.h"

enum { EVENTS = 64, READ_BYTES = 65536 };

static void answer(int fd)
{
    static unsigned char request[READ_BYTES / PING_BYTES * PING_BYTES], reply[READ_BYTES];
    ssize_t n = recv(fd, request, sizeof(request), MSG_DONTWAIT);
    size_t replies = n > 0 ? (size_t)n / PING_BYTES : 0;

    if (n == 0)
        close(fd);
    /* Requests go out whole, so they come whole; a client reads what it asked for. */
    if (replies && send(fd, reply, replies * PONG_BYTES, MSG_NOSIGNAL) < 0)
        close(fd);
}

static void serve(int listener)
{
    struct epoll_event events[EVENTS], event = {.events = EPOLLIN, .data.fd = listener};
    int epoll = epoll_create1(EPOLL_CLOEXEC);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int n = epoll_wait(epoll, events, EVENTS, -1);

        for (int i = 0; i < n; i++) {
            if (events[i].data.fd != listener) {
                answer(events[i].data.fd);
                continue;
            }
            event.data.fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            if (event.data.fd >= 0)
                epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event);
        }
    }
}

void peer_start(struct peer *peer)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(peer->path, sizeof(peer->path), "%s/kops-bench-%d.sock", P_tmpdir, (int)getpid());
    memcpy(address.sun_path, peer->path, sizeof(address.sun_path));
    unlink(peer->path);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
        listen(listener, 4096) < 0 || (peer->child = fork()) < 0) {
        perror("bench_load: the raw server");
        exit(1);
    }
    if (peer->child == 0)
        serve(listener);
    close(listener);
}

double peer_stop(struct peer *peer)
{
    struct rusage usage = {0};

    kill(peer->child, SIGTERM);
    wait4(peer->child, NULL, 0, &usage);
    unlink(peer->path);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}
