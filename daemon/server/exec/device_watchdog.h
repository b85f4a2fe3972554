/* The device watchdog: jobs that never end. Thread: loop. */
#ifndef KOPS_SERVER_EXEC_DEVICE_WATCHDOG_H
#define KOPS_SERVER_EXEC_DEVICE_WATCHDOG_H

#include "server/exec/run.h"

void device_watchdog_init(struct server *s);
/* Starts the timer. It may be called at any time; a running timer begins anew. */
void device_watchdog_watch(struct server *s);
/* server.job_timeout_s has changed. */
void device_watchdog_reload(struct server *s);
void device_watchdog_stop(struct server *s);

#endif
