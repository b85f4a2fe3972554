#include "fake.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 64 };

struct fake {
    int listener, stop[2];
    char folder[64], path[96];
    fake_serve *serve;
    void *context;
    pthread_t acceptor, threads[MAX_CONNECTIONS];
    unsigned n_threads;
    bool vanished;
};

static atomic_bool prefer_socket;

void fake_prefer_socket(bool prefer)
{
    atomic_store(&prefer_socket, prefer);
}

/* ---- sockets ---- */

static void *connection_main(void *argument)
{
    struct fake_connection *c = argument;

    c->fake->serve(c, c->fake->context);
    close(c->fd);
    for (unsigned i = 0; i < c->n_fds; i++)
        close(c->fds[i]);
    msgpack_unpacked_destroy(&c->unpacked);
    fake_shm_free(c->shm);
    if (c->words)
        munmap((void *)c->words, 4096);
    free(c);
    return NULL;
}

static void *accept_main(void *argument)
{
    struct fake *f = argument;

    for (;;) {
        struct pollfd p[2] = {{.fd = f->listener, .events = POLLIN}, {.fd = f->stop[0], .events = POLLIN}};
        struct fake_connection *c;

        if (poll(p, 2, -1) < 0)
            continue;
        if (p[1].revents)
            return NULL;
        c = calloc(1, sizeof(*c));
        must(c && f->n_threads < MAX_CONNECTIONS);
        msgpack_unpacked_init(&c->unpacked);
        c->fake = f;
        c->number = f->n_threads + 1;
        c->next_buffer = 100 * (uint64_t)f->n_threads; /* ids of another connection mean something else */
        c->fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
        must(c->fd >= 0);
        if (pthread_create(&f->threads[f->n_threads], NULL, connection_main, c))
            abort();
        f->n_threads++;
    }
}

static void appear(struct fake *f)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(address.sun_path, sizeof(address.sun_path), "%s", f->path);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(f->listener, (struct sockaddr *)&address, sizeof(address)) || listen(f->listener, 64) ||
        pthread_create(&f->acceptor, NULL, accept_main, f))
        abort();
}

struct fake *fake_start(fake_serve *serve, void *context)
{
    struct fake *f = calloc(1, sizeof(*f));

    must(f);
    f->serve = serve;
    f->context = context;
    snprintf(f->folder, sizeof(f->folder), "/tmp/test-kops-client-test-XXXXXX");
    if (!mkdtemp(f->folder) || pipe(f->stop))
        abort();
    snprintf(f->path, sizeof(f->path), "%s/kopsd.sock", f->folder);
    appear(f);
    return f;
}

void fake_reappear(struct fake *f)
{
    char byte;

    must(f->vanished && read(f->stop[0], &byte, 1) == 1);
    f->vanished = false;
    appear(f);
}

const char *fake_path(const struct fake *f)
{
    return f->path;
}

void fake_vanish(struct fake *f)
{
    if (f->vanished)
        return;
    f->vanished = true;
    if (write(f->stop[1], "", 1) != 1)
        abort();
    pthread_join(f->acceptor, NULL);
    close(f->listener);
    unlink(f->path);
}

void fake_stop(struct fake *f)
{
    fake_vanish(f);
    for (unsigned i = 0; i < f->n_threads; i++)
        pthread_join(f->threads[i], NULL);
    close(f->stop[0]);
    close(f->stop[1]);
    rmdir(f->folder);
    free(f);
}

/* ---- messages in ---- */

static bool receive(struct fake_connection *c)
{
    union {
        char space[CMSG_SPACE(16 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = c->data + c->length, .iov_len = sizeof(c->data) - c->length};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.space)};
    ssize_t n;

    must(iov.iov_len);
    do
        n = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return false;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
        unsigned count = (unsigned)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));

        must(c->n_fds + count <= 16);
        memcpy(c->fds + c->n_fds, CMSG_DATA(h), count * sizeof(int));
        c->n_fds += count;
        c->fds_from = c->position + c->length;
        c->fds_to = c->fds_from + (uint64_t)n;
    }
    c->length += (size_t)n;
    return true;
}

static bool is(const msgpack_object *o, const char *text)
{
    return o && o->type == MSGPACK_OBJECT_STR && o->via.str.size == strlen(text) &&
           !memcmp(o->via.str.ptr, text, o->via.str.size);
}

const msgpack_object *fake_param(const msgpack_object *map, const char *key)
{
    if (map->type != MSGPACK_OBJECT_MAP)
        return NULL;
    for (uint32_t i = 0; i < map->via.map.size; i++)
        if (is(&map->via.map.ptr[i].key, key))
            return &map->via.map.ptr[i].val;
    return NULL;
}

/* `start` is the message's position in the stream, `end` that behind it. */
static void read_request(struct fake_connection *c, const msgpack_object *o, uint64_t start, uint64_t end,
                         struct fake_request *ret)
{
    const msgpack_object *items = o->via.array.ptr, *nfds, *attrs, *tag;
    unsigned at;

