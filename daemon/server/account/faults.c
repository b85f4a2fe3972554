/* Faults of a user's kernels: after too many in a minute, the user's kernels are refused for a while. */
#include "server/account/account.h"
#include "util/log.h"

static const uint64_t minute_ns = UINT64_C(60000000000), hour_ns = UINT64_C(3600000000000);

/* Notes the fault in the ring. Returns how many there were in the last minute, this one included. */
static unsigned note(struct account_faults *f, uint64_t now_ns)
{
    unsigned count = 0;

    f->newest = (f->newest + 1) % ACCOUNT_FAULTS_MAX;
    f->at_ns[f->newest] = now_ns;
    f->n += f->n < ACCOUNT_FAULTS_MAX;
    while (count < f->n && now_ns - f->at_ns[(f->newest + ACCOUNT_FAULTS_MAX - count) % ACCOUNT_FAULTS_MAX] < minute_ns)
        count++;
    return count;
}

static bool is_over_an_hour(uint64_t from_ns, uint64_t now_ns)
{
    return now_ns > from_ns && now_ns - from_ns >= hour_ns;
}

void account_note_fault(struct account *a, uint64_t incident, uint64_t now_ns)
{
    const uint64_t limit = a->limits->faults;
    struct account_faults *f = &a->faults;
    char who[WHO_MAX];

    if (incident == f->incident)
        return;
    f->incident = incident;
    if (is_over_an_hour(f->last_ns, now_ns) && is_over_an_hour(f->until_ns, now_ns)) /* refused kernels cannot fault */
        f->pause_ns = 0;
    f->last_ns = now_ns;
    /* What faults while kernels are refused began before. */
    if (!limit || f->until_ns > now_ns || note(f, now_ns) < limit)
        return;
    f->n = 0;
    f->pause_ns = !f->pause_ns ? minute_ns : f->pause_ns < hour_ns / 2 ? 2 * f->pause_ns : hour_ns;
    f->until_ns = now_ns + f->pause_ns;
    log_warning("faults", "%s faults=%llu refused_s=%llu", identities_who(&a->all->identities, a->uid, who),
                (unsigned long long)limit, (unsigned long long)(f->pause_ns / 1000000000));
}

int account_refuse_faults(struct account *a, pid_t pid, uint64_t now_ns, struct error *e)
{
    const uint64_t limit = a->limits->faults, left_ms = (a->faults.until_ns - now_ns + 999999) / 1000000;
    char name[WHO_MAX];

    if (!limit)
        return 0;
    account_refused(a, pid, REFUSED_FAULTS, limit, limit);
    error_set(
        e, ERROR_QUOTA_EXCEEDED,
        "kernels of %s faulted or hung %llu times within a minute (executors.faults), so they are refused for "
        "%llu s more; built-in ops go on: find the fault, with kops.interpret or compute-sanitizer, before you try "
        "again",
        account_name(a, name), (unsigned long long)limit, (unsigned long long)(left_ms + 999) / 1000);
    error_detail_text(e, "quota", account_refused_name(REFUSED_FAULTS));
    error_detail_number(e, "current", (int64_t)limit);
    error_detail_number(e, "limit", (int64_t)limit);
    return error_detail_number(e, "retry_after_ms", (int64_t)left_ms);
}
