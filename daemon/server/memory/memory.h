/* Memory of clients: what the rooms above use of this one, beside connection_resources.h. Thread: loop. */
#ifndef KOPS_SERVER_MEMORY_MEMORY_H
#define KOPS_SERVER_MEMORY_MEMORY_H

#include "server/peer/request.h"

/* Sets up the registry of mappings. */
void memory_init(struct server *s);

/* Of the requests' states. */
extern const size_t alloc_state_bytes, trim_state_bytes;

#endif
