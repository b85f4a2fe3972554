/* What a connection holds: references to memory, registered or inline, programs, modules and kernels. */
#include <stdlib.h>
#include <string.h>

#include "server/code/kernel.h"
#include "server/exec/program.h"
#include "server/peer/connection.h"

struct shared_charge *connection_hold(struct connection *c, const struct mapping *m, uint64_t declared, struct error *e)
{
    const struct mapping_charges *charges = m->charges;
    uint64_t bytes = declared;

    if (charges && charges->allocated.account == c->account)
        bytes = 0;
    else if (mapping_is_open(m) && m->memory->size > declared)
        bytes = m->memory->size;
    return shared_charge_take(c->account, c->pid, QUOTA_MAPPED, m, bytes, e);
}

int connection_get_ipc(struct connection *c, struct backend_device *device, const struct backend_import *import,
                       const uint64_t *alloc_id, struct mapping **ret_mapping, struct error *e)
{
    const struct mapping_owner owner = {.uid = c->uid, .pid = c->pid};

    if (mapping_get_ipc(&c->server->mappings, device, import, alloc_id, owner, ret_mapping, e) == 0)
        return 0;
    if (e->code == ERROR_PERMISSION_DENIED) /* it is another user's */
        account_refused(c->account, c->pid, REFUSED_HANDLE, 0, 0);
    return -1;
}

void connections_note_opened(const struct mapping *m, void *server)
{
    struct server *s = server;

    shared_charges_note_size(&s->accounts, m, m->memory->size);
}

void connections_close_fds(void *server, uid_t uid, const int *fds, unsigned count)
{
    struct server *s = server;
    struct account *a = count ? account_get(&s->accounts, uid) : NULL;

    if (a)
        account_close_fds(a, fds, count);
    else
        work_close_fds(&s->loop, fds, count);
    account_unref(a);
}

int mapping_charge_areas(struct mapping *m, unsigned areas, struct error *e)
{
    struct server *s = m->registry->context;
    struct mapping_charges *charges = m->charges;
    struct account *a;

    if (charges)
        return charge_change(&charges->areas, m->pid, areas, e);
    charges = calloc(1, sizeof(*charges));
    a = account_get(&s->accounts, m->uid);
    if (!charges || !a)
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping");
    else if (charge_take(&charges->areas, a, m->pid, QUOTA_MAPPINGS, areas, e) == 0)
        m->charges = charges;
    account_unref(a);
    if (m->charges)
        return 0;
    free(charges);
    return -1;
}

static void settle_host(const struct mapping *m, struct mapping_charges *charges)
{
    struct server *s = m->registry->context;

    charges->host = shared_charge_unref(charges->host);
    host_room_give(&s->host_room, &charges->room);
}

void mapping_settle_shared(struct mapping *m)
{
    struct mapping_charges *charges = m->charges;

    if (!charges || m->kind != MEMORY_MEMFD) /* entries of other kinds may be found again */
        return;
    charge_free(&charges->areas);
    settle_host(m, charges);
}

void mapping_settle(struct mapping *m)
{
    struct mapping_charges *charges = m->charges;

    if (!charges)
        return;
    charge_free(&charges->areas);
    charge_free(&charges->allocated);
    charge_free(&charges->fds);
    settle_host(m, charges);
    free(charges);
}

static void drop_inline(struct connection *c, struct inline_ref *ref)
{
    list_remove(&ref->bucket);
    list_remove(&ref->lru);
    c->n_inline--;
    shared_charge_unref(ref->shared);
    mapping_unref(ref->mapping);
    free(ref);
}

static struct list *inline_bucket(struct connection *c, const unsigned char *handle)
{
    uint64_t h = 0;

    for (size_t i = 0; i < BACKEND_IPC_HANDLE_SIZE; i += sizeof(uint64_t)) {
        uint64_t word;

        memcpy(&word, handle + i, sizeof(word));
        h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    }
    return &c->inline_buckets[(h >> 32) % INLINE_BUCKETS];
}

const struct inline_ref *connection_find_inline(struct connection *c, const struct backend_device *device,
                                                const unsigned char *handle, uint64_t alloc_id)
{
    struct list *bucket = inline_bucket(c, handle);

    list_for_each_safe (node, after, bucket) {
        struct inline_ref *ref = list_entry(node, struct inline_ref, bucket);
        const struct mapping *m = ref->mapping;

        if (m->alloc_id != alloc_id || m->device != device || m->stale ||
            memcmp(m->import.handle, handle, BACKEND_IPC_HANDLE_SIZE) != 0)
            continue;
        list_remove(&ref->lru);
        list_append(&c->inline_lru, &ref->lru);
        return ref;
    }
    return NULL;
}

