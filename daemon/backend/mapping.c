#include "backend/mapping.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/memfd.h"
#include "util/clock.h"
#include "util/log.h"

#ifndef KCMP_FILE
#define KCMP_FILE 0 /* linux/kcmp.h is not on every system */
#endif

static void advance(struct mapping *m);
static void start_idle_timer(struct mapping_registry *r);

static struct list *bucket_of(struct mapping_registry *r, const struct backend_import *import)
{
    uint64_t h = 14695981039346656037U; /* FNV-1a, over words */

    for (size_t i = 0; i < sizeof(import->handle); i += sizeof(uint64_t)) {
        uint64_t word;

        memcpy(&word, import->handle + i, sizeof(word));
        h = (h ^ word) * 1099511628211U;
    }
    return &r->buckets[(h ^ h >> 32) % MAPPING_BUCKETS];
}

static bool same_handle(const struct mapping *m, const struct backend_device *device,
                        const struct backend_import *import)
{
    return m->kind == MEMORY_CUDA_IPC && m->device == device &&
           !memcmp(m->import.handle, import->handle, sizeof(import->handle));
}

/* ---- opening and closing, on the pool ---- */

static void open_run(struct work *work)
{
    struct mapping *m = list_entry(work, struct mapping, work);

    m->memory = NULL;
    if (m->device->backend->memory_import(m->device, &m->import, &m->memory, &m->error) < 0)
        m->memory = NULL;
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
    if (m->fd >= 0)
        close(m->fd);
    m->fd = -1;
}

static void tell_waiters(struct mapping *m, bool ok)
{
    while (!list_empty(&m->waiters)) {
        struct mapping_waiter *w = list_entry(list_first(&m->waiters), struct mapping_waiter, link);

        list_remove(&w->link);
        w->ready(w, ok);
    }
}

static void open_done(struct work *work)
{
    struct mapping *m = list_entry(work, struct mapping, work);
    bool ok = m->memory != NULL;

    m->registry->changing--;
    m->state = ok ? MAPPING_OPEN : MAPPING_CLOSED;
    mapping_ref(m);
    tell_waiters(m, ok);
    /* After a failure nothing is tried again before somebody new asks. */
    if (--m->references == 0 || ok)
        advance(m);
}

/* Entries with the same bytes may have waited for this one to close. */
static void advance_others(struct mapping *m)
{
    struct list *bucket = bucket_of(m->registry, &m->import);

    list_for_each_safe (node, after, bucket) {
        struct mapping *other = list_entry(node, struct mapping, link);

        if (other != m && other->uses && same_handle(other, m->device, &m->import))
            advance(other);
    }
}

/* Ends the flushes that waited for no close but those that are done. */
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
    m->state = MAPPING_CLOSED;
    if (m->kind == MEMORY_CUDA_IPC)
        advance_others(m);
    advance(m);
    end_flushes(r);
}