    must(o->type == MSGPACK_OBJECT_ARRAY && o->via.array.size >= 3);
    memset(ret, 0, sizeof(*ret));
    ret->type = (unsigned)items[0].via.u64;
    at = ret->type == 0 ? 2 : 1;
    if (ret->type == 0)
        ret->msgid = (uint32_t)items[1].via.u64;
    must(o->via.array.size == at + 2 && items[at].type == MSGPACK_OBJECT_STR);
    snprintf(ret->method, sizeof(ret->method), "%.*s", (int)items[at].via.str.size, items[at].via.str.ptr);
    must(items[at + 1].type == MSGPACK_OBJECT_ARRAY && items[at + 1].via.array.size == 1);
    ret->params = items[at + 1].via.array.ptr[0];
    attrs = fake_param(&ret->params, "attrs");
    tag = attrs ? fake_param(attrs, "tag") : NULL;
    if (tag)
        snprintf(ret->tag, sizeof(ret->tag), "%.*s", (int)tag->via.str.size, tag->via.str.ptr);
    nfds = fake_param(&ret->params, "nfds");
    if (nfds) {
        ret->n_fds = (unsigned)nfds->via.u64;
        /* They came with the message's first byte, and with nothing behind it. */
        must(ret->n_fds == c->n_fds && start >= c->fds_from && start < c->fds_to && end >= c->fds_to);
        memcpy(ret->fds, c->fds, ret->n_fds * sizeof(int));
        c->n_fds = 0;
    }
}

/* The next message of some bytes; 0: it is not whole. */
static size_t take(struct fake_connection *c, const char *data, size_t length)
{
    /* The bytes are moved behind it: a copy that the next call frees. */
    static _Thread_local char kept[sizeof(c->data)];
    size_t used = 0, again = 0;

    if (!length || msgpack_unpack_next(&c->unpacked, data, length, &used) != MSGPACK_UNPACK_SUCCESS)
        return 0;
    memcpy(kept, data, used);
    if (msgpack_unpack_next(&c->unpacked, kept, used, &again) != MSGPACK_UNPACK_SUCCESS)
        abort();
    return used;
}

static bool next_by_ring(struct fake_connection *c, struct fake_request *ret)
{
    size_t length, used;
    char *data;

    if (!c->shm)
        return false;
    data = fake_shm_bytes(c, &length);
    used = take(c, data, length);
    if (!used)
        return false;
    fake_shm_taken(c, used);
    read_request(c, &c->unpacked.data, 0, 0, ret);
    must(!ret->n_fds);
    c->by_ring = true;
    return true;
}

/* Whether the socket is the stream to look at first. */
static bool socket_comes_first(struct fake_connection *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};

    return atomic_load(&prefer_socket) && poll(&p, 1, 0) > 0 && receive(c);
}

bool fake_next(struct fake_connection *c, struct fake_request *ret)
{
    for (;;) {
        size_t used;

        if (!(c->shm && socket_comes_first(c)) && next_by_ring(c, ret))
            return true;
        used = take(c, c->data, c->length);
        if (used) {
            memmove(c->data, c->data + used, c->length - used);
            c->length -= used;
            c->position += used;
            read_request(c, &c->unpacked.data, c->position - used, c->position, ret);
            c->by_ring = false;
            return true;
        }
        if (!(c->shm && fake_shm_receive(c)) && !receive(c))
            return false;
    }
}

/* ---- messages out ---- */

void fake_send(struct fake_connection *c, const void *data, size_t length, const int *fds, unsigned n_fds)
{
    union {
        char space[CMSG_SPACE(16 * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = length};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

    if (c->by_ring && !n_fds) {
        fake_shm_send(c, data, length);
        return;
    }
    if (n_fds) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(&control.align), fds, n_fds * sizeof(int));
    }
    while (iov.iov_len) {
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return; /* the client has gone */
        iov.iov_base = (char *)iov.iov_base + n;
        iov.iov_len -= (size_t)n;
        m.msg_control = NULL;
        m.msg_controllen = 0;
    }
}

__attribute__((format(printf, 4, 5))) static void reply(struct fake_connection *c, const int *fds, unsigned n,
                                                        const char *format, ...)
{
    msgpack_sbuffer b;
    va_list args;
    char *text;

    va_start(args, format);
    must(vasprintf(&text, format, args) >= 0);
    va_end(args);
    fake_pack(&b, text);
    fake_send(c, b.data, b.size, fds, n);
    msgpack_sbuffer_destroy(&b);
    free(text);
}

__attribute__((format(printf, 5, 0))) static void reply_result(struct fake_connection *c, uint32_t msgid,
                                                               const int *fds, unsigned n, const char *format,
                                                               va_list args)
{
    char *result;

    must(vasprintf(&result, format, args) >= 0);
    reply(c, fds, n, "[1, %u, null, %s]", msgid, result);
    free(result);
}

void fake_reply(struct fake_connection *c, uint32_t msgid, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    reply_result(c, msgid, NULL, 0, format, args);
    va_end(args);
}

void fake_reply_with_fds(struct fake_connection *c, uint32_t msgid, const int *fds, unsigned n, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    reply_result(c, msgid, fds, n, format, args);
    va_end(args);
}

void fake_reply_error(struct fake_connection *c, uint32_t msgid, const char *code, const char *message,
                      const char *details)
{
    reply(c, NULL, 0, "[1, %u, {code: '%s', message: '%s', detail: %s}, null]", msgid, code, message, details);
}

/* One of the times is an integer where a float is meant. */
void fake_reply_run(struct fake_connection *c, uint32_t msgid, const char *variant)
{
    fake_reply(c, msgid,
               "{timings: {host_us: 12.5, total_us: 20, samples: [1.0, 2.0, 3.0]}, device: 'host', variant: '%s'}",
               variant);
}
