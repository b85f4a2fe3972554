/* A load over many connections from one process. Its messages are prepared, so that it measures the server: a daemon,
 * or with --raw one that answers the same bytes (echo.c). Prints JSON.
 *
 *     bench_load --connections 64 --depth 1         as fast as replies come
 *     bench_load --connections 64 --rate 200000     as fast as asked, whatever comes back
 *
 * Reads, for each connection, two words from stdin and as many bytes as the second one says: the descriptor of a
 * connected socket, which it inherits, and a request whose msgid is of 32 bits.
 *
 * With --rate a request's latency counts from when it was due: one that could not be sent in time, because the daemon
 * does not take more, has waited all the same. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "codec/scan.h"

#include "bench.h"

enum { SENDS_A_TURN = 64, CONNECTIONS_MAX = 4096, WINDOW_MAX = 4096, SAMPLES_MAX = 4000000, INPUT_BYTES = 65536 };
enum { MSGID_AT = 3, PONG_BYTES = 9 }; /* where a request's msgid is; the raw server's reply */

struct link {
    int fd;
    unsigned char *input;
    size_t n_input;
    uint64_t due_ns[WINDOW_MAX]; /* of the requests under way, by msgid */
    uint32_t next, answered;     /* msgids; replies come in order, since all are of one stream */
    unsigned char *request;      /* whose msgid is written before each sending */
    uint32_t length;
    size_t unsent; /* bytes of the message under way that the socket did not take */
    bool writing;  /* … so room to write is watched for */
};

struct setting {
    size_t connections, depth, rate, milliseconds;
    bool raw;
};

struct load {
    const struct setting *setting;
    struct link *links;
    struct series latency;
    uint64_t sent, answered, errors, measure_from_ns, stop_ns;
    uint64_t in_time;           /* answers that came while measuring, whenever they were due */
    uint64_t due, first_due_ns; /* requests that were due so far, with a rate */
    size_t turn;                /* the connection that the next one is for */
    int epoll;
};

