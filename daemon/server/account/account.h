/* A user's account, or an identity's: the resources that all connections of a user have together, the quotas on them,
 * the rate limit on messages (messages_per_s, with a burst of one second's messages) and the device share.
 *
 * An account is made when a user's first connection comes. Connections, and objects that outlive them, hold references.
 * An account without references must have nothing charged, which is checked. It is kept for a while, so that connecting
 * anew begins no new second of messages, device time or log lines. Thread: loop. */
#ifndef KOPS_SERVER_ACCOUNT_ACCOUNT_H
#define KOPS_SERVER_ACCOUNT_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/account/identity.h"
#include "server/account/schedule.h"
#include "util/close_queue.h"
#include "util/error.h"
#include "util/list.h"

/* Reasons of refusals, for counters and the log: the quotas, then these. */
enum {
    REFUSED_MESSAGES = QUOTA_COUNT,
    REFUSED_SHARE,
    REFUSED_CONNECT,
    REFUSED_METHOD,
    REFUSED_KERNELS,
    REFUSED_LIMITS,
    REFUSED_HANDLE,
    REFUSED_FAULTS,
    REFUSED_COUNT
};
/* The reason's name in the log and in metrics. */
const char *account_refused_name(unsigned what);

enum { ACCOUNT_BUCKETS = 256, SHARED_CHARGE_BUCKETS = 4096, ACCOUNTS_IDLE_MAX = 256, SHARE_SLOTS = 10 };
enum { ACCOUNT_FAULTS_MAX = 64 };

struct connection;

struct accounts {
    const struct quota_limits *limits; /* the server's, of users and of all: may change at any time */
    struct identities identities;
    struct list buckets[ACCOUNT_BUCKETS]; /* struct account by bucket_link */
    struct list all;                      /* by link; accounts without references, too */
    struct list pressed;                  /* by pressed_link: accounts over QUOTA_WAITING with paused connections */
    struct list idle;                     /* accounts without references by idle_link, the longest idle first */
    unsigned n_idle;
    struct list shared_charges[SHARED_CHARGE_BUCKETS];
    struct close_queues *close_queues; /* the server's; NULL: descriptors are closed at once */
    uint64_t used[QUOTA_COUNT];        /* sum over all accounts */
    uint64_t runs;                     /* sum over all accounts */
    uint64_t refused[REFUSED_COUNT];   /* sum over all accounts, freed ones too */
};

/* An amount of one of a user's quotas. Its one holder (a connection, a request, a buffer, …) takes it once and gives it
 * back when the holder ends. A zeroed charge is empty: it may be freed and moved. */
struct charge {
    struct account *account; /* a reference; NULL: an empty charge */
    enum quota quota;
    uint64_t amount;
};

/* Faults and hangs of a user's kernels, each of which costs an executor. Too many in a minute, and the user's kernels
 * are refused for a while, each time for longer. */
struct account_faults {
    uint64_t at_ns[ACCOUNT_FAULTS_MAX]; /* ring of the last faults */
    unsigned n, newest;
    uint64_t last_ns, incident; /* the newest of all; see account_note_fault() */
    uint64_t until_ns;          /* the user's kernels are refused before */
    uint64_t pause_ns;          /* how long they were refused the last time; 0: never, or long ago */
};

/* Descriptors that are being closed for a user. They count as the user's until they are closed. */
struct account_close_queue {
    struct close_queue close_queue;
    struct charge fds;
};

struct account {
    struct list bucket_link, link, idle_link;
    struct accounts *all;
    uid_t uid;                         /* or an identity's number */
    const struct quota_limits *limits; /* limits of all users, or the identity's own */
    unsigned references;
    struct list pressed_link, paused; /* paused: connections that are not read, see peer/user_pressure.h */
    const void *exempt;               /* the connection that is read all the same; NULL: none */
    /* The connection whose long reply is being built (peer/request.h); NULL: none. */
    struct connection *builds_reply;
    struct list held;                          /* streams that wait, in the order of looks: see exec/timeline.c */
    struct list held_link;                     /* in that room's list of users */
    unsigned looked;                           /* the turn in which the streams were last looked at */
    struct list reply_queue;                   /* connections by long_reply_link, waiting to build their long replies */
    uint64_t used[QUOTA_COUNT];                /* the sum of the user's charges */
    uint64_t holes;                            /* bytes, the sum of the user's parts of the server's host_room */
    struct schedule_user turns;                /* turns of the loop; the tasks are the user's connections */
    struct account_close_queue files, sockets; /* sockets: those with unread bytes or descriptors in them */
    uint64_t runs;                             /* waiting or running */
    bool counting;                             /* a connection reads counters */
    bool tuning;                               /* a connection waits for a tuning */
    uint64_t requests, refused;
    double device_us;
    uint64_t due_ns; /* when the messages so far would have come at the allowed rate */
    /* Device time by tenths of a second; `newest` is the number of the newest tenth. */
    double share_us[SHARE_SLOTS];
    uint64_t newest;
    struct account_faults faults;
    struct {
        uint64_t logged_ns, unsaid;
    } said[REFUSED_COUNT];
};

