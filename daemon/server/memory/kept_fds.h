/* Charges for descriptors that are kept while a mapping exists: QUOTA_FDS of the user that registered the memory.
 * Thread: loop. */
#ifndef KOPS_SERVER_MEMORY_KEPT_FDS_H
#define KOPS_SERVER_MEMORY_KEPT_FDS_H

#include "backend/mapping.h"
#include "server/base/shared.h"

struct connection;

/* The descriptor of a pool, and its copy where the device's backend keeps one. Paid once a mapping. */
int kept_fds_pay_pool(struct connection *c, struct mapping *m, struct error *e);
/* `n` more descriptors of a mapping, where the device's backend keeps copies of them; and back. */
int kept_fds_pay(struct connection *c, struct mapping *m, unsigned n, struct error *e);
void kept_fds_refund(struct mapping *m, unsigned n);

#endif