static void fail(const char *what)
{
    fprintf(stderr, "bench_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- one connection ---- */

static void open_link(struct link *l)
{
    uint32_t head[2];

    if (fread(head, sizeof(head), 1, stdin) != 1)
        fail("reading requests");
    l->fd = (int)head[0];
    l->length = head[1];
    l->input = malloc(INPUT_BYTES);
    l->request = malloc(l->length);
    if (!l->input || !l->request || fread(l->request, l->length, 1, stdin) != 1)
        fail("reading requests");
    fcntl(l->fd, F_SETFL, O_NONBLOCK);
}

static void watch(struct load *load, struct link *l, bool writing)
{
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = l};

    if (writing == l->writing)
        return;
    l->writing = writing;
    if (epoll_ctl(load->epoll, EPOLL_CTL_MOD, l->fd, &event) < 0)
        fail("epoll_ctl");
}

/* Sends what is left of the message under way. */
static void push(struct load *load, struct link *l)
{
    ssize_t n = send(l->fd, l->request + l->length - l->unsent, l->unsent, MSG_NOSIGNAL);

    if (n < 0 && errno != EAGAIN && errno != EINTR)
        fail("sending");
    l->unsent -= n > 0 ? (size_t)n : 0;
    watch(load, l, l->unsent > 0);
}

static bool has_room(const struct load *load, const struct link *l)
{
    size_t window = load->setting->rate ? WINDOW_MAX : load->setting->depth;

    return !l->unsent && l->next - l->answered < window;
}

static void send_one(struct load *load, struct link *l, uint64_t due_ns)
{
    l->due_ns[l->next % WINDOW_MAX] = due_ns;
    for (unsigned i = 0; i < 4; i++)
        l->request[MSGID_AT + i] = (unsigned char)(l->next >> 8 * (3 - i));
    l->next++;
    l->unsent = l->length;
    load->sent++;
    push(load, l);
}

/* Bytes of the first whole reply, 0 when there is none yet. */
static size_t reply_length(const unsigned char *data, size_t size, bool raw)
{
    struct scan scan;

    if (raw)
        return size >= PONG_BYTES ? PONG_BYTES : 0;
    if (!size)
        return 0;
    scan_reset(&scan);
    return scan_value(&scan, data, size, 1 << 20) == SCAN_COMPLETE ? scan.position : 0;
}

/* It answers `msgid`, with a result. */
static bool is_reply(const unsigned char *reply, size_t length, uint32_t msgid)
{
    static const unsigned sizes[] = {1, 2, 4};
    uint32_t got = 0;
    size_t at = 2;

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

static void take_reply(struct load *load, struct link *l, const unsigned char *reply, size_t length)
{
    uint64_t now = now_ns(), due = l->due_ns[l->answered % WINDOW_MAX];

    load->errors += !load->setting->raw && !is_reply(reply, length, l->answered);
    l->answered++;
    load->answered++;
    load->in_time += now >= load->measure_from_ns && now < load->stop_ns;
    if (due >= load->measure_from_ns && now < load->stop_ns && load->latency.n < SAMPLES_MAX)
        series_add_us(&load->latency, (double)(now - due) * 1e-3);
}

static void receive(struct load *load, struct link *l)
{
    ssize_t n = recv(l->fd, l->input + l->n_input, INPUT_BYTES - l->n_input, 0);
    size_t at = 0, length;

    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        errno = n ? errno : ECONNRESET;
        fail("receiving");
    }
    l->n_input += n > 0 ? (size_t)n : 0;
    while ((length = reply_length(l->input + at, l->n_input - at, load->setting->raw)) > 0) {
        take_reply(load, l, l->input + at, length);
        at += length;
    }
    memmove(l->input, l->input + at, l->n_input - at);
    l->n_input -= at;
}

/* ---- all of them ---- */

/* Sends what is due, one connection after the other; what finds no room waits for its turn. */
static void send_due(struct load *load)
{
    const struct setting *s = load->setting;
    uint64_t now = now_ns();

    if (now >= load->stop_ns)
        return;
    /* Only so many at a time: answers are taken meanwhile, however far behind the sending is. */
    for (unsigned n = 0; n < SENDS_A_TURN && load->due < (double)(now - load->first_due_ns) * 1e-9 * (double)s->rate;
         n++, load->due++) {
        uint64_t due_ns = load->first_due_ns + (uint64_t)((double)load->due * 1e9 / (double)s->rate);
        size_t tried = 0;

        while (tried < s->connections && !has_room(load, &load->links[load->turn])) {
            load->turn = (load->turn + 1) % s->connections;
            tried++;
        }
        if (tried == s->connections)
            return;
        send_one(load, &load->links[load->turn], due_ns);
        load->turn = (load->turn + 1) % s->connections;
    }
}

static void send_freely(struct load *load, struct link *l)
{
    while (has_room(load, l)) {
        uint64_t now = now_ns();

        if (now >= load->stop_ns)
            return;
        send_one(load, l, now);
    }
}

static void serve_events(struct load *load, int timeout_ms)
{
    struct epoll_event events[256];
    int n = epoll_wait(load->epoll, events, 256, timeout_ms);

    for (int i = 0; i < n; i++) {
        struct link *l = events[i].data.ptr;

        if (l->unsent && (events[i].events & EPOLLOUT))
            push(load, l);
        if (events[i].events & (EPOLLIN | EPOLLHUP))
            receive(load, l);
        if (!load->setting->rate)
            send_freely(load, l);
    }
}

static void run(struct load *load)
{
    const struct setting *s = load->setting;
    uint64_t start = now_ns(), drained;

    load->measure_from_ns = start + s->milliseconds * 250000; /* the first quarter warms up */
    load->stop_ns = start + s->milliseconds * 1250000;
    load->first_due_ns = start;
    for (size_t i = 0; !s->rate && i < s->connections; i++)
        send_freely(load, &load->links[i]);
    while (now_ns() < load->stop_ns) {
        if (s->rate)
            send_due(load);
        serve_events(load, s->rate ? 0 : 100);
    }
    /* Nothing that was sent may be without its answer. */
    for (drained = now_ns(); load->answered < load->sent && now_ns() - drained < 20000000000;)
        serve_events(load, 100);
}

static void print(const struct load *load)
{
    const struct setting *s = load->setting;
    double seconds = (double)(load->stop_ns - load->measure_from_ns) * 1e-9;
    struct series latency = load->latency;

    printf("{\"offered_per_s\": %zu, \"per_s\": %.1f, \"sent\": %llu, \"unanswered\": %llu, \"errors\": %llu, "
           "\"series\": ",
           s->rate, (double)load->in_time / seconds, (unsigned long long)load->sent,
           (unsigned long long)(load->sent - load->answered), (unsigned long long)load->errors);
    series_print(&latency, 1);
    printf("}\n");
}

int main(int argc, char **argv)
{
    struct setting setting = {.connections = 1, .depth = 1, .milliseconds = 1000};
    const struct bench_option options[] = {
        {.name = "connections", .count = &setting.connections},
        {.name = "depth", .count = &setting.depth},
        {.name = "rate", .count = &setting.rate},
        {.name = "milliseconds", .count = &setting.milliseconds},
        {.name = "raw", .flag = &setting.raw},
        {0},
    };
    struct load load = {.setting = &setting};

    options_read(argc, argv, options);
    if (setting.connections > CONNECTIONS_MAX || setting.depth > WINDOW_MAX) {
        fprintf(stderr, "bench_load: at most %d connections, each %d deep\n", CONNECTIONS_MAX, WINDOW_MAX);
        return 2;
    }
    load.links = calloc(setting.connections, sizeof(*load.links));
    load.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!load.links || load.epoll < 0)
        fail("starting");
    series_init(&load.latency, "latency", SAMPLES_MAX);
    for (size_t i = 0; i < setting.connections; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &load.links[i]};

        open_link(&load.links[i]);
        if (epoll_ctl(load.epoll, EPOLL_CTL_ADD, load.links[i].fd, &event) < 0)
            fail("epoll_ctl");
    }
    run(&load);
    for (size_t i = 0; i < setting.connections; i++) {
        free(load.links[i].input);
        free(load.links[i].request);
    }
    free(load.links);
    print(&load);
    series_deinit(&load.latency);
    return load.errors || load.answered != load.sent;
}