void accounts_init(struct accounts *all, const struct quota_limits *limits);
/* Every reference has been given back by now. */
void accounts_free(struct accounts *all);

/* A reference to the account of the user, of the owner of a subordinate user, or of an identity by its number. NULL: no
 * memory. */
struct account *account_get(struct accounts *all, uid_t uid);
struct account *account_ref(struct account *a);
/* NULL is allowed; returns NULL. */
struct account *account_unref(struct account *a);

/* Returns how much more a user may take of a resource that all users share. The user holds `own` of it, and `left` is
 * free. Afterwards the user holds at most twice the amount that is still free, rounded up: some is left for the next
 * user. */
static inline uint64_t account_share(uint64_t left, uint64_t own)
{
    const uint64_t most = own / 2 < left ? left - own / 2 : 0; /* the user takes two thirds of this, rounded up */

    return most / 3 * 2 + (most % 3 * 2 + 2) / 3;
}

/* Takes `amount` of the user's quota into *charge, which is empty. Refuses with quota_exceeded and the details quota,
 * current and limit. `pid` is for the log. */
int charge_take(struct charge *charge, struct account *a, pid_t pid, enum quota quota, uint64_t amount,
                struct error *e);
/* Changes the charge to `amount`. When that is refused the charge stays; the error's `current` leaves this charge
 * out. */
int charge_change(struct charge *charge, pid_t pid, uint64_t amount, struct error *e);
/* Whether the charge is within the quota: for charges changed by charge_note(), which does not check. */
int charge_check(const struct charge *charge, pid_t pid, struct error *e);
/* Sets the charge to `amount` without checking the quota: for sizes that turn out later. */
static inline void charge_note(struct charge *charge, uint64_t amount)
{
    charge->account->used[charge->quota] += amount - charge->amount;
    charge->account->all->used[charge->quota] += amount - charge->amount;
    charge->amount = amount;
}

/* Takes a charge as charge_take() does, without checking the quota: for amounts that exist already. */
static inline void charge_count(struct charge *charge, struct account *a, enum quota quota, uint64_t amount)
{
    *charge = (struct charge){.account = account_ref(a), .quota = quota, .amount = amount};
    a->used[quota] += amount;
    a->all->used[quota] += amount;
}

/* Gives the charge back. It is empty then. */
static inline void charge_free(struct charge *charge)
{
    struct charge old = *charge;

    *charge = (struct charge){0};
    if (!old.account)
        return;
    old.account->used[old.quota] -= old.amount;
    old.account->all->used[old.quota] -= old.amount;
    account_unref(old.account);
}

/* Moves the charge to another holder; *from is empty then. */
static inline struct charge charge_move(struct charge *from)
{
    struct charge moved = *from;

    *from = (struct charge){0};
    return moved;
}

/* For errors: "user 1000" or "identity \"NAME\"". Returns `into`. */
const char *account_name(const struct account *a, char into[WHO_MAX]);

/* Closes descriptors that came from the user and are not kept. Takes ownership. They stay charged until they are
 * closed, and the user decides how long that takes. */
void account_close_fds(struct account *a, const int *fds, unsigned count);
/* Closes a connected socket of the user's, in which messages and descriptors may wait. */
void account_close_socket(struct account *a, int fd);
/* Whether the user has less than the quota. */
static inline bool account_has_room(const struct account *a, enum quota quota)
{
    return !a->limits->of[quota] || a->used[quota] < a->limits->of[quota];
}

