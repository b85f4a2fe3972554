/* A load of many connections from one process, over plain sockets and prepared messages, so that what is measured is
 * the daemon. Prints JSON.
 *
 *     bench_load --socket PATH --connections 64 --depth 1             as fast as replies come
 *     bench_load --socket PATH --connections 64 --rate 200000         as fast as asked, whatever comes back
 *     bench_load --connections 64 --peer                              a raw server in place of the daemon
 *
 * With --rate a request's latency counts from when it was due: one that could not be sent in time, because the daemon
 * does not take more, has waited all the same. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "load_peer.h"
#include "load_wire.h"
#include "measure.h"
#include "options.h"

enum { SENDS_A_TURN = 64, CONNECTIONS_MAX = 4096, WINDOW_MAX = 4096, SAMPLES_MAX = 4000000, INPUT_BYTES = 65536 };

struct link {
    int fd;
    unsigned char *input;
    size_t n_input;
    uint64_t due_ns[WINDOW_MAX]; /* of the requests under way, by msgid */
    uint32_t next, answered;     /* msgids; replies come in order, since all are of one stream */
    unsigned char *request;      /* one message, whose msgid is written before each sending */
    size_t unsent;               /* bytes of the message under way that the socket did not take */
    bool writing;                /* … so room to write is watched for */
};

struct setting {
    const char *socket;
    size_t connections, depth, rate, milliseconds, elements;
    bool add, peer;
};

struct load {
    const struct setting *setting;
    struct link *links;
    struct message message;
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

static void open_link(struct load *load, struct link *l)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strncpy(address.sun_path, load->setting->socket, sizeof(address.sun_path) - 1);
    if (l->fd < 0 || connect(l->fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        fail("connecting");
    l->input = malloc(INPUT_BYTES);
    if (!l->input)
        fail("memory");
    if (load->setting->add && !load->setting->peer)
        message_add(&load->message, message_register(l->fd, 3 * 4 * load->setting->elements), load->setting->elements);
    else
        message_ping(&load->message);
    l->request = malloc(load->message.length);
    if (!l->request)
        fail("memory");
    memcpy(l->request, load->message.bytes, load->message.length);
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
    size_t length = load->message.length;
    ssize_t n = send(l->fd, l->request + length - l->unsent, l->unsent, MSG_NOSIGNAL);

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
    message_number(&load->message, l->request, l->next++);
    l->unsent = load->message.length;
    load->sent++;
    push(load, l);
}

static void take_reply(struct load *load, struct link *l, const unsigned char *reply, size_t length)
{
    uint64_t now = now_ns(), due = l->due_ns[l->answered % WINDOW_MAX];

    load->errors += !message_is_reply(reply, length, l->answered, load->setting->peer);
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
    while ((length = message_length(l->input + at, l->n_input - at, load->setting->peer)) > 0) {
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

static void print(const struct load *load, double peer_cpu_s)
{
    const struct setting *s = load->setting;
    double seconds = (double)(load->stop_ns - load->measure_from_ns) * 1e-9;
    struct series latency = load->latency, *all[] = {&latency};
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    printf("{\"connections\": %zu, \"depth\": %zu, \"offered_per_s\": %zu, \"per_s\": %.1f, \"sent\": %llu, "
           "\"unanswered\": %llu, \"errors\": %llu, \"peer_cpu_s\": %.4f, \"client_cpu_s\": %.4f, \"series\": ",
           s->connections, s->depth, s->rate, (double)load->in_time / seconds, (unsigned long long)load->sent,
           (unsigned long long)(load->sent - load->answered), (unsigned long long)load->errors, peer_cpu_s,
           (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6);
    series_print(all, 1);
    printf("}\n");
}

int main(int argc, char **argv)
{
    struct setting setting = {.connections = 1, .depth = 1, .milliseconds = 1000, .elements = 16};
    const struct bench_option options[] = {
        {.name = "socket", .text = &setting.socket},
        {.name = "connections", .count = &setting.connections},
        {.name = "depth", .count = &setting.depth},
        {.name = "rate", .count = &setting.rate},
        {.name = "milliseconds", .count = &setting.milliseconds},
        {.name = "elements", .count = &setting.elements},
        {.name = "add", .flag = &setting.add},
        {.name = "peer", .flag = &setting.peer},
        {0},
    };
    struct load load = {.setting = &setting};
    struct peer peer = {0};

    options_read(argc, argv, options);
    if (setting.connections > CONNECTIONS_MAX || setting.depth > WINDOW_MAX) {
        fprintf(stderr, "bench_load: at most %d connections, each %d deep\n", CONNECTIONS_MAX, WINDOW_MAX);
        return 2;
    }
    if (setting.peer) {
        peer_start(&peer);
        setting.socket = peer.path;
    }
    load.links = calloc(setting.connections, sizeof(*load.links));
    load.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!load.links || load.epoll < 0)
        fail("starting");
    series_init(&load.latency, "latency", SAMPLES_MAX);
    for (size_t i = 0; i < setting.connections; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &load.links[i]};

        open_link(&load, &load.links[i]);
        if (epoll_ctl(load.epoll, EPOLL_CTL_ADD, load.links[i].fd, &event) < 0)
            fail("epoll_ctl");
    }
    run(&load);
    for (size_t i = 0; i < setting.connections; i++) {
        close(load.links[i].fd);
        free(load.links[i].input);
        free(load.links[i].request);
    }
    free(load.links);
    close(load.epoll);
    print(&load, setting.peer ? peer_stop(&peer) : 0);
    series_deinit(&load.latency);
    return load.errors || load.answered != load.sent;
}
