/* Messages between the daemon and the cache helper: packets of a fixed size over a socket of packets, with bodies as
 * sealed memfds. Both sides are this program. A helper that is a service of its own may have another version during an
 * upgrade, which the first packet tells.
 *
 * The daemon trusts no packet of the helper: its peer is whoever answers on the network.
 *
 * Thread: any. Functions neither block (the helper's first packet apart) nor keep state. */
#ifndef KOPS_REMOTE_WIRE_H
#define KOPS_REMOTE_WIRE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/error.h"

enum {
    REMOTE_VERSION = 1,
    REMOTE_KEY_BYTES = 32,
    REMOTE_URL_SIZE = 1024,           /* sizes of texts, with the ending zero */
    REMOTE_AUTHORIZATION_SIZE = 4096, /* the header's value */
    REMOTE_WHY_SIZE = 160,
};

/* Starts `program` with one end of a socket of packets as its descriptor `there`; `what` names it in errors. May block.
 * -1: nothing was started. */
struct remote_process {
    pid_t pid;
    int fd, pidfd; /* the other end; -1: none */
};
int remote_start(const char *what, const char *program, char *const *arguments, char *const *environment, int there,
                 struct remote_process *ret, struct error *e);

/* The daemon's first packet. Empty texts: none. */
struct remote_setup {
    uint32_t version;
    uint32_t timeout_ms; /* for one transfer */
    uint64_t max_bytes;
    char url[REMOTE_URL_SIZE], authorization[REMOTE_AUTHORIZATION_SIZE], ca[PATH_MAX];
};

enum remote_order_kind { REMOTE_ORDER_GET = 1, REMOTE_ORDER_PUT /* with a memfd */, REMOTE_ORDER_CANCEL };

struct remote_order {
    uint32_t kind, unused;
    uint64_t id;
    unsigned char key[REMOTE_KEY_BYTES];
};

enum remote_event_kind { REMOTE_EVENT_READY = 1, REMOTE_EVENT_FAILED, REMOTE_EVENT_ANSWER };
/* Outcomes. OK of a get brings a sealed memfd. */
enum remote_answer { REMOTE_ANSWER_OK, REMOTE_ANSWER_MISSING, REMOTE_ANSWER_FAILED };

struct remote_event {
    uint32_t kind, answer;
    uint64_t id;
    char why[REMOTE_WHY_SIZE]; /* FAILED: the reason; READY: missing parts of the sandbox */
};

/* Sends a packet. `fd` goes along unless it is negative, and stays the caller's; `flags`: as for sendmsg(2). Returns 0,
 * or -1 with errno. */
int remote_send(int socket, const void *packet, size_t size, int flags, int fd);

/* Receives a packet. Returns its size; 0 at the end; -1 with errno. *ret_fd: the only descriptor that came along, or
 * -1; more than one are closed, and the packet then counts as one of size 1. */
long remote_receive(int socket, void *packet, size_t size, int flags, int *ret_fd);

/* Checks that nobody can change the memfd any more, and that it has at most `max` bytes. Returns its size, or -1 with
 * the reason. */
int64_t remote_body_size(int fd, uint64_t max, const char **ret_why);
int remote_body_seal(int fd);

#endif
