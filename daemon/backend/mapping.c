#include "backend/mapping.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/memory.h"
#include "util/clock.h"
#include "util/log.h"

static void mapping_set_state(struct mapping *m, enum mapping_state state)
{
    memory_id_set(m->memory_id, state == MAPPING_OPEN ? m->memory : NULL);
    m->registry->in_state[m->state]--;
    m->registry->in_state[state]++;
    m->state = state;
}

static void mapping_advance(struct mapping *m);

/* ---- handles: whether two entries are the same memory ---- */

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

/* The bucket for entries with the import's handle bytes. */
static struct list *mapping_bucket(struct mapping_registry *r, const struct backend_import *import)
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

/* Whether the mapping was made from the same device and handle, ids apart. */
static bool mapping_same_handle(const struct mapping *m, const struct backend_device *device,
                                const struct backend_import *import)
{
    if (m->kind != import->kind || m->device != device ||
        memcmp(m->import.handle, import->handle, sizeof(import->handle)) != 0)
        return false;
    /* A pool's handle bytes are a place within that pool. */
    return m->kind == MEMORY_CUDA_IPC || (m->kind == MEMORY_CUDA_POOL && same_file(m->fd, import->fds[0]));
}

/* Closes descriptors that the driver has accepted as its own. Blocks. Thread: the pool's. */
static void mapping_close_import(struct backend_import *import)
{
    while (import->n_fds)
        close(import->fds[--import->n_fds]);
}

/* Gives away descriptors that a client sent and that may be of any kind. */
static void mapping_discard_import(const struct mapping *m, struct backend_import *import)
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

/* ---- a mapping's life ---- */

static void start_idle_timer(struct mapping_registry *r);

/* ---- opening and closing, on the pool ---- */

static void open_run(struct work *work)
{
    struct mapping *m = list_entry(work, struct mapping, work);

    m->memory = NULL;
    if (m->device->backend->memory_import(m->device, &m->import, &m->memory, &m->error) < 0)
        m->memory = NULL;
    /* The mapping keeps the memory allocated, for as long as it is needed. The descriptors would keep it longer. */
    if (m->memory && m->kind == MEMORY_CUDA_VMM)
        mapping_close_import(&m->import);
}

static void close_run(struct work *work)
{
    struct mapping *m = list_entry(work, struct mapping, work);
    const struct device_set *devices = m->registry->devices;

    for (unsigned i = 0; i < devices->count; i++)
        if (m->memory->attached[i])
            devices->all[i]->backend->memory_detach(devices->all[i], m->memory);
    if (m->memory->kind == MEMORY_MEMFD)
        memfd_unmap(m->memory);
    else
        m->device->backend->memory_close(m->memory);
    if (m->closing_fd >= 0)
        close(m->closing_fd);
}

static void tell_waiters(struct mapping *m, bool ok)
{
    struct list *node;

    while ((node = list_pop(&m->waiters))) {
        struct mapping_waiter *w = list_entry(node, struct mapping_waiter, link);

        w->ready(w, ok);
    }
}

static struct mapping *next_with_reference(struct list *bucket, struct list *node)
{
    struct mapping *next = node->next == bucket ? NULL : list_entry(node->next, struct mapping, link);

    if (next)
        mapping_ref(next);
    return next;
}

/* Advances entries with the same handle bytes that waited for this one to close. Their waiters are called, and may give
 * up any entry but the one at hand. */
static void advance_others(struct mapping *m)
{
    struct list *bucket = mapping_bucket(m->registry, &m->import);

    mapping_ref(m);
    for (struct mapping *other = next_with_reference(bucket, bucket), *next; other; other = next) {
        if (other != m && !list_empty(&other->waiters) && mapping_same_handle(other, m->device, &m->import))
            mapping_advance(other);
        next = next_with_reference(bucket, &other->link);
        mapping_unref(other);
    }
    m->references--; /* the caller advances this one */
}

