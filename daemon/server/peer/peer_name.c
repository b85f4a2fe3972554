/* The name of a connection's process, its description for the log, and the bytes it sent and received. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/peer/connection.h"

void connection_name_process(struct connection *c)
{
    char path[40];
    ssize_t n;
    int fd;

    if (c->comm_known)
        return;
    c->comm_known = true;
    snprintf(path, sizeof(path), "/proc/%d/comm", (int)c->pid);
    fd = c->pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    n = read(fd, c->comm, sizeof(c->comm) - 1);
    close(fd);
    c->comm[n > 0 ? n : 0] = '\0';
    c->comm[strcspn(c->comm, "\n")] = '\0';
}

const char *connection_who(const struct connection *c, char into[CONNECTION_WHO_MAX])
{
    snprintf(into, CONNECTION_WHO_MAX, "pid=%d uid=%u%s%s", (int)c->pid, (unsigned)c->peer_uid,
             c->identity ? " identity=" : "", c->identity ? c->identity->name : "");
    return into;
}

uint64_t connection_bytes_in(const struct connection *c)
{
    uint64_t bytes = c->input.position + buffer_length(&c->input.bytes);

    if (c->channel)
        bytes += c->channel->input.position + buffer_length(&c->channel->input.bytes);
    return bytes;
}

uint64_t connection_bytes_out(const struct connection *c)
{
    return c->output.position + (c->channel ? c->channel->output.position : 0);
}
