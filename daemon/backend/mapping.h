/* The process-wide registry of mappings: memory of other processes, or of alloc, that the daemon may use.
 *
 * A mapping outlives the jobs that use it and, where it can be opened again, its own closing: references (of buffers,
 * cached inline references, jobs) keep the entry, uses (of jobs) keep it open. Opening and closing run on the thread
 * pool; everything else runs on the loop thread.
 *
 * CUDA IPC entries are keyed by device, handle bytes and the exporter's alloc_id. While a handle is open the driver
 * answers another open of the same bytes with the old pointer. So of all entries with equal bytes at most one is open
 * or changing, and a newer id makes the older entries stale. Memory of pools is treated alike, within its pool.
 *
 * Memory known by its own descriptors stays open until the last reference is gone: it could not be opened again without
 * the descriptors, and these pin it as much as the mapping does. */
#ifndef KOPS_BACKEND_MAPPING_H
#define KOPS_BACKEND_MAPPING_H

#include <sys/types.h>

#include "backend/backend.h"
#include "backend/file_set.h"
#include "util/list.h"
#include "util/loop.h"

enum mapping_state { MAPPING_CLOSED, MAPPING_OPENING, MAPPING_OPEN, MAPPING_CLOSING };
enum { MAPPING_STATES = MAPPING_CLOSING + 1 };

/* Waits until a mapping is open. ready() is called once, on the loop thread; not ok: see mapping->error. */
struct mapping_waiter {
    struct list link;
    void (*ready)(struct mapping_waiter *waiter, bool ok);
    void *context; /* the waiter's own */
    struct mapping *mapping;
};

struct mapping_registry;

struct mapping {
    struct list link;    /* in its bucket */
    struct list closing; /* in the registry's list while CLOSING */
    uint64_t close_number;
    struct mapping_registry *registry;
    enum mapping_state state;
    uint32_t memory_id; /* number that steps name the memory by: see memory.h */
    bool keyed;         /* has an alloc_id: the entry is shared, and kept while referenced */
    bool kept;          /* stays open while referenced, not only while used */
    bool reopenable;    /* cuda_ipc, cuda_pool */
    bool stale;         /* the handle bytes now mean other memory */
    bool close_asked;   /* by trim or by the idle close */
    bool extending;     /* a struct mapping_extension is under way */
    unsigned areas;     /* areas counted in registry.areas */
    unsigned references, uses;
    uint64_t alloc_id, identity; /* identity: a memfd's inode */
    struct backend_import import;
    enum backend_memory_kind kind;
    struct backend_device *device; /* NULL: a memfd */
    uid_t uid;
    pid_t pid;                     /* process that registered the memory first */
    struct backend_memory *memory; /* while OPEN */
    int fd; /* descriptor of the daemon's own memory, to recognise it by (in registry.own), or of a pool; else -1 */
    int closing_fd; /* while CLOSING: descriptor of the daemon's own memory, which the pool closes; else -1 */
    uint64_t unused_since_ns;
    struct list waiters;
    struct error error; /* error of the last failed open */
    struct work work;
    void *charges; /* the server's charges for the entry; see registry.charge */
};

enum {
    MAPPING_BUCKETS = 1024,
    MAPPINGS_MAX = 49152 /* the kernel allows a process some 65530 areas of memory, and other uses need some */
};

struct mapping_registry {
    uv_loop_t *loop;
    const struct device_set *devices;
    struct list buckets[MAPPING_BUCKETS]; /* entries with a handle by its hash, others in turn */
    unsigned next_bucket;                 /* next bucket for the others */
    struct file_set own;                  /* struct mapping: open memory that alloc made */
    unsigned count, changing;             /* changing: OPENING, CLOSING or being extended */
    unsigned areas;                       /* areas of the process's address space that the mappings take */
    unsigned in_state[MAPPING_STATES];
    struct list closing; /* CLOSING mappings, in the order begun */
    struct list flushes; /* struct mapping_flush */
    uint64_t next_close_number;
    uint64_t idle_close_ns; /* 0: never */
    uv_timer_t idle_timer;
    bool idle_timer_active;
    /* Called when a mapping has been opened, before its waiters are; NULL: not needed. */
    void (*opened)(const struct mapping *m, void *context);
    /* Charges the mapping's user for `areas` in all; -1: the user may not have so many. NULL: no charges. */
    int (*charge)(struct mapping *m, unsigned areas, struct error *e);
    /* Called when the last reference is gone; closing the memory may take a while. Only with charge(). */
    void (*unreferenced)(struct mapping *m);
    /* Called when the entry is freed, to give back its charges. Only with charge(). */
    void (*discharge)(struct mapping *m);
    /* Takes descriptors that a client of this user sent; NULL: the pool closes them. */
    void (*close_fds)(void *context, uid_t uid, const int *fds, unsigned count);
    void *context;
};