void connection_add_inline(struct connection *c, struct mapping *m, struct shared_charge *shared)
{
    struct inline_ref *ref = malloc(sizeof(*ref));

    if (!ref)
        return; /* the request goes on without; only the next one pays */
    if (c->n_inline >= c->server->config.inline_mappings)
        drop_inline(c, list_entry(list_first(&c->inline_lru), struct inline_ref, lru));
    mapping_ref(m);
    ref->mapping = m;
    ref->shared = shared_charge_ref(shared);
    list_append(inline_bucket(c, m->import.handle), &ref->bucket);
    list_append(&c->inline_lru, &ref->lru);
    c->n_inline++;
}

bool connection_drop_inline(struct connection *c, const unsigned char *handle)
{
    struct list *bucket = inline_bucket(c, handle);
    bool found = false;

    list_for_each_safe (node, after, bucket) {
        struct inline_ref *ref = list_entry(node, struct inline_ref, bucket);

        if (!memcmp(ref->mapping->import.handle, handle, BACKEND_IPC_HANDLE_SIZE)) {
            drop_inline(c, ref);
            found = true;
        }
    }
    return found;
}

int connection_full(const struct connection *c, const struct idtable *table, const char *what, struct error *e)
{
    account_refused(c->account, c->pid, REFUSED_LIMITS, table->used, table->max);
    error_set(e, ERROR_QUOTA_EXCEEDED, "this connection holds %u %s, the most it may; release some", table->used, what);
    error_detail_text(e, "quota", what);
    error_detail_number(e, "limit", (int64_t)table->max);
    return error_detail_number(e, "current", (int64_t)table->used);
}

static uint64_t *bytes_like(struct connection *c, const struct buffer_ref *buffer)
{
    return buffer->allocated ? &c->allocated_bytes : &c->mapped_bytes;
}

struct buffer_ref *connection_add_buffer(struct connection *c, struct mapping *m, struct shared_charge *shared,
                                         uint64_t size, enum buffer_kind kind, struct error *e)
{
    struct buffer_ref *buffer = malloc(sizeof(*buffer));

    if (!buffer) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a buffer");
        return NULL;
    }
    *buffer = (struct buffer_ref){
        .mapping = m, .size = size, .writable = kind != BUFFER_READ_ONLY, .allocated = kind == BUFFER_ALLOCATED};
    if (charge_take(&buffer->charge, c->account, c->pid, QUOTA_BUFFERS, 1, e) < 0)
        goto free_buffer;
    buffer->id = idtable_add(&c->buffers, buffer);
    if (!buffer->id) {
        connection_full(c, &c->buffers, "buffers", e);
        goto discharge;
    }
    *bytes_like(c, buffer) += size;
    mapping_ref(m);
    buffer->shared = shared_charge_ref(shared);
    return buffer;

discharge:
    charge_free(&buffer->charge);
free_buffer:
    free(buffer);
    return NULL;
}

void connection_resize_buffer(struct connection *c, struct buffer_ref *buffer, uint64_t size)
{
    *bytes_like(c, buffer) += size - buffer->size;
    buffer->size = size;
}

void connection_drop_buffer(struct connection *c, struct buffer_ref *buffer)
{
    idtable_remove(&c->buffers, buffer->id);
    *bytes_like(c, buffer) -= buffer->size;
    charge_free(&buffer->charge);
    shared_charge_unref(buffer->shared);
    mapping_unref(buffer->mapping);
    free(buffer);
}

void connection_drop_all(struct connection *c)
{
    for (uint32_t i = 0; i < c->buffers.capacity; i++)
        if (idtable_at(&c->buffers, i))
            connection_drop_buffer(c, idtable_at(&c->buffers, i));
    for (uint32_t i = 0; i < c->programs.capacity; i++)
        if (idtable_at(&c->programs, i))
            program_drop(c, idtable_at(&c->programs, i));
    for (uint32_t i = 0; i < c->kernels.capacity; i++)
        if (idtable_at(&c->kernels, i))
            kernel_drop(c, idtable_at(&c->kernels, i));
    for (uint32_t i = 0; i < c->modules.capacity; i++)
        if (idtable_at(&c->modules, i))
            module_drop(c, idtable_at(&c->modules, i));
    while (!list_empty(&c->inline_lru))
        drop_inline(c, list_entry(list_first(&c->inline_lru), struct inline_ref, lru));
}
