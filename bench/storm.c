/* What a storm of connects from another process costs a client that works. Blocks with and without a storm alternate;
 * prints JSON: latencies of a no-op, one after the other, its rate, and the connects of the storm, which the daemon
 * took.
 *
 *     bench_storm --socket PATH                          as many connects as the daemon takes
 *     bench_storm --socket PATH --rate 10000             as many a second as asked
 *     bench_storm --socket PATH --blocks 5 --milliseconds 1000 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "load_wire.h"
#include "measure.h"
#include "options.h"

enum { SAMPLES_MAX = 2000000 };

struct setting {
    const char *socket;
    size_t rate, blocks, milliseconds;
};

/* Shared with the storm's process. */
struct storm {
    atomic_bool on;
    atomic_ullong connects;
};

static void fail(const char *what)
{
    fprintf(stderr, "bench_storm: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        fail("connecting");
    return fd;
}

/* Connects and hangs up, for ever. A full backlog blocks it: what it counts, the daemon took. */
static void blow(const struct setting *setting, struct storm *storm)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    uint64_t due = now_ns();

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        if (!storm->on) {
            nanosleep(&pause, NULL);
            due = now_ns();
            continue;
        }
        if (setting->rate && now_ns() < due) {
            nanosleep(&(struct timespec){.tv_nsec = (long)(due - now_ns() > 1000000 ? 1000000 : 1000)}, NULL);
            continue;
        }
        close(connect_to(setting->socket));
        storm->connects++;
        due += setting->rate ? UINT64_C(1000000000) / setting->rate : 0;
    }
}

static void call(int fd, const struct message *ping, uint32_t msgid)
{
    unsigned char request[MESSAGE_MAX], reply[MESSAGE_MAX];
    size_t have = 0, length = 0;

    memcpy(request, ping->bytes, ping->length);
    message_number(ping, request, msgid);
    if (send(fd, request, ping->length, MSG_NOSIGNAL) != (ssize_t)ping->length)
        fail("sending");
    while (!length) {
        ssize_t n = recv(fd, reply + have, sizeof(reply) - have, 0);

        if (n <= 0)
            fail("receiving");
        have += (size_t)n;
        length = message_length(reply, have, false);
    }
    if (!message_is_reply(reply, length, msgid, false))
        fail("the reply");
}

static uint64_t work(int fd, const struct message *ping, const struct setting *setting, struct series *latency)
{
    static uint32_t msgid;
    uint64_t start = now_ns(), end = start + setting->milliseconds * UINT64_C(1000000);

    while (now_ns() < end && latency->n < latency->capacity) {
        uint64_t began = now_ns();

        call(fd, ping, ++msgid);
        series_add(latency, began);
    }
    return now_ns() - start;
}

int main(int argc, char **argv)
{
    struct setting setting = {.blocks = 5, .milliseconds = 500};
    const struct bench_option options[] = {{.name = "socket", .text = &setting.socket},
                                           {.name = "rate", .count = &setting.rate},
                                           {.name = "blocks", .count = &setting.blocks},
                                           {.name = "milliseconds", .count = &setting.milliseconds},
                                           {0}};
    struct series alone, stormy, *const all[] = {&alone, &stormy};
    uint64_t alone_ns = 0, stormy_ns = 0;
    struct message ping;
    struct storm *storm;
    pid_t child;
    int fd;

    options_read(argc, argv, options);
    if (!setting.socket)
        setting.socket = getenv("KOPS_SOCKET");
    if (!setting.socket) {
        fputs("bench_storm: --socket is missing\n", stderr);
        return 2;
    }
    storm = mmap(NULL, sizeof(*storm), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (storm == MAP_FAILED)
        fail("mmap");
    child = fork();
    if (child < 0)
        fail("fork");
    if (!child)
        blow(&setting, storm);
    series_init(&alone, "alone", SAMPLES_MAX);
    series_init(&stormy, "storm", SAMPLES_MAX);
    message_ping(&ping);
    fd = connect_to(setting.socket);
    for (size_t i = 0; i < setting.blocks; i++) {
        alone_ns += work(fd, &ping, &setting, &alone);
        storm->on = true;
        stormy_ns += work(fd, &ping, &setting, &stormy);
        storm->on = false;
    }
    kill(child, SIGKILL);
    fprintf(stderr, "rate alone %.0f/s, in the storm %.0f/s; connects %.0f/s\n",
            (double)alone.n * 1e9 / (double)alone_ns, (double)stormy.n * 1e9 / (double)stormy_ns,
            (double)storm->connects * 1e9 / (double)stormy_ns);
    series_print(all, 2);
    close(fd);
    return 0;
}
