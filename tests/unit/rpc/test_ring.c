/* Both ends of a ring: bytes across the wrap, hostile indices, bells. Two processes that fill it and sleep are
 * tests/unit/client_c/test_pipeline.c's. */
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
        while (got < n) {
            got += ring_read(&f->consumer, in + got, 1000);
            assert_int_equal(ring_room_known(&f->producer), SIZE - n); /* until it looks again */
        }
        assert_int_equal(got, n);
        assert_memory_equal(in, out, n);
        assert_true(ring_available(&f->consumer) == 0);
    }
    for (size_t i = 0; i < sizeof(f->memory->before); i++)
        assert_true(f->memory->before[i] == 0 && f->memory->after[i] == 0);
}

TEST_WITH(hostile_indices, set_up, tear_down)
{
    static const uint64_t heads[] = {0, 99, 199, 100 + SIZE + 1, UINT64_MAX, UINT64_C(1) << 63},
                          tails[] = {0, 149, 201, UINT64_MAX, UINT64_C(1) << 63};
    _Atomic uint64_t *head = &f->memory->page.request.head, *tail = &f->memory->page.request.tail;
    unsigned char bytes[SIZE] = {0};

    ring_write(&f->producer, bytes, 200);
    ring_publish(&f->producer);
    assert_true(ring_available(&f->consumer) == 200);
    assert_int_equal(ring_read(&f->consumer, bytes, 100), 100);
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) { /* 199: backwards, though not past what was read */
        atomic_store(head, heads[i]);
        assert_true(ring_available(&f->consumer) == -1);
    }
    atomic_store(head, 100 + SIZE);
    assert_true(ring_available(&f->consumer) == SIZE);
    atomic_store(head, 200);
    atomic_store(tail, 150);
    assert_true(ring_room(&f->producer) == SIZE - 50);
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        atomic_store(tail, tails[i]);
        assert_true(ring_room(&f->producer) == -1);
        assert_int_equal(ring_room_known(&f->producer), SIZE - 50);
    }
    ring_read(&f->consumer, bytes, 100);
    assert_int_equal(f->consumer.tail, 200); /* its own, whatever stands in the memory */
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
