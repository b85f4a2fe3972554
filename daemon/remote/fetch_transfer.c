/* One transfer: the request, its bounds, its answer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "remote/fetch_internal.h"

enum {
    HEADER_BYTES = 64 << 10,  /* of one answer's header lines, those of intermediate answers included */
    USELESS_BYTES = 64 << 10, /* of a body that nobody wants: an error page */
    CONNECT_SHARE = 3,        /* of the time for a request, at most, until the server has accepted it: a third */
};

struct transfer {
    struct list link;
    struct fetch *fetch;
    struct remote_order order;
    curl_handle easy;
    struct curl_list *headers;
    int fd;         /* of GET: made when a body comes; of PUT: the body */
    uint64_t bytes; /* read or written so far */
    uint64_t size;  /* of PUT */
    size_t header_bytes;
    const char *broken; /* why this side gave up; NULL: it did not */
};

static void tell(uint64_t id, enum remote_answer answer, const char *why, int fd)
{
    struct remote_event event = {.kind = REMOTE_EVENT_ANSWER, .answer = answer, .id = id};

    snprintf(event.why, sizeof(event.why), "%s", why);
    /* The socket has room: the daemon has few requests on their way. Where not, the daemon's own time limit ends it. */
    remote_send(REMOTE_HELPER_FD, &event, sizeof(event), fd);
}

static struct transfer *transfer_free(struct transfer *t)
{
    struct fetch *f = t->fetch;

    list_remove(&t->link);
    if (t->easy)
        f->curl.easy_cleanup(t->easy);
    f->curl.slist_free_all(t->headers);
    if (t->fd >= 0)
        close(t->fd);
    free(t);
    f->n--;
    return NULL;
}

static long status_of(const struct transfer *t)
{
    long status = 0;

    t->fetch->curl.easy_getinfo(t->easy, CURL_INFO_RESPONSE_CODE, &status);
    return status;
}

/* ---- called by libcurl ---- */

static size_t give_up(struct transfer *t, const char *why)
{
    t->broken = why;
    return 0; /* not what was offered: libcurl ends the transfer */
}

static size_t on_header(char *bytes, size_t one, size_t n, void *context)
{
    struct transfer *t = context;

    (void)bytes;
    t->header_bytes += one * n;
    return t->header_bytes <= HEADER_BYTES ? one * n : give_up(t, "its header is too long");
}

static size_t on_body(char *bytes, size_t one, size_t n, void *context)
{
    struct transfer *t = context;
    const size_t size = one * n;
    const bool wanted = t->order.kind == REMOTE_ORDER_GET && status_of(t) == 200;

    if (t->bytes + size > (wanted ? t->fetch->setup.max_bytes : USELESS_BYTES))
        return give_up(t, "its body is too long");
    t->bytes += size;
    for (size_t done = 0; wanted && done < size;) {
        ssize_t put = write(t->fd, bytes + done, size - done);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return give_up(t, "there is no memory for its body");
        done += (size_t)put;
    }
    return size;
}

static size_t on_upload(char *into, size_t one, size_t n, void *context)
{
    struct transfer *t = context;
    ssize_t got;

    do
        got = pread(t->fd, into, one * n, (off_t)t->bytes);
    while (got < 0 && errno == EINTR);
    if (got < 0) {
        t->broken = "its body cannot be read";
        return CURL_READ_ABORT;
    }
    t->bytes += (uint64_t)got;
    return (size_t)got;
}

/* A server may close a connection that was kept while the next body is on its way: libcurl then sends it again. */
static int on_rewind(void *context, int64_t offset, int origin)
{
    struct transfer *t = context;

    if (origin != SEEK_SET || offset < 0)
        return CURL_SEEK_FAILED;
    t->bytes = (uint64_t)offset;
    return CURL_SEEK_OK;
}

/* ---- the request ---- */

