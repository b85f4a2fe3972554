#include "executor/bell.h"

#include <errno.h>
#include <sys/socket.h>

int bell_new(int ret_ends[2])
{
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ret_ends);
}

void bell_ring(int end)
{
    while (send(end, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

void bell_silence(int end)
{
    enum { READS = 4 };
    char bytes[256];

    for (unsigned i = 0; i < READS && recv(end, bytes, sizeof(bytes), MSG_DONTWAIT) == sizeof(bytes); i++)
        ;
}
