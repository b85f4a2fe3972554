/* The end of a daemon that nobody uses: server.idle_exit_s. Thread: loop. */
#ifndef KOPS_SERVER_CONTROL_IDLE_EXIT_H
#define KOPS_SERVER_CONTROL_IDLE_EXIT_H

#include "server/base/shared.h"

void idle_exit_init(struct server *s);
void idle_exit_close(struct server *s);

/* In every turn of the loop: begins and ends the wait. */
void idle_exit_step(struct server *s);

/* The time may be another one; the wait begins anew. */
void idle_exit_reload(struct server *s);

#endif
