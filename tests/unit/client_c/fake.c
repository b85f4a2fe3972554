#include "fake.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/ring.h"

enum { MAX_CONNECTIONS = 64 };

struct fake {
    int listener;
    char folder[64], path[96];
    fake_serve *serve;
    void *context;
    pthread_t acceptor, threads[MAX_CONNECTIONS];
    unsigned n_threads;
    bool vanished;
};

atomic_bool fake_prefers_socket, fake_offers_little;
atomic_uint fake_inflight = 64;
_Atomic(const char *) fake_device = "host";

/* ---- shared memory ---- */

struct fake_shm {
    void *memory;
    size_t size;
    int doorbell, wake;
    struct ring_consumer requests;
    struct ring_producer replies;
    char data[1 << 18];
    size_t length;
};

/* Small, so that tests fill them. */
enum { RING_BYTES = 16384 };

static void shm_free(struct fake_shm *s)
{
    if (!s)
        return;
    munmap(s->memory, s->size);
    close(s->doorbell);
    close(s->wake);
    free(s);
}

void *fake_shm_page(struct fake_connection *c)
{
    return c->shm->memory;
}

void fake_shm_wake(struct fake_connection *c)
{
    const uint64_t one = 1;

    must(write(c->shm->wake, &one, sizeof(one)) == sizeof(one));
}

/* Until the doorbell or the socket says something; false: the socket did. */
static bool wait_for_bell(struct fake_connection *c)
{
    struct fake_shm *s = c->shm;
    struct pollfd p[2] = {{.fd = s->doorbell, .events = POLLIN}, {.fd = c->fd, .events = POLLIN}};
    uint64_t count;

    must(poll(p, 2, -1) > 0);
    if (p[0].revents)
        must(read(s->doorbell, &count, sizeof(count)) == sizeof(count));
    return p[0].revents != 0;
}

static bool shm_receive(struct fake_connection *c)
{
    struct fake_shm *s = c->shm;
    int64_t n;

    while (!(n = ring_available(&s->requests))) {
        bool more;

        ring_consumer_sleeps(&s->requests);
        more = ring_available(&s->requests) != 0 || wait_for_bell(c);
        ring_consumer_wakes(&s->requests);
        if (!more)
            return false;
    }
    must(n > 0);
    s->length += ring_read(&s->requests, s->data + s->length, sizeof(s->data) - s->length);
    if (ring_producer_waits(&s->requests))
        fake_shm_wake(c);
    return true;
}

static void shm_send(struct fake_connection *c, const void *data, size_t length)
{
    struct fake_shm *s = c->shm;
    size_t n;

    for (const char *at = data; length; at += n, length -= n) {
        const int64_t room = ring_room(&s->replies);

        must(room >= 0);
        n = length < (size_t)room ? length : (size_t)room;
        ring_write(&s->replies, at, n);
        if (n && ring_publish(&s->replies))
            fake_shm_wake(c);
        if (n)
            continue;
        ring_producer_sleeps(&s->replies);
        if (ring_room(&s->replies) == 0 && !wait_for_bell(c))
            return; /* the client has gone, or sends by the socket meanwhile: no test does */
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
        shm_send(c, data, length);
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
        const ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL);

        if (n < 0)
            return; /* the client has gone */
        iov.iov_base = (char *)iov.iov_base + n;
        iov.iov_len -= (size_t)n;
        m.msg_control = NULL;
        m.msg_controllen = 0;
    }
}

void fake_say(struct fake_connection *c, const int *fds, unsigned n_fds, const char *format, ...)
{
    msgpack_sbuffer b;
    va_list args;
    char *text;

    va_start(args, format);
    must(vasprintf(&text, format, args) >= 0);
    va_end(args);
    fake_pack(&b, text);
    fake_send(c, b.data, b.size, fds, n_fds);
    msgpack_sbuffer_destroy(&b);
    free(text);
}

