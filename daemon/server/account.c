#include "server/account.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/log.h"

static const uint64_t second_ns = UINT64_C(1000000000);

/* So many of a user's descriptors may wait to be closed when the user has all that may be. */
enum { CLOSING_MAX = 256 };

const char *const quota_names[QUOTA_COUNT] = {
    [QUOTA_CONNECTIONS] = "connections",   [QUOTA_BUFFERS] = "buffers",   [QUOTA_MAPPED] = "mapped_bytes",
    [QUOTA_ALLOCATED] = "allocated_bytes", [QUOTA_INFLIGHT] = "inflight", [QUOTA_FDS] = "fds",
    [QUOTA_KERNEL] = "kernel_bytes",
};

/* ---- life ---- */

void accounts_init(struct accounts *all, const struct quota_limits *limits)
{
    *all = (struct accounts){.limits = limits};
    for (unsigned i = 0; i < ACCOUNT_BUCKETS; i++)
        list_init(&all->buckets[i]);
    for (unsigned i = 0; i < HOLD_BUCKETS; i++)
        list_init(&all->holds[i]);
    list_init(&all->all);
    list_init(&all->idle);
}

static void account_free(struct account *a)
{
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
}

static struct list *bucket_of(struct accounts *all, uid_t uid)
{
    return &all->buckets[(uint32_t)((uint64_t)uid * 0x9e3779b1U) >> 24];
}

static void closed(struct account *a, unsigned count)
{
    a->closing -= count;
    account_discharge(a, QUOTA_FDS, count);
    account_unref(a);
}

static void on_closed_files(struct closer_lane *lane, unsigned count)
{
    closed(list_entry(lane, struct account, files), count);
}

static void on_closed_socket(struct closer_lane *lane, unsigned count)
{
    closed(list_entry(lane, struct account, sockets), count);
}