/* BASE/ab/ab….: two digits, so that no folder gets too large for some file systems and listings. */
static void make_url(const struct transfer *t, char *into, size_t size)
{
    static const char digits[] = "0123456789abcdef";
    const char *base = t->fetch->setup.url;
    char hex[2 * REMOTE_KEY_BYTES + 1] = "";
    size_t length = strlen(base);

    for (unsigned i = 0; i < REMOTE_KEY_BYTES; i++) {
        hex[2 * i] = digits[t->order.key[i] >> 4];
        hex[2 * i + 1] = digits[t->order.key[i] & 15];
    }
    while (length && base[length - 1] == '/')
        length--;
    snprintf(into, size, "%.*s/%.2s/%s", (int)length, base, hex, hex);
}

static int add_header(struct transfer *t, const char *line)
{
    struct curl_list *longer = t->fetch->curl.slist_append(t->headers, line);

    if (!longer)
        return -1;
    t->headers = longer;
    return 0;
}

static int add_headers(struct transfer *t)
{
    const struct remote_setup *s = &t->fetch->setup;
    char line[sizeof("Authorization: ") + REMOTE_AUTHORIZATION_SIZE];
    int r = 0;

    if (*s->authorization) {
        snprintf(line, sizeof(line), "Authorization: %s", s->authorization);
        r = add_header(t, line);
        explicit_bzero(line, sizeof(line));
    }
    /* The body is sent at once: no server needs to be asked before, and some never answer that. */
    if (!r && t->order.kind == REMOTE_ORDER_PUT && add_header(t, "Expect:") == 0)
        r = add_header(t, "Content-Type: application/octet-stream");
    return r;
}

/* No redirection is followed, and no protocol but these two is spoken. */
static int set_options(struct transfer *t)
{
    const struct remote_setup *s = &t->fetch->setup;
    const struct curl_functions *c = &t->fetch->curl;
    const long timeout = (long)s->timeout_ms, connect = timeout / CONNECT_SHARE;
    char url[REMOTE_URL_SIZE + 2 * REMOTE_KEY_BYTES + 8];
    int r = 0;

    make_url(t, url, sizeof(url));
    r |= c->easy_setopt(t->easy, CURL_OPTION_URL, url);
    r |= c->easy_setopt(t->easy, CURL_OPTION_PROTOCOLS, (long)(CURL_HTTP | CURL_HTTPS));
    r |= c->easy_setopt(t->easy, CURL_OPTION_REDIR_PROTOCOLS, (long)(CURL_HTTP | CURL_HTTPS));
    r |= c->easy_setopt(t->easy, CURL_OPTION_FOLLOWLOCATION, 0L);
    r |= c->easy_setopt(t->easy, CURL_OPTION_NOSIGNAL, 1L);
    r |= c->easy_setopt(t->easy, CURL_OPTION_TIMEOUT_MS, timeout);
    r |= c->easy_setopt(t->easy, CURL_OPTION_CONNECTTIMEOUT_MS, connect);
    r |= c->easy_setopt(t->easy, CURL_OPTION_USERAGENT, "kopsd/" KOPS_VERSION);
    r |= c->easy_setopt(t->easy, CURL_OPTION_HTTPHEADER, t->headers);
    r |= c->easy_setopt(t->easy, CURL_OPTION_HEADERFUNCTION, on_header);
    r |= c->easy_setopt(t->easy, CURL_OPTION_HEADERDATA, t);
    r |= c->easy_setopt(t->easy, CURL_OPTION_WRITEFUNCTION, on_body);
    r |= c->easy_setopt(t->easy, CURL_OPTION_WRITEDATA, t);
    r |= c->easy_setopt(t->easy, CURL_OPTION_PRIVATE, t);
    r |= c->easy_setopt(t->easy, CURL_OPTION_MAXFILESIZE_LARGE, (int64_t)s->max_bytes); /* as it is announced */
    if (*s->ca)
        r |= c->easy_setopt(t->easy, CURL_OPTION_CAINFO, s->ca);
    if (t->order.kind == REMOTE_ORDER_PUT) {
        r |= c->easy_setopt(t->easy, CURL_OPTION_UPLOAD, 1L);
        r |= c->easy_setopt(t->easy, CURL_OPTION_READFUNCTION, on_upload);
        r |= c->easy_setopt(t->easy, CURL_OPTION_READDATA, t);
        r |= c->easy_setopt(t->easy, CURL_OPTION_SEEKFUNCTION, on_rewind);
        r |= c->easy_setopt(t->easy, CURL_OPTION_SEEKDATA, t);
        r |= c->easy_setopt(t->easy, CURL_OPTION_INFILESIZE_LARGE, (int64_t)t->size);
    }
    return r;
}