void fake_reply_with_fds(struct fake_connection *c, uint32_t msgid, const int *fds, unsigned n, const char *format, ...)
{
    va_list args;
    char *result;

    va_start(args, format);
    must(vasprintf(&result, format, args) >= 0);
    va_end(args);
    fake_say(c, fds, n, "[1, %u, null, %s]", msgid, result);
    free(result);
}

void fake_reply_error(struct fake_connection *c, uint32_t msgid, const char *code, const char *message,
                      const char *details)
{
    fake_say(c, NULL, 0, "[1, %u, {code: '%s', message: '%s', detail: %s}, null]", msgid, code, message, details);
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
    n = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC);
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

const msgpack_object *fake_param(const msgpack_object *map, const char *key)
{
    const msgpack_object_kv *pairs = map->via.map.ptr;

    for (uint32_t i = 0; map->type == MSGPACK_OBJECT_MAP && i < map->via.map.size; i++)
        if (pairs[i].key.via.str.size == strlen(key) && !memcmp(pairs[i].key.via.str.ptr, key, strlen(key)))
            return &pairs[i].val;
    return NULL;
}

static void copy_text(char *to, size_t size, const msgpack_object *text)
{
    must(text->type == MSGPACK_OBJECT_STR);
    snprintf(to, size, "%.*s", (int)text->via.str.size, text->via.str.ptr);
}

/* `start` is the message's position in the stream, `end` that behind it. */
static void read_request(struct fake_connection *c, const msgpack_object *o, uint64_t start, uint64_t end,
                         struct fake_request *ret)
{
    const msgpack_object *items = o->via.array.ptr, *nfds, *attrs, *tag;

    must(o->type == MSGPACK_OBJECT_ARRAY && o->via.array.size >= 3);
    memset(ret, 0, sizeof(*ret));
    ret->type = (unsigned)items[0].via.u64;
    if (ret->type == 0)
        ret->msgid = (uint32_t)(++items)->via.u64;
    must(o->via.array.size == (ret->type ? 3 : 4));
    copy_text(ret->method, sizeof(ret->method), &items[1]);
    must(items[2].type == MSGPACK_OBJECT_ARRAY && items[2].via.array.size == 1);
    ret->params = items[2].via.array.ptr[0];
    attrs = fake_param(&ret->params, "attrs");
    tag = attrs ? fake_param(attrs, "tag") : NULL;
    if (tag)
        copy_text(ret->tag, sizeof(ret->tag), tag);
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
    static _Thread_local char kept[sizeof(c->data)]; /* the message's texts are there */
    size_t used = 0;

    memcpy(kept, data, length);
    return length && msgpack_unpack_next(&c->unpacked, kept, length, &used) == MSGPACK_UNPACK_SUCCESS ? used : 0;
}

static bool next_by_ring(struct fake_connection *c, struct fake_request *ret)
{
    struct fake_shm *s = c->shm;
    size_t used = s ? take(c, s->data, s->length) : 0;

    if (!used)
        return false;
    memmove(s->data, s->data + used, s->length - used);
    s->length -= used;
    read_request(c, &c->unpacked.data, 0, 0, ret);
    must(!ret->n_fds);
    c->by_ring = true;
    return true;
}

/* Whether the socket is the stream to look at first. */
static bool socket_comes_first(struct fake_connection *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};

    return fake_prefers_socket && poll(&p, 1, 0) > 0 && receive(c);
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
        if (!(c->shm && shm_receive(c)) && !receive(c))
            return false;
    }
}

/* ---- answers ---- */