/* Returns how many of the user's sockets wait to be closed beyond the number that may; those are hurried along. */
unsigned account_excess_sockets(struct account *a);
/* Refuses new descriptors while too many earlier ones are still being closed. */
int account_check_closing(struct account *a, pid_t pid, struct error *e);

int account_refuse_inflight(struct account *a, pid_t pid, struct error *e);
int account_limit_messages(struct account *a, pid_t pid, uint64_t now_ns, struct error *e);
int account_limit_share(struct account *a, pid_t pid, uint64_t now_ns, struct error *e);

/* The rate limit: counts one message. Refuses with retry_after_ms a message that comes faster than messages_per_s
 * allows, after a burst of one second's messages. */
static inline int account_admit_message(struct account *a, pid_t pid, uint64_t now_ns, struct error *e)
{
    a->requests++;
    return a->limits->messages_per_s ? account_limit_messages(a, pid, now_ns, e) : 0;
}

/* Call it after the request was counted in QUOTA_INFLIGHT. */
static inline int account_check_inflight(struct account *a, pid_t pid, struct error *e)
{
    uint64_t limit = a->limits->of[QUOTA_INFLIGHT];

    return limit && a->used[QUOTA_INFLIGHT] > limit ? account_refuse_inflight(a, pid, e) : 0;
}

/* A run of the user counts as waiting or running between these two calls. */
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

/* Adds the device time of a run that has just ended. */
void account_add_device_us(struct account *a, double us, uint64_t now_ns);
/* The device share: refuses a run, with retry_after_ms, when the user had more than device_share of the last second and
 * other users have runs that wait or run. */
static inline int account_check_share(struct account *a, pid_t pid, uint64_t now_ns, struct error *e)
{
    return a->limits->device_share ? account_limit_share(a, pid, now_ns, e) : 0;
}

/* A kernel of the user's faulted, or was ended while it ran. Several ends with one `incident` count once: they have one
 * cause. It is never 0. */
void account_note_fault(struct account *a, uint64_t incident, uint64_t now_ns);
/* Refuses kernels of the user, with retry_after_ms, after too many faults in a minute. */
int account_refuse_faults(struct account *a, pid_t pid, uint64_t now_ns, struct error *e);
static inline int account_check_faults(struct account *a, pid_t pid, uint64_t now_ns, struct error *e)
{
    return a->faults.until_ns > now_ns ? account_refuse_faults(a, pid, now_ns, e) : 0;
}

/* Counts a refusal and writes event=refuse, at most once a second for each account and reason (`what`). `limit` 0: the
 * line has no numbers. */
void account_refused(struct account *a, pid_t pid, unsigned what, uint64_t current, uint64_t limit);

/* Shared charges: a mapping or module that a user refers to several times is charged to the user once. The user's
 * references share one charge, which ends with the last of them. Thread: loop. */

struct shared_charge {
    struct list link;
    struct charge charge; /* bytes */
    uint64_t space, id;   /* the charged object's: see take() */
    bool unchecked;       /* the charge grew after the object's true size was known, without a check of the quota */
    unsigned references;
};

/* A reference to the account's shared charge for `thing`, which becomes at least `bytes`. NULL: quota_exceeded, or no
 * memory. Give it back before the reference to the thing. */
struct shared_charge *shared_charge_take(struct account *a, pid_t pid, enum quota quota, const void *thing,
                                         uint64_t bytes, struct error *e);
/* Like account_take() for a file, known by its device and inode, however often it is mapped. */
struct shared_charge *shared_charge_take_file(struct account *a, pid_t pid, enum quota quota, uint64_t device,
                                              uint64_t inode, uint64_t bytes, struct error *e);
/* The thing turned out to have `bytes`: raises every user's charge for it, over the quota if need be. Later users of
 * such a charge call shared_charge_check(). */
void shared_charges_note_size(struct accounts *all, const void *thing, uint64_t bytes);
/* -1 and quota_exceeded: the charge has grown over the quota. */
int shared_charge_check(struct shared_charge *h, pid_t pid, struct error *e);
void shared_charge_free(struct shared_charge *h);

static inline struct shared_charge *shared_charge_ref(struct shared_charge *h)
{
    if (h)
        h->references++;
    return h;
}

/* NULL is allowed; returns NULL. */
static inline struct shared_charge *shared_charge_unref(struct shared_charge *h)
{
    if (h && --h->references == 0)
        shared_charge_free(h);
    return NULL;
}

#endif
