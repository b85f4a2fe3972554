/* The room of clients' memory, for the rooms above, beside connection_resources.h. Thread: loop. */
#ifndef KOPS_SERVER_MEMORY_MEMORY_H
#define KOPS_SERVER_MEMORY_MEMORY_H

#include "server/peer/request.h"

/* Sets up the registry of mappings. */
void memory_init(struct server *s);

/* Sizes of the requests' states. */
extern const size_t alloc_state_bytes, trim_state_bytes;

#endif
