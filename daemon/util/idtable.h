/* Pointers by small integer ids. An id is never given out twice in the table's life unless 2^32 others lie between:
 * it holds a slot and the slot's generation. Not thread safe. */
#ifndef KOPS_UTIL_IDTABLE_H
#define KOPS_UTIL_IDTABLE_H

#include <stdint.h>

struct idtable {
    struct idtable_slot *slots; /* owned; the pointers in it are not */
    uint32_t capacity, used, free_head, max;
};

/* At most `max` entries, below 2^20. */
void idtable_init(struct idtable *t, uint32_t max);
void idtable_free(struct idtable *t);

/* Returns an id ≥ 1, or 0 when the table is full or memory is short. */
uint64_t idtable_add(struct idtable *t, void *pointer);

/* Returns the pointer; NULL for an id that is not (or no longer) in the table. */
void *idtable_get(const struct idtable *t, uint64_t id);
void *idtable_remove(struct idtable *t, uint64_t id);

/* For walking a table: the entry at place `i` of `capacity`, or NULL where there is none. */
void *idtable_at(const struct idtable *t, uint32_t i);

#endif
