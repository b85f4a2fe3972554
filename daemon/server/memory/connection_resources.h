/* Connection resources: the memory that a connection refers to, by buffers (registered or allocated) and by inline
 * references. A buffer lives until it is released. An inline reference, a handle given with a tensor, is cached for the
 * connection's next requests. Both hold references to mappings. Thread: loop. */
#ifndef KOPS_SERVER_MEMORY_CONNECTION_RESOURCES_H
#define KOPS_SERVER_MEMORY_CONNECTION_RESOURCES_H

#include "backend/mapping.h"
#include "server/account/account.h"
#include "server/base/shared.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/idtable.h"

enum { INLINE_BUCKETS = 256 };

/* The charges of a mapping (mapping.charges): amounts that the daemon takes for as long as the entry exists. */
struct mapping_charges {
    struct charge areas;        /* QUOTA_MAPPINGS */
    struct charge allocated;    /* QUOTA_ALLOCATED, for memory that alloc made */
    struct charge fds;          /* QUOTA_FDS: the kept descriptor */
    struct shared_charge *host; /* a reference: QUOTA_HOST, on the file; NULL: no host memory */
    struct host_part room;      /* charge in the server's host_room for pages that did not exist */
};

/* A buffer: a connection's reference to memory. */
struct buffer_ref {
    uint64_t id;
    struct mapping *mapping;      /* a reference */
    struct shared_charge *shared; /* a reference to the user's shared charge for the mapping */
    struct charge charge;         /* QUOTA_BUFFERS */
    uint64_t size;
    bool writable;
    bool allocated; /* by this connection */
};

/* An inline reference, cached for the next request with the same handle. */
struct inline_ref {
    struct list bucket, lru;
    struct mapping *mapping;      /* a reference */
    struct shared_charge *shared; /* a reference */
};

struct connection_memory {
    struct idtable buffers;   /* struct buffer_ref */
    uint64_t mapped_bytes;    /* bytes of registered buffers */
    uint64_t allocated_bytes; /* bytes of buffers that alloc made */
    unsigned n_inline;
    struct list inline_buckets[INLINE_BUCKETS], inline_lru; /* least recently used first */
};

extern const struct connection_part connection_memory_part;

/* The owner of mappings that the connection asks for. */
static inline struct mapping_owner connection_owner(const struct connection *c)
{
    return (struct mapping_owner){.uid = c->uid, .pid = c->pid};
}

/* mapping_get_ipc() on behalf of the connection. */
int connection_get_ipc(struct connection *c, struct backend_device *device, const struct backend_import *import,
                       const uint64_t *alloc_id, struct mapping **ret_mapping, struct error *e);
/* A reference to the user's shared charge for the mapping: its bytes, or the declared ones until it is open. Memory
 * that alloc made is charged elsewhere, so its charge here is 0. NULL: quota_exceeded. */
struct shared_charge *connection_charge_mapping(struct connection *c, const struct mapping *m, uint64_t declared,
                                                struct error *e);
/* The cached inline reference with this handle and id; NULL: none. See PROTOCOL.md. */
const struct inline_ref *connection_find_inline(struct connection *c, const struct backend_device *device,
                                                const unsigned char *handle, uint64_t alloc_id);
/* Caches an inline reference. The least recently used one makes room. */
void connection_add_inline(struct connection *c, struct mapping *m, struct shared_charge *shared);
/* Drops every inline reference with these handle bytes; false when there is none. */
bool connection_drop_inline(struct connection *c, const unsigned char *handle);

/* A table of the connection is full: fills in quota_exceeded and returns -1. `what`: the plural name of its
 * entries. */
int connection_full(const struct connection *c, const struct idtable *table, const char *what, struct error *e);
enum buffer_kind { BUFFER_READ_ONLY, BUFFER_WRITABLE, BUFFER_ALLOCATED /* by this connection; writable */ };
/* Makes a buffer with its own references to `m` and `shared`. NULL: quota_exceeded or no memory. */
struct buffer_ref *connection_add_buffer(struct connection *c, struct mapping *m, struct shared_charge *shared,
                                         uint64_t size, enum buffer_kind kind, struct error *e);
/* Notes that the buffer has become larger. */
void connection_resize_buffer(struct connection *c, struct buffer_ref *buffer, uint64_t size);

/* Release a buffer for the method `release`: 0, or -1 and unknown_buffer. */
int connection_release_buffer(struct connection *c, uint64_t id, struct error *e);
int connection_release_inline(struct connection *c, const struct rpc_arg *handle, struct error *e);

/* The configuration's limit may have changed. */
void memory_limit_connection(struct connection *c);

/* Charges for descriptors that are kept while a mapping exists: QUOTA_FDS of the user that registered the memory.
 * Thread: loop. */

/* The descriptor of a pool, and its copy where the device's backend keeps one. Paid once a mapping. */
int kept_fds_pay_pool(struct connection *c, struct mapping *m, struct error *e);
/* `n` more descriptors of a mapping, where the device's backend keeps copies of them; and back. */
int kept_fds_pay(struct connection *c, struct mapping *m, unsigned n, struct error *e);
void kept_fds_refund(struct mapping *m, unsigned n);

/* ---- the room ---- */

/* Sets up the registry of mappings. */
void memory_init(struct server *s);

/* Sizes of the requests' states. */
extern const size_t alloc_state_bytes, trim_state_bytes;

#endif