struct account *account_get(struct accounts *all, uid_t uid)
{
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
    a->references = 1;
    closer_lane_init(&a->files, on_closed_files);
    closer_lane_init(&a->sockets, on_closed_socket);
    list_init(&a->idle_link);
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

/* Whatever was counted has been taken off again. Where it was not, a build that checks itself ends here. */
static void check_empty(const struct account *a)
{
    bool empty = !a->runs;

    for (unsigned i = 0; i < QUOTA_COUNT; i++) {
        if (a->used[i])
            log_error("account_leak", "uid=%u what=%s left=%llu", (unsigned)a->uid, quota_names[i],
                      (unsigned long long)a->used[i]);
        empty = empty && !a->used[i];
    }
    if (a->runs)
        log_error("account_leak", "uid=%u what=runs left=%llu", (unsigned)a->uid, (unsigned long long)a->runs);
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

/* ---- closing ---- */

static void close_by(struct account *a, struct closer_lane *lane, const int *fds, unsigned count)
{
    if (!count)
        return;
    if (!a->all->closer) {
        for (unsigned i = 0; i < count; i++)
            close(fds[i]);
        return;
    }
    account_ref(a);
    account_add(a, QUOTA_FDS, count);
    a->closing += count;
    closer_close(a->all->closer, lane, fds, count);
}

void account_close_fds(struct account *a, const int *fds, unsigned count)
{
    close_by(a, &a->files, fds, count);
}

void account_close_socket(struct account *a, int fd)
{
    if (!closer_close_socket(fd))
        close_by(a, &a->sockets, &fd, 1);
}

int account_check_closing(struct account *a, pid_t pid, struct error *e)
{
    uint64_t limit = a->all->limits->of[QUOTA_FDS];

    if (a->closing < CLOSING_MAX || !limit || a->used[QUOTA_FDS] < limit)
        return 0;
    return account_charge(a, pid, QUOTA_FDS, 1, e);
}

/* ---- refusing ---- */

const char *account_refused_name(unsigned what)
{
    static const char *const names[] = {
        [REFUSED_MESSAGES] = "messages_per_s", [REFUSED_SHARE] = "device_share",   [REFUSED_CONNECT] = "connect",
        [REFUSED_METHOD] = "method",           [REFUSED_KERNELS] = "user_kernels", [REFUSED_LIMITS] = "limits",
        [REFUSED_HANDLE] = "handle",
    };

    return what < QUOTA_COUNT ? quota_names[what] : names[what];
}

void account_refused(struct account *a, pid_t pid, unsigned what, uint64_t current, uint64_t limit)
{
    uint64_t now = clock_now_ns();

    a->refused++;
    a->all->refused[what]++;
    if (a->said[what].logged_ns && now - a->said[what].logged_ns < second_ns) {
        a->said[what].unsaid++;
        return;
    }
    if (limit)
        log_warning("refuse", "what=%s pid=%d uid=%u current=%llu limit=%llu unsaid=%llu", account_refused_name(what),
                    (int)pid, (unsigned)a->uid, (unsigned long long)current, (unsigned long long)limit,
                    (unsigned long long)a->said[what].unsaid);
    else
        log_warning("refuse", "what=%s pid=%d uid=%u unsaid=%llu", account_refused_name(what), (int)pid,
                    (unsigned)a->uid, (unsigned long long)a->said[what].unsaid);
    a->said[what].logged_ns = now;
    a->said[what].unsaid = 0;
}

static int exceeded(struct account *a, pid_t pid, unsigned what, uint64_t current, uint64_t limit, struct error *e)
{
    static const char *const more[REFUSED_COUNT] = {
        [QUOTA_CONNECTIONS] = "connections; close some",
        [QUOTA_BUFFERS] = "buffers; release some",
        [QUOTA_MAPPED] = "bytes of memory mapped here; release some buffers",
        [QUOTA_ALLOCATED] = "bytes from alloc; release some buffers",
        [QUOTA_INFLIGHT] = "unanswered requests; wait for replies",
        [QUOTA_FDS] = "descriptors held here; close connections or release buffers",
        [QUOTA_KERNEL] = "bytes of kernels; release some modules and kernels",
        [REFUSED_MESSAGES] = "messages a second; send them more slowly",
        [REFUSED_SHARE] = "percent of a device's last second while others wait; try again a little later",
    };

    account_refused(a, pid, what, current, limit);
    error_set(e, ERROR_QUOTA_EXCEEDED, "user %u has %llu, and may have %llu, %s", (unsigned)a->uid,
              (unsigned long long)current, (unsigned long long)limit, more[what]);
    error_detail_text(e, "quota", account_refused_name(what));
    error_detail_number(e, "current", (int64_t)current);
    return error_detail_number(e, "limit", (int64_t)limit);
}

/* ---- amounts ---- */

int account_charge(struct account *a, pid_t pid, enum quota quota, uint64_t amount, struct error *e)
{
    uint64_t limit = a->all->limits->of[quota];

    if (limit && amount && (a->used[quota] >= limit || amount > limit - a->used[quota]))
        return exceeded(a, pid, quota, a->used[quota], limit, e);
    a->used[quota] += amount;
    return 0;
}

int account_refuse_inflight(struct account *a, pid_t pid, struct error *e)
{
    return exceeded(a, pid, QUOTA_INFLIGHT, a->used[QUOTA_INFLIGHT] - 1, a->all->limits->of[QUOTA_INFLIGHT], e);
}

/* ---- rates ---- */

static uint64_t ms_above(uint64_t ns)
{
    return (ns + 999999) / 1000000;
}

int account_limit_messages(struct account *a, pid_t pid, uint64_t now_ns, struct error *e)
{
    const uint64_t rate = a->all->limits->messages_per_s, each = second_ns / rate;
    const uint64_t due = (a->due_ns > now_ns ? a->due_ns : now_ns) + each;
    if (due - now_ns <= second_ns) {
        a->due_ns = due;
        return 0;
    }
    exceeded(a, pid, REFUSED_MESSAGES, (a->due_ns - now_ns + each - 1) / each, rate, e);
    return error_detail_number(e, "retry_after_ms", (int64_t)ms_above(due - now_ns - second_ns));
}

static const uint64_t slot_ns = UINT64_C(1000000000) / SHARE_SLOTS;

/* Forgets what is a second old; the tenth of `now_ns` is the newest then. */
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
    if (!a->all->limits->device_share)
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
    uint64_t percent = a->all->limits->device_share, retry_ns = 0;
    const double us_a_percent = (double)second_ns * 1e-5;
    double used = 0, share = us_a_percent * (double)percent, left;

    if (a->all->runs == a->runs)
        return 0;
    turn_to(a, now_ns);
    for (unsigned i = 0; i < SHARE_SLOTS; i++)
        used += a->share_us[i];
    if (used <= share)
        return 0;
    /* When so many of the oldest tenths are forgotten that the rest is within the share. */
    left = used;
    for (uint64_t i = a->newest - (SHARE_SLOTS - 1); left > share && i <= a->newest; i++) {
        left -= a->share_us[i % SHARE_SLOTS];
        retry_ns = (i + SHARE_SLOTS) * slot_ns - now_ns;
    }
    exceeded(a, pid, REFUSED_SHARE, (uint64_t)ceil(used / us_a_percent), percent, e);
    return error_detail_number(e, "retry_after_ms", (int64_t)ms_above(retry_ns));
}

/* ---- holds ---- */

static struct list *hold_bucket(struct accounts *all, const void *thing)
{
    uint64_t h = (uint64_t)(uintptr_t)thing * UINT64_C(0x9e3779b97f4a7c15);

