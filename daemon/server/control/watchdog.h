/* A thread of its own that looks whether the loop still turns.
 *
 * It asks the loop for a sign of life now and then. While signs come it tells the manager (hooks.alive); when none has
 * come for server.loop_timeout_s it says what the loop is at and ends the process: nothing else would serve anybody. A
 * loop that stands in a call of a device's driver while that device has jobs is no blocked loop but a busy device, and
 * has server.job_timeout_s, as a job that never ends has: then the end is that of a lost device.
 *
 * Time is counted in the thread's own ticks, so that a machine that slept or a process that was stopped is not taken
 * for a blocked loop. Thread: the functions are the loop's. */
#ifndef KOPS_SERVER_CONTROL_WATCHDOG_H
#define KOPS_SERVER_CONTROL_WATCHDOG_H

#include "server/base/shared.h"

/* Begins when there is something to watch for: a limit, a manager that wants to hear, or somebody who reads the status.
 * A watchdog that cannot be started is an error. */
int watchdog_start(struct server *s, const struct server_hooks *hooks, struct error *e);

/* server.job_timeout_s has changed. */
void watchdog_reload(struct server *s);

/* The manager hears at once what the server does now, which would else be said with the next sign of life. */
void watchdog_tell(struct server *s);

/* The loop ends: no signs of life are asked for from now on. What is left to do has server.loop_timeout_s, then the
 * process ends with the server's status as it is. */
void watchdog_wind_up(struct server *s);

/* After the loop's end: waits for the thread. */
void watchdog_stop(struct server *s);

#endif