/* An entry without an id takes what the driver gives; one with an id must not get another id's memory. */
static bool blocked_by_another(struct mapping *m)
{
    struct list *bucket = bucket_of(m->registry, &m->import);

    if (!m->keyed)
        return false;
    list_for_each_safe (node, after, bucket) {
        struct mapping *other = list_entry(node, struct mapping, link);

        if (other != m && other->state != MAPPING_CLOSED && same_handle(other, m->device, &m->import))
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

/* Takes the next step that state, references and uses ask for. May free the mapping. */
static void advance(struct mapping *m)
{
    switch (m->state) {
    case MAPPING_OPENING:
    case MAPPING_CLOSING:
        return;
    case MAPPING_OPEN:
        if (m->uses || (m->references && m->kept && !m->stale && !m->close_asked))
            return;
        m->state = MAPPING_CLOSING;
        m->close_asked = false;
        m->registry->changing++;
        m->close_number = m->registry->next_close_number++;
        list_append(&m->registry->closing, &m->closing);
        work_submit(m->registry->loop, &m->work, close_run, close_done);
        return;
    case MAPPING_CLOSED:
        if (!m->references) {
            m->registry->count--;
            list_remove(&m->link);
            free(m);
            return;
        }
        if (!m->uses)
            return;
        if (m->stale) {
            fail_stale(m);
            return;
        }
        if (blocked_by_another(m))
            return;
        m->close_asked = false;
        m->state = MAPPING_OPENING;
        m->registry->changing++;
        work_submit(m->registry->loop, &m->work, open_run, open_done);
        return;
    }
}

/* ---- entries ---- */

static struct mapping *mapping_new(struct mapping_registry *r, struct mapping_owner owner, struct error *e)
{
    struct mapping *m;

    if (r->count >= MAPPINGS_MAX) {
        error_set(e, ERROR_QUOTA_EXCEEDED, "the daemon holds %u mappings, the most it may; release some", r->count);
        error_detail_number(e, "limit", MAPPINGS_MAX);
        error_detail_number(e, "current", r->count);
        return NULL;
    }
    m = calloc(1, sizeof(*m));
    if (!m) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping");
        return NULL;
    }
    m->registry = r;
    m->references = 1;
    m->uid = owner.uid;
    m->pid = owner.pid;
    m->fd = -1;
    m->unused_since_ns = clock_now_ns();
    list_init(&m->waiters);
    list_init(&m->link);
    list_init(&m->closing);
    r->count++;
    return m;
}

static int stale_reference(struct error *e)
{
    return error_set(e, ERROR_STALE_BUFFER,
                     "the handle's allocation was freed: the same process registered a later one with the same handle");
}

/* Finds the entry of this id among those with equal bytes, and settles what the others become. */
static int settle_same_handle(struct mapping_registry *r, struct backend_device *device,
                              const struct backend_import *import, uint64_t alloc_id, struct mapping_owner owner,
                              struct mapping **ret_found, struct error *e)
{
    struct list *bucket = bucket_of(r, import);

    *ret_found = NULL;
    list_for_each_safe (node, after, bucket) {
        struct mapping *m = list_entry(node, struct mapping, link);

        if (!m->keyed || !same_handle(m, device, import))
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

        if (m->keyed && !m->stale && m->alloc_id != alloc_id && same_handle(m, device, import)) {
            m->stale = true;
            advance(m);
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
    m = mapping_new(r, owner, e);
    if (!m)
        return -1;
    m->kind = MEMORY_CUDA_IPC;
    m->device = device;
    m->import = *import;
    m->keyed = m->kept = alloc_id != NULL;
    m->alloc_id = alloc_id ? *alloc_id : 0;
    m->reopenable = true;
    list_append(bucket_of(r, import), &m->link);
    *ret_mapping = m;
    return 0;
}

int mapping_adopt(struct mapping_registry *r, struct backend_memory *memory, struct backend_device *device,
                  uint64_t identity, int fd, struct mapping_owner owner, struct mapping **ret_mapping, struct error *e)
{
    struct mapping *m = mapping_new(r, owner, e);

    if (!m)
        return -1;
    m->kind = memory->kind;
    m->device = memory->kind == MEMORY_MEMFD ? NULL : device;
    m->memory = memory;
    m->import.size = memory->size;
    m->identity = identity;
    m->fd = fd;
    m->state = MAPPING_OPEN;
    m->kept = true;
    list_append(bucket_of(r, &m->import), &m->link);
    *ret_mapping = m;
    return 0;
}

struct mapping *mapping_find_own(struct mapping_registry *r, struct backend_device *device, int fd)
{
    const struct backend_import none = {0};
    struct list *bucket = bucket_of(r, &none);

    list_for_each_safe (node, after, bucket) {
        struct mapping *m = list_entry(node, struct mapping, link);

        if (m->fd >= 0 && m->device == device && m->references &&
            syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, m->fd, fd) == 0) {
            mapping_ref(m);
            return m;
        }
    }
    return NULL;
}

void mapping_ref(struct mapping *m)
{
    m->references++;
}

struct mapping *mapping_unref(struct mapping *m)
{
    if (m && --m->references == 0)
        advance(m);
    return NULL;
}

void mapping_use(struct mapping *m)
{
    m->references++;
    m->uses++;
    if (m->state == MAPPING_CLOSED)
        advance(m);
}

void mapping_unuse(struct mapping *m)
{
    if (--m->uses == 0) {
        m->unused_since_ns = clock_now_ns();
        if (m->reopenable && m->state == MAPPING_OPEN && m->registry->idle_close_ns)
            start_idle_timer(m->registry);
        if (m->references > 1)
            advance(m);
    }
    mapping_unref(m);
}

void mapping_wait(struct mapping *m, struct mapping_waiter *waiter)
{
    waiter->mapping = m;
    list_append(&m->waiters, &waiter->link);
    if (m->state == MAPPING_CLOSED) /* stale, perhaps: then the waiter is told at once */
        advance(m);
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
    advance(m);
    return size;
}

bool mapping_same_memory(const struct mapping *a, const struct mapping *b)
{
    if (a == b)
        return true;
    if (a->kind != b->kind || a->device != b->device)
        return false;
    if (a->kind == MEMORY_MEMFD)
        return a->identity && a->identity == b->identity;
    return a->kind == MEMORY_CUDA_IPC && !memcmp(a->import.handle, b->import.handle, sizeof(a->import.handle));
}

/* ---- idle closing ---- */

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
}
