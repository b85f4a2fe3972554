/* Sockets that linger: who closes the last descriptor of one waits, since bytes wait that nobody reads. */
#include <err.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rude.h"

enum { PEERS = 16, LINGER_S = 2 };

/* The other ends, which read nothing. */
static int peers[PEERS];
static unsigned n_peers;

static int listening(struct sockaddr_in *ret_address)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t bytes = sizeof(*ret_address);

    *ret_address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || bind(fd, (struct sockaddr *)ret_address, sizeof(*ret_address)) < 0 || listen(fd, 1) < 0 ||
        getsockname(fd, (struct sockaddr *)ret_address, &bytes) < 0)
        err(EXIT_FAILURE, "a socket");
    return fd;
}

int make_lingering(void)
{
    const struct linger lasts = {.l_onoff = 1, .l_linger = LINGER_S};
    const int small = 4096, own = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    static const char bytes[4096];
    struct sockaddr_in address;
    const int listener = listening(&address);

    if (own < 0 || setsockopt(own, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)) < 0 ||
        setsockopt(own, SOL_SOCKET, SO_LINGER, &lasts, sizeof(lasts)) < 0 ||
        connect(own, (struct sockaddr *)&address, sizeof(address)) < 0)
        err(EXIT_FAILURE, "a socket that lingers");
    if (n_peers == PEERS)
        close(peers[--n_peers]);
    peers[n_peers++] = accept(listener, NULL, NULL);
    close(listener);
    while (send(own, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
        ;
    return own;
}

void give_away(int fd)
{
    syscall(SYS_close, fd); /* a simulation lets time pass for who calls close() */
}