void mapping_registry_init(struct mapping_registry *r, uv_loop_t *loop, const struct device_set *devices,
                           uint64_t idle_close_ns);
/* Changes the time of the idle close, also for open mappings. */
void mapping_registry_set_idle(struct mapping_registry *r, uint64_t idle_close_ns);
/* Stops the timer and frees the index. Every mapping has been released and closed before. */
void mapping_registry_stop(struct mapping_registry *r);

struct mapping_owner {
    uid_t uid;
    pid_t pid;
};

/* Returns a reference to another process's CUDA allocation (MEMORY_CUDA_IPC, MEMORY_CUDA_POOL), not opened yet.
 * alloc_id NULL: the entry is not shared. The caller compares its own declared size with memory->size once the mapping
 * is open. The descriptor of a pool's import is taken if (*ret_mapping)->fd is it. Errors: stale_buffer,
 * permission_denied, out_of_memory. */
int mapping_get_ipc(struct mapping_registry *r, struct backend_device *device, const struct backend_import *import,
                    const uint64_t *alloc_id, struct mapping_owner owner, struct mapping **ret_mapping,
                    struct error *e);

/* Returns a reference to other processes' allocations (MEMORY_CUDA_VMM), not opened yet. The entry is not shared. The
 * import's descriptors are taken. Error: quota_exceeded. */
int mapping_get_vmm(struct mapping_registry *r, struct backend_device *device, const struct backend_import *import,
                    struct mapping_owner owner, struct mapping **ret_mapping, struct error *e);

/* Takes over open memory: a memfd, or memory that alloc made. `fd` is a descriptor of memory that alloc made, by which
 * mapping_find_own() finds it; -1: none. The descriptor is taken too. On failure both stay the caller's. */
int mapping_adopt(struct mapping_registry *r, struct backend_memory *memory, struct backend_device *device,
                  uint64_t identity, int fd, struct mapping_owner owner, struct mapping **ret_mapping, struct error *e);

/* Returns a reference to memory that alloc made, by any descriptor of it; NULL: other memory. */
struct mapping *mapping_find_own(struct mapping_registry *r, struct backend_device *device, int fd);

void mapping_ref(struct mapping *m);
/* Gives a reference back. The last one closes and frees the mapping. NULL is allowed; returns NULL. */
struct mapping *mapping_unref(struct mapping *m);

/* Adds a use, which holds a reference too. Opens the mapping when it is closed. */
void mapping_use(struct mapping *m);
void mapping_unuse(struct mapping *m);

/* Waits for a mapping that is used but not open. The waiter stays the caller's; mapping_stop_waiting() takes it back.
 */
void mapping_wait(struct mapping *m, struct mapping_waiter *waiter);
void mapping_stop_waiting(struct mapping_waiter *waiter);

/* Allocations to add behind those of an open MEMORY_CUDA_VMM mapping. done() is called once, on the loop thread: `ok`
 * says whether mapping->memory->size has grown. The struct stays the caller's, the descriptors are taken. */
struct mapping_extension {
    struct backend_import import; /* set by the caller: descriptors and their bytes */
    void (*done)(struct mapping_extension *x);
    struct mapping *mapping;
    bool ok;
    struct error error;
    uint64_t size;
    unsigned areas;
    struct work work;
};
int mapping_extend(struct mapping *m, struct mapping_extension *x, struct error *e);

/* Closes an unused mapping that can be opened again. Returns the bytes that this unpins; 0: it stays open. */
uint64_t mapping_trim(struct mapping *m);
/* Closes the mapping once it is unused, if it can be opened again. */
void mapping_close_soon(struct mapping *m);

/* Waits until every mapping that is closing now is closed. done() is called once, on the loop thread, or at once where
 * none is closing. The struct stays the caller's. */
struct mapping_flush {
    struct list link;
    uint64_t before; /* close_number */
    void (*done)(struct mapping_flush *flush);
};
void mapping_flush(struct mapping_registry *r, struct mapping_flush *flush);

/* Tells whether two mappings are views of the same memory. */
bool mapping_same_memory(const struct mapping *a, const struct mapping *b);
/* Equal for mappings of the same memory; rarely equal for others. */
uint64_t mapping_memory_hash(const struct mapping *m);

#endif
