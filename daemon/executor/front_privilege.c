/* Counters by a privilege: which processes take those of a device, and when such a process is to end. Thread: loop. */
#include <stdlib.h>

#include "executor/executor.h"
#include "executor/front_policy.h"
#include "executor/privilege.h"

/* The device of the domain's next job; -1: it has none. */
static int device_of_next(const struct front *f, const struct front_domain *d)
{
    list_for_each_safe (node, after, &f->busy) {
        const struct front_stream *s = list_entry(node, struct front_stream, link);

        if (s->domain == d && s->unsent != &s->jobs)
            return (int)s->device->number;
    }
    return -1;
}

int front_privilege_device(const struct front *f, const struct front_domain *d)
{
    const char *parameters = getenv("KOPS_STANDIN_PARAMETERS"); /* of a driver for tests */

    if (!domain_is_profiling(d->key) || !f->config.executors_counters_privileged ||
        f->config.executors_sandbox == EXECUTOR_SANDBOX_OFF ||
        !privilege_is_needed(parameters ? parameters : PRIVILEGE_PARAMETERS))
        return -1;
    return device_of_next(f, d);
}

bool front_privilege_is_spent(const struct front *f, const struct front_domain *d)
{
    const struct executor *x = d->executor;

    return x->counts >= 0 && !x->unfinished && (x->loads[x->counts].in_a_row || x->counts != device_of_next(f, d));
}

bool front_privilege_is_free(const struct front *f)
{
    list_for_each_safe (node, after, &f->executors) {
        if (list_entry(node, struct executor, link)->counts >= 0)
            return false;
    }
    return true;
}
