/* The ring between the daemon and an executor: records arrive whole and in order, and a hostile end leads nobody
 * outside of the ring. */
#include "executor/record.h"
#include "tests/support/unit.h"

struct fixture {
    struct ring_words words;
    struct ring writer, reader;
    unsigned char *bytes;
};

static struct fixture *f;

static int setup(void **state)
{
    f = aligned_alloc(64, sizeof(*f));
    memset(f, 0, sizeof(*f));
    f->bytes = calloc(1, RING_BYTES);
    ring_init(&f->writer, &f->words, f->bytes);
    ring_init(&f->reader, &f->words, f->bytes);
    return 0;
}

static int teardown(void **state)
{
    free(f->bytes);
    free(f);
    return 0;
}

/* A record of `size` bytes that says its number in each of them. */
static bool write_one(uint32_t size, unsigned number)
{
    void *at = ring_reserve(&f->writer, size);

    if (!at)
        return false;
    memset(at, (int)(number & 0xff), size);
    ring_publish(&f->writer);
    return true;
}

static void read_one(uint32_t size, unsigned number)
{
    uint32_t got = 0;
    const unsigned char *at = ring_peek(&f->reader, &got);

    assert_non_null(at);
    assert_int_equal((uintptr_t)at % 8, 0);
    assert_int_equal(got, size);
    for (uint32_t i = 0; i < size; i++)
        assert_int_equal(at[i], number & 0xff);
    ring_next(&f->reader);
}

TEST_WITH(test_records_arrive_in_order, setup, teardown)
{
    uint32_t sizes[4096];
    unsigned written = 0, read = 0;

    srand(1);
    while (read < 4096) {
        while (written < 4096) {
            sizes[written] = (uint32_t)rand() % (rand() % 50 ? 700 : RING_RECORD_MAX);
            if (!write_one(sizes[written], written))
                break;
            written++;
        }
        assert_true(read < written);
        for (unsigned n = (unsigned)rand() % (written - read) + 1; n--; read++)
            read_one(sizes[read], read);
    }
    assert_null(ring_peek(&f->reader, &sizes[0]));
    assert_false(f->reader.corrupt);
}

TEST_WITH(test_a_full_ring_takes_nothing_until_it_is_read, setup, teardown)
{
    unsigned n = 0;

    assert_null(ring_reserve(&f->writer, RING_RECORD_MAX + 1)); /* no ring can hold it */
    assert_non_null(ring_reserve(&f->writer, RING_RECORD_MAX));
    while (write_one(1000, n))
        n++;
    assert_true(n > RING_BYTES / 1100);
    assert_false(write_one(1000, n));
    read_one(1000, 0);
    read_one(1000, 1);
    assert_true(write_one(1000, n));
}

/* Each step of the reader is seen once: who waits for room is not woken for ever by the same one. */
TEST_WITH(test_the_writer_sees_that_the_reader_went_on, setup, teardown)
{
    assert_false(ring_read_on(&f->writer));
    write_one(100, 0);
    write_one(100, 1);
    assert_false(ring_read_on(&f->writer));
    read_one(100, 0);
    assert_true(ring_read_on(&f->writer));
    assert_false(ring_read_on(&f->writer));
    read_one(100, 1);
    assert_true(ring_read_on(&f->writer));
    atomic_store(&f->writer.words->read, UINT64_MAX / 2); /* nonsense */
    assert_false(ring_read_on(&f->writer));
}

/* What the other end may write into the shared words and bytes is any number at any time. */
TEST_WITH(test_a_hostile_writer, setup, teardown)
{
    srand(2);
    for (unsigned i = 0; i < 20000; i++) {
        struct ring reader;
        uint32_t size = 0;
        const void *at;

        for (unsigned j = 0; j < 64; j++)
            f->bytes[rand() % 512] = (unsigned char)(rand() % 3 ? rand() % 4 : rand());
        ring_init(&reader, &f->words, f->bytes);
        reader.position = reader.other = (uint64_t)(rand() % 64) * 8;
        atomic_store(&f->words.written, rand() % 4 ? reader.position + (uint64_t)(rand() % 4096)
                                                   : (uint64_t)rand() << 33 | (unsigned)rand());
        for (unsigned j = 0; j < 8 && (at = ring_peek(&reader, &size)); j++) {
            const uintptr_t from = (uintptr_t)at - (uintptr_t)f->bytes;

            assert_true(from <= RING_BYTES && size <= RING_BYTES - from);
            ring_next(&reader);
        }
    }
}

/* A reader's word beyond what was written gives the writer no room that it does not have. */
TEST_WITH(test_a_hostile_reader, setup, teardown)
{
    while (write_one(5000, 7))
        ;
    atomic_store(&f->words.read, f->writer.position + 4096);
    assert_false(write_one(5000, 8));
    atomic_store(&f->words.read, UINT64_MAX);
    assert_false(write_one(5000, 8));
}
