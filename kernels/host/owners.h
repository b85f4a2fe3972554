/* The order in which a worker serves streams: deficit round-robin by owner on measured time, and in turn within an
 * owner. An owner that was idle and has time left is next.
 *
 * Owners are numbers, and known by a hash of the number: two owners with the same hash share the time of one. Owns
 * nothing; thread: the one that has the executor's lock. */
#ifndef KOPS_HOST_OWNERS_H
#define KOPS_HOST_OWNERS_H

#include <stdint.h>

#include "util/list.h"

enum { OWNERS_MAX = 1024, OWNERS_QUANTUM_NS = 500 * 1000, OWNERS_DEBT_MAX_NS = 200 * 1000 * 1000 };

struct owner {
    struct list link;  /* in the owners' list while a stream of this owner is ready */
    struct list ready; /* the next one first */
    int64_t credit_ns;
};

struct owners {
    struct list list; /* the next one first */
    struct owner all[OWNERS_MAX];
};

void owners_init(struct owners *owners);
struct owner *owners_get(struct owners *owners, uint64_t number);

/* A stream of the owner is ready. It waits behind those that are. */
void owners_add(struct owners *owners, struct owner *owner, struct list *node);
/* Takes the next stream, and tells its owner; NULL: none is ready. */
struct list *owners_next(struct owners *owners, struct owner **ret_owner);
/* The owner's stream was served for so long. */
void owners_charge(struct owner *owner, uint64_t ns);

#endif
