/* The client's buffers, of every kind that the host has, and room for tensors in them. Between tensors lie bytes that
 * nobody may change. */
#ifndef SOAK_MEMORY_H
#define SOAK_MEMORY_H

#include <kops/kops.h>

#include "random.h"

enum { MEMORY_BUFFERS = 6, MEMORY_BYTES = 256 << 10, MEMORY_GUARD = 64, MEMORY_TAKEN = 256 };

struct memory {
    kops_client *client;
    struct random *random;
    struct {
        kops_buffer *buffer; /* NULL: none yet */
        size_t used;
    } all[MEMORY_BUFFERS];
    struct {
        unsigned buffer;
        size_t offset, bytes;
    } taken[MEMORY_TAKEN];
    unsigned n_taken;
};

/* Releases what it has, whatever was taken. */
void memory_drop(struct memory *m);

/* Releases one of them, whichever; nothing may be taken. */
void memory_drop_one(struct memory *m);

/* Memory that the daemon makes, or, where that has no address here, shared memory. */
enum kops_code memory_made(kops_client *client, size_t bytes, kops_buffer **ret_buffer, struct kops_error *e);

/* Room for so many bytes, somewhere, guarded; NULL in *ret_buffer: there is none until memory_reuse(). */
enum kops_code memory_take(struct memory *m, size_t bytes, kops_buffer **ret_buffer, uint64_t *ret_offset,
                           struct kops_error *e);

/* Everything that was taken is free again. False: somebody wrote where nobody may. */
bool memory_reuse(struct memory *m);

#endif
