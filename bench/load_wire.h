/* Prepared messages for bench_load: requests in which only the msgid changes from one to the next. */
#ifndef KOPS_BENCH_LOAD_WIRE_H
#define KOPS_BENCH_LOAD_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MESSAGE_MAX = 512, PING_BYTES = 14, PONG_BYTES = 9 };

struct message {
    unsigned char bytes[MESSAGE_MAX];
    size_t length;
};

/* A no-op. */
void message_ping(struct message *m);
/* A blocking add of f32 vectors, the inputs and the output one after the other in `buffer`. */
void message_add(struct message *m, uint64_t buffer, size_t elements);
/* Registers new shared memory over the blocking socket and returns its id. Exits the program when it is refused. */
uint64_t message_register(int fd, size_t bytes);

/* Writes the msgid into a copy of the message. */
void message_number(const struct message *m, unsigned char *copy, uint32_t msgid);

/* Bytes of the first whole reply, 0 when there is none yet. A raw server's replies all have PONG_BYTES. */
size_t message_length(const unsigned char *data, size_t size, bool raw);
/* It answers `msgid`, with a result. */
bool message_is_reply(const unsigned char *reply, size_t length, uint32_t msgid, bool raw);

#endif
