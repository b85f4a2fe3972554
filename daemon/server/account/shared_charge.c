#include "server/account/shared_charge.h"

#include <stdlib.h>

static struct list *shared_charge_bucket(struct accounts *all, uint64_t space, uint64_t id)
{
    uint64_t h = (space * UINT64_C(0x9e3779b97f4a7c15) ^ id) * UINT64_C(0x9e3779b97f4a7c15);

    return &all->shared_charges[(h >> 32) % SHARED_CHARGE_BUCKETS];
}

/* Objects in memory have their address as `space` and id 0. Files have device and inode, which is not 0. */
static struct shared_charge *take(struct account *a, pid_t pid, enum quota quota, uint64_t space, uint64_t id,
                                  uint64_t bytes, struct error *e)
{
    struct list *bucket = shared_charge_bucket(a->all, space, id);
    struct shared_charge *h;

    list_for_each_safe (node, after, bucket) {
        h = list_entry(node, struct shared_charge, link);
        if (h->charge.account == a && h->space == space && h->id == id)
            return bytes > h->charge.amount && charge_change(&h->charge, pid, bytes, e) < 0 ? NULL
                                                                                            : shared_charge_ref(h);
    }
    h = calloc(1, sizeof(*h));
    if (!h) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for an account");
        return NULL;
    }
    if (charge_take(&h->charge, a, pid, quota, bytes, e) < 0) {
        free(h);
        return NULL;
    }
    h->space = space;
    h->id = id;
    h->references = 1;
    list_append(bucket, &h->link);
    return h;
}

struct shared_charge *shared_charge_take(struct account *a, pid_t pid, enum quota quota, const void *thing,
                                         uint64_t bytes, struct error *e)
{
    return take(a, pid, quota, (uintptr_t)thing, 0, bytes, e);
}

struct shared_charge *shared_charge_take_file(struct account *a, pid_t pid, enum quota quota, uint64_t device,
                                              uint64_t inode, uint64_t bytes, struct error *e)
{
    return take(a, pid, quota, device, inode, bytes, e);
}

void shared_charges_note_size(struct accounts *all, const void *thing, uint64_t bytes)
{
    struct list *bucket = shared_charge_bucket(all, (uintptr_t)thing, 0);

    list_for_each_safe (node, after, bucket) {
        struct shared_charge *h = list_entry(node, struct shared_charge, link);

        if (h->space != (uintptr_t)thing || h->id || bytes <= h->charge.amount)
            continue;
        charge_note(&h->charge, bytes);
        h->unchecked = true;
    }
}

int shared_charge_check(struct shared_charge *h, pid_t pid, struct error *e)
{
    if (h->unchecked && charge_check(&h->charge, pid, e) < 0)
        return -1;
    h->unchecked = false;
    return 0;
}

void shared_charge_free(struct shared_charge *h)
{
    charge_free(&h->charge);
    list_remove(&h->link);
    free(h);
}
