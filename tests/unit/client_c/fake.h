/* A daemon that does what a test says, on a real socket and in shared memory.
 *
 * fake_start() listens in a folder of its own and gives every connection a thread that runs the test's `serve`. What a
 * test does not care about is answered by fake_answer(). Everything that a handler and the test share is the test's
 * to guard. */
#ifndef KOPS_TEST_FAKE_H
#define KOPS_TEST_FAKE_H

#include <msgpack.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* cmocka's asserts work on the test's own thread only. */
#define must(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            perror(#condition);                                                                                        \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

struct fake;
struct fake_shm;

struct fake_connection {
    struct fake *fake;
    unsigned number; /* 1: the first */
    int fd;
    char data[1 << 18];
    size_t length;
    int fds[16]; /* received and not yet claimed */
    unsigned n_fds;
    uint64_t position;         /* in the stream, of data[0] */
    uint64_t fds_from, fds_to; /* the bytes that they came with */
    msgpack_unpacked unpacked;
    uint64_t next_buffer;
    struct fake_shm *shm;   /* once a hello asked for it */
    bool by_ring;           /* how the last request came, and replies go */
    _Atomic int64_t *words; /* the page of timelines, once asked for */
};

struct fake_request {
    unsigned type; /* 0 request, 2 notification */
    uint32_t msgid;
    char method[32];
    char tag[16];          /* the start of the attribute of that name; "": none */
    msgpack_object params; /* valid until the next fake_next() */
    int fds[16];
    unsigned n_fds; /* the message's own; the handler closes them */
};

typedef void fake_serve(struct fake_connection *c, void *context);

struct fake *fake_start(fake_serve *serve, void *context);
const char *fake_path(const struct fake *f);

/* Stops listening; waits until every connection ended, which is when its client has closed it. */
void fake_stop(struct fake *f);

/* Closes the listening socket and its path: no new connection succeeds. */
void fake_vanish(struct fake *f);

/* Listens at the same path again, after fake_vanish(). */
void fake_reappear(struct fake *f);

/* Waits for the next whole message; false at the end of the connection. */
bool fake_next(struct fake_connection *c, struct fake_request *ret);

/* What a well-behaved daemon answers. */
void fake_answer(struct fake_connection *c, const struct fake_request *r);

/* Whether it is one of run, launch, sequence and run_program. */
bool fake_is_work(const char *method);

/* Answers everything until the connection ends: a fake_serve. */
void fake_serve_well(struct fake_connection *c, void *context);

/* What a daemon is like until fake_stop(). Hello's limits.inflight; its only device's UUID, "host" at first; whether it
 * has no feature but memfd; whether it looks at the socket before the ring. */
extern atomic_uint fake_inflight;
extern _Atomic(const char *) fake_device;
extern atomic_bool fake_offers_little, fake_prefers_socket;

/* ---- messages as text (fake_text.c): {op: 'gemm', in: [{shape: [2, 3]}], alpha: 0.5, of: null, raw: <xyz>} ---- */

void fake_pack(msgpack_sbuffer *ret, const char *text);
void fake_print(const msgpack_object *o, char *into, size_t size);

/* Any message, a result, the details of an error: as such texts. */
void fake_say(struct fake_connection *c, const int *fds, unsigned n_fds, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define fake_reply(c, msgid, ...) fake_reply_with_fds(c, msgid, NULL, 0, __VA_ARGS__)
void fake_reply_with_fds(struct fake_connection *c, uint32_t msgid, const int *fds, unsigned n, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void fake_reply_error(struct fake_connection *c, uint32_t msgid, const char *code, const char *message,
                      const char *details);
void fake_reply_run(struct fake_connection *c, uint32_t msgid, const char *variant);

void fake_send(struct fake_connection *c, const void *data, size_t length, const int *fds, unsigned n_fds);

/* Rings the client's bell. */
void fake_shm_wake(struct fake_connection *c);

/* The page with the rings' control words: for tests that break them. */
void *fake_shm_page(struct fake_connection *c);

/* The member of a request's map; NULL: absent. */
const msgpack_object *fake_param(const msgpack_object *map, const char *key);

#endif
