/* A user's hold on a mapping or on code: what several references of one user to one thing share. The thing is charged
 * once, as long as there is any reference. Thread: loop. */
#ifndef KOPS_SERVER_ACCOUNT_SHARED_CHARGE_H
#define KOPS_SERVER_ACCOUNT_SHARED_CHARGE_H

#include "server/account/account.h"

struct shared_charge {
    struct list link;
    struct charge charge; /* bytes */
    uint64_t space, id;   /* of the thing: see hold_take() */
    bool unchecked;       /* it has turned out to be larger than what was charged, and is counted as that */
    unsigned references;
};

/* A reference to the account's hold on `thing`, which becomes at least `bytes`. NULL: quota_exceeded, or no memory. It
 * must be given back before the reference to the thing is. */
struct shared_charge *shared_charge_take(struct account *a, pid_t pid, enum quota quota, const void *thing,
                                         uint64_t bytes, struct error *e);
/* The same on a file, which is known by its device and inode, however often it is mapped. */
struct shared_charge *shared_charge_take_file(struct account *a, pid_t pid, enum quota quota, uint64_t device,
                                              uint64_t inode, uint64_t bytes, struct error *e);
/* The thing has turned out to be that large: so it is counted for everybody who has a hold on it, within the quota or
 * not. Who goes on to use it calls hold_check(). */
void shared_charges_note_size(struct accounts *all, const void *thing, uint64_t bytes);
/* -1: quota_exceeded, for it has grown over the quota. */
int shared_charge_check(struct shared_charge *h, pid_t pid, struct error *e);
void shared_charge_free(struct shared_charge *h);

static inline struct shared_charge *shared_charge_ref(struct shared_charge *h)
{
    if (h)
        h->references++;
    return h;
}

/* NULL is allowed; returns NULL. */
static inline struct shared_charge *shared_charge_unref(struct shared_charge *h)
{
    if (h && --h->references == 0)
        shared_charge_free(h);
    return NULL;
}

#endif
