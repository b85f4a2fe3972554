/* The kinds of quotas and the limits on them, and peers whose use counts as another one's: subordinate users, and
 * identities. */
#ifndef KOPS_SERVER_ACCOUNT_IDENTITY_H
#define KOPS_SERVER_ACCOUNT_IDENTITY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/error.h"

/* ---- quotas ---- */

/* X(NAME, name): the name is the one in errors and in the log, and the key of `clients`. */
#define QUOTA_KINDS(X)                                                                                                 \
    X(CONNECTIONS, connections)                                                                                        \
    X(BUFFERS, buffers)                                                                                                \
    /* areas of memory that the user's mappings take: a part of MAPPINGS_MAX */                                        \
    X(MAPPINGS, mappings)                                                                                              \
    /* bytes of other processes' memory that is registered or referred to, each mapping once */                        \
    X(MAPPED, mapped_bytes)                                                                                            \
    /* bytes that alloc made, for as long as the daemon has them */                                                    \
    X(ALLOCATED, allocated_bytes)                                                                                      \
    /* bytes of host memory that the daemon has mapped (registered, from alloc, of rings), each file once */           \
    X(HOST, host_bytes)                                                                                                \
    /* bytes of memory that programs take in the daemon */                                                             \
    X(PROGRAMS, program_bytes)                                                                                         \
    /* bytes that wait in the daemon: partial messages, command lists of runs, sources, unread replies */              \
    X(WAITING, waiting_bytes)                                                                                          \
    X(INFLIGHT, inflight)                                                                                              \
    /* descriptors that the daemon holds: sockets, pidfds, doorbells, kept memory, waiting replies */                  \
    X(FDS, fds)                                                                                                        \
    /* bytes of modules and kernels, the binary of each module once */                                                 \
    X(KERNEL, kernel_bytes)

#define X(NAME, name) QUOTA_##NAME,
enum quota { QUOTA_KINDS(X) QUOTA_COUNT };
#undef X

extern const char *const quota_names[QUOTA_COUNT];

/* Subordinate users: /etc/subuid lets a user become them, so their charges go to the account of that user, the owner.
 * The ranges rise and do not overlap. */
struct subordinates {
    struct subordinate {
        uint32_t first, last, owner;
    } * ranges;
    unsigned count;
};
/* Reads a file of "owner:first:count" lines, owners by name or number. A missing file has no ranges; malformed lines
 * are skipped. -1: no memory. Blocks: looking up names may ask the network. */
int subordinates_read(struct subordinates *s, const char *path);
void subordinates_free(struct subordinates *s);
uid_t subordinates_owner(const struct subordinates *s, uid_t uid);

/* The settings of [quota], or of an identity. 0: no limit. */
struct quota_limits {
    struct subordinates subordinates; /* owned by the settings */
    uint64_t of[QUOTA_COUNT];
    uint64_t of_all[QUOTA_COUNT]; /* bounds for all users together; each user may have a share, see account_share() */
    uint64_t messages_per_s;
    uint64_t device_share; /* percent of one device's time */
    uint64_t faults;       /* faults of a user's kernels in a minute, at most ACCOUNT_FAULTS_MAX: [executors] faults */
};

/* ---- identities ----
 *
 * The peers of a socket of their own ([socket NAME]) count as its name, not as their users. In a container every
 * process may be root, so that a uid says nothing there.
 *
 * An identity has a number among those of users, at their upper end, and so an account, a domain and rows in the
 * statistics as a user has. Users with such numbers are refused. An identity keeps its number, and its memory, for as
 * long as the server lives. Thread: loop; identities_name() any. */

enum { IDENTITY_NAME_MAX = 63, IDENTITIES_MAX = 4096 };
/* "uid=4294967295", or "identity=" and a name, which is quoted nowhere: see identity_name_is_valid(). */
enum { WHO_MAX = IDENTITY_NAME_MAX + 16 };

#define IDENTITY_FIRST UINT32_C(0xffff0000)

static inline bool uid_is_identity(uid_t uid)
{
    return uid >= IDENTITY_FIRST && uid - IDENTITY_FIRST < IDENTITIES_MAX;
}

/* Rights of an identity's connections. Root has no others. */
struct identity_rights {
    unsigned classes;    /* bits by enum access_class */
    unsigned isolation;  /* enum isolation: at least this */
    bool kernels, codes; /* the identity may bring kernels; may have code handed out */
};

struct identity {
    char name[IDENTITY_NAME_MAX + 1];
    uid_t number;
    bool open; /* a socket serves it at present */
    struct identity_rights rights;
    struct quota_limits limits; /* without subordinates */
};

struct identities {
    _Atomic(struct identity *) all[IDENTITIES_MAX];
    unsigned count;
};

/* Letters, digits, ".", "_" and "-", not first, at most IDENTITY_NAME_MAX: what a namespace of Kubernetes, a label of
 * metrics and a word of the log may have. */
bool identity_name_is_valid(const char *name);

/* The identity of that name, which is made where there is none. NULL: there were too many since the start, or there is
 * no memory. */
struct identity *identities_get(struct identities *all, const char *name, struct error *e);
/* NULL: the number is a user's. */
struct identity *identities_find(const struct identities *all, uid_t number);
/* "": the number is a user's. */
const char *identities_name(const struct identities *all, uid_t number);
/* For the log: "uid=1000" or "identity=NAME". Returns `into`. */
const char *identities_who(const struct identities *all, uid_t number, char into[WHO_MAX]);
void identities_free(struct identities *all);

#endif
