/* Ids of memories. A step names its operands' memory by id, not by pointer. Each mapping has one id as long as it
 * exists; the id resolves to memory while the mapping is open. */
#ifndef KOPS_BACKEND_MEMORY_IDS_H
#define KOPS_BACKEND_MEMORY_IDS_H

#include "backend/backend.h"

/* A new id, which leads nowhere yet. 0: out_of_memory, there are too many. Thread: loop; so for the next two. */
uint32_t memory_id_new(struct error *e);
/* From now on the id leads to that memory; NULL: nowhere, and no job uses the id. */
void memory_id_set(uint32_t id, struct backend_memory *memory);
/* Gives the id back for others. Harmless with 0. */
void memory_id_free(uint32_t id);

/* The memory of that id; NULL for 0. Thread: any, while a job that uses the memory is not done. */
struct backend_memory *memory_by_id(uint32_t id);

#endif
