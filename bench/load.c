/* A load over many connections from one process. Its messages are prepared, so that it measures the server: a daemon,
 * or with --raw a child that answers as many bytes and does nothing else: a daemon that decodes, checks and keeps
 * nothing would be as fast. Prints JSON.
 *
 *     bench_load --connections 64 --depth 1         as fast as replies come
 *     bench_load --connections 64 --rate 200000     as fast as asked, whatever comes back
 *
 * Reads, for each connection, two words from stdin and as many bytes as the second one says: the descriptor of a
 * connected socket, which it inherits (of none with --raw), and a request whose msgid is of 32 bits.
 *
 * With --rate a request's latency counts from when it was due: one that could not be sent in time, because the daemon
 * does not take more, has waited all the same. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "codec/scan.h"

#include "bench.h"

enum { SENDS_A_TURN = 64, CONNECTIONS_MAX = 4096, WINDOW_MAX = 4096, SAMPLES_MAX = 4000000, INPUT_BYTES = 65536 };
enum {
    MSGID_AT = 3, /* in a request; its reply has it at the same place, after [1, and before nil */
    MSGID_BYTES = 4,
    MSGID_FIRST = 1 << 24, /* one that takes a reply four bytes, too */
    PING_BYTES = 14,       /* a request to the raw server, and its reply */
    PONG_BYTES = 9
};

struct link {
    int fd;
    unsigned char input[INPUT_BYTES];
    size_t n_input;
    uint64_t due_ns[WINDOW_MAX]; /* of the requests under way, by msgid */
    uint32_t next, answered;     /* msgids; replies come in order, since all are of one stream */
    unsigned char *request;      /* owned; its msgid is written before each sending */
    uint32_t length;
    size_t unsent; /* bytes of the message under way that the socket did not take */
    bool writing;  /* … so room to write is watched for */
};

struct load {
    size_t connections, depth, rate, milliseconds;
    bool raw;
    struct link *links; /* owned */
    struct series latency;
    uint64_t sent, answered, errors, start_ns, measure_from_ns, stop_ns;
    uint64_t in_time; /* answers that came while measuring, whenever they were due */
    uint64_t due;     /* requests that were due so far, with a rate */
    size_t turn;      /* the connection that the next one is for */
    int epoll;
};

static void fail(const char *what)
{
    fprintf(stderr, "bench_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- the raw server ---- */

/* Tells whether the socket is still open. */
static bool answer(int fd)
{
    static unsigned char request[INPUT_BYTES / PING_BYTES * PING_BYTES], reply[INPUT_BYTES];
    ssize_t n = recv(fd, request, sizeof(request), MSG_DONTWAIT);
    size_t replies = n > 0 ? (size_t)n / PING_BYTES : 0;

    /* No part of a request is left over: the load sends whole ones, and reads all replies, so that each fits. */
    return n != 0 && (!replies || send(fd, reply, replies * PONG_BYTES, MSG_NOSIGNAL) >= 0);
}

static void serve(int epoll)
{
    struct epoll_event events[64];

    for (;;) {
        int n = epoll_wait(epoll, events, 64, -1);

        for (int i = 0; i < n; i++) {
            if (!answer(events[i].data.fd))
                _exit(0);
        }
    }
}

/* Starts the server, which ends with this process, and connects the links to it. */
static void start_raw_server(struct load *load)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC), fds[2];
    pid_t child;

    for (size_t i = 0; i < load->connections; i++) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
            fail("socketpair");
        load->links[i].fd = fds[0];
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fds[1], &(struct epoll_event){.events = EPOLLIN, .data.fd = fds[1]}) < 0)
            fail("epoll_ctl");
    }
    child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(epoll);
    }
    close(epoll);
}

/* ---- one connection ---- */

static void open_link(struct load *load, struct link *l)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = l};
    uint32_t head[2];

    if (fread(head, sizeof(head), 1, stdin) != 1)
        fail("reading requests");
    l->fd = load->raw ? l->fd : (int)head[0];
    l->length = head[1];
    l->next = l->answered = MSGID_FIRST;
    l->request = malloc(l->length);
    if (!l->request || fread(l->request, l->length, 1, stdin) != 1)
        fail("reading requests");
    fcntl(l->fd, F_SETFL, O_NONBLOCK);
    if (epoll_ctl(load->epoll, EPOLL_CTL_ADD, l->fd, &event) < 0)
        fail("epoll_ctl");
}

/* Sends what is left of the message under way. */
static void push(struct load *load, struct link *l)
{
    ssize_t n = send(l->fd, l->request + l->length - l->unsent, l->unsent, MSG_NOSIGNAL);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = l};

    if (n < 0 && errno != EAGAIN && errno != EINTR)
        fail("sending");
    l->unsent -= n > 0 ? (size_t)n : 0;
    if (l->writing == (l->unsent > 0))
        return;
    l->writing = !l->writing;
    event.events |= l->writing ? EPOLLOUT : 0;
    if (epoll_ctl(load->epoll, EPOLL_CTL_MOD, l->fd, &event) < 0)
        fail("epoll_ctl");
}

static bool has_room(const struct load *load, const struct link *l)
{
    return !l->unsent && l->next - l->answered < (load->rate ? WINDOW_MAX : load->depth);
}

