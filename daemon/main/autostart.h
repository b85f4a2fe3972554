/* kopsd --autostart: the daemon of this user, which clients ask for where nothing listens.
 *
 * The whole rule is here, once for all clients: a client runs this program, with a pipe as stdout and stderr, and
 * connects to the path that is the last line of its output. Any number of processes may ask at one time. Thread: main,
 * the only one. */
#ifndef KOPS_MAIN_AUTOSTART_H
#define KOPS_MAIN_AUTOSTART_H

#include "main/config.h"
#include "main/flags.h"

/* Starts a daemon unless one answers, waits until it is ready, and prints the path of its socket. Returns an exit
 * status; the reason of a failure is printed. */
int autostart(const struct flags *flags, const struct config *config);

#endif
