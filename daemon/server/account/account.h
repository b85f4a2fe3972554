/* What each user has of the daemon, all connections together, and how much that may be.
 *
 * An account is made when a user's first connection comes, and its references are the connections and whatever outlives
 * them. One without references has nothing left, which is checked; it is kept for a while all the same, so that
 * connecting anew begins no new second of messages, device time or lines in the log. Thread: loop. */
#ifndef KOPS_SERVER_ACCOUNT_ACCOUNT_H
#define KOPS_SERVER_ACCOUNT_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/account/schedule.h"
#include "util/close_queue.h"
#include "util/error.h"
#include "util/list.h"

enum quota {
    QUOTA_CONNECTIONS,
    QUOTA_BUFFERS,
    QUOTA_MAPPINGS,  /* of the daemon's, by the areas of memory that they take: a part of MAPPINGS_MAX */
    QUOTA_MAPPED,    /* bytes of others' memory that is registered or referred to, each mapping once */
    QUOTA_ALLOCATED, /* bytes that alloc made, for as long as the daemon has them */
    QUOTA_HOST, /* bytes of the host's memory that are mapped here, each file once: registered, alloc's, the channels'
                 */
    QUOTA_PROGRAMS, /* bytes that programs take here */
    QUOTA_WAITING,  /* bytes that wait here: requests not read to their end, bodies of runs, sources, unread replies */
    QUOTA_INFLIGHT,
    QUOTA_FDS,    /* descriptors that the daemon holds: sockets, pidfds, bells, kept memory, replies that wait */
    QUOTA_KERNEL, /* bytes of modules and kernels, each module's code once */
    QUOTA_COUNT
};

/* As errors and the log say them; the same names are keys of `clients`. */
extern const char *const quota_names[QUOTA_COUNT];

/* Users that another user may become, by /etc/subuid: what they have is that one's. Rising, none overlapping. */
struct subordinates {
    struct subordinate {
        uint32_t first, last, owner;
    } * ranges;
    unsigned count;
};
/* Reads a file of "owner:first:count" lines, owners by name or number. No file, and lines that make no sense, are none.
 * -1: no memory. Blocks, for names may be looked up in a network. */
int subordinates_read(struct subordinates *s, const char *path);
void subordinates_free(struct subordinates *s);
uid_t subordinates_owner(const struct subordinates *s, uid_t uid);

