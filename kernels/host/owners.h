/* The order in which a worker serves streams: deficit round-robin over owners by measured time, and round-robin over an
 * owner's streams. An owner that was idle and has credit left comes next.
 *
 * Owners are numbers, looked up by a hash: two owners with equal hashes share the time of one. Owns nothing. Thread:
 * any that holds the executor's lock. */
#ifndef KOPS_HOST_OWNERS_H
#define KOPS_HOST_OWNERS_H

#include <stdint.h>

#include "util/list.h"

enum { OWNERS_MAX = 1024, OWNERS_QUANTUM_NS = 500 * 1000, OWNERS_DEBT_MAX_NS = 200 * 1000 * 1000 };

struct owner {
    struct list link;  /* in the owners' list while a stream of this owner is ready */
    struct list ready; /* ready streams, the next first */
    int64_t credit_ns;
};

struct owners {
    struct list list; /* owners with ready streams, the next first */
    struct owner all[OWNERS_MAX];
};

void owners_init(struct owners *owners);
struct owner *owners_get(struct owners *owners, uint64_t number);

/* Adds a stream that is ready, behind the owner's other ready streams. */
void owners_add(struct owners *owners, struct owner *owner, struct list *node);
/* Takes the next stream and finds its owner; NULL: none is ready. */
struct list *owners_next(struct owners *owners, struct owner **ret_owner);
void owners_charge(struct owner *owner, uint64_t ns);

#endif
