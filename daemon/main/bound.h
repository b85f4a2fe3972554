/* Tells whether a living process has a socket at a path, even one that does not listen (yet). */
#ifndef KOPS_MAIN_BOUND_H
#define KOPS_MAIN_BOUND_H

#include <stdbool.h>
#include <sys/stat.h>

/* `st` is the socket's file. Asks the kernel, for this network namespace; false also where it does not tell. */
bool socket_is_bound(const struct stat *st);

#endif
