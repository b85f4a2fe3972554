/* What a connection holds of memory: buffers, registered or allocated, and inline references. Thread: loop. */
#ifndef KOPS_SERVER_MEMORY_CONNECTION_RESOURCES_H
#define KOPS_SERVER_MEMORY_CONNECTION_RESOURCES_H

#include "server/account/shared_charge.h"
#include "server/peer/connection.h"
#include "util/idtable.h"

enum { INLINE_BUCKETS = 256 };

/* Charges that a mapping holds (mapping.bill): what the daemon has for as long as there is the entry. */
struct mapping_charges {
    struct charge areas;        /* QUOTA_MAPPINGS */
    struct charge allocated;    /* QUOTA_ALLOCATED: alloc made the memory */
    struct charge fds;          /* QUOTA_FDS: the kept descriptor */
    struct shared_charge *host; /* a reference: QUOTA_HOST, on the file; NULL: it is no memory of the host's */
    struct host_part room;      /* of the server's host_room: its pages that were not there */
};

/* A connection's reference to memory. */
struct buffer_ref {
    uint64_t id;
    struct mapping *mapping;      /* a reference */
    struct shared_charge *shared; /* a reference: its user's on the mapping */
    struct charge charge;         /* QUOTA_BUFFERS */
    uint64_t size;
    bool writable;
    bool allocated; /* by this connection */
};

/* A connection's inline reference, kept for the next request that carries the same. */
struct inline_ref {
    struct list bucket, lru;
    struct mapping *mapping;      /* a reference */
    struct shared_charge *shared; /* a reference */
};

struct connection_memory {
    struct idtable buffers;   /* struct buffer_ref */
    uint64_t mapped_bytes;    /* of buffers that were registered */
    uint64_t allocated_bytes; /* … that alloc made */
    unsigned n_inline;
    struct list inline_buckets[INLINE_BUCKETS], inline_lru; /* least recently used first */
};

extern const struct connection_part connection_memory_part;

/* mapping_get_ipc() for this connection. */
int connection_get_ipc(struct connection *c, struct backend_device *device, const struct backend_import *import,
                       const uint64_t *alloc_id, struct mapping **ret_mapping, struct error *e);
/* The user's hold on the mapping, which is charged with its bytes, or with the declared ones until it is open. What
 * alloc made is charged otherwise. NULL: quota_exceeded. */
struct shared_charge *connection_charge_mapping(struct connection *c, const struct mapping *m, uint64_t declared,
                                                struct error *e);
/* Inline references (see PROTOCOL.md): that of an earlier request with the same handle and id, or NULL. */
const struct inline_ref *connection_find_inline(struct connection *c, const struct backend_device *device,
                                                const unsigned char *handle, uint64_t alloc_id);
/* Keeps references; the least recently used one makes room. */
void connection_add_inline(struct connection *c, struct mapping *m, struct shared_charge *shared);
/* Drops every inline reference with these handle bytes; false when there is none. */
bool connection_drop_inline(struct connection *c, const unsigned char *handle);

/* One of its tables takes no more: fills in quota_exceeded, returns -1. `what` is its entries, in the plural. */
int connection_full(const struct connection *c, const struct idtable *table, const char *what, struct error *e);
enum buffer_kind { BUFFER_READ_ONLY, BUFFER_WRITABLE, BUFFER_ALLOCATED /* by this connection; writable */ };
/* A new buffer holding its own references to `m` and `hold`; NULL and quota_exceeded when there are too many. */
struct buffer_ref *connection_add_buffer(struct connection *c, struct mapping *m, struct shared_charge *shared,
                                         uint64_t size, enum buffer_kind kind, struct error *e);
/* It has become larger. */
void connection_resize_buffer(struct connection *c, struct buffer_ref *buffer, uint64_t size);
/* Forgets it and its reference. */
void connection_drop_buffer(struct connection *c, struct buffer_ref *buffer);

/* The release method: 0, or -1 and unknown_buffer. */
int connection_release_buffer(struct connection *c, uint64_t id, struct error *e);
int connection_release_inline(struct connection *c, const struct rpc_arg *handle, struct error *e);

/* The configuration's limit may have changed. */
void memory_limit_connection(struct connection *c);

#endif
