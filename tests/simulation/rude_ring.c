/* The shared memory of a connection in the hands of a client that no program would be. */
#include <err.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "proto/ring.h"
#include "rude.h"

enum { QUIET_MS = 900, FLOOD_MS = 1000, REST_US = 1000, BELL = 8 };

static struct {
    void *memory;
    size_t bytes;
    struct ring_producer requests;
    struct ring_consumer replies;
    int doorbell;
} ring;

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- asking for it ---- */

static bool map_ring(const msgpack_object *shm, const int *fds)
{
    const uint64_t requests = number_of(shm, "request_bytes"), replies = number_of(shm, "reply_bytes");

    if (!ring_size_valid(requests) || !ring_size_valid(replies) || number_of(shm, "fd") >= RUDE_FDS ||
        number_of(shm, "doorbell") >= RUDE_FDS)
        return false;
    ring.bytes = (size_t)ring_memory_bytes(requests, replies);
    ring.memory = mmap(NULL, ring.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[number_of(shm, "fd")], 0);
    if (ring.memory == MAP_FAILED)
        return false;
    ring_client_ends(ring.memory, requests, replies, &ring.requests, &ring.replies);
    ring.doorbell = dup(fds[number_of(shm, "doorbell")]);
    return true;
}

/* On a connection that has asked for nothing yet. */
static bool open_ring(void)
{
    int fds[RUDE_FDS] = {-1, -1, -1};
    msgpack_unpacked answer;
    bool made = false;

    msgpack_sbuffer_clear(&request);
    msgpack_pack_array(&packer, 4);
    msgpack_pack_int(&packer, 0);
    msgpack_pack_uint32(&packer, UINT32_MAX);
    text("hello");
    msgpack_pack_array(&packer, 1);
    msgpack_pack_map(&packer, 1);
    text("shm");
    msgpack_pack_true(&packer);
    if (send_bytes(request.size, -1) && receive_answer(&answer, fds)) {
        made = fds[0] >= 0 && map_ring(value_of(result_of(&answer), "shm"), fds);
        msgpack_unpacked_destroy(&answer);
    }
    for (unsigned i = 0; i < RUDE_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return made;
}

static void close_ring(void)
{
    munmap(ring.memory, ring.bytes);
    close(ring.doorbell);
}

/* ---- using it ---- */

static void knock(void)
{
    static const uint64_t one = 1;

    if (write(ring.doorbell, &one, BELL) != BELL)
        warn("a doorbell");
}

static void show(void)
{
    if (ring_publish(&ring.requests))
        knock();
}

static void read_replies(void)
{
    static char bytes[4096];

    while (ring_available(&ring.replies) > 0)
        ring_read(&ring.replies, bytes, sizeof(bytes));
    if (ring_producer_waits(&ring.replies))
        knock();
}

/* As much as there is room for. */
static unsigned fill_ring(const char *method, bool answered, unsigned most)
{
    unsigned n = 0;

    make_empty(method, answered);
    while (n < most && ring_room(&ring.requests) >= (int64_t)request.size) {
        ring_write(&ring.requests, request.data, request.size);
        n++;
        make_empty(method, answered);
    }
    show();
    return n;
}

/* As many notifications as there is room for, and no bell. */
static void write_pings(void)
{
    make_empty("ping", false);
    while (ring_room(&ring.requests) >= (int64_t)request.size)
        ring_write(&ring.requests, request.data, request.size);
    ring_publish(&ring.requests);
}

/* Half a message on the socket, whose rest does not come. The daemon looks once more when its time is over, and finds a
 * ring that is never empty, of which no bell has told it. */
static void write_on(void)
{
    uint64_t from;

    make_empty("ping", true);
    send_bytes(request.size / 2, -1);
    usleep(QUIET_MS * 1000);
    for (from = now_ms(); now_ms() < from + FLOOD_MS;) {
        write_pings();
        usleep(REST_US);
    }
}

/* Questions whose answers nobody reads, until no more are taken; then it ends. */
static void stop_reading(void)
{
    for (unsigned i = 0, still = 0; i < 200 && still < 5; i++) {
        still = fill_ring("stats", true, UINT32_MAX) ? 0 : still + 1;
        usleep(REST_US);
    }
}

/* Indices that no ring has. */
static void spoil(void)
{
    struct ring_page *page = ring.memory;
    _Atomic uint64_t *const words[] = {&page->request.head, &page->reply.tail, &page->request.tail, &page->reply.head};
    _Atomic uint64_t *word = words[random_below(&dice, 4)];

    fill_ring("ping", true, 10);
    atomic_store(word, random_chance(&dice, 50) ? random_bits(&dice) : atomic_load(word) - 1);
    knock();
    usleep(REST_US);
}

/* Bytes that are no message, or a part of one. */
static void write_anything(void)
{
    const unsigned n = random_between(&dice, 1, 64);

    for (unsigned i = 0; i < n; i++) {
        const uint64_t bits = random_bits(&dice);

        ring_write(&ring.requests, &bits, random_between(&dice, 1, 8));
        show();
    }
    usleep(REST_US);
}

/* A few requests whose answers are read, or not. */
static void work(void)
{
    for (unsigned n = random_below(&dice, 50); n; n--) {
        fill_ring(random_chance(&dice, 50) ? "ping" : "stats", random_chance(&dice, 80), 3);
        if (random_chance(&dice, 60))
            read_replies();
        if (random_chance(&dice, 10))
            usleep(random_below(&dice, 2 * REST_US));
    }
}

bool ring_misuse(void)
{
    static void (*const ways[])(void) = {work, work, stop_reading, write_on, spoil, write_anything};

    void (*way)(void);

    if (!open_ring())
        return false;
    way = ways[random_below(&dice, sizeof(ways) / sizeof(ways[0]))];
    way();
    close_ring();
    return way == stop_reading;
}
