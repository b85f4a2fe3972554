/* The registry's entries: finds the entry for a reference, and tells whether two entries are the same memory. Thread:
 * loop. */
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/mapping_internal.h"
#include "util/clock.h"

#ifndef KCMP_FILE
#define KCMP_FILE 0 /* linux/kcmp.h is not on every system */
#endif

static uint64_t hash_handle(const struct backend_import *import)
{
    uint64_t h = 14695981039346656037U; /* FNV-1a, over words */

    for (size_t i = 0; i < sizeof(import->handle); i += sizeof(uint64_t)) {
        uint64_t word;

        memcpy(&word, import->handle + i, sizeof(word));
        h = (h ^ word) * 1099511628211U;
    }
    return h;
}

struct list *mapping_bucket(struct mapping_registry *r, const struct backend_import *import)
{
    const uint64_t h = hash_handle(import);

    return &r->buckets[(h ^ h >> 32) % MAPPING_BUCKETS];
}

static bool same_file(int a, int b)
{
    return syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, a, b) == 0;
}

/* A bucket for entries that are not looked up by a handle. They are spread evenly, so that no look-up passes many. */
static struct list *any_bucket(struct mapping_registry *r)
{
    return &r->buckets[r->next_bucket++ % MAPPING_BUCKETS];
}

bool mapping_same_handle(const struct mapping *m, const struct backend_device *device,
                         const struct backend_import *import)
{
    if (m->kind != import->kind || m->device != device ||
        memcmp(m->import.handle, import->handle, sizeof(import->handle)) != 0)
        return false;
    /* A pool's handle bytes are a place within that pool. */
    return m->kind == MEMORY_CUDA_IPC || (m->kind == MEMORY_CUDA_POOL && same_file(m->fd, import->fds[0]));
}

void mapping_close_import(struct backend_import *import)
{
    while (import->n_fds)
        close(import->fds[--import->n_fds]);
}

void mapping_discard_import(const struct mapping *m, struct backend_import *import)
{
    const struct mapping_registry *r = m->registry;

    if (r->close_fds)
        r->close_fds(r->context, m->uid, import->fds, import->n_fds);
    else
        work_close_fds(r->loop, import->fds, import->n_fds);
    import->n_fds = 0;
}

/* ---- entries ---- */

static int check_areas(const struct mapping_registry *r, unsigned more, struct error *e)
{
    if (r->areas + more <= MAPPINGS_MAX)
        return 0;
    error_set(e, ERROR_QUOTA_EXCEEDED, "the daemon holds %u mappings, the most it may; release some", r->areas);
    error_detail_text(e, "quota", "mappings");
    error_detail_number(e, "limit", MAPPINGS_MAX);
    return error_detail_number(e, "current", r->areas);
}

/* Changes the number of areas that the mapping takes. A lower number is never refused. */
static int set_areas(struct mapping *m, unsigned areas, struct error *e)
{
    struct mapping_registry *r = m->registry;

    if (areas > m->areas && check_areas(r, areas - m->areas, e) < 0)
        return -1;
    if (r->charge && r->charge(m, areas, e) < 0)
        return -1;
    r->areas += areas - m->areas;
    m->areas = areas;
    return 0;
}

static struct mapping *mapping_new(struct mapping_registry *r, unsigned areas, struct mapping_owner owner,
                                   struct error *e)
{
    struct mapping *m;

    m = calloc(1, sizeof(*m));
    if (!m) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping");
        return NULL;
    }
    m->registry = r;
    m->references = 1;
    m->uid = owner.uid;
    m->pid = owner.pid;
    m->fd = m->closing_fd = -1;
    m->unused_since_ns = clock_now_ns();
    list_init(&m->waiters);
    list_init(&m->link);
    list_init(&m->closing);
    m->memory_id = memory_id_new(e);
    if (!m->memory_id || set_areas(m, areas, e) < 0) {
        memory_id_free(m->memory_id);
        free(m);
        return NULL;
    }
    r->count++;
    r->in_state[m->state]++;
    return m;
}

static int stale_reference(struct error *e)
{
    return error_set(e, ERROR_STALE_BUFFER,
                     "the handle's allocation was freed: the same process registered a later one with the same handle");
}

/* Finds the entry with this id among those with equal handle bytes, and makes the others stale. */
static int settle_same_handle(struct mapping_registry *r, struct backend_device *device,
                              const struct backend_import *import, uint64_t alloc_id, struct mapping_owner owner,
                              struct mapping **ret_found, struct error *e)
{
    struct list *bucket = mapping_bucket(r, import);

    *ret_found = NULL;
    list_for_each_safe (node, after, bucket) {
        struct mapping *m = list_entry(node, struct mapping, link);

        if (!m->keyed || !mapping_same_handle(m, device, import))
            continue;
        if (m->alloc_id == alloc_id) {
            if (m->stale)
                return stale_reference(e);
            *ret_found = m;
        } else if (m->uid != owner.uid) {
            return error_set(e, ERROR_PERMISSION_DENIED,
                             "another user registered this handle with another alloc_id; it is not replaced");
        } else if (!m->stale && m->pid == owner.pid && m->alloc_id > alloc_id) {
            return stale_reference(e); /* buffer ids only grow in a process */
        }
    }
    list_for_each_safe (node, after, bucket) {
        struct mapping *m = list_entry(node, struct mapping, link);

        if (m->keyed && !m->stale && m->alloc_id != alloc_id && mapping_same_handle(m, device, import)) {
            m->stale = true;
            mapping_advance(m);
        }
    }
    return 0;
}

