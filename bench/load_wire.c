#include "load_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "codec/scan.h"

enum { MSGID_AT = 2 /* behind the array's head and the type, in every message of ours */ };

/* ---- MessagePack, as much of it as these messages need ---- */

static void put(struct message *m, const void *bytes, size_t n)
{
    if (m->length + n > MESSAGE_MAX)
        abort();
    memcpy(m->bytes + m->length, bytes, n);
    m->length += n;
}

static void put_byte(struct message *m, unsigned byte)
{
    unsigned char b = (unsigned char)byte;

    put(m, &b, 1);
}

static void put_number(struct message *m, uint64_t value, unsigned width)
{
    static const unsigned char heads[] = {[4] = 0xce, [8] = 0xcf};

    put_byte(m, heads[width]);
    for (unsigned i = width; i--;)
        put_byte(m, (unsigned)(value >> 8 * i) & 0xff);
}

static void put_text(struct message *m, const char *text)
{
    put_byte(m, 0xa0 | (unsigned)strlen(text));
    put(m, text, strlen(text));
}

static void begin(struct message *m, const char *method, unsigned keys)
{
    m->length = 0;
    put_byte(m, 0x94);
    put_byte(m, 0);
    put_number(m, 0, 4);
    put_text(m, method);
    put_byte(m, 0x91);
    put_byte(m, 0x80 | keys);
}

/* ---- messages ---- */

void message_ping(struct message *m)
{
    begin(m, "ping", 0);
}

static void put_tensor(struct message *m, uint64_t buffer, size_t elements, size_t offset)
{
    put_byte(m, 0x84);
    put_text(m, "buffer");
    put_number(m, buffer, 8);
    put_text(m, "offset");
    put_number(m, offset, 8);
    put_text(m, "shape");
    put_byte(m, 0x91);
    put_number(m, elements, 8);
    put_text(m, "dtype");
    put_text(m, "f32");
}

void message_add(struct message *m, uint64_t buffer, size_t elements)
{
    begin(m, "run", 4);
    put_text(m, "op");
    put_text(m, "add");
    put_text(m, "timing");
    put_byte(m, 0xc2);
    put_text(m, "in");
    put_byte(m, 0x92);
    put_tensor(m, buffer, elements, 0);
    put_tensor(m, buffer, elements, 4 * elements);
    put_text(m, "out");
    put_byte(m, 0x91);
    put_tensor(m, buffer, elements, 8 * elements);
}

static int shared_memory(size_t bytes)
{
    int fd = memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0) {
        fprintf(stderr, "bench_load: shared memory: %s\n", strerror(errno));
        exit(1);
    }
    return fd;
}

static void send_with_fd(int socket, const struct message *m, int fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec vector = {.iov_base = (void *)(uintptr_t)m->bytes, .iov_len = m->length};
    struct msghdr message = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

    control.header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
    if (sendmsg(socket, &message, MSG_NOSIGNAL) != (ssize_t)m->length) {
        fprintf(stderr, "bench_load: registering: %s\n", strerror(errno));
        exit(1);
    }
}

/* The small or 32-bit integer behind `key`, which must be there. */
static uint64_t number_behind(const unsigned char *data, size_t size, const char *key)
{
    const unsigned char *at = memmem(data, size, key, strlen(key));
    uint64_t value = 0;

    if (at) {
        at += strlen(key);
        if (*at < 0x80)
            return *at;
        for (unsigned i = 1; *at >= 0xcc && *at <= 0xcf && i <= 1U << (*at - 0xcc); i++)
            value = value << 8 | at[i];
    }
    if (!value) {
        fprintf(stderr, "bench_load: the daemon did not take the memory\n");
        exit(1);
    }
    return value;
}

uint64_t message_register(int fd, size_t bytes)
{
    unsigned char reply[1024] = {0};
    struct message m;
    int memory = shared_memory(bytes);
    ssize_t n;

    begin(&m, "register", 4);
    put_text(&m, "kind");
    put_text(&m, "memfd");
    put_text(&m, "size");
    put_number(&m, bytes, 8);
    put_text(&m, "nfds");
    put_byte(&m, 1);
    put_text(&m, "fd");
    put_byte(&m, 0);
    send_with_fd(fd, &m, memory);
    close(memory);
    n = recv(fd, reply, sizeof(reply) - 16, 0);
    return number_behind(reply, n > 0 ? (size_t)n : 0,
                         "\xa6"
                         "buffer");
}

void message_number(const struct message *m, unsigned char *copy, uint32_t msgid)
{
    (void)m;
    for (unsigned i = 0; i < 4; i++)
        copy[MSGID_AT + 1 + i] = (unsigned char)(msgid >> 8 * (3 - i));
}

/* ---- replies ---- */

size_t message_length(const unsigned char *data, size_t size, bool raw)
{
    struct scan scan;

    if (raw)
        return size >= PONG_BYTES ? PONG_BYTES : 0;
    if (!size)
        return 0;
    scan_reset(&scan);
    return scan_value(&scan, data, size, 1 << 20) == SCAN_COMPLETE ? scan.position : 0;
}

bool message_is_reply(const unsigned char *reply, size_t length, uint32_t msgid, bool raw)
{
    static const unsigned sizes[] = {1, 2, 4};
    uint32_t got = 0;
    size_t at = 2;

    if (raw)
        return true;
    if (length < 5 || reply[0] != 0x94 || reply[1] != 1)
        return false;
    if (reply[at] < 0x80) {
        got = reply[at++];
    } else if (reply[at] >= 0xcc && reply[at] <= 0xce) {
        unsigned n = sizes[reply[at++] - 0xcc];

        while (n-- && at < length)
            got = got << 8 | reply[at++];
    } else {
        return false;
    }
    return got == msgid && at < length && reply[at] == 0xc0;
}
