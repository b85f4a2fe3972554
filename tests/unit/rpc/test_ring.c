/* Both ends of a ring: bytes across the wrap, hostile indices, and two threads that sleep and wake each other. */
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "proto/ring.h"
#include "tests/support/unit.h"

enum { SIZE = RING_MIN_BYTES };

struct memory {
    _Alignas(RING_LINE_BYTES) struct ring_page page;
    unsigned char before[64], bytes[SIZE], after[64];
};

struct fixture {
    struct memory *memory;
    struct ring_producer producer;
    struct ring_consumer consumer;
};

static struct fixture *f;

static int set_up(void **state)
{
    f = calloc(1, sizeof(*f));
    f->memory = aligned_alloc(RING_LINE_BYTES, sizeof(*f->memory));
    memset(f->memory, 0, sizeof(*f->memory));
    ring_producer_init(&f->producer, &f->memory->page.request, f->memory->bytes, SIZE);
    ring_consumer_init(&f->consumer, &f->memory->page.request, f->memory->bytes, SIZE);
    return 0;
}

static int tear_down(void **state)
{
    free(f->memory);
    free(f);
    return 0;
}

static void fill(unsigned char *bytes, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(seed + 31 * i);
}

TEST(layout)
{
    static const uint64_t refused[] = {0, 1, 4095, 4097, 6144, UINT64_C(1) << 31, UINT64_MAX};
    struct ring_consumer requests, replies;
    struct ring_producer from_client, from_daemon;
    static _Alignas(RING_LINE_BYTES) unsigned char memory[4096 + 4096 + 8192];

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        assert_false(ring_size_valid(refused[i]));
    assert_true(ring_size_valid(4096));
    assert_true(ring_size_valid(RING_REQUEST_BYTES));
    assert_int_equal(ring_memory_bytes(4096, 8192), 4096 + 4096 + 8192);
    ring_daemon_ends(memory, 4096, 8192, &requests, &from_daemon);
    ring_client_ends(memory, 4096, 8192, &from_client, &replies);
    assert_ptr_equal(requests.bytes, from_client.bytes);
    assert_ptr_equal(replies.bytes, from_daemon.bytes);
    assert_ptr_equal(requests.control, from_client.control);
    assert_ptr_equal(replies.control, from_daemon.control);
    assert_ptr_equal(replies.bytes, memory + 4096 + 4096);
    assert_int_equal(replies.size, 8192);
}

TEST_WITH(bytes_pass_and_wrap, set_up, tear_down)
{
    unsigned char out[SIZE], in[SIZE];

    for (unsigned round = 0; round < 3000; round++) {
        size_t n = 1 + (round * 977) % SIZE, got = 0;

        fill(out, n, round);
        assert_true(ring_room(&f->producer) == SIZE);
        ring_write(&f->producer, out, n);
        assert_true(ring_available(&f->consumer) == 0); /* not before it is published */
        ring_publish(&f->producer);
        assert_true(ring_available(&f->consumer) == (int64_t)n);
        while (got < n)
            got += ring_read(&f->consumer, in + got, 1000);
        assert_int_equal(got, n);
        assert_memory_equal(in, out, n);
        assert_true(ring_available(&f->consumer) == 0);
    }
    for (size_t i = 0; i < sizeof(f->memory->before); i++)
        assert_true(f->memory->before[i] == 0 && f->memory->after[i] == 0);
}

TEST_WITH(room_is_what_was_read, set_up, tear_down)
{
    unsigned char bytes[SIZE] = {0};

    ring_write(&f->producer, bytes, SIZE - 10);
    ring_publish(&f->producer);
    assert_true(ring_room(&f->producer) == 10);
    ring_write(&f->producer, bytes, 10);
    ring_publish(&f->producer);
    assert_true(ring_room(&f->producer) == 0);
    assert_true(ring_available(&f->consumer) == SIZE);
    assert_int_equal(ring_read(&f->consumer, bytes, 100), 100);
    assert_int_equal(ring_room_known(&f->producer), 0);
    assert_true(ring_room(&f->producer) == 100);
    assert_int_equal(ring_room_known(&f->producer), 100);
}

TEST_WITH(hostile_head, set_up, tear_down)
{
    static const uint64_t heads[] = {0, 99, 100 + SIZE + 1, UINT64_MAX, UINT64_C(1) << 63};
    unsigned char bytes[SIZE] = {0};

    ring_write(&f->producer, bytes, 200);
    ring_publish(&f->producer);
    assert_true(ring_available(&f->consumer) == 200);
    assert_int_equal(ring_read(&f->consumer, bytes, 100), 100);
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        atomic_store(&f->memory->page.request.head, heads[i]);
        assert_true(ring_available(&f->consumer) == -1);
    }
    /* Backwards, though not past what was read. */
    atomic_store(&f->memory->page.request.head, 199);
    assert_true(ring_available(&f->consumer) == -1);
    atomic_store(&f->memory->page.request.head, 200);
    assert_true(ring_available(&f->consumer) == 100);
    atomic_store(&f->memory->page.request.head, 100 + SIZE);
    assert_true(ring_available(&f->consumer) == SIZE);
}