int mapping_get_ipc(struct mapping_registry *r, struct backend_device *device, const struct backend_import *import,
                    const uint64_t *alloc_id, struct mapping_owner owner, struct mapping **ret_mapping, struct error *e)
{
    struct mapping *m = NULL;

    if (alloc_id && settle_same_handle(r, device, import, *alloc_id, owner, &m, e) < 0)
        return -1;
    if (m) {
        mapping_ref(m);
        *ret_mapping = m;
        return 0;
    }
    m = mapping_new(r, 1, owner, e);
    if (!m)
        return -1;
    m->kind = import->kind;
    m->device = device;
    m->import = *import;
    m->keyed = m->kept = alloc_id != NULL;
    m->alloc_id = alloc_id ? *alloc_id : 0;
    m->reopenable = true;
    if (import->kind == MEMORY_CUDA_POOL)
        m->fd = import->fds[0];
    list_append(mapping_bucket(r, import), &m->link);
    *ret_mapping = m;
    return 0;
}

int mapping_get_vmm(struct mapping_registry *r, struct backend_device *device, const struct backend_import *import,
                    struct mapping_owner owner, struct mapping **ret_mapping, struct error *e)
{
    struct mapping *m = mapping_new(r, import->n_fds, owner, e);

    if (!m)
        return -1;
    m->kind = MEMORY_CUDA_VMM;
    m->device = device;
    m->import = *import;
    m->kept = true;
    list_append(any_bucket(r), &m->link);
    *ret_mapping = m;
    return 0;
}

int mapping_adopt(struct mapping_registry *r, struct backend_memory *memory, struct backend_device *device,
                  uint64_t identity, int fd, struct mapping_owner owner, struct mapping **ret_mapping, struct error *e)
{
    struct mapping *m;

    if (fd >= 0 && file_set_reserve(&r->own) < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping");
    m = mapping_new(r, 1, owner, e);
    if (!m)
        return -1;
    m->kind = memory->kind;
    m->device = memory->kind == MEMORY_MEMFD ? NULL : device;
    m->memory = memory;
    m->import.size = memory->size;
    m->identity = identity;
    m->fd = fd;
    mapping_set_state(m, MAPPING_OPEN);
    m->kept = true;
    if (fd >= 0)
        file_set_add(&r->own, fd, m);
    list_append(any_bucket(r), &m->link);
    *ret_mapping = m;
    return 0;
}

struct mapping *mapping_find_own(struct mapping_registry *r, struct backend_device *device, int fd)
{
    struct mapping *m = file_set_find(&r->own, fd);

    if (!m || m->device != device || !m->references)
        return NULL;
    mapping_ref(m);
    return m;
}

bool mapping_same_memory(const struct mapping *a, const struct mapping *b)
{
    if (a == b)
        return true;
    if (a->kind != b->kind || a->device != b->device)
        return false;
    if (a->kind == MEMORY_MEMFD)
        return a->identity && a->identity == b->identity;
    return mapping_same_handle(a, b->device, &b->import);
}

uint64_t mapping_memory_hash(const struct mapping *m)
{
    if (m->kind == MEMORY_MEMFD && m->identity)
        return m->identity;
    if (m->kind == MEMORY_CUDA_IPC || m->kind == MEMORY_CUDA_POOL)
        return hash_handle(&m->import);
    return (uintptr_t)m;
}

/* ---- extending ---- */

static void extend_run(struct work *work)
{
    struct mapping_extension *x = list_entry(work, struct mapping_extension, work);
    struct mapping *m = x->mapping;

    x->ok = m->device->backend->memory_extend(m->memory, &x->import, &x->size, &x->error) == 0;
    if (x->ok)
        mapping_close_import(&x->import);
}

static void extend_done(struct work *work)
{
    struct mapping_extension *x = list_entry(work, struct mapping_extension, work);
    struct mapping *m = x->mapping;

    m->registry->changing--;
    m->extending = false;
    mapping_discard_import(m, &x->import);
    if (x->ok)
        m->memory->size = x->size;
    else
        set_areas(m, m->areas - x->areas, &x->error);
    x->done(x);
    mapping_unuse(m);
}

int mapping_extend(struct mapping *m, struct mapping_extension *x, struct error *e)
{
    const char *why = NULL;

    if (m->kind != MEMORY_CUDA_VMM || m->fd >= 0)
        why = "only memory that was registered as cuda_vmm by its descriptors can be extended";
    else if (m->state != MAPPING_OPEN)
        why = "the memory is not open yet; extend it after the reply to its registration";
    else if (m->extending)
        why = "an extension of this memory is under way; send the next after its reply";
    if (why)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s", why);
    if (set_areas(m, m->areas + x->import.n_fds, e) < 0)
        return -1;
    x->mapping = m;
    x->areas = x->import.n_fds;
    m->registry->changing++;
    m->extending = true;
    mapping_use(m);
    work_submit(m->registry->loop, &x->work, extend_run, extend_done);
    return 0;
}
