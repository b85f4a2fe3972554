#include "server/memory/connection_resources.h"

#include <stdlib.h>
#include <string.h>

#include "server/peer/connection.h"

struct shared_charge *connection_charge_mapping(struct connection *c, const struct mapping *m, uint64_t declared,
                                                struct error *e)
{
    const struct mapping_charges *charges = m->charges;
    uint64_t bytes = declared;

    if (charges && charges->allocated.account == c->account)
        bytes = 0;
    else if (m->state == MAPPING_OPEN && m->memory->size > declared)
        bytes = m->memory->size;
    return shared_charge_take(c->account, c->pid, QUOTA_MAPPED, m, bytes, e);
}

int connection_get_ipc(struct connection *c, struct backend_device *device, const struct backend_import *import,
                       const uint64_t *alloc_id, struct mapping **ret_mapping, struct error *e)
{
    const struct mapping_owner owner = connection_owner(c);

    if (mapping_get_ipc(&c->server->mappings, device, import, alloc_id, owner, ret_mapping, e) == 0)
        return 0;
    if (e->code == ERROR_PERMISSION_DENIED) /* the memory is another user's */
        account_refused(c->account, c->pid, REFUSED_HANDLE, 0, 0);
    return -1;
}

static void connections_note_opened(const struct mapping *m, void *server)
{
    struct server *s = server;

    shared_charges_note_size(&s->accounts, m, m->memory->size);
}

static void connections_close_fds(void *server, uid_t uid, const int *fds, unsigned count)
{
    struct server *s = server;
    struct account *a = count ? account_get(&s->accounts, uid) : NULL;

    if (a)
        account_close_fds(a, fds, count);
    else
        work_close_fds(&s->loop, fds, count);
    account_unref(a);
}

static int mapping_charge_areas(struct mapping *m, unsigned areas, struct error *e)
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

static void discharge_host(const struct mapping *m, struct mapping_charges *charges)
{
    struct server *s = m->registry->context;

    charges->host = shared_charge_unref(charges->host);
    host_room_give(&s->host_room, &charges->room);
}

static void mapping_discharge_memfd(struct mapping *m)
{
    struct mapping_charges *charges = m->charges;

    if (!charges || m->kind != MEMORY_MEMFD) /* entries of other kinds may be found and used again */
        return;
    charge_free(&charges->areas);
    discharge_host(m, charges);
}

static void mapping_discharge(struct mapping *m)
{
    struct mapping_charges *charges = m->charges;

    if (!charges)
        return;
    charge_free(&charges->areas);
    charge_free(&charges->allocated);
    charge_free(&charges->fds);
    discharge_host(m, charges);
    free(charges);
}

void memory_init(struct server *s)
{
    mapping_registry_init(&s->mappings, &s->loop, &s->devices, s->config.idle_close_s * UINT64_C(1000000000));
    s->mappings.opened = connections_note_opened;
    s->mappings.close_fds = connections_close_fds;
    s->mappings.charge = mapping_charge_areas;
    s->mappings.unreferenced = mapping_discharge_memfd;
    s->mappings.discharge = mapping_discharge;
    s->mappings.context = s;
}

static void drop_inline(struct connection *c, struct inline_ref *ref)
{
    list_remove(&ref->bucket);
    list_remove(&ref->lru);
    c->memory->n_inline--;
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
    return &c->memory->inline_buckets[(h >> 32) % INLINE_BUCKETS];
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
        list_append(&c->memory->inline_lru, &ref->lru);
        return ref;
    }
    return NULL;
}

