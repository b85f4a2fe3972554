/* What mapping.c and mapping_entries.c share. */
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

/* Takes the next step that state, references and uses ask for. May free the mapping. */
void mapping_advance(struct mapping *m);

/* Where entries with the import's handle bytes are. */
struct list *mapping_bucket(struct mapping_registry *r, const struct backend_import *import);

/* Whether the mapping was made from the same reference to memory of another process, id apart. */
bool mapping_same_handle(const struct mapping *m, const struct backend_device *device,
                         const struct backend_import *import);

/* Closes an import's descriptors, which the driver has found to be its own. Blocks. */
void mapping_close_import(struct backend_import *import);

/* Gives descriptors away that a client sent and that may be anything. Loop thread. */
void mapping_discard_import(const struct mapping *m, struct backend_import *import);

#endif
