/* Chooses between two ways to do the same work by how long they took. Work is put into classes by a key. The first uses
 * of a class try both; then the faster one is used. Both are measured again now and then, as often as this costs
 * little.
 *
 * Pure bookkeeping: it measures nothing and knows no clock. The table is bounded; where it is full the class that was
 * not used for longest is forgotten, and measured again at its next use. Thread: any. */
#ifndef KOPS_HOST_CHOICE_H
#define KOPS_HOST_CHOICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { CHOICE_CLASSES = 512 /* that are remembered */ };

struct choices {
    pthread_mutex_t lock;
    uint64_t now;                 /* uses of all classes */
    struct choice_class *classes; /* NULL: no memory, or none is chosen */
};

struct choice_turn {
    unsigned way; /* 0, which is the better one without knowledge, or 1 */
    bool measure; /* the caller is to report how long it took */
};

/* No memory for the table: every turn is the first way's. */
void choices_init(struct choices *choices);
void choices_deinit(struct choices *choices);

/* The way for this use of the class. `key` is not 0. */
struct choice_turn choices_next(struct choices *choices, uint64_t key);

/* A turn with `measure` took `ns` for `work` units, say elements of a product. */
void choices_report(struct choices *choices, uint64_t key, unsigned way, double ns, double work);

#endif
