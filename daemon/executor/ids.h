/* Small dense numbers, given out lowest first after those that came back. Not thread safe. */
#ifndef KOPS_EXECUTOR_IDS_H
#define KOPS_EXECUTOR_IDS_H

#include <stdint.h>

struct ids {
    uint32_t *free; /* owned: numbers that came back */
    uint32_t n_free, room, highest, max;
};

void ids_init(struct ids *t, uint32_t max);
void ids_free(struct ids *t);

/* From 1 to max; 0: none is left, or no memory. */
uint32_t ids_take(struct ids *t);
/* Harmless with 0. */
void ids_give(struct ids *t, uint32_t id);

#endif
