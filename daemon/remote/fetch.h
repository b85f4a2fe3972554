/* The cache helper, which speaks HTTP: `kopsd --cache-helper`, a process that the daemon starts, or the service manager
 * for each connection of the daemon's (kopsd-cache@.service).
 *
 * The helper has the network and the names of hosts, reads the certificates of authorities and the configuration of the
 * resolver, and nothing else. Its only way to the daemon is a socket, and the daemon checks everything that comes from
 * it. */
#ifndef KOPS_REMOTE_FETCH_H
#define KOPS_REMOTE_FETCH_H

#include <stdbool.h>

#define REMOTE_HELPER_ARGUMENT "--cache-helper"

enum { REMOTE_HELPER_FD = 3 /* the connection; service managers use this number, too */ };

/* Tells whether main() was called for a helper. */
bool remote_helper_wanted(int argc, char **argv);

/* Runs the helper; returns the status to end with. Call it before anything else in main(). */
int remote_helper_main(int argc, char **argv);

#endif
