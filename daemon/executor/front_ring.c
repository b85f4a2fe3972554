/* Records on their way to an executor. Thread: loop. */
#include <stdlib.h>
#include <string.h>

#include "executor/bell.h"
#include "executor/front.h"

struct overflow {
    struct list link;
    uint32_t size;
    unsigned char bytes[]; /* a record */
};

void front_ring_doorbell(const struct executor *x)
{
    /* The record's word was stored before; the executor stores its own and then looks at the ring again. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&x->region->executor_sleeps, memory_order_relaxed) &&
        atomic_exchange(&x->region->executor_sleeps, 0))
        bell_ring(x->bell);
}

static bool send_now(struct executor *x, const void *record, uint32_t size)
{
    void *at = ring_reserve(&x->out, size);

    if (!at)
        return false;
    memcpy(at, record, size);
    ring_publish(&x->out);
    front_ring_doorbell(x);
    return true;
}

void front_send_record(struct executor *x, const void *record, uint32_t size)
{
    struct overflow *later;
    struct error e;

    if (atomic_load_explicit(&x->gone, memory_order_relaxed) || (list_empty(&x->overflow) && send_now(x, record, size)))
        return;
    later = malloc(sizeof(*later) + size);
    if (!later) { /* without it both sides would disagree */
        error_set(&e, ERROR_DEVICE_LOST, "no memory for a record to the executor of the GPU");
        front_kill(x, &e);
        return;
    }
    later->size = size;
    memcpy(later->bytes, record, size);
    list_append(&x->overflow, &later->link);
}

void front_send_number(struct executor *x, enum record_kind kind, uint32_t number, uint32_t serial)
{
    const struct record_number record = {.kind = kind, .number = number, .serial = serial};

    front_send_record(x, &record, sizeof(record));
}

bool front_send_overflow(struct executor *x)
{
    while (!list_empty(&x->overflow)) {
        struct overflow *next = list_entry(list_first(&x->overflow), struct overflow, link);

        if (!send_now(x, next->bytes, next->size))
            return false;
        list_remove(&next->link);
        free(next);
    }
    return true;
}

void front_drop_overflow(struct executor *x)
{
    struct list *first;

    while ((first = list_pop(&x->overflow)))
        free(list_entry(first, struct overflow, link));
}
