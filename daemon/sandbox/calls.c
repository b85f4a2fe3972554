#include "sandbox/calls.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>

bool calls_available(void)
{
    return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0;
}

scmp_filter_ctx calls_new(uint32_t otherwise)
{
    return seccomp_init(otherwise);
}

int calls_add(scmp_filter_ctx filter, uint32_t action, const int *calls, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int r = seccomp_rule_add(filter, action, calls[i], 0);

        if (r < 0 && r != -EDOM && r != -EINVAL)
            return r;
    }
    return 0;
}

int calls_enter(scmp_filter_ctx filter, int r, bool all, struct error *e)
{
    if (!filter)
        r = -ENOMEM;
    if (r >= 0)
        r = seccomp_attr_set(filter, SCMP_FLTATR_CTL_NNP, 1);
    if (r >= 0 && all)
        r = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    if (r >= 0) {
        /* Without these the filter would work the same, only slower. */
        seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1);
        seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
        r = seccomp_load(filter);
    }
    if (filter)
        seccomp_release(filter);
    return r < 0 ? error_set(e, ERROR_UNSUPPORTED, "seccomp: %s", strerror(-r)) : 0;
}
