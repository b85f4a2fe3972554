/* Memory for libuv.
 *
 * libuv ends the process where it finds no memory for its table of watched descriptors. So the table gets its room
 * once, before there is a loop, and grows inside it; descriptors beyond it are refused where they come in. One loop at
 * a time. Thread: the loop's, before it starts; the functions that libuv calls are safe on any. */
#ifndef KOPS_UTIL_LOOP_MEMORY_H
#define KOPS_UTIL_LOOP_MEMORY_H

#include "util/error.h"

/* Room for watching descriptors below `descriptors`, to be taken before libuv is called for the first time. */
int loop_memory_reserve(unsigned descriptors, struct error *e);

/* Descriptors from here on cannot be watched without memory that there may not be. */
unsigned loop_memory_descriptors(void);

#endif
