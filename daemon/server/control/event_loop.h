/* The loop's turn: progress of devices, flushing of replies, and when to sleep. */
#ifndef KOPS_SERVER_CONTROL_EVENT_LOOP_H
#define KOPS_SERVER_CONTROL_EVENT_LOOP_H

#include "server/base/shared.h"

int event_loop_init(struct server *s, struct error *e);
void event_loop_stop(struct server *s);

/* Everything that can be done without waiting. */
void event_loop_turn(struct server *s);

#endif
