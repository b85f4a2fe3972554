/* What each user has of the daemon, all connections together, and how much that may be.
 *
 * An account is made when a user's first connection comes, and its references are the connections and whatever outlives
 * them. One without references has nothing left, which is checked; it is kept for a while all the same, so that
 * connecting anew begins no new second of messages, device time or lines in the log. Thread: loop. */
#ifndef KOPS_SERVER_ACCOUNT_H
#define KOPS_SERVER_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/closer.h"
#include "util/error.h"
#include "util/list.h"

enum quota {
    QUOTA_CONNECTIONS,
    QUOTA_BUFFERS,
    QUOTA_MAPPED,    /* bytes of others' memory that is registered or referred to, each mapping once */
    QUOTA_ALLOCATED, /* bytes that alloc made, for as long as the daemon has them */
    QUOTA_INFLIGHT,
    QUOTA_FDS,    /* descriptors that the daemon holds: sockets, pidfds, bells, kept memory, replies that wait */
    QUOTA_KERNEL, /* bytes of modules and kernels, each module's code once */
    QUOTA_COUNT
};

/* As errors and the log say them; the same names are keys of `clients`. */
extern const char *const quota_names[QUOTA_COUNT];

/* 0: no limit. */
struct quota_limits {
    uint64_t of[QUOTA_COUNT];
    uint64_t messages_per_s;
    uint64_t device_share; /* percent of one device's time */
};

/* What is refused, for counting and for the log: the quotas, and beyond them these. */
enum {
    REFUSED_MESSAGES = QUOTA_COUNT,
    REFUSED_SHARE,
    REFUSED_CONNECT,
    REFUSED_METHOD,
    REFUSED_KERNELS,
    REFUSED_LIMITS,
    REFUSED_HANDLE,
    REFUSED_COUNT
};
/* As the log and metrics say it. */
const char *account_refused_name(unsigned what);

enum { ACCOUNT_BUCKETS = 256, HOLD_BUCKETS = 4096, ACCOUNTS_IDLE_MAX = 256, SHARE_SLOTS = 10 };

struct accounts {
    const struct quota_limits *limits;    /* the server's: may change at any time */
    struct list buckets[ACCOUNT_BUCKETS]; /* struct account by bucket_link */
    struct list all;                      /* by link; those without references, too */
    struct list idle;                     /* by idle_link, the one idle for longest first */
    unsigned n_idle;
    struct list holds[HOLD_BUCKETS];
    struct closer *closer;           /* the server's; NULL: descriptors are closed at once */
    uint64_t runs;                   /* of all accounts */
    uint64_t refused[REFUSED_COUNT]; /* of all accounts there ever were */
};

struct account {
    struct list bucket_link, link, idle_link;
    struct accounts *all;
    uid_t uid;
    unsigned references;
    uint64_t used[QUOTA_COUNT];
    struct closer_lane files, sockets; /* what is closed for the user; sockets: connections with what waits in them */
    unsigned closing;                  /* descriptors in both, which count as the user's */
    uint64_t runs;                     /* waiting or running */
    uint64_t requests, refused;
    double device_us;
    uint64_t due_ns; /* when its messages so far would have come at the rate allowed */
    /* Device time by the tenth of a second it was used in; the newest tenth is `newest`. */
    double share_us[SHARE_SLOTS];
    uint64_t newest;
    struct {
        uint64_t logged_ns, unsaid;
    } said[REFUSED_COUNT];
};

void accounts_init(struct accounts *all, const struct quota_limits *limits);
/* Every reference has been given back. */
void accounts_free(struct accounts *all);

/* A reference to the user's account; NULL: no memory. */
struct account *account_get(struct accounts *all, uid_t uid);
struct account *account_ref(struct account *a);
/* NULL is allowed; returns NULL. */
struct account *account_unref(struct account *a);

/* Counts `amount` more, or refuses: quota_exceeded with quota, current and limit. `pid` is for the log. */
int account_charge(struct account *a, pid_t pid, enum quota quota, uint64_t amount, struct error *e);
/* The same without refusing: what is there already. */
static inline void account_add(struct account *a, enum quota quota, uint64_t amount)
{
    a->used[quota] += amount;
}

