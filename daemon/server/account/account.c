#include "server/account/account.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/log.h"

static const uint64_t second_ns = UINT64_C(1000000000);

/* A user over QUOTA_FDS may still have this many descriptors waiting to be closed. */
enum { CLOSING_MAX = 256 };

#define X(NAME, name) [QUOTA_##NAME] = #name,
const char *const quota_names[QUOTA_COUNT] = {QUOTA_KINDS(X)};
#undef X

/* ---- life ---- */

void accounts_init(struct accounts *all, const struct quota_limits *limits)
{
    *all = (struct accounts){.limits = limits};
    for (unsigned i = 0; i < ACCOUNT_BUCKETS; i++)
        list_init(&all->buckets[i]);
    for (unsigned i = 0; i < SHARED_CHARGE_BUCKETS; i++)
        list_init(&all->shared_charges[i]);
    list_init(&all->all);
    list_init(&all->idle);
    list_init(&all->pressed);
}

static void account_free(struct account *a)
{
    list_remove(&a->held_link);
    list_remove(&a->bucket_link);
    list_remove(&a->link);
    free(a);
}

static void free_oldest_idle(struct accounts *all)
{
    struct account *a = list_entry(list_first(&all->idle), struct account, idle_link);

    list_remove(&a->idle_link);
    all->n_idle--;
    account_free(a);
}

void accounts_free(struct accounts *all)
{
    while (all->n_idle)
        free_oldest_idle(all);
    list_for_each_safe (node, after, &all->all) {
        const struct account *a = list_entry(node, struct account, link);

        log_error("account_leak", "uid=%u references=%u", (unsigned)a->uid, a->references);
    }
    identities_free(&all->identities);
}

static struct list *bucket_of(struct accounts *all, uid_t uid)
{
    return &all->buckets[(uint32_t)((uint64_t)uid * 0x9e3779b1U) >> 24];
}

static void on_closed(struct close_queue *queue, unsigned count)
{
    struct account_close_queue *closing = list_entry(queue, struct account_close_queue, close_queue);

    charge_note(&closing->fds, closing->fds.amount - count);
    if (!closing->fds.amount)
        charge_free(&closing->fds);
}

struct account *account_get(struct accounts *all, uid_t user)
{
    const uid_t owner = subordinates_owner(&all->limits->subordinates, user);
    const struct identity *identity = identities_find(&all->identities, user);
    const uid_t uid = uid_is_identity(user) || uid_is_identity(owner) ? user : owner;
    struct list *bucket = bucket_of(all, uid);
    struct account *a;

    list_for_each_safe (node, after, bucket) {
        a = list_entry(node, struct account, bucket_link);
        if (a->uid == uid)
            return account_ref(a);
    }
    a = calloc(1, sizeof(*a));
    if (!a)
        return NULL;
    a->all = all;
    a->uid = uid;
    a->limits = identity ? &identity->limits : all->limits;
    a->references = 1;
    close_queue_init(&a->files.close_queue, on_closed);
    close_queue_init(&a->sockets.close_queue, on_closed);
    list_init(&a->idle_link);
    list_init(&a->pressed_link);
    list_init(&a->paused);
    schedule_user_init(&a->turns);
    list_init(&a->reply_queue);
    list_init(&a->held);
    list_init(&a->held_link);
    list_append(bucket, &a->bucket_link);
    list_append(&all->all, &a->link);
    return a;
}

struct account *account_ref(struct account *a)
{
    if (!a->references++) {
        list_remove(&a->idle_link);
        a->all->n_idle--;
    }
    return a;
}

