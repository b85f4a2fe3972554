/* kopsd --supervise: a small parent for machines without a service manager.
 *
 * The supervisor holds the socket, so a client that connects while there is no server waits and is then served. It
 * starts the server as its child, and again when the child ends on its own, after longer and longer waits; forwards
 * SIGTERM, SIGINT and SIGHUP; ends a server that stays silent; and forwards the server's notifications to its own
 * manager. The child never outlives it. The supervisor opens no device and hears no client. Thread: main, the only one.
 */
#ifndef KOPS_MAIN_SUPERVISE_H
#define KOPS_MAIN_SUPERVISE_H

#include "main/config.h"
#include "main/flags.h"

/* Supervises until the end. Returns an exit status: the server's, when the server was told to end or could not start at
 * all. */
int supervise(const struct flags *flags, const struct config *config);

#endif
