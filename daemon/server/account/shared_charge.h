/* Shared charges: a mapping or module that a user refers to several times is charged to the user once. The user's
 * references share one charge, which ends with the last of them. Thread: loop. */
#ifndef KOPS_SERVER_ACCOUNT_SHARED_CHARGE_H
#define KOPS_SERVER_ACCOUNT_SHARED_CHARGE_H

#include "server/account/account.h"

struct shared_charge {
    struct list link;
    struct charge charge; /* bytes */
    uint64_t space, id;   /* of the charged object: see take() */
    bool unchecked;       /* the charge grew after the object's true size was known, without a check of the quota */
    unsigned references;
};

/* A reference to the account's shared charge for `thing`, which becomes at least `bytes`. NULL: quota_exceeded, or no
 * memory. Give it back before the reference to the thing. */
struct shared_charge *shared_charge_take(struct account *a, pid_t pid, enum quota quota, const void *thing,
                                         uint64_t bytes, struct error *e);
/* The same for a file, known by its device and inode, however often it is mapped. */
struct shared_charge *shared_charge_take_file(struct account *a, pid_t pid, enum quota quota, uint64_t device,
                                              uint64_t inode, uint64_t bytes, struct error *e);
/* The thing turned out to have `bytes`: raises every user's charge for it, over the quota if need be. Later users of
 * such a charge call shared_charge_check(). */
void shared_charges_note_size(struct accounts *all, const void *thing, uint64_t bytes);
/* -1 and quota_exceeded: the charge has grown over the quota. */
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
