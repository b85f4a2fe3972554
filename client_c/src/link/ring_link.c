#include "ring_link.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void ring_link_init(struct ring_link *l)
{
    *l = (struct ring_link){.doorbell = -1, .wake = -1};
}

/* Touching a mapping longer than its file would kill the process. */
static bool long_enough(int fd, uint64_t size)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    return seals >= 0 && seals & F_SEAL_SHRINK && fstat(fd, &st) == 0 && st.st_size >= 0 &&
           (uint64_t)st.st_size >= size;
}

const char *ring_link_open(struct ring_link *l, const struct ring_offer *offer)
{
    const char *wrong = NULL;
    void *memory = MAP_FAILED;
    size_t size = 0;

    if (!ring_size_valid(offer->request_bytes) || !ring_size_valid(offer->reply_bytes)) {
        wrong = "the sizes of its rings are no powers of two";
    } else {
        size = (size_t)ring_memory_bytes(offer->request_bytes, offer->reply_bytes);
        if (!long_enough(offer->fd, size))
            wrong = "its memory is not sealed, or shorter than it says";
        else
            memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, offer->fd, 0);
    }
    close(offer->fd);
    if (memory == MAP_FAILED) {
        close(offer->doorbell);
        close(offer->wake);
        return wrong ? wrong : "its memory cannot be mapped";
    }
    *l = (struct ring_link){.memory = memory, .size = size, .doorbell = offer->doorbell, .wake = offer->wake};
    fcntl(l->wake, F_SETFL, O_NONBLOCK);
    ring_client_ends(memory, offer->request_bytes, offer->reply_bytes, &l->requests, &l->replies);
    return NULL;
}

void ring_link_close(struct ring_link *l)
{
    if (!l->memory)
        return;
    munmap(l->memory, l->size);
    close(l->doorbell);
    close(l->wake);
    ring_link_init(l);
}

static void ring_bell(const struct ring_link *l)
{
    const uint64_t one = 1;

    /* A write fails only where the counter is full, and then the bell rings already. */
    if (write(l->doorbell, &one, sizeof(one)) < 0)
        return;
}

ssize_t ring_link_send(struct ring_link *l, const void *data, size_t n)
{
    uint64_t room = ring_room_known(&l->requests);

    if (room < n) {
        int64_t now = ring_room(&l->requests);

        if (now < 0)
            return -EPROTO;
        room = (uint64_t)now;
    }
    if (n > room)
        n = (size_t)room;
    if (!n)
        return -EAGAIN;
    ring_write(&l->requests, data, n);
    if (ring_publish(&l->requests))
        ring_bell(l);
    return (ssize_t)n;
}

bool ring_link_unread(const struct ring_link *l, uint64_t end)
{
    uint64_t read = atomic_load_explicit(&l->requests.control->tail, memory_order_seq_cst);

    return end - read - 1 < l->requests.size;
}

struct wait_window ring_link_window(const struct ring_link *l)
{
    return ring_window_get(l->memory);
}

ssize_t ring_link_receive(struct ring_link *l, void *into, size_t max)
{
    int64_t there = ring_available(&l->replies);
    size_t n;

    if (there <= 0)
        return there < 0 ? -EPROTO : 0;
    n = ring_read(&l->replies, into, max);
    if (ring_producer_waits(&l->replies))
        ring_bell(l);
    return (ssize_t)n;
}

bool ring_link_sleep(struct ring_link *l)
{
    ring_consumer_sleeps(&l->replies);
    if (ring_available(&l->replies) == 0)
        return true;
    ring_consumer_wakes(&l->replies);
    return false;
}

void ring_link_awake(struct ring_link *l, bool rung)
{
    uint64_t count;

    ring_consumer_wakes(&l->replies);
    if (rung && read(l->wake, &count, sizeof(count)) < 0)
        return; /* another thread read it before */
}

bool ring_link_want_room(struct ring_link *l)
{
    ring_producer_sleeps(&l->requests);
    if (ring_room(&l->requests) == 0)
        return true;
    ring_producer_wakes(&l->requests);
    return false;
}
