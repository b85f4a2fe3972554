/* Shared by mapping.c and mapping_entries.c. Thread: loop. */
#ifndef KOPS_BACKEND_MAPPING_INTERNAL_H
#define KOPS_BACKEND_MAPPING_INTERNAL_H

#include "backend/mapping.h"
#include "backend/memory_ids.h"

static inline void mapping_set_state(struct mapping *m, enum mapping_state state)
{
    memory_id_set(m->memory_id, state == MAPPING_OPEN ? m->memory : NULL);
    m->registry->in_state[m->state]--;
    m->registry->in_state[state]++;
    m->state = state;
}

/* Takes the next step for the mapping's state, references and uses. May free the mapping. */
void mapping_advance(struct mapping *m);

/* The bucket for entries with the import's handle bytes. */
struct list *mapping_bucket(struct mapping_registry *r, const struct backend_import *import);

/* Whether the mapping was made from the same device and handle, ids apart. */
bool mapping_same_handle(const struct mapping *m, const struct backend_device *device,
                         const struct backend_import *import);

/* Closes descriptors that the driver has accepted as its own. Blocks. Thread: the pool's. */
void mapping_close_import(struct backend_import *import);

/* Gives away descriptors that a client sent and that may be of any kind. */
void mapping_discard_import(const struct mapping *m, struct backend_import *import);

#endif
