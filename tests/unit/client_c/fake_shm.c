/* The daemon's side of shared memory and of the page of timelines, as plain as can be. */
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"
#include "proto/ring.h"

struct fake_shm {
    void *memory;
    size_t size;
    int doorbell, wake;
    struct ring_consumer requests;
    struct ring_producer replies;
    char data[1 << 18];
    size_t length;
};

/* Small, so that tests fill them. */
enum { RING_BYTES = 16384 };

static int sealed_memory(size_t size, void **ret_memory)
{
    int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    must(fd >= 0 && !ftruncate(fd, (off_t)size) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    *ret_memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(*ret_memory != MAP_FAILED);
    return fd;
}

void fake_shm_answer_hello(struct fake_connection *c, uint32_t msgid)
{
    struct fake_shm *s = calloc(1, sizeof(*s));
    int fds[3];

    must(s && !c->shm);
    s->size = (size_t)ring_memory_bytes(RING_BYTES, RING_BYTES);
    fds[0] = sealed_memory(s->size, &s->memory);
    fds[1] = s->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fds[2] = s->wake = eventfd(0, EFD_CLOEXEC);
    ring_daemon_ends(s->memory, RING_BYTES, RING_BYTES, &s->requests, &s->replies);
    fake_reply_with_fds(c, msgid, fds, 3,
                        "{nfds: 3, shm: {fd: 0, doorbell: 1, wake: 2, request_bytes: %d, reply_bytes: %d}}", RING_BYTES,
                        RING_BYTES);
    close(fds[0]);
    c->shm = s;
}

void fake_shm_free(struct fake_shm *s)
{
    if (!s)
        return;
    munmap(s->memory, s->size);
    close(s->doorbell);
    close(s->wake);
    free(s);
}

void *fake_shm_page(struct fake_connection *c)
{
    return c->shm->memory;
}

char *fake_shm_bytes(struct fake_connection *c, size_t *ret_length)
{
    *ret_length = c->shm->length;
    return c->shm->data;
}

void fake_shm_taken(struct fake_connection *c, size_t used)
{
    struct fake_shm *s = c->shm;

    memmove(s->data, s->data + used, s->length - used);
    s->length -= used;
}

void fake_shm_wake(struct fake_connection *c)
{
    const uint64_t one = 1;

    must(write(c->shm->wake, &one, sizeof(one)) == sizeof(one));
}

/* Until the doorbell or the socket says something; false: the socket did. */
static bool wait_for_bell(struct fake_connection *c)
{
    struct fake_shm *s = c->shm;
    struct pollfd p[2] = {{.fd = s->doorbell, .events = POLLIN}, {.fd = c->fd, .events = POLLIN}};
    uint64_t count;

    must(poll(p, 2, -1) > 0);
    if (p[0].revents)
        must(read(s->doorbell, &count, sizeof(count)) == sizeof(count));
    return p[0].revents != 0;
}

bool fake_shm_receive(struct fake_connection *c)
{
    struct fake_shm *s = c->shm;

    for (;;) {
        int64_t n = ring_available(&s->requests);

        must(n >= 0);
        if (n > 0) {
            s->length += ring_read(&s->requests, s->data + s->length, sizeof(s->data) - s->length);
            if (ring_producer_waits(&s->requests))
                fake_shm_wake(c);
            return true;
        }
        ring_consumer_sleeps(&s->requests);
        if (ring_available(&s->requests) == 0 && !wait_for_bell(c)) {
            ring_consumer_wakes(&s->requests);
            return false;
        }
        ring_consumer_wakes(&s->requests);
    }
}

void fake_shm_send(struct fake_connection *c, const void *data, size_t length)
{
    struct fake_shm *s = c->shm;
    const char *at = data;

    while (length) {
        int64_t room = ring_room(&s->replies);
        size_t n;

        must(room >= 0);
        n = length < (size_t)room ? length : (size_t)room;
        if (n) {
            ring_write(&s->replies, at, n);
            if (ring_publish(&s->replies))
                fake_shm_wake(c);
            at += n;
            length -= n;
            continue;
        }
        ring_producer_sleeps(&s->replies);
        if (ring_room(&s->replies) == 0 && !wait_for_bell(c))
            return; /* the client has gone, or sends by the socket meanwhile: no test does */
    }
}

void fake_answer_timelines(struct fake_connection *c, uint32_t msgid)
{
    void *words;
    int fd;

    must(!c->words);
    fd = sealed_memory(4096, &words);
    c->words = words;
    fake_reply_with_fds(c, msgid, &fd, 1, "{nfds: 1, fd: 0, size: 4096, streams: 256}");
    close(fd);
}
