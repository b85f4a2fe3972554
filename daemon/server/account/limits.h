/* The kinds of quotas, and the limits on them; subordinate users, whose use counts as another one's. */
#ifndef KOPS_SERVER_ACCOUNT_LIMITS_H
#define KOPS_SERVER_ACCOUNT_LIMITS_H

#include <stdint.h>
#include <sys/types.h>

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

#endif