/* Every charge must have been given back. A debug build aborts where one was not. */
static void check_empty(const struct account *a)
{
    bool empty = !a->runs && !a->holes;

    for (unsigned i = 0; i < QUOTA_COUNT; i++) {
        if (a->used[i])
            log_error("account_leak", "uid=%u what=%s left=%llu", (unsigned)a->uid, quota_names[i],
                      (unsigned long long)a->used[i]);
        empty = empty && !a->used[i];
    }
    if (a->runs)
        log_error("account_leak", "uid=%u what=runs left=%llu", (unsigned)a->uid, (unsigned long long)a->runs);
    if (a->holes)
        log_error("account_leak", "uid=%u what=holes left=%llu", (unsigned)a->uid, (unsigned long long)a->holes);
#ifndef NDEBUG
    if (!empty)
        abort();
#else
    (void)empty;
#endif
}

struct account *account_unref(struct account *a)
{
    if (!a || --a->references)
        return NULL;
    check_empty(a);
    list_append(&a->all->idle, &a->idle_link);
    if (++a->all->n_idle > ACCOUNTS_IDLE_MAX)
        free_oldest_idle(a->all);
    return NULL;
}

/* ---- refusing ---- */

const char *account_refused_name(unsigned what)
{
    static const char *const names[] = {
        [REFUSED_MESSAGES] = "messages_per_s", [REFUSED_SHARE] = "device_share",   [REFUSED_CONNECT] = "connect",
        [REFUSED_METHOD] = "method",           [REFUSED_KERNELS] = "user_kernels", [REFUSED_LIMITS] = "limits",
        [REFUSED_HANDLE] = "handle",           [REFUSED_FAULTS] = "faults",
    };

    return what < QUOTA_COUNT ? quota_names[what] : names[what];
}

const char *account_name(const struct account *a, char into[WHO_MAX])
{
    if (uid_is_identity(a->uid))
        snprintf(into, WHO_MAX, "identity \"%s\"", identities_name(&a->all->identities, a->uid));
    else
        snprintf(into, WHO_MAX, "user %u", (unsigned)a->uid);
    return into;
}

void account_refused(struct account *a, pid_t pid, unsigned what, uint64_t current, uint64_t limit)
{
    uint64_t now = clock_now_ns();
    char who[WHO_MAX];

    a->refused++;
    a->all->refused[what]++;
    if (a->said[what].logged_ns && now - a->said[what].logged_ns < second_ns) {
        a->said[what].unsaid++;
        return;
    }
    identities_who(&a->all->identities, a->uid, who);
    if (limit)
        log_warning("refuse", "what=%s pid=%d %s current=%llu limit=%llu unsaid=%llu", account_refused_name(what),
                    (int)pid, who, (unsigned long long)current, (unsigned long long)limit,
                    (unsigned long long)a->said[what].unsaid);
    else
        log_warning("refuse", "what=%s pid=%d %s unsaid=%llu", account_refused_name(what), (int)pid, who,
                    (unsigned long long)a->said[what].unsaid);
    a->said[what].logged_ns = now;
    a->said[what].unsaid = 0;
}

struct refusal {
    const char *things, *setting, *advice; /* advice: printed where the user has any */
};

static const struct refusal refusals[REFUSED_COUNT] = {
    [QUOTA_CONNECTIONS] = {"connections", "connections", "close some"},
    [QUOTA_BUFFERS] = {"buffers", "buffers", "release some"},
    [QUOTA_MAPPINGS] = {"mappings, of buffers and inline references", "mappings", "release some"},
    [QUOTA_MAPPED] = {"bytes of memory mapped here", "mapped_mib", "release some buffers"},
    [QUOTA_ALLOCATED] = {"bytes from alloc", "allocated_mib", "release some buffers"},
    [QUOTA_HOST] = {"bytes of the host's memory mapped here", "host_mib", "release some buffers"},
    [QUOTA_PROGRAMS] = {"bytes of programs", "daemon_mib", "release some"},
    [QUOTA_WAITING] = {"bytes that wait here", "daemon_mib", "read replies"},
    [QUOTA_INFLIGHT] = {"unanswered requests", "inflight", "wait for replies"},
    [QUOTA_FDS] = {"descriptors held here", "fds", "close connections or release buffers"},
    [QUOTA_KERNEL] = {"bytes of kernels", "daemon_mib", "release some modules and kernels"},
    [REFUSED_MESSAGES] = {"messages a second", "messages_per_s", "send them more slowly"},
    [REFUSED_SHARE] = {"percent of a device's last second while others wait", "device_share",
                       "try again a little later"},
};

