/* Keeps the owners' time. */
#include "owners.h"

void owners_init(struct owners *owners)
{
    list_init(&owners->list);
    for (unsigned i = 0; i < OWNERS_MAX; i++) {
        list_init(&owners->all[i].link);
        list_init(&owners->all[i].ready);
        owners->all[i].credit_ns = OWNERS_QUANTUM_NS;
    }
}

struct owner *owners_get(struct owners *owners, uint64_t number)
{
    return &owners->all[(number * UINT64_C(0x9e3779b97f4a7c15) >> 32) % OWNERS_MAX];
}

/* Moves the owner behind all others, and adds a quantum to its credit. */
static void go_last(struct owners *owners, struct owner *owner)
{
    owner->credit_ns += OWNERS_QUANTUM_NS;
    list_remove(&owner->link);
    list_append(&owners->list, &owner->link);
}

void owners_add(struct owners *owners, struct owner *owner, struct list *node)
{
    list_append(&owner->ready, node);
    if (!list_empty(&owner->link))
        return;
    if (owner->credit_ns > 0)
        list_append(owners->list.next, &owner->link); /* before the first */
    else
        go_last(owners, owner);
}

struct list *owners_next(struct owners *owners, struct owner **ret_owner)
{
    struct owner *owner;
    struct list *node;

    if (list_empty(&owners->list))
        return NULL;
    for (;;) {
        owner = list_entry(list_first(&owners->list), struct owner, link);
        if (owner->credit_ns > 0)
            break;
        go_last(owners, owner);
    }
    node = list_first(&owner->ready);
    list_remove(node);
    if (list_empty(&owner->ready))
        list_remove(&owner->link);
    *ret_owner = owner;
    return node;
}

void owners_charge(struct owner *owner, uint64_t ns)
{
    const uint64_t most = OWNERS_DEBT_MAX_NS;

    owner->credit_ns -= (int64_t)(ns < most ? ns : most);
    if (owner->credit_ns < -(int64_t)most)
        owner->credit_ns = -(int64_t)most;
}