void connection_add_inline(struct connection *c, struct mapping *m, struct shared_charge *shared)
{
    struct inline_ref *ref = malloc(sizeof(*ref));

    if (!ref)
        return; /* the request succeeds all the same; the next one opens the memory again */
    if (c->memory->n_inline >= c->server->config.inline_mappings)
        drop_inline(c, list_entry(list_first(&c->memory->inline_lru), struct inline_ref, lru));
    mapping_ref(m);
    ref->mapping = m;
    ref->shared = shared_charge_ref(shared);
    list_append(inline_bucket(c, m->import.handle), &ref->bucket);
    list_append(&c->memory->inline_lru, &ref->lru);
    c->memory->n_inline++;
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
    return buffer->allocated ? &c->memory->allocated_bytes : &c->memory->mapped_bytes;
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
    buffer->id = idtable_add(&c->memory->buffers, buffer);
    if (!buffer->id) {
        connection_full(c, &c->memory->buffers, "buffers", e);
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

/* Frees the buffer and its references. */
static void connection_drop_buffer(struct connection *c, struct buffer_ref *buffer)
{
    idtable_remove(&c->memory->buffers, buffer->id);
    *bytes_like(c, buffer) -= buffer->size;
    charge_free(&buffer->charge);
    shared_charge_unref(buffer->shared);
    mapping_unref(buffer->mapping);
    free(buffer);
}

int connection_release_buffer(struct connection *c, uint64_t id, struct error *e)
{
    struct buffer_ref *buffer = idtable_get(&c->memory->buffers, id);

    if (!buffer) {
        error_set(e, ERROR_UNKNOWN_BUFFER, "this connection has no buffer %llu", (unsigned long long)id);
        return error_detail_text(e, "key", "buffer");
    }
    connection_drop_buffer(c, buffer);
    return 0;
}

int connection_release_inline(struct connection *c, const struct rpc_arg *handle, struct error *e)
{
    if (handle->length == BACKEND_IPC_HANDLE_SIZE && connection_drop_inline(c, (const unsigned char *)handle->text))
        return 0;
    error_set(e, ERROR_UNKNOWN_BUFFER, "this connection has no inline reference with that handle");
    return error_detail_text(e, "key", "ipc");
}

/* ---- a connection's part ---- */

static int begin(struct connection *c, struct error *e)
{
    struct connection_memory *m = c->memory = calloc(1, sizeof(*m));

    if (!m)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for another connection; try again later");
    idtable_init(&m->buffers, (uint32_t)c->server->config.buffers);
    list_init(&m->inline_lru);
    for (unsigned i = 0; i < INLINE_BUCKETS; i++)
        list_init(&m->inline_buckets[i]);
    return 0;
}

static void end(struct connection *c)
{
    for (uint32_t i = 0; i < c->memory->buffers.capacity; i++)
        if (idtable_at(&c->memory->buffers, i))
            connection_drop_buffer(c, idtable_at(&c->memory->buffers, i));
    while (!list_empty(&c->memory->inline_lru))
        drop_inline(c, list_entry(list_first(&c->memory->inline_lru), struct inline_ref, lru));
}

static void free_part(struct connection *c)
{
    if (!c->memory)
        return;
    idtable_free(&c->memory->buffers);
    free(c->memory);
    c->memory = NULL;
}

void memory_limit_connection(struct connection *c)
{
    c->memory->buffers.max = (uint32_t)c->server->config.buffers;
}

const struct connection_part connection_memory_part = {.begin = begin, .end = end, .free = free_part};

/* ---- kept fds ---- */

int kept_fds_pay_pool(struct connection *c, struct mapping *m, struct error *e)
{
    struct mapping_charges *charges = m->charges;

    if (m->fd < 0 || charges->fds.account)
        return 0;
    return charge_take(&charges->fds, c->account, c->pid, QUOTA_FDS, 1 + m->device->backend->keeps_fds, e);
}

int kept_fds_pay(struct connection *c, struct mapping *m, unsigned n, struct error *e)
{
    struct mapping_charges *charges = m->charges;
    struct charge *charge = &charges->fds;

    if (!m->device || !m->device->backend->keeps_fds)
        return 0;
    return charge->account ? charge_change(charge, c->pid, charge->amount + n, e)
                           : charge_take(charge, c->account, c->pid, QUOTA_FDS, n, e);
}

void kept_fds_refund(struct mapping *m, unsigned n)
{
    struct mapping_charges *charges = m->charges;
    struct charge *charge = &charges->fds;

    if (charge->account && m->device && m->device->backend->keeps_fds)
        charge_note(charge, charge->amount - n);
}
