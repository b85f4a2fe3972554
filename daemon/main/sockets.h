/* The sockets of identities: those that the settings name, and those of the folders that [socket *] stands for. They
 * are made, changed and closed while the server runs. */
#ifndef KOPS_MAIN_SOCKETS_H
#define KOPS_MAIN_SOCKETS_H

#include "main/config.h"
#include "main/listen.h"
#include "server/control/server.h"

struct open_socket {
    char name[IDENTITY_NAME_MAX + 1]; /* of the identity */
    struct listener listener;         /* its fd is -1 once the server has it */
};

struct sockets {
    struct privileges owner;
    struct open_socket *all; /* in the order of names */
    unsigned n;
};

/* Makes the sockets at the daemon's start. -1: one that the settings name cannot be made. A socket that one of the
 * folders lacks is only a line in the log. */
int sockets_begin(struct sockets *s, const struct config *c, const struct privileges *owner, struct error *e);
/* Makes those that there should be, and gives up others. Failures are lines in the log. Thread: any, with nothing else
 * about `s` under way. */
void sockets_look(struct sockets *s, const struct config *c);
/* Has the server serve what was found. Thread: the loop's, or before the server runs. */
void sockets_serve(struct sockets *s, const struct config *c, struct server *server);
/* Removes the files that were made. */
void sockets_close(struct sockets *s);

#endif