/* 0: no limit. */
struct quota_limits {
    struct subordinates subordinates; /* whoever made the settings owns them */
    uint64_t of[QUOTA_COUNT];
    uint64_t of_all[QUOTA_COUNT]; /* of all users together; each may have a share of it, see account_share() */
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

enum { ACCOUNT_BUCKETS = 256, SHARED_CHARGE_BUCKETS = 4096, ACCOUNTS_IDLE_MAX = 256, SHARE_SLOTS = 10 };

struct connection;

struct accounts {
    const struct quota_limits *limits;    /* the server's: may change at any time */
    struct list buckets[ACCOUNT_BUCKETS]; /* struct account by bucket_link */
    struct list all;                      /* by link; those without references, too */
    struct list pressed;                  /* by pressed_link: those over QUOTA_WAITING with connections that wait */
    struct list idle;                     /* by idle_link, the one idle for longest first */
    unsigned n_idle;
    struct list shared_charges[SHARED_CHARGE_BUCKETS];
    struct close_queues *close_queues; /* the server's; NULL: descriptors are closed at once */
    uint64_t used[QUOTA_COUNT];        /* of all accounts */
    uint64_t runs;                     /* of all accounts */
    uint64_t refused[REFUSED_COUNT];   /* of all accounts there ever were */
};

/* A part of one of a user's quotas, and who has it is its one holder: it is taken once, and given back by whatever ends
 * the holder. Zeroes are a charge of nothing, which may be freed and moved. */
struct charge {
    struct account *account; /* a reference; NULL: nothing is charged */
    enum quota quota;
    uint64_t amount;
};

/* Descriptors of a user's that are being closed. They count as the user's. */
struct account_close_queue {
    struct close_queue close_queue;
    struct charge fds;
};

struct account {
    struct list bucket_link, link, idle_link;
    struct accounts *all;
    uid_t uid;
    unsigned references;
    struct list pressed_link, paused; /* connections that are not read: see user_pressure.h */
    const void *exempt;               /* one that is, all the same; NULL: none */
    struct connection *reporting;     /* a long reply is built for it (peer/long_reply.c); NULL */
    struct list held, held_link; /* its streams that wait (timeline.c), the next one first; in the server's users */
    unsigned looked;             /* the turn in which they were looked at last */
    struct list reports;         /* connections by long_reply_link that wait for that */
    uint64_t used[QUOTA_COUNT];  /* the sum of its charges */
    uint64_t holes;              /* bytes, the sum of its parts of the server's host_room */
    struct schedule_user turns;  /* of the loop; its tasks are the connections */
    struct account_close_queue files,
        sockets;   /* what is closed for the user; sockets: connections with what waits in them */
    uint64_t runs; /* waiting or running */
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

/* A reference to the account of the user, or of the one that the user is a subordinate of; NULL: no memory. */
struct account *account_get(struct accounts *all, uid_t uid);
struct account *account_ref(struct account *a);
/* NULL is allowed; returns NULL. */
struct account *account_unref(struct account *a);

/* How much more a user may take of a resource that all users share: the user holds `own`, and `left` is free.
 * Afterwards it holds at most twice what is still free, rounded up, so there is some left for the next user. */
static inline uint64_t account_share(uint64_t left, uint64_t own)
{
    const uint64_t most = own / 2 < left ? left - own / 2 : 0; /* of which two thirds are taken, rounded up */

    return most / 3 * 2 + (most % 3 * 2 + 2) / 3;
}

/* Takes `amount` of the user's quota, or refuses: quota_exceeded with quota, current and limit. *charge is one of
 * nothing; `pid` is for the log. */
int charge_take(struct charge *charge, struct account *a, pid_t pid, enum quota quota, uint64_t amount,
                struct error *e);
/* The same charge becomes `amount`, or stays as it is where that is refused. What the error says the user has is
 * without this charge. */
int charge_change(struct charge *charge, pid_t pid, uint64_t amount, struct error *e);
/* Whether it is within the quota, as charge_note() does not ask. */
int charge_check(const struct charge *charge, pid_t pid, struct error *e);
/* What a charge is turns out to be another amount: within the quota or not. */
static inline void charge_note(struct charge *charge, uint64_t amount)
{
    charge->account->used[charge->quota] += amount - charge->amount;
    charge->account->all->used[charge->quota] += amount - charge->amount;
    charge->amount = amount;
}

/* As charge_take(), without refusing: what is there already. */
static inline void charge_count(struct charge *charge, struct account *a, enum quota quota, uint64_t amount)
{
    *charge = (struct charge){.account = account_ref(a), .quota = quota, .amount = amount};
    a->used[quota] += amount;
    a->all->used[quota] += amount;
}

/* Gives it back; it is one of nothing then. */
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

/* Another holder has it from now on. */
static inline struct charge charge_move(struct charge *from)
{
    struct charge moved = *from;

    *from = (struct charge){0};
    return moved;
}

/* Descriptors that came from the user and that nobody keeps. Takes ownership; they are charged until they are closed,
 * which may take as long as the user likes. */
void account_close_fds(struct account *a, const int *fds, unsigned count);
/* A connected socket of the user's, in which things of the user's may wait. */
void account_close_socket(struct account *a, int fd);
/* Whether the user has less than the quota. */
static inline bool account_has_room(const struct account *a, enum quota quota)
{
    return !a->all->limits->of[quota] || a->used[quota] < a->all->limits->of[quota];
}

/* How many more sockets of the user's wait to be closed than may; those are hurried along. */
unsigned account_excess_sockets(struct account *a);
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

#endif
