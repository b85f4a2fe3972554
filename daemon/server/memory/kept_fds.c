#include "server/memory/kept_fds.h"

#include "server/memory/connection_resources.h"
#include "server/peer/connection.h"

int kept_fds_pay_pool(struct connection *c, struct mapping *m, struct error *e)
{
    struct mapping_charges *charges = m->charges;

    if (m->fd < 0 || charges->fds.account)
        return 0;
    return charge_take(&charges->fds, c->account, c->pid, QUOTA_FDS, 1 + m->device->backend->keeps_fds, e);
}

int kept_fds_pay(struct connection *c, struct mapping *m, unsigned n, struct error *e)
{
    struct mapping_charges *charges = m->charges;
    struct charge *charge = &charges->fds;

    if (!m->device || !m->device->backend->keeps_fds)
        return 0;
    return charge->account ? charge_change(charge, c->pid, charge->amount + n, e)
                           : charge_take(charge, c->account, c->pid, QUOTA_FDS, n, e);
}

void kept_fds_refund(struct mapping *m, unsigned n)
{
    struct mapping_charges *charges = m->charges;
    struct charge *charge = &charges->fds;

    if (charge->account && m->device && m->device->backend->keeps_fds)
        charge_note(charge, charge->amount - n);
}
