/* Chooses between ways to do the same work by how long they took. Work is put into classes by a key. The first uses of
 * a class give every candidate some turns; then the one with the best minimum is used. A rival gets a turn now and then
 * and replaces the chosen one only for a gain beyond noise.
 *
 * Pure bookkeeping: it measures nothing and knows no clock. The table is bounded; where it is full the class that was
 * not used for longest is forgotten, and measured again at its next use. Thread: any. */
#ifndef KOPS_HOST_CHOICE_H
#define KOPS_HOST_CHOICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    CHOICE_CANDIDATES = 5, /* at most, numbered from 0; sets of them are masks */
    CHOICE_CLASSES = 512   /* that are remembered */
};

/* What is known of one candidate. */
struct choice_candidate {
    uint32_t taken;    /* turns that were given to it, other than the chosen one's */
    uint32_t reported; /* times, the first of which only warmed it up and is not in `best` */
    double best;       /* least cost, in ns for a unit of work; infinite: none yet */
};

/* What is known of one class. */
struct choice_class {
    uint64_t key; /* 0: free */
    uint64_t used_at;
    uint32_t uses;
    uint8_t candidates; /* mask */
    int8_t chosen;      /* -1: candidates still have turns */
    int8_t probing;     /* the next use measures the chosen one, as the last one did a rival */
    struct choice_candidate of[CHOICE_CANDIDATES];
};

struct choices {
    pthread_mutex_t lock;
    uint64_t now; /* uses */
    struct choice_class *classes;
};

struct choice_turn {
    unsigned candidate;
    bool measure; /* the caller is to report how long it took */
};

/* False: no memory for the table, every turn is then the first candidate's. */
bool choices_init(struct choices *choices);
void choices_deinit(struct choices *choices);

/* The candidate for this use of the class: of `candidates` (a mask, not 0), which `order` lists, the one that is best
 * without knowledge first. A class whose candidates are others than last time begins anew. `key` is not 0. */
struct choice_turn choices_next(struct choices *choices, uint64_t key, unsigned candidates, const uint8_t *order);

/* A turn with `measure` took `ns` for `work` units, say elements of a product. */
void choices_report(struct choices *choices, uint64_t key, unsigned candidate, double ns, double work);

/* Copies the index-th class that is known; false: there are no more. For reports: chosen, over what, by how much. */
bool choices_get(struct choices *choices, unsigned index, struct choice_class *ret);

#endif