static void open_done(struct work *work)
{
    struct mapping *m = list_entry(work, struct mapping, work);
    bool ok = m->memory != NULL;

    m->registry->changing--;
    mapping_set_state(m, ok ? MAPPING_OPEN : MAPPING_CLOSED);
    if (m->kind == MEMORY_CUDA_VMM)
        mapping_discard_import(m, &m->import);
    mapping_ref(m);
    if (ok && m->registry->opened)
        m->registry->opened(m, m->registry->context);
    tell_waiters(m, ok);
    if (!ok && m->reopenable)
        advance_others(m);
    /* After a failure nothing is tried again before a new use. */
    if (--m->references == 0 || ok)
        mapping_advance(m);
}

/* Ends the flushes whose closes are done. */
static void end_flushes(struct mapping_registry *r)
{
    uint64_t first = r->next_close_number;

    if (!list_empty(&r->closing))
        first = list_entry(list_first(&r->closing), struct mapping, closing)->close_number;
    list_for_each_safe (node, after, &r->flushes) {
        struct mapping_flush *f = list_entry(node, struct mapping_flush, link);

        if (f->before <= first) {
            list_remove(&f->link);
            f->done(f);
        }
    }
}

void mapping_flush(struct mapping_registry *r, struct mapping_flush *flush)
{
    flush->before = r->next_close_number;
    list_append(&r->flushes, &flush->link);
    end_flushes(r);
}

static void close_done(struct work *work)
{
    struct mapping *m = list_entry(work, struct mapping, work);
    struct mapping_registry *r = m->registry;

    r->changing--;
    list_remove(&m->closing);
    m->memory = NULL;
    m->closing_fd = -1;
    mapping_set_state(m, MAPPING_CLOSED);
    if (m->reopenable)
        advance_others(m);
    mapping_advance(m);
    end_flushes(r);
}

/* Whether the mapping must wait until another one is closed. An entry without an id takes the memory that the driver
 * returns; one with an id must not get another id's memory. */
static bool blocked_by_another(struct mapping *m)
{
    struct list *bucket = mapping_bucket(m->registry, &m->import);

    if (!m->keyed)
        return false;
    list_for_each_safe (node, after, bucket) {
        struct mapping *other = list_entry(node, struct mapping, link);

        if (other != m && other->state != MAPPING_CLOSED && mapping_same_handle(other, m->device, &m->import))
            return true;
    }
    return false;
}

static void fail_stale(struct mapping *m)
{
    error_set(&m->error, ERROR_STALE_BUFFER,
              "the allocation was freed and its handle now means other memory; "
              "register the new allocation");
    tell_waiters(m, false);
}

static void mapping_free(struct mapping *m)
{
    struct mapping_registry *r = m->registry;

    r->count--;
    r->in_state[m->state]--;
    r->areas -= m->areas;
    list_remove(&m->link);
    if (m->import.n_fds) /* a pool's descriptor, or those of a mapping that was never opened */
        mapping_discard_import(m, &m->import);
    else if (m->fd >= 0)
        work_close_fds(r->loop, &m->fd, 1);
    if (r->discharge)
        r->discharge(m);
    memory_id_free(m->memory_id);
    free(m);
}

/* Takes memory that alloc made out of registry.own. Its descriptor passes to the pool's thread that closes the
 * memory. */
static void hand_over_own(struct mapping *m)
{
    if (m->fd < 0 || m->reopenable)
        return;
    file_set_remove(&m->registry->own, m->fd, m);
    m->closing_fd = m->fd;
    m->fd = -1;
}

/* Takes the next step for the mapping's state, references and uses. May free the mapping. */
static void mapping_advance(struct mapping *m)
{
    switch (m->state) {
    case MAPPING_OPENING:
    case MAPPING_CLOSING:
        return;
    case MAPPING_OPEN:
        if (m->uses || (m->references && m->kept && !m->stale && !m->close_asked))
            return;
        mapping_set_state(m, MAPPING_CLOSING);
        m->close_asked = false;
        m->registry->changing++;
        m->close_number = m->registry->next_close_number++;
        hand_over_own(m);
        list_append(&m->registry->closing, &m->closing);
        work_submit(m->registry->loop, &m->work, close_run, close_done);
        return;
    case MAPPING_CLOSED:
        if (!m->references) {
            mapping_free(m);
            return;
        }
        if (!m->uses)
            return;
        if (m->stale) {
            fail_stale(m);
            return;
        }
        if (!m->reopenable && !m->import.n_fds) { /* opening it failed, and would fail again */
            tell_waiters(m, false);
            return;
        }
        if (blocked_by_another(m))
            return;
        m->close_asked = false;
        mapping_set_state(m, MAPPING_OPENING);
        m->registry->changing++;
        work_submit(m->registry->loop, &m->work, open_run, open_done);
        return;
    }
}

