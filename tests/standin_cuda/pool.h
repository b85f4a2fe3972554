/* Memory pools. Freed memory goes back to the device at once, so a pool here is a name, a limit, and who may use its
 * memory.
 *
 * A pool lives while it has its handle or memory of it is live. */
#ifndef KOPS_STANDIN_POOL_H
#define KOPS_STANDIN_POOL_H

#include "standin.h"

struct pool {
    CUmemoryPool handle; /* valid unless destroyed */
    bool destroyed;
    int device;
    unsigned handle_types;
    bool imported;             /* no memory can be allocated from it */
    unsigned regions;          /* live ones */
    uint32_t readers, writers; /* a bit a device */
    uint64_t id;               /* within the process that made it */
    unsigned char token[16];   /* of that process */
    uint64_t max, used;
    int fd; /* what is exported; -1: nothing yet, or imported */
};

/* NULL, after a report, when it is none. */
struct pool *pool_get(CUmemoryPool handle);
struct pool *pool_new(int device, unsigned handle_types);
void pool_charge(struct pool *pool, uint64_t bytes); /* a region of it has begun */
void pool_refund(struct pool *pool, uint64_t bytes); /* has ended */

/* ---- poolshare.c ---- */

void pool_unmap(struct region *region); /* ends an imported pointer */

#endif