static int exceeded(struct account *a, pid_t pid, unsigned what, uint64_t current, uint64_t limit, uint64_t asked,
                    struct error *e)
{
    const struct refusal *r = &refusals[what];
    char name[WHO_MAX];

    account_refused(a, pid, what, current, limit);
    error_set(e, ERROR_QUOTA_EXCEEDED, "%s asked for %llu, has %llu and may have %llu %s (quota%c%s)%s%s",
              account_name(a, name), (unsigned long long)asked, (unsigned long long)current, (unsigned long long)limit,
              r->things, uid_is_identity(a->uid) ? '_' : '.', r->setting, current ? "; " : "",
              current ? r->advice : "");
    error_detail_text(e, "quota", account_refused_name(what));
    error_detail_number(e, "current", (int64_t)current);
    return error_detail_number(e, "limit", (int64_t)limit);
}

static int all_exceeded(struct account *a, pid_t pid, enum quota quota, uint64_t current, uint64_t limit,
                        uint64_t asked, struct error *e)
{
    const bool host = quota == QUOTA_HOST; /* QUOTA_HOST's bound for all users has a setting of its own */
    char name[WHO_MAX];

    account_refused(a, pid, quota, current, limit);
    error_set(e, ERROR_QUOTA_EXCEEDED,
              "%s asked for %llu, all users together have %llu and may have %llu %s%s, one user twice what is left "
              "to others at most",
              account_name(a, name), (unsigned long long)asked, (unsigned long long)current, (unsigned long long)limit,
              refusals[quota].things, host ? " (quota.host_all_mib)" : "");
    error_detail_text(e, "quota", host ? "host_all_bytes" : quota_names[quota]);
    if (!host)
        error_detail_text(e, "users", "all");
    error_detail_number(e, "current", (int64_t)current);
    return error_detail_number(e, "limit", (int64_t)limit);
}

/* ---- closing ---- */

static void close_by(struct account *a, struct account_close_queue *closing, const int *fds, unsigned count)
{
    if (!count)
        return;
    if (!a->all->close_queues) {
        for (unsigned i = 0; i < count; i++)
            close(fds[i]);
        return;
    }
    if (closing->fds.account)
        charge_note(&closing->fds, closing->fds.amount + count);
    else
        charge_count(&closing->fds, a, QUOTA_FDS, count);
    close_queue_add(a->all->close_queues, &closing->close_queue, fds, count);
}

void account_close_fds(struct account *a, const int *fds, unsigned count)
{
    close_by(a, &a->files, fds, count);
}

void account_close_socket(struct account *a, int fd)
{
    if (!close_queue_close_socket(fd))
        close_by(a, &a->sockets, &fd, 1);
}

unsigned account_excess_sockets(struct account *a)
{
    return a->all->close_queues ? close_queue_excess(a->all->close_queues, &a->sockets.close_queue) : 0;
}

int account_check_closing(struct account *a, pid_t pid, struct error *e)
{
    uint64_t limit = a->limits->of[QUOTA_FDS];

    if (a->files.fds.amount + a->sockets.fds.amount < CLOSING_MAX || !limit || a->used[QUOTA_FDS] < limit)
        return 0;
    return exceeded(a, pid, QUOTA_FDS, a->used[QUOTA_FDS], limit, 1, e);
}

/* ---- amounts ---- */

static bool fits(uint64_t limit, uint64_t used, uint64_t amount)
{
    return !limit || !amount || (used < limit && amount <= limit - used);
}

/* Whether `amount` is within the user's share of the bound for all users. */
static bool is_within_share(uint64_t of_all, uint64_t all_used, uint64_t used, uint64_t amount)
{
    return !of_all || !amount || amount <= account_share(all_used < of_all ? of_all - all_used : 0, used);
}

