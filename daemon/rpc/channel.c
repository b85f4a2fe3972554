#include "rpc/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "util/error.h"

enum { RECEIVE_MAX = 16 * 1024 };

static int make_memory(int *ret_fd, unsigned char **ret_memory, struct error *e)
{
    int fd = memfd_create("kopsd-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *at;

    if (fd < 0)
        return error_shortage(e, errno, "memfd_create");
    if (ftruncate(fd, (off_t)RPC_CHANNEL_BYTES) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        goto close_fd;
    at = mmap(NULL, RPC_CHANNEL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        goto close_fd;
    *ret_fd = fd;
    *ret_memory = at;
    return 0;

close_fd:
    error_shortage(e, errno, "making the shared memory");
    close(fd);
    return -1;
}

/* The doorbell is an eventfd, so that a client whose daemon has gone may still ring it. The wake is a pipe, whose two
 * ends are different files: no client can make a write to it block. */
static int make_bells(struct rpc_channel *ch, int fds[CHANNEL_FDS], struct error *e)
{
    int ends[2];

    fds[CHANNEL_DOORBELL] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fds[CHANNEL_DOORBELL] < 0)
        goto fail;
    ch->doorbell = fcntl(fds[CHANNEL_DOORBELL], F_DUPFD_CLOEXEC, 0);
    if (ch->doorbell < 0)
        goto close_eventfd;
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        goto close_doorbell;
    fds[CHANNEL_WAKE] = ends[0];
    ch->wake = ends[1];
    return 0;

close_doorbell:
    close(ch->doorbell);
close_eventfd:
    close(fds[CHANNEL_DOORBELL]);
fail:
    return error_shortage(e, errno, "making the bells of the shared memory");
}

int rpc_channel_new(size_t message_bytes, size_t output_max, struct rpc_channel **ret_channel, int ret_fds[CHANNEL_FDS],
                    struct error *e)
{
    struct rpc_channel *ch = calloc(1, sizeof(*ch));
    size_t limit = ring_message_bytes(RING_REQUEST_BYTES);

    if (!ch)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a channel");
    if (make_memory(&ret_fds[CHANNEL_MEMORY], &ch->memory, e) < 0)
        goto free_channel;
    if (make_bells(ch, ret_fds, e) < 0)
        goto unmap;
    ring_daemon_ends(ch->memory, RING_REQUEST_BYTES, RING_REPLY_BYTES, &ch->requests, &ch->replies);
    rpc_input_init(&ch->input, message_bytes < limit ? message_bytes : limit);
    rpc_output_init(&ch->output, output_max);
    *ret_channel = ch;
    return 0;

unmap:
    munmap(ch->memory, RPC_CHANNEL_BYTES);
    close(ret_fds[CHANNEL_MEMORY]);
free_channel:
    free(ch);
    return -1;
}

struct rpc_channel *rpc_channel_free(struct rpc_channel *ch)
{
    if (!ch)
        return NULL;
    munmap(ch->memory, RPC_CHANNEL_BYTES);
    close(ch->doorbell);
    waker_settle(ch->waker);
    close(ch->wake);
    rpc_input_free(&ch->input);
    rpc_output_free(&ch->output);
    free(ch);
    return NULL;
}

enum rpc_receive rpc_channel_receive(struct rpc_channel *ch, struct error *e)
{
    int64_t available = ring_available(&ch->requests);
    unsigned char *at;
    size_t room, n;

    if (available == 0)
        return RPC_WOULD_BLOCK;
    if (available < 0) {
        error_set(e, ERROR_PROTOCOL_ERROR, "the request ring's head went backwards, or further than the ring is long");
        return RPC_VIOLATION;
    }
    at = rpc_input_reserve(&ch->input, &room);
    if (!at) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory to receive more");
        return RPC_VIOLATION;
    }
    n = ring_read(&ch->requests, at, room < RECEIVE_MAX ? room : RECEIVE_MAX);
    if (ring_producer_waits(&ch->requests))
        waker_wake(ch->waker, ch->wake);
    return rpc_input_commit(&ch->input, n, NULL, 0, e) < 0 ? RPC_VIOLATION : RPC_RECEIVED;
}

void rpc_channel_settle(struct rpc_channel *ch, struct rpc_output *socket)
{
    uint64_t length;

    if (!ch->writing)
        return;
    ch->writing = false;
    length = rpc_output_position(&ch->output) - ch->message_start;
    if (length > ring_message_bytes(RING_REPLY_BYTES))
        rpc_output_move(&ch->output, (size_t)length, socket);
}

void rpc_channel_expect(struct rpc_channel *ch, struct wait_window window)
{
    ring_window_set(ch->memory, window);
    ch->told = true;
}

struct rpc_output *rpc_channel_begin(struct rpc_channel *ch, struct rpc_output *socket)
{
    rpc_channel_settle(ch, socket);
    if (ch->told)
        ring_window_set(ch->memory, (struct wait_window){0});
    ch->told = false;
    ch->writing = true;
    ch->message_start = rpc_output_position(&ch->output);
    return &ch->output;
}

/* The next piece: what there is, as far as there is room. */
static size_t write_some(struct rpc_channel *ch, size_t room)
{
    struct buffer *bytes = &ch->output.bytes;
    size_t n = buffer_length(bytes);

    if (n > room)
        n = room;
    ring_write(&ch->replies, bytes->data + bytes->start, n);
    ch->output.position += n;
    buffer_consume(bytes, n);
    return n;
}

int rpc_channel_flush(struct rpc_channel *ch, struct error *e)
{
    bool written = false, asked = false;

    while (rpc_channel_pending(ch)) {
        size_t room = (size_t)ring_room_known(&ch->replies);

        if (room < rpc_channel_pending(ch)) {
            int64_t now = ring_room(&ch->replies);

            if (now < 0)
                return error_set(e, ERROR_PROTOCOL_ERROR,
                                 "the reply ring's tail went backwards, or past what was written");
            room = (size_t)now;
        }
        if (room) {
            write_some(ch, room);
            written = true;
            continue;
        }
        if (asked)
            break;
        ring_producer_sleeps(&ch->replies);
        asked = true; /* and look once more */
    }
    if (asked && !rpc_channel_pending(ch))
        ring_producer_wakes(&ch->replies);
    if (written && ring_publish(&ch->replies))
        waker_wake(ch->waker, ch->wake);
    return rpc_channel_pending(ch) ? 0 : 1;
}

bool rpc_channel_sleep(struct rpc_channel *ch)
{
    ring_consumer_sleeps(&ch->requests);
    if (ring_available(&ch->requests) == 0)
        return true;
    ring_consumer_wakes(&ch->requests);
    return false;
}

void rpc_channel_wake(struct rpc_channel *ch)
{
    ring_consumer_wakes(&ch->requests);
}
