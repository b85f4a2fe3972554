/* Chooses between two ways to do equal work by their measured times. A key puts work into classes. The first uses of a
 * class try both ways; then the faster one is used. Both are measured again now and then, so rarely that it costs
 * little.
 *
 * Pure bookkeeping: callers measure. The table is bounded; if there is no place for a new class, the least recently
 * used one is forgotten. Thread: any. */
#ifndef KOPS_HOST_CHOICE_H
#define KOPS_HOST_CHOICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { CHOICE_CLASSES = 512 /* most classes in the table */ };

struct choices {
    pthread_mutex_t lock;
    uint64_t now;                 /* uses of all classes */
    struct choice_class *classes; /* NULL: no memory, or choices are switched off */
};

struct choice_turn {
    unsigned way; /* 0 or 1; 0 is the default */
    bool measure; /* the caller must report the time */
};

/* Makes the table. Without memory for it, way 0 is always chosen. */
void choices_init(struct choices *choices);
void choices_deinit(struct choices *choices);

/* Chooses the way for a use of the class. `key` is not 0. */
struct choice_turn choices_next(struct choices *choices, uint64_t key);

/* Reports that a turn with `measure` took `ns` for `work` units, such as elements of a product. */
void choices_report(struct choices *choices, uint64_t key, unsigned way, double ns, double work);

#endif