/* `apart`, a part of the amount in use, is replaced by `amount`. */
static int check(struct account *a, pid_t pid, enum quota quota, uint64_t apart, uint64_t amount, struct error *e)
{
    const uint64_t limit = a->limits->of[quota], of_all = a->all->limits->of_all[quota];
    const uint64_t used = a->used[quota] - apart, all_used = a->all->used[quota] - apart;
    int r = 0;

    if (!fits(limit, used, amount))
        r = exceeded(a, pid, quota, used, limit, amount, e);
    else if (!is_within_share(of_all, all_used, used, amount))
        r = all_exceeded(a, pid, quota, all_used, of_all, amount, e);
    if (r < 0 && quota == QUOTA_HOST)
        error_detail_number(e, "asked", amount > INT64_MAX ? INT64_MAX : (int64_t)amount);
    return r;
}

int charge_take(struct charge *charge, struct account *a, pid_t pid, enum quota quota, uint64_t amount, struct error *e)
{
    if (check(a, pid, quota, 0, amount, e) < 0)
        return -1;
    charge_count(charge, a, quota, amount);
    return 0;
}

int charge_change(struct charge *charge, pid_t pid, uint64_t amount, struct error *e)
{
    struct account *a = charge->account;

    if (amount > charge->amount && check(a, pid, charge->quota, charge->amount, amount, e) < 0)
        return -1;
    charge_note(charge, amount);
    return 0;
}

int charge_check(const struct charge *charge, pid_t pid, struct error *e)
{
    struct account *a = charge->account;

    return check(a, pid, charge->quota, charge->amount, charge->amount, e);
}

int account_refuse_inflight(struct account *a, pid_t pid, struct error *e)
{
    return exceeded(a, pid, QUOTA_INFLIGHT, a->used[QUOTA_INFLIGHT] - 1, a->limits->of[QUOTA_INFLIGHT], 1, e);
}

/* ---- rates ---- */

static uint64_t ms_above(uint64_t ns)
{
    return (ns + 999999) / 1000000;
}

int account_limit_messages(struct account *a, pid_t pid, uint64_t now_ns, struct error *e)
{
    const uint64_t rate = a->limits->messages_per_s, each = second_ns / rate;
    const uint64_t due = (a->due_ns > now_ns ? a->due_ns : now_ns) + each;
    if (due - now_ns <= second_ns) {
        a->due_ns = due;
        return 0;
    }
    exceeded(a, pid, REFUSED_MESSAGES, (a->due_ns - now_ns + each - 1) / each, rate, 1, e);
    return error_detail_number(e, "retry_after_ms", (int64_t)ms_above(due - now_ns - second_ns));
}

static const uint64_t slot_ns = UINT64_C(1000000000) / SHARE_SLOTS;

/* Makes the tenth of a second at `now_ns` the newest, and forgets tenths that are over a second old. */
static void turn_to(struct account *a, uint64_t now_ns)
{
    uint64_t slot = now_ns / slot_ns;

    if (slot <= a->newest)
        return;
    if (slot - a->newest >= SHARE_SLOTS)
        a->newest = slot - SHARE_SLOTS;
    while (a->newest < slot)
        a->share_us[++a->newest % SHARE_SLOTS] = 0;
}

void account_add_device_us(struct account *a, double us, uint64_t now_ns)
{
    double room = (double)(now_ns % slot_ns) * 1e-3;

    if (!(us > 0))
        return;
    a->device_us += us;
    if (!a->limits->device_share)
        return;
    turn_to(a, now_ns);
    for (uint64_t i = 0; us > 0 && i < SHARE_SLOTS && i <= a->newest; i++) {
        double part = fmin(us, room);

        a->share_us[(a->newest - i) % SHARE_SLOTS] += part;
        us -= part;
        room = (double)slot_ns * 1e-3;
    }
}

