/* A whole server on hostile bytes: what one client can send, from the socket to the kernels of the host and back.
 *
 * An input is a script and a stream: one byte n, then n times {length of the chunk (2 bytes, big endian), descriptors
 * that come with it}, then the stream's bytes; the rest is one last chunk. The connection has two
 * buffers from the start, with the ids that the server gives out first. A descriptor with an even place is a sealed
 * memfd, the others are none that a server takes.
 *
 * Beyond memory errors it checks: every reply is a message, no descriptor stays open, and once the client is gone the
 * server holds nothing for it. */
#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "codec/scan.h"
#include "server/control/server.h"
#include "server/exec/exec.h"
#include "server/peer/connection.h"
#include "tests/fuzz/fuzz.h"
#include "util/log.h"

enum { BUFFER_BYTES = 4096, FDS_MAX = 16, TURNS_MAX = 400, CLOSES_MAX = 100000, REPLIES_MAX = 1 << 20 };

static struct server *server;

static int sealed_memory(void)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    FUZZ_CHECK(fd >= 0 && ftruncate(fd, BUFFER_BYTES) == 0);
    FUZZ_CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    return fd;
}

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

static void start(void)
{
    enum { TICK_MS = 20 };
    static uv_timer_t tick;
    static struct server_config config = {
        .max_connections = 16,
        .message_bytes = 65536,
        .inflight = 16,
        .buffers = 16,
        .programs = 8,
        .kernels = 8,
        .inline_mappings = 8,
        .output_bytes = 65536,
        .shutdown_grace_ms = 1000,
        .code = {.compiler = {.nvrtc = "none", .helpers = 1}, .memory_bytes = 1 << 20, .source_bytes = 65536},
        .backend_config = {.host_threads = 1, .host_blas = "none", .host_onednn = "none"},
        .backends = {&host_backend},
    };
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct error e;

    log_set_level(LOG_LEVEL_ERROR);
    /* Autobind: a name of its own, which nobody connects to. */
    FUZZ_CHECK(bind(listener, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path)) == 0);
    FUZZ_CHECK(listen(listener, 1) == 0);
    FUZZ_CHECK(server_new(&config, listener, &server, &e) == 0);
    /* The last thing that settle() waits for may come just before the loop sleeps, which then nothing else wakes. */
    uv_timer_init(&server->loop, &tick);
    uv_timer_start(&tick, on_tick, TICK_MS, TICK_MS);
    uv_unref((uv_handle_t *)&tick);
}

static void give(int fd, const uint8_t *data, size_t size, unsigned n_fds)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct iovec vector = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    int fds[FDS_MAX];

    for (unsigned i = 0; i < n_fds; i++) {
        fds[i] = i % 2 ? open("/dev/null", O_RDWR | O_CLOEXEC) : sealed_memory();
        FUZZ_CHECK(fds[i] >= 0);
    }
    if (n_fds) {
        memset(&control, 0, sizeof(control));
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, n_fds * sizeof(int));
    }
    sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL); /* what does not fit is not sent */
    for (unsigned i = 0; i < n_fds; i++)
        close(fds[i]);
}

/* Reads what has come, behind what is there; the kernel closes descriptors that come with it. */
static size_t take(int fd, uint8_t *into, size_t have)
{
    ssize_t n = have < REPLIES_MAX ? recv(fd, into + have, REPLIES_MAX - have, MSG_DONTWAIT) : 0;

    return have + (n > 0 ? (size_t)n : 0);
}

/* Directories of /proc have an entry each. */
static unsigned open_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned n = 0;

    FUZZ_CHECK(folder);
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

static struct connection *only_connection(void)
{
    return list_empty(peers_connections(server))
               ? NULL
               : list_entry(list_first(peers_connections(server)), struct connection, link);
}

/* Turns the loop until the client has its answers, or for long enough. */
static size_t settle(int fd, uint8_t *replies, size_t have)
{
    for (unsigned turn = 0; turn < TURNS_MAX; turn++) {
        struct connection *c = only_connection();
        bool busy = c && !c->closed && c->inflight;

        if (turn > 2 && (!c || c->closed || !busy))
            break;
        uv_run(&server->loop, busy && turn > 2 ? UV_RUN_ONCE : UV_RUN_NOWAIT);
        have = take(fd, replies, have);
    }
    return have;
}

static void register_two(int fd)
{
    /* [0, 0xffffff00, "register", [{"kind": "memfd", "size": 4096, "nfds": 1, "fd": 0}]] */
    uint8_t request[] = "\x94\x00\xce\xff\xff\xff\x00\xa8register\x91\x84\xa4kind\xa5memfd\xa4size\xcd\x10\x00"
                        "\xa4nfds\x01\xa2"
                        "fd\x00";

    for (unsigned i = 0; i < 2; i++, request[6]++)
        give(fd, request, sizeof(request) - 1, 1);
}

/* Replies are whole messages, but for the last where the connection was closed on it. */
static void check_replies(const uint8_t *replies, size_t size)
{
    size_t at = 0;

    while (at < size) {
        enum scan_result status;
        struct scan scan;

        scan_reset(&scan);
        status = scan_value(&scan, replies + at, size - at, REPLIES_MAX);
        FUZZ_CHECK(status == SCAN_COMPLETE || status == SCAN_MORE);
        if (status != SCAN_COMPLETE)
            return;
        at += scan.position;
    }
}

static void send_script(int fd, const uint8_t *data, size_t size, uint8_t *replies, size_t *have)
{
    const uint8_t *script = data + 1;
    unsigned n = data[0];

    data += 1 + 3 * n;
    size -= 1 + 3 * n;
    for (unsigned i = 0; i < n && size; i++, script += 3) {
        size_t length = (size_t)script[0] << 8 | script[1];

        if (length > size)
            length = size;
        if (length)
            give(fd, data, length, script[2] % (FDS_MAX + 1));
        data += length;
        size -= length;
        uv_run(&server->loop, UV_RUN_NOWAIT);
        *have = take(fd, replies, *have);
    }
    if (size)
        give(fd, data, size, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t replies[REPLIES_MAX];
    size_t have = 0;
    struct error e;
    unsigned before;
    int pair[2];

    if (!server)
        start();
    if (size < 1 || size < 1 + 3 * (size_t)data[0])
        return 0;
    before = open_descriptors();
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    FUZZ_CHECK(connection_new(server, pair[0], NULL, &e));
    register_two(pair[1]);
    have = settle(pair[1], replies, have);
    send_script(pair[1], data, size, replies, &have);
    have = settle(pair[1], replies, have);
    check_replies(replies, have);
    close(pair[1]);
    /* Nothing but this connection keeps the loop waiting, and its end must come by itself. */
    while (!list_empty(peers_connections(server)) || server->mappings.count)
        uv_run(&server->loop, only_connection() && !only_connection()->closed ? UV_RUN_ONCE : UV_RUN_NOWAIT);
    FUZZ_CHECK(!peers_open_connections(server) && !exec_jobs(server));
    for (unsigned i = 0; open_descriptors() > before && i < CLOSES_MAX; i++)
        usleep(100); /* threads of its own close what clients sent */
    FUZZ_CHECK(open_descriptors() <= before);
    return 0;
}