TEST_WITH(hostile_tail, set_up, tear_down)
{
    static const uint64_t tails[] = {0, 149, 201, UINT64_MAX, UINT64_C(1) << 63};
    unsigned char bytes[SIZE] = {0};

    ring_write(&f->producer, bytes, 200);
    ring_publish(&f->producer);
    atomic_store(&f->memory->page.request.tail, 150);
    assert_true(ring_room(&f->producer) == SIZE - 50);
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        atomic_store(&f->memory->page.request.tail, tails[i]);
        assert_true(ring_room(&f->producer) == -1);
        assert_int_equal(ring_room_known(&f->producer), SIZE - 50);
    }
    /* The consumer keeps its own index, whatever stands in the memory. */
    ring_available(&f->consumer);
    ring_read(&f->consumer, bytes, 200);
    assert_int_equal(f->consumer.tail, 200);
}

TEST_WITH(doorbells, set_up, tear_down)
{
    unsigned char byte = 1;

    ring_write(&f->producer, &byte, 1);
    assert_false(ring_publish(&f->producer));
    ring_consumer_sleeps(&f->consumer);
    assert_true(ring_publish(&f->producer));
    assert_false(ring_publish(&f->producer)); /* once is enough */
    ring_consumer_sleeps(&f->consumer);
    ring_consumer_wakes(&f->consumer);
    assert_false(ring_publish(&f->producer));

    assert_false(ring_producer_waits(&f->consumer));
    ring_producer_sleeps(&f->producer);
    assert_true(ring_producer_waits(&f->consumer));
    assert_false(ring_producer_waits(&f->consumer));
    ring_producer_sleeps(&f->producer);
    ring_producer_wakes(&f->producer);
    assert_false(ring_producer_waits(&f->consumer));
}

/* ---- two threads, each asleep whenever it can be ---- */

enum { MESSAGES = 200000 };

struct pair {
    int data, room; /* eventfds */
    bool lost;
};

static void ring_the_bell(int fd)
{
    uint64_t one = 1;

    assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
}

/* False when no bell came in a time in which one must have come. */
static bool wait_for_bell(int fd)
{
    struct pollfd p = {fd, POLLIN, 0};
    uint64_t n;

    if (poll(&p, 1, 20000) != 1)
        return false;
    return read(fd, &n, sizeof(n)) == (ssize_t)sizeof(n);
}

static size_t length_of(unsigned i)
{
    return 1 + (i * 7919) % 300;
}

static void *produce(void *context)
{
    struct pair *pair = context;
    struct ring_producer *p = &f->producer;
    unsigned char bytes[300];

    for (unsigned i = 0; i < MESSAGES; i++) {
        size_t n = length_of(i);

        fill(bytes, n, i);
        while (ring_room(p) < (int64_t)n) {
            ring_producer_sleeps(p);
            if (ring_room(p) < (int64_t)n && !wait_for_bell(pair->room)) {
                pair->lost = true;
                return NULL;
            }
            ring_producer_wakes(p);
        }
        ring_write(p, bytes, n);
        if (ring_publish(p))
            ring_the_bell(pair->data);
    }
    return NULL;
}

TEST_WITH(threads, set_up, tear_down)
{
    struct pair pair = {eventfd(0, EFD_CLOEXEC), eventfd(0, EFD_CLOEXEC), false};
    struct ring_consumer *c = &f->consumer;
    unsigned char want[300], got[300];
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, produce, &pair), 0);
    for (unsigned i = 0; i < MESSAGES; i++) {
        size_t n = length_of(i), have = 0;

        while (have < n) {
            int64_t available = ring_available(c);

            assert_true(available >= 0);
            if (!available) {
                ring_consumer_sleeps(c);
                if (!ring_available(c))
                    assert_true(wait_for_bell(pair.data));
                ring_consumer_wakes(c);
                continue;
            }
            have += ring_read(c, got + have, n - have);
            if (ring_producer_waits(c))
                ring_the_bell(pair.room);
        }
        fill(want, n, i);
        assert_memory_equal(got, want, n);
    }
    pthread_join(thread, NULL);
    assert_false(pair.lost);
    close(pair.data);
    close(pair.room);
}
