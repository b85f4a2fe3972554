/* The watchdog: a thread of its own that ends the process when the loop does not turn any more.
 *
 * The thread asks the loop for a sign of life now and then. While signs come it tells the service manager
 * (hooks.alive). When none has come for server.loop_timeout_s it logs where the loop stands and ends the process: a
 * blocked loop serves no client.
 *
 * Time is counted in the thread's own ticks, so that a machine that slept, or a process that was stopped, is not taken
 * for a blocked loop. Thread: these functions are the loop's. */
#ifndef KOPS_SERVER_CONTROL_WATCHDOG_H
#define KOPS_SERVER_CONTROL_WATCHDOG_H

#include "server/base/shared.h"

/* Starts the thread if there is a limit, a service manager that wants signs of life, or a reader of the status line.
 * Failing to start it is an error. */
int watchdog_start(struct server *s, const struct server_hooks *hooks, struct error *e);

/* Tells the service manager the server's new state at once, and not with the next sign of life. */
void watchdog_tell(struct server *s);

/* Stops asking for signs of life, since the loop ends. If the rest takes longer than server.loop_timeout_s, the thread
 * ends the process with the server's exit status. */
void watchdog_wind_up(struct server *s);

/* Waits for the thread to end, after the loop's end. */
void watchdog_stop(struct server *s);

#endif
