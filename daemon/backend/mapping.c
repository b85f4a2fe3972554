/* The states of mappings: opening, closing, the idle close (limits.idle_close_s) and trim. Thread: loop; the calls of
 * the driver run on the pool. */
#include <stdlib.h>
#include <unistd.h>

#include "backend/mapping_internal.h"
#include "backend/memfd.h"
#include "util/clock.h"
#include "util/log.h"

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

void mapping_advance(struct mapping *m)
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