    return &all->holds[(h >> 32) % HOLD_BUCKETS];
}

static int charge_more(struct hold *h, pid_t pid, uint64_t bytes, struct error *e)
{
    if (bytes <= h->bytes)
        return 0;
    if (account_charge(h->account, pid, h->quota, bytes - h->bytes, e) < 0)
        return -1;
    h->bytes = bytes;
    return 0;
}

struct hold *account_hold(struct account *a, pid_t pid, enum quota quota, const void *thing, uint64_t bytes,
                          struct error *e)
{
    struct list *bucket = hold_bucket(a->all, thing);
    struct hold *h;

    list_for_each_safe (node, after, bucket) {
        h = list_entry(node, struct hold, link);
        if (h->account == a && h->thing == thing)
            return charge_more(h, pid, bytes, e) < 0 ? NULL : hold_ref(h);
    }
    if (account_charge(a, pid, quota, bytes, e) < 0)
        return NULL;
    h = malloc(sizeof(*h));
    if (!h) {
        account_discharge(a, quota, bytes);
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for an account");
        return NULL;
    }
    *h = (struct hold){.account = account_ref(a), .thing = thing, .quota = quota, .bytes = bytes, .references = 1};
    list_append(bucket, &h->link);
    return h;
}

void accounts_note_size(struct accounts *all, const void *thing, uint64_t bytes)
{
    struct list *bucket = hold_bucket(all, thing);

    list_for_each_safe (node, after, bucket) {
        struct hold *h = list_entry(node, struct hold, link);

        if (h->thing != thing || bytes <= h->bytes)
            continue;
        account_add(h->account, h->quota, bytes - h->bytes);
        h->bytes = bytes;
        h->unchecked = true;
    }
}

int hold_check(struct hold *h, pid_t pid, struct error *e)
{
    uint64_t limit = h->account->all->limits->of[h->quota], used = h->account->used[h->quota];

    if (!h->unchecked)
        return 0;
    if (limit && used > limit)
        return exceeded(h->account, pid, h->quota, used - h->bytes, limit, e);
    h->unchecked = false;
    return 0;
}

void hold_free(struct hold *h)
{
    account_discharge(h->account, h->quota, h->bytes);
    list_remove(&h->link);
    account_unref(h->account);
    free(h);
}