static inline void account_discharge(struct account *a, enum quota quota, uint64_t amount)
{
    a->used[quota] -= amount;
}

/* Descriptors that came from the user and that nobody keeps. Takes ownership; they are charged until they are closed,
 * which may take as long as the user likes. */
void account_close_fds(struct account *a, const int *fds, unsigned count);
/* A connected socket of the user's, in which things of the user's may wait. */
void account_close_socket(struct account *a, int fd);
/* Whether more may come while those that came before are still being closed. */
int account_check_closing(struct account *a, pid_t pid, struct error *e);

int account_refuse_inflight(struct account *a, pid_t pid, struct error *e);
int account_limit_messages(struct account *a, pid_t pid, uint64_t now_ns, struct error *e);
int account_limit_share(struct account *a, pid_t pid, uint64_t now_ns, struct error *e);

/* One message more; refuses with retry_after_ms what comes faster than allowed, beyond a second's worth at once. */
static inline int account_admit_message(struct account *a, pid_t pid, uint64_t now_ns, struct error *e)
{
    a->requests++;
    return a->all->limits->messages_per_s ? account_limit_messages(a, pid, now_ns, e) : 0;
}

/* After the request was counted in QUOTA_INFLIGHT. */
static inline int account_check_inflight(struct account *a, pid_t pid, struct error *e)
{
    uint64_t limit = a->all->limits->of[QUOTA_INFLIGHT];

    return limit && a->used[QUOTA_INFLIGHT] > limit ? account_refuse_inflight(a, pid, e) : 0;
}

/* A run of the user waits or runs from the one to the other. */
static inline void account_begin_run(struct account *a)
{
    a->runs++;
    a->all->runs++;
}

static inline void account_end_run(struct account *a)
{
    a->runs--;
    a->all->runs--;
}

/* A run that has ended just now took so long of a device. */
void account_add_device_us(struct account *a, double us, uint64_t now_ns);
/* Refuses a run, with retry_after_ms, when the user had more than its share of the last second and other users have
 * runs that wait or run. */
static inline int account_check_share(struct account *a, pid_t pid, uint64_t now_ns, struct error *e)
{
    return a->all->limits->device_share ? account_limit_share(a, pid, now_ns, e) : 0;
}

/* Counts a refusal and writes event=refuse, at most once a second for each account and `what`. `limit` 0: there is no
 * number to say. */
void account_refused(struct account *a, pid_t pid, unsigned what, uint64_t current, uint64_t limit);

/* ---- what several references of one user share ---- */

/* A user's hold on a mapping or on code: counted once, as long as there is any reference. */
struct hold {
    struct list link;
    struct account *account; /* a reference */
    const void *thing;
    enum quota quota;
    uint64_t bytes;
    bool unchecked; /* it has turned out to be larger than what was charged, and is counted as that */
    unsigned references;
};

/* A reference to the account's hold on `thing`, which becomes at least `bytes`. NULL: quota_exceeded, or no memory. It
 * must be given back before the reference to the thing is. */
struct hold *account_hold(struct account *a, pid_t pid, enum quota quota, const void *thing, uint64_t bytes,
                          struct error *e);
/* The thing has turned out to be that large: so it is counted for everybody who has a hold on it, within the quota or
 * not. Who goes on to use it calls hold_check(). */
void accounts_note_size(struct accounts *all, const void *thing, uint64_t bytes);
/* -1: quota_exceeded, for it has grown over the quota. */
int hold_check(struct hold *h, pid_t pid, struct error *e);
void hold_free(struct hold *h);

static inline struct hold *hold_ref(struct hold *h)
{
    if (h)
        h->references++;
    return h;
}

/* NULL is allowed; returns NULL. */
static inline struct hold *hold_unref(struct hold *h)
{
    if (h && --h->references == 0)
        hold_free(h);
    return NULL;
}

#endif