int account_limit_share(struct account *a, pid_t pid, uint64_t now_ns, struct error *e)
{
    uint64_t percent = a->limits->device_share, retry_ns = 0;
    const double us_a_percent = (double)second_ns * 1e-5;
    double used = 0, share = us_a_percent * (double)percent, left;

    if (a->all->runs == a->runs)
        return 0;
    turn_to(a, now_ns);
    for (unsigned i = 0; i < SHARE_SLOTS; i++)
        used += a->share_us[i];
    if (used <= share)
        return 0;
    /* retry_ns: the time at which enough of the oldest tenths are forgotten for the rest to be within the share. */
    left = used;
    for (uint64_t i = a->newest - (SHARE_SLOTS - 1); left > share && i <= a->newest; i++) {
        left -= a->share_us[i % SHARE_SLOTS];
        retry_ns = (i + SHARE_SLOTS) * slot_ns - now_ns;
    }
    exceeded(a, pid, REFUSED_SHARE, (uint64_t)ceil(used / us_a_percent), percent, 1, e);
    return error_detail_number(e, "retry_after_ms", (int64_t)ms_above(retry_ns));
}

/* ---- faults ---- */

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
    /* A kernel that faults while kernels are refused began before. */
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

/* ---- shared charge ---- */

static struct list *shared_charge_bucket(struct accounts *all, uint64_t space, uint64_t id)
{
    uint64_t h = (space * UINT64_C(0x9e3779b97f4a7c15) ^ id) * UINT64_C(0x9e3779b97f4a7c15);

    return &all->shared_charges[(h >> 32) % SHARED_CHARGE_BUCKETS];
}

/* Objects in memory have their address as `space` and id 0. Files have device and inode, which is not 0. */
static struct shared_charge *take(struct account *a, pid_t pid, enum quota quota, uint64_t space, uint64_t id,
                                  uint64_t bytes, struct error *e)
{
    struct list *bucket = shared_charge_bucket(a->all, space, id);
    struct shared_charge *h;

    list_for_each_safe (node, after, bucket) {
        h = list_entry(node, struct shared_charge, link);
        if (h->charge.account == a && h->space == space && h->id == id)
            return bytes > h->charge.amount && charge_change(&h->charge, pid, bytes, e) < 0 ? NULL
                                                                                            : shared_charge_ref(h);
    }
    h = calloc(1, sizeof(*h));
    if (!h) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for an account");
        return NULL;
    }
    if (charge_take(&h->charge, a, pid, quota, bytes, e) < 0) {
        free(h);
        return NULL;
    }
    h->space = space;
    h->id = id;
    h->references = 1;
    list_append(bucket, &h->link);
    return h;
}

struct shared_charge *shared_charge_take(struct account *a, pid_t pid, enum quota quota, const void *thing,
                                         uint64_t bytes, struct error *e)
{
    return take(a, pid, quota, (uintptr_t)thing, 0, bytes, e);
}

struct shared_charge *shared_charge_take_file(struct account *a, pid_t pid, enum quota quota, uint64_t device,
                                              uint64_t inode, uint64_t bytes, struct error *e)
{
    return take(a, pid, quota, device, inode, bytes, e);
}

void shared_charges_note_size(struct accounts *all, const void *thing, uint64_t bytes)
{
    struct list *bucket = shared_charge_bucket(all, (uintptr_t)thing, 0);

    list_for_each_safe (node, after, bucket) {
        struct shared_charge *h = list_entry(node, struct shared_charge, link);

        if (h->space != (uintptr_t)thing || h->id || bytes <= h->charge.amount)
            continue;
        charge_note(&h->charge, bytes);
        h->unchecked = true;
    }
}

int shared_charge_check(struct shared_charge *h, pid_t pid, struct error *e)
{
    if (h->unchecked && charge_check(&h->charge, pid, e) < 0)
        return -1;
    h->unchecked = false;
    return 0;
}

void shared_charge_free(struct shared_charge *h)
{
    charge_free(&h->charge);
    list_remove(&h->link);
    free(h);
}
