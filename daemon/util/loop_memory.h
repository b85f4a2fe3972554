/* Memory for libuv.
 *
 * libuv ends the process where it finds no memory for its table of watched descriptors. So the table gets its room
 * once, before there is a loop, and grows inside it. Descriptors beyond that room are refused where they come in. One
 * loop at a time. Thread: the loop's, before it starts; the functions that libuv calls are safe on any thread. */
#ifndef KOPS_UTIL_LOOP_MEMORY_H
#define KOPS_UTIL_LOOP_MEMORY_H

#include "util/error.h"

/* Takes room for watching descriptors below `descriptors`. Call it before libuv's first function. */
int loop_memory_reserve(unsigned descriptors, struct error *e);

/* Returns the first descriptor number that the room cannot hold. */
unsigned loop_memory_descriptors(void);

#endif