static void write_msgid(unsigned char *at, uint32_t msgid)
{
    for (unsigned i = 0; i < MSGID_BYTES; i++)
        at[i] = (unsigned char)(msgid >> 8 * (3 - i));
}

static void send_one(struct load *load, struct link *l, uint64_t due_ns)
{
    l->due_ns[l->next % WINDOW_MAX] = due_ns;
    write_msgid(l->request + MSGID_AT, l->next++);
    l->unsent = l->length;
    load->sent++;
    push(load, l);
}

/* Bytes of the first whole reply, 0 when there is none yet. */
static size_t reply_length(const unsigned char *data, size_t size, bool raw)
{
    struct scan scan;

    if (raw || !size)
        return size >= PONG_BYTES ? PONG_BYTES : 0;
    scan_reset(&scan);
    return scan_value(&scan, data, size, 1 << 20) == SCAN_COMPLETE ? scan.position : 0;
}

static void take_reply(struct load *load, struct link *l, const unsigned char *reply, size_t length)
{
    unsigned char begin[] = {0x94, 1, 0xce, 0, 0, 0, 0, 0xc0}; /* [1, msgid, nil: no error */
    uint64_t now = now_ns(), due = l->due_ns[l->answered % WINDOW_MAX];

    write_msgid(begin + MSGID_AT, l->answered++);
    load->errors += !load->raw && (length < sizeof(begin) || memcmp(reply, begin, sizeof(begin)) != 0);
    load->answered++;
    load->in_time += now >= load->measure_from_ns && now < load->stop_ns;
    if (due >= load->measure_from_ns && now < load->stop_ns)
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
    while ((length = reply_length(l->input + at, l->n_input - at, load->raw)) > 0) {
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
    uint64_t now = now_ns();

    /* Only so many at a time: answers are taken meanwhile, however far behind the sending is. */
    for (unsigned n = 0; n < SENDS_A_TURN && now < load->stop_ns; n++, load->due++) {
        uint64_t due_ns = load->start_ns + (uint64_t)((double)load->due * 1e9 / (double)load->rate);
        size_t tried = 0;

        if (due_ns >= now)
            return;
        for (; tried < load->connections && !has_room(load, &load->links[load->turn]); tried++)
            load->turn = (load->turn + 1) % load->connections;
        if (tried == load->connections)
            return;
        send_one(load, &load->links[load->turn], due_ns);
        load->turn = (load->turn + 1) % load->connections;
    }
}

static void send_freely(struct load *load, struct link *l)
{
    for (uint64_t now = now_ns(); has_room(load, l) && now < load->stop_ns; now = now_ns())
        send_one(load, l, now);
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
        if (!load->rate)
            send_freely(load, l);
    }
}

static void run(struct load *load)
{
    uint64_t drained;

    load->start_ns = now_ns();
    load->measure_from_ns = load->start_ns + load->milliseconds * 250000; /* the first quarter warms up */
    load->stop_ns = load->start_ns + load->milliseconds * 1250000;
    for (size_t i = 0; !load->rate && i < load->connections; i++)
        send_freely(load, &load->links[i]);
    while (now_ns() < load->stop_ns) {
        if (load->rate)
            send_due(load);
        serve_events(load, load->rate ? 0 : 100);
    }
    /* Nothing that was sent may be without its answer. */
    for (drained = now_ns(); load->answered < load->sent && now_ns() - drained < 20000000000;)
        serve_events(load, 100);
}

static void print(struct load *load)
{
    double seconds = (double)(load->stop_ns - load->measure_from_ns) * 1e-9;

    printf("{\"offered_per_s\": %zu, \"per_s\": %.1f, \"sent\": %llu, \"unanswered\": %llu, \"errors\": %llu, "
           "\"series\": ",
           load->rate, (double)load->in_time / seconds, (unsigned long long)load->sent,
           (unsigned long long)(load->sent - load->answered), (unsigned long long)load->errors);
    series_print(&load->latency, 1);
    printf("}\n");
}

int main(int argc, char **argv)
{
    struct load load = {.connections = 1, .depth = 1, .milliseconds = 1000};
    const struct bench_option options[] = {
        {.name = "connections", .count = &load.connections},
        {.name = "depth", .count = &load.depth},
        {.name = "rate", .count = &load.rate},
        {.name = "milliseconds", .count = &load.milliseconds},
        {.name = "raw", .flag = &load.raw},
        {0},
    };

    options_read(argc, argv, options);
    if (load.connections > CONNECTIONS_MAX || load.depth > WINDOW_MAX) {
        fprintf(stderr, "bench_load: at most %d connections, each %d deep\n", CONNECTIONS_MAX, WINDOW_MAX);
        return 2;
    }
    load.links = calloc(load.connections, sizeof(*load.links));
    load.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!load.links || load.epoll < 0)
        fail("starting");
    series_init(&load.latency, "latency", SAMPLES_MAX);
    if (load.raw)
        start_raw_server(&load);
    for (size_t i = 0; i < load.connections; i++)
        open_link(&load, &load.links[i]);
    run(&load);
    print(&load);
    for (size_t i = 0; i < load.connections; i++)
        free(load.links[i].request);
    free(load.links);
    series_deinit(&load.latency);
    return load.errors || load.answered != load.sent;
}
