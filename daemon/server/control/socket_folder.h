/* The sockets of identities, and the folder where they come and go. Thread: loop. */
#ifndef KOPS_SERVER_CONTROL_SOCKET_FOLDER_H
#define KOPS_SERVER_CONTROL_SOCKET_FOLDER_H

#include "server/base/shared.h"

void socket_folder_init(struct server *s);
void socket_folder_close(struct server *s);
void socket_folder_free(struct server *s);

#endif
