/* Errors of the rules that this library shares with the daemon (daemon/core), as its own. */
#ifndef KOPS_CLIENT_HERE_ERRORS_H
#define KOPS_CLIENT_HERE_ERRORS_H

#include <kops/kops.h>

#include "util/error.h"

/* Fills *to, which may be NULL. Returns its code. */
enum kops_code here_error(const struct error *from, struct kops_error *to);

#endif
