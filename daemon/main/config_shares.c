/* A user's share of the resources that all users share. */
#include <sys/resource.h>

#include "backend/mapping.h"
#include "main/config.h"
#include "util/host_memory.h"
#include "util/log.h"

/* A user's part of a shared resource, where no setting gives it; a user with more than half of it gets a line in the
 * log. Users together cannot take all, see account_share(). */
enum { PART = 4, LARGE_PART = 2, FDS_MOST = 16384 };

/* Descriptors that are not for users: the daemon's own, and 16 for each executor. */
enum { OWN_PART = 4, OWN_MOST = 1024 };

struct share {
    const char *setting;
    uint64_t all, *quota, most; /* most: the largest default; 0: any */
};

enum { N_SHARES = 3 };

uint64_t config_descriptors(void)
{
    struct rlimit files;
    uint64_t all, own;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_max > INT64_MAX)
        return INT64_MAX;
    all = files.rlim_max;
    own = all / OWN_PART < OWN_MOST ? all / OWN_PART : OWN_MOST;
    return all - own;
}

static void list_shares(struct config *c, struct share into[N_SHARES])
{
    const struct share all[N_SHARES] = {
        {"quota.connections", c->max_connections, &c->quota.connections, 0},
        {"quota.mappings", MAPPINGS_MAX, &c->quota.mappings, 0},
        {"quota.fds", config_descriptors(), &c->quota.fds, FDS_MOST},
    };

    for (unsigned i = 0; i < N_SHARES; i++)
        into[i] = all[i];
}

void config_init_shares(struct config *c)
{
    struct share shares[N_SHARES];

    list_shares(c, shares);
    for (unsigned i = 0; i < N_SHARES; i++)
        *shares[i].quota = CONFIG_UNSAID;
    c->quota.host_mib = c->quota_host_all_mib = c->quota.daemon_mib = CONFIG_UNSAID;
}

/* The kernel counts pages as the daemon's when it touches them first, so all mapped memory must fit beside the daemon's
 * own and that of other processes. One user is often the only one, so the part is larger than elsewhere. */
static void find_host_memory(struct config *c)
{
    const uint64_t mib = host_memory_total() >> 20;

    if (c->quota.host_mib == CONFIG_UNSAID)
        c->quota.host_mib = mib / 2 ? mib / 2 : 1;
    if (c->quota_host_all_mib == CONFIG_UNSAID)
        c->quota_host_all_mib = mib - mib / 4;
}

void config_finish_shares(struct config *c)
{
    struct share shares[N_SHARES];

    find_host_memory(c);
    list_shares(c, shares);
    for (unsigned i = 0; i < N_SHARES; i++) {
        const struct share *s = &shares[i];

        if (*s->quota != CONFIG_UNSAID)
            continue;
        *s->quota = s->all / PART ? s->all / PART : 1; /* 0 is no limit */
        if (s->most && *s->quota > s->most)
            *s->quota = s->most;
    }
}

void config_log_shares(const struct config *config)
{
    struct share shares[N_SHARES];

    list_shares((struct config *)(uintptr_t)config, shares); /* list_shares() is used for reading only */
    for (unsigned i = 0; i < N_SHARES; i++)
        if (*shares[i].quota > shares[i].all / LARGE_PART)
            log_warning("large_quota", "setting=%s value=%llu of_all=%llu why=\"one user can leave others too little\"",
                        shares[i].setting, (unsigned long long)*shares[i].quota, (unsigned long long)shares[i].all);
}
