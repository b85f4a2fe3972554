/* The sockets of identities: those that the settings name, and those of the folders that [socket *] stands for. The
 * server runs while they are made, changed and closed. */
#ifndef KOPS_MAIN_SOCKETS_H
#define KOPS_MAIN_SOCKETS_H

#include "main/config.h"
#include "main/listen.h"
#include "server/control/server.h"

struct open_socket {
    char name[IDENTITY_NAME_MAX + 1];
    struct listener listener; /* fd -1 once the server has the socket */
};

struct sockets {
    struct privileges owner;
    struct open_socket *all; /* in the order of names */
    unsigned n;
};

/* Makes the sockets at the daemon's start. -1: a socket that the settings name cannot be made. A socket that a folder
 * lacks is only a line in the log. */
int sockets_begin(struct sockets *s, const struct config *c, const struct privileges *owner, struct error *e);
/* Makes the missing sockets, and gives up others. Failures are lines in the log. Thread: any, one call at a time. */
void sockets_look(struct sockets *s, const struct config *c);
/* Has the server serve the sockets. Thread: the loop's, or before the server runs. */
void sockets_serve(struct sockets *s, const struct config *c, struct server *server);
/* Removes the files of sockets that were made. */
void sockets_close(struct sockets *s);

#endif