void mapping_ref(struct mapping *m)
{
    m->references++;
}

struct mapping *mapping_unref(struct mapping *m)
{
    if (!m || --m->references)
        return NULL;
    if (m->registry->unreferenced)
        m->registry->unreferenced(m);
    mapping_advance(m);
    return NULL;
}

void mapping_use(struct mapping *m)
{
    m->references++;
    m->uses++;
    if (m->state == MAPPING_CLOSED)
        mapping_advance(m);
}

void mapping_unuse(struct mapping *m)
{
    if (--m->uses == 0) {
        m->unused_since_ns = clock_now_ns();
        if (m->reopenable && m->state == MAPPING_OPEN && m->registry->idle_close_ns)
            start_idle_timer(m->registry);
        if (m->references > 1)
            mapping_advance(m);
    }
    mapping_unref(m);
}

void mapping_wait(struct mapping *m, struct mapping_waiter *waiter)
{
    waiter->mapping = m;
    list_append(&m->waiters, &waiter->link);
    if (m->state == MAPPING_CLOSED) /* a stale mapping fails its waiters at once */
        mapping_advance(m);
}

void mapping_stop_waiting(struct mapping_waiter *waiter)
{
    list_remove(&waiter->link);
}

uint64_t mapping_trim(struct mapping *m)
{
    uint64_t size;

    if (!m->reopenable || m->uses || m->state != MAPPING_OPEN)
        return 0;
    size = m->memory->size;
    m->close_asked = true;
    mapping_advance(m);
    return size;
}

void mapping_close_soon(struct mapping *m)
{
    if (!m->reopenable || m->state != MAPPING_OPEN)
        return;
    m->close_asked = true;
    mapping_advance(m);
}

/* ---- idle close ---- */

static void close_idle(uv_timer_t *timer)
{
    struct mapping_registry *r = timer->data;
    uint64_t now = clock_now_ns();
    bool left = false;

    for (unsigned i = 0; i < MAPPING_BUCKETS; i++)
        list_for_each_safe (node, after, &r->buckets[i]) {
            struct mapping *m = list_entry(node, struct mapping, link);

            if (!m->reopenable || m->uses || m->state != MAPPING_OPEN)
                continue;
            if (now - m->unused_since_ns < r->idle_close_ns) {
                left = true;
                continue;
            }
            log_debug("mapping_idle", "bytes=%llu pid=%d", (unsigned long long)m->memory->size, (int)m->pid);
            mapping_trim(m);
        }
    if (!left) {
        uv_timer_stop(timer);
        r->idle_timer_active = false;
    }
}

void mapping_registry_set_idle(struct mapping_registry *r, uint64_t idle_close_ns)
{
    r->idle_close_ns = idle_close_ns;
    uv_timer_stop(&r->idle_timer);
    r->idle_timer_active = false;
    if (idle_close_ns)
        start_idle_timer(r); /* stops by itself where no mapping is unused */
}

static void start_idle_timer(struct mapping_registry *r)
{
    uint64_t period_ms = r->idle_close_ns / 2000000 + 1;

    if (r->idle_timer_active)
        return;
    r->idle_timer_active = true;
    uv_timer_start(&r->idle_timer, close_idle, period_ms, period_ms);
}

void mapping_registry_init(struct mapping_registry *r, uv_loop_t *loop, const struct device_set *devices,
                           uint64_t idle_close_ns)
{
    *r = (struct mapping_registry){.loop = loop, .devices = devices, .idle_close_ns = idle_close_ns};
    for (unsigned i = 0; i < MAPPING_BUCKETS; i++)
        list_init(&r->buckets[i]);
    list_init(&r->closing);
    list_init(&r->flushes);
    uv_timer_init(loop, &r->idle_timer);
    uv_unref((uv_handle_t *)&r->idle_timer);
    r->idle_timer.data = r;
}

void mapping_registry_stop(struct mapping_registry *r)
{
    uv_close((uv_handle_t *)&r->idle_timer, NULL);
    file_set_free(&r->own);
}