static const char *prepare(struct transfer *t)
{
    struct fetch *f = t->fetch;
    const char *why = "its body cannot be read";
    int64_t size = 0;

    if (t->order.kind == REMOTE_ORDER_PUT && (t->fd < 0 || (size = remote_body_size(t->fd, UINT32_MAX, &why)) < 0))
        return why;
    t->size = (uint64_t)size;
    if (t->order.kind == REMOTE_ORDER_GET) {
        if (t->fd >= 0)
            close(t->fd);
        t->fd = memfd_create("kops-remote", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (t->fd < 0)
            return "there is no file for its body";
    }
    t->easy = f->curl.easy_init();
    if (!t->easy || add_headers(t) < 0 || set_options(t) != CURL_OK || f->curl.multi_add_handle(f->multi, t->easy))
        return "libcurl cannot make a request";
    return NULL;
}

static void cancel(struct fetch *f, uint64_t id)
{
    list_for_each_safe (node, after, &f->transfers) {
        struct transfer *t = list_entry(node, struct transfer, link);

        if (t->order.id != id)
            continue;
        f->curl.multi_remove_handle(f->multi, t->easy);
        transfer_free(t);
    }
}

void fetch_begin(struct fetch *f, const struct remote_order *order, int fd)
{
    struct transfer *t = NULL;
    const char *why = "there are too many requests";

    if (order->kind == REMOTE_ORDER_CANCEL) {
        cancel(f, order->id);
    } else if (order->kind == REMOTE_ORDER_GET || order->kind == REMOTE_ORDER_PUT) {
        if (f->n < FETCH_TRANSFERS && (t = calloc(1, sizeof(*t)))) {
            t->fetch = f;
            t->order = *order;
            t->fd = fd;
            list_init(&t->link);
            list_append(&f->transfers, &t->link);
            f->n++;
            why = prepare(t);
            fd = -1;
        }
        if (why)
            tell(order->id, REMOTE_ANSWER_FAILED, why, -1);
        if (t && why)
            transfer_free(t);
    }
    if (fd >= 0)
        close(fd);
}

/* ---- the answer ---- */

static void answer(struct transfer *t, int result)
{
    const bool get = t->order.kind == REMOTE_ORDER_GET;
    const long status = status_of(t);
    char why[REMOTE_WHY_SIZE];

    if (get && (status == 404 || status == 410)) { /* whatever became of its page */
        tell(t->order.id, REMOTE_ANSWER_MISSING, "", -1);
    } else if (result != CURL_OK) {
        tell(t->order.id, REMOTE_ANSWER_FAILED, t->broken ? t->broken : t->fetch->curl.easy_strerror(result), -1);
    } else if (get ? status == 200 : status == 200 || status == 201 || status == 204) {
        if (get && remote_body_seal(t->fd) < 0)
            tell(t->order.id, REMOTE_ANSWER_FAILED, "its body cannot be sealed", -1);
        else
            tell(t->order.id, REMOTE_ANSWER_OK, "", get ? t->fd : -1);
    } else {
        snprintf(why, sizeof(why), "it answers with status %ld", status);
        tell(t->order.id, REMOTE_ANSWER_FAILED, why, -1);
    }
}

void fetch_finish(struct fetch *f)
{
    struct curl_message *message;
    int left;

    while ((message = f->curl.multi_info_read(f->multi, &left))) {
        const int result = message->data.result;
        char *context = NULL;
        struct transfer *t;

        if (message->what != CURL_DONE)
            continue;
        f->curl.easy_getinfo(message->easy, CURL_INFO_PRIVATE, &context);
        t = (struct transfer *)(void *)context;
        f->curl.multi_remove_handle(f->multi, t->easy); /* `message` is gone */
        f->no_host |= result == CURL_NO_HOST;
        answer(t, result);
        transfer_free(t);
    }
}
