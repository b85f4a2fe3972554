/* kopsd --autostart: starts or finds the daemon of this user, for clients where nothing listens.
 *
 * The whole rule is in this program, once for all clients. A client runs it with a pipe as stdout and stderr, and
 * connects to the path in the last line of its output. Any number of processes may ask at one time. Thread: main, the
 * only one. */
#ifndef KOPS_MAIN_AUTOSTART_H
#define KOPS_MAIN_AUTOSTART_H

#include "main/config.h"
#include "main/flags.h"

/* Starts a daemon unless one answers, waits until it is ready, and prints the path of its socket. Returns an exit
 * status; prints the reason of a failure. */
int autostart(const struct flags *flags, const struct config *config);

#endif
