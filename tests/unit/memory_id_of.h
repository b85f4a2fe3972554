/* Ids of memories that no registry of mappings knows, for steps that a test makes. */
#ifndef KOPS_TESTS_MEMORY_ID_OF_H
#define KOPS_TESTS_MEMORY_ID_OF_H

#include "backend/memory.h"

/* The id that leads to the memory, made at the first call; 0 for NULL. */
static inline uint32_t memory_id_of(struct backend_memory *memory)
{
    static uint32_t last;
    struct error e;
    uint32_t id;

    if (!memory)
        return 0;
    for (id = 1; id <= last; id++)
        if (memory_by_id(id) == memory)
            return id;
    last = memory_id_new(&e);
    memory_id_set(last, memory);
    return last;
}

#endif