static int sealed_memory(size_t size, void **ret_memory)
{
    int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    must(fd >= 0 && !ftruncate(fd, (off_t)size) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    *ret_memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(*ret_memory != MAP_FAILED);
    return fd;
}

static void shm_answer_hello(struct fake_connection *c, uint32_t msgid)
{
    struct fake_shm *s = calloc(1, sizeof(*s));
    int fds[3];

    must(s && !c->shm);
    s->size = (size_t)ring_memory_bytes(RING_BYTES, RING_BYTES);
    fds[0] = sealed_memory(s->size, &s->memory);
    fds[1] = s->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fds[2] = s->wake = eventfd(0, EFD_CLOEXEC);
    ring_daemon_ends(s->memory, RING_BYTES, RING_BYTES, &s->requests, &s->replies);
    fake_reply_with_fds(c, msgid, fds, 3,
                        "{nfds: 3, shm: {fd: 0, doorbell: 1, wake: 2, request_bytes: %d, reply_bytes: %d}}", RING_BYTES,
                        RING_BYTES);
    close(fds[0]);
    c->shm = s;
}

static void answer_timelines(struct fake_connection *c, uint32_t msgid)
{
    void *words;
    int fd;

    must(!c->words);
    fd = sealed_memory(4096, &words);
    c->words = words;
    fake_reply_with_fds(c, msgid, &fd, 1, "{nfds: 1, fd: 0, size: 4096, streams: 256}");
    close(fd);
}
static void answer_hello(struct fake_connection *c, const struct fake_request *r)
{
    static const char all[] = ", 'shm', 'ordered', 'sequence', 'program', 'priority', 'tune'";
    const msgpack_object *isolate = fake_param(&r->params, "isolate");
    const char *const uuid = fake_device;
    char isolation[32] = "'user'";

    if (isolate)
        fake_print(isolate, isolation, sizeof(isolation));
    fake_reply(c, r->msgid,
               "{isolation: %s, server: 'kopsd 9.8.7', protocol: 1, protocol_min: 1, pid: 4711,"
               " devices: [{index: 0, name: 'a processor', uuid: '%s', backend: '%s', memory_bytes: 1073741824,"
               "            compute_units: 4, arch: 'avx2', default: true}],"
               " ops: [{name: 'gemm', summary: 'out = a @ b', doc: 'Matrix product.', inputs: ['a', 'b'],"
               "        outputs: ['out'], dtypes: ['f32', 'f64'],"
               "        attrs: [{name: 'alpha', type: 'float', default: 1.0, doc: 'Scales.'},"
               "                {name: 'precision', type: 'choice', default: 'highest', choices: ['highest', 'high'],"
               "                 doc: 'How exact.'}],"
               "        variants: {host: ['blas', 'blocked']}}],"
               " limits: {spin_us: 0, sequence_ops: 1024, message_bytes: 100000, inflight: %u, rank: 8},"
               " features: ['memfd'%s], of_the_future: 'ignored',"
               " kernels: {compiler: 'NVRTC 9.8', policy: 'group', allowed: true, arch: ['']}}",
               isolation, uuid, strcmp(uuid, "host") != 0 ? "cuda" : "host", fake_inflight,
               fake_offers_little ? "" : all);
}

/* Of 4096 bytes where no size is given: the answer to a request that is kept without its parameters. */
static void answer_buffer(struct fake_connection *c, const struct fake_request *r)
{
    const unsigned long long id = ++c->next_buffer;
    const msgpack_object *given = fake_param(&r->params, "size");
    const unsigned long long size = given ? given->via.u64 : 4096;
    int fd;

    if (!strcmp(r->method, "register")) {
        fake_reply(c, r->msgid, "{buffer: %llu, size: %llu}", id, size);
        return;
    }
    fd = memfd_create("fake", MFD_CLOEXEC);
    must(!ftruncate(fd, (off_t)size));
    fake_reply_with_fds(c, r->msgid, &fd, 1, "{buffer: %llu, size: %llu, kind: 'memfd', nfds: 1, fd: 0}", id, size);
    close(fd);
}

static void answer_compile(struct fake_connection *c, const struct fake_request *r)
{
    fake_reply(c, r->msgid,
               "{module: %llu, key: '0123', arch: 'sm_90a', cached: '%s', compile_us: 25000.5, log: 'a warning',"
               " entries: [{name: 'f', lowered: '_Z1fPf', registers: 32, params: [8, 4]}]}",
               (unsigned long long)++c->next_buffer, c->number > 1 ? "memory" : "no");
}

void fake_answer(struct fake_connection *c, const struct fake_request *r)
{
    for (unsigned i = 0; i < r->n_fds; i++)
        close(r->fds[i]);
    if (r->type != 0)
        return;
    if (!strcmp(r->method, "hello") && fake_param(&r->params, "shm"))
        shm_answer_hello(c, r->msgid);
    else if (!strcmp(r->method, "hello"))
        answer_hello(c, r);
    else if (!strcmp(r->method, "timelines"))
        answer_timelines(c, r->msgid);
    else if (!strcmp(r->method, "register") || !strcmp(r->method, "alloc"))
        answer_buffer(c, r);
    else if (!strcmp(r->method, "compile"))
        answer_compile(c, r);
    else if (!strcmp(r->method, "kernel") || !strcmp(r->method, "program"))
        fake_reply(c, r->msgid, "{%s: %llu}", r->method, (unsigned long long)++c->next_buffer);
    else if (fake_is_work(r->method))
        fake_reply_run(c, r->msgid, "simple");
    else
        fake_reply(c, r->msgid, "{}");
}

bool fake_is_work(const char *method)
{
    return !strcmp(method, "run") || !strcmp(method, "launch") || !strcmp(method, "sequence") ||
           !strcmp(method, "run_program");
}

/* One of the times is an integer where a float is meant. */
void fake_reply_run(struct fake_connection *c, uint32_t msgid, const char *variant)
{
    fake_reply(c, msgid,
               "{timings: {host_us: 12.5, total_us: 20, samples: [1.0, 2.0, 3.0]}, device: 'host', variant: '%s'}",
               variant);
}

void fake_serve_well(struct fake_connection *c, void *context)
{
    struct fake_request r;

    while (fake_next(c, &r))
        fake_answer(c, &r);
}

/* ---- connections ---- */

static void *connection_main(void *argument)
{
    struct fake_connection *c = argument;

    c->fake->serve(c, c->fake->context);
    close(c->fd);
    for (unsigned i = 0; i < c->n_fds; i++)
        close(c->fds[i]);
    msgpack_unpacked_destroy(&c->unpacked);
    shm_free(c->shm);
    if (c->words)
        munmap((void *)c->words, 4096);
    free(c);
    return NULL;
}

/* Until the socket is shut down. */
static void *accept_main(void *argument)
{
    struct fake *f = argument;
    int fd;

    while ((fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        struct fake_connection *c = calloc(1, sizeof(*c));

        must(c && f->n_threads < MAX_CONNECTIONS);
        msgpack_unpacked_init(&c->unpacked);
        c->fake = f;
        c->number = f->n_threads + 1;
        c->next_buffer = 100 * (uint64_t)f->n_threads; /* ids of another connection mean something else */
        c->fd = fd;
        if (pthread_create(&f->threads[f->n_threads], NULL, connection_main, c))
            abort();
        f->n_threads++;
    }
    return NULL;
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
    must(mkdtemp(f->folder));
    snprintf(f->path, sizeof(f->path), "%s/kopsd.sock", f->folder);
    appear(f);
    return f;
}

void fake_reappear(struct fake *f)
{
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
    must(!shutdown(f->listener, SHUT_RDWR));
    pthread_join(f->acceptor, NULL);
    close(f->listener);
    unlink(f->path);
}

void fake_stop(struct fake *f)
{
    fake_vanish(f);
    for (unsigned i = 0; i < f->n_threads; i++)
        pthread_join(f->threads[i], NULL);
    rmdir(f->folder);
    free(f);
    fake_prefers_socket = fake_offers_little = false;
    fake_inflight = 64;
    fake_device = "host";
}
