/* The no-op call of libkops against two processes that play ping-pong with nothing between them, in turns of one run:
 * the least that any protocol can cost. Prints JSON.
 *
 * The pair has a socket, on which both sleep or poll first, and moves as many bytes as a ping with an empty map does;
 * or with `--peer words` two words in shared memory, which both poll. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum {
    REQUEST_BYTES = 14, /* [0, msgid of five bytes, "ping", [{}]] */
    REPLY_BYTES = 9,    /* [1, msgid, nil, {}] */
    POLLS_BEFORE_SLEEP = 100000
};

/* Each on a cache line of its own. */
struct words {
    _Alignas(128) _Atomic uint32_t ping;
    _Alignas(128) _Atomic uint32_t pong;
};

struct bench {
    kops_client *client;
    int fd; /* of the pair's socket, when it has no words */
    struct words *words;
    size_t spin_us; /* both ends of the pair poll at most that long before they sleep */
};

static int ping(void *bench, const void *how)
{
    struct kops_error error;

    (void)how;
    return check_kops(kops_ping(((struct bench *)bench)->client, 0, &error), &error, "ping");
}

/* ---- the pair ---- */

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Both move a whole message at once, and fail where the socket is closed. */
static int receive(int fd, char *buffer, size_t bytes, uint64_t spin_us)
{
    uint64_t until = spin_us ? now_ns() + spin_us * 1000 : 0;
    ssize_t r;

    do {
        r = recv(fd, buffer, bytes, until && now_ns() < until ? MSG_DONTWAIT : MSG_WAITALL);
    } while (r < 0 && (errno == EINTR || errno == EAGAIN));
    return r == (ssize_t)bytes ? 0 : -1;
}

static int transmit(int fd, const char *buffer, size_t bytes)
{
    return send(fd, buffer, bytes, MSG_NOSIGNAL) == (ssize_t)bytes ? 0 : -1;
}

/* Until the parent kills it. */
static void answer_words(struct words *words)
{
    for (uint32_t turn = 1;; turn++) {
        for (unsigned polls = 0; atomic_load_explicit(&words->ping, memory_order_acquire) != turn; polls++) {
            /* Between two blocks it must not take a core from the other side. */
            if (polls > POLLS_BEFORE_SLEEP)
                nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
            else
                pause_cpu();
        }
        atomic_store_explicit(&words->pong, turn, memory_order_release);
    }
}

static pid_t start_child(struct bench *bench)
{
    char buffer[REQUEST_BYTES] = {0};
    pid_t parent = getpid(), child;
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0 || (child = fork()) < 0)
        return -1;
    if (child == 0) {
        close(fds[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(0);
        if (bench->words)
            answer_words(bench->words);
        while (!receive(fds[1], buffer, REQUEST_BYTES, bench->spin_us) && !transmit(fds[1], buffer, REPLY_BYTES)) {
        }
        _exit(0);
    }
    close(fds[1]);
    bench->fd = fds[0];
    return child;
}

static int raw(void *context, const void *how)
{
    static const char request[REQUEST_BYTES];
    const struct bench *bench = context;
    struct words *words = bench->words;
    char reply[REPLY_BYTES];

    (void)how;
    if (words) {
        uint32_t turn = atomic_load_explicit(&words->ping, memory_order_relaxed) + 1;

        atomic_store_explicit(&words->ping, turn, memory_order_release);
        while (atomic_load_explicit(&words->pong, memory_order_acquire) != turn)
            pause_cpu();
        return 0;
    }
    if (!transmit(bench->fd, request, REQUEST_BYTES) && !receive(bench->fd, reply, REPLY_BYTES, bench->spin_us))
        return 0;
    perror("bench_rpc: raw pair");
    return -1;
}

int main(int argc, char **argv)
{
    static const struct side sides[] = {{"kops_ping", ping, NULL}, {"raw", raw, NULL}};
    struct turns turns = {.blocks = 5, .calls = 1000, .warmup = 500, .again = 10, .per = 1};
    const char *socket = NULL, *transport = NULL, *spin = NULL, *peer = "socket";
    struct bench bench = {0};
    const struct bench_option options[] = {
        {.name = "socket", .text = &socket},
        {.name = "transport", .text = &transport},
        {.name = "spin", .text = &spin},
        {.name = "peer", .text = &peer},
        {.name = "peer-spin-us", .count = &bench.spin_us},
        {.name = "blocks", .count = &turns.blocks},
        {.name = "calls", .count = &turns.calls},
        {.name = "warmup", .count = &turns.warmup},
        {0},
    };
    pid_t child;
    int r;

    options_read(argc, argv, options);
    if (strcmp(peer, "words") == 0)
        bench.words = mmap(NULL, sizeof(*bench.words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    /* The child comes first: it must not inherit a connection. */
    child = bench.words == MAP_FAILED ? -1 : start_child(&bench);
    if (child < 0) {
        perror("bench_rpc");
        return 1;
    }
    bench.client = connect_or_exit(socket, transport, spin);
    r = sides_measure(sides, 2, &bench, &turns);
    kops_close(bench.client);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return r;
}
