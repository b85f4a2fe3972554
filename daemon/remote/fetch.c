#include "remote/remote.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "remote/curl.h"
#include "remote/wire.h"
#include "sandbox/filter.h"
#include "sandbox/process.h"
#include "util/list.h"
#include "util/process.h"

static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};

static int curl_open(struct curl_functions *ret, struct error *e)
{
#define X(type, name, parameters) "curl_" #name,
    static const char *const symbols[] = {CURL_FUNCTIONS(X)};
#undef X
#define X(type, name, parameters) (void **)&ret->name,
    void **const slots[] = {CURL_FUNCTIONS(X)};
#undef X
    void *library = NULL;

    for (size_t i = 0; !library && i < sizeof(names) / sizeof(names[0]); i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return error_set(e, ERROR_UNSUPPORTED, "libcurl.so.4 cannot be loaded; on Debian: apt-get install libcurl4");
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        *slots[i] = dlsym(library, symbols[i]);
        if (!*slots[i]) {
            error_set(e, ERROR_UNSUPPORTED, "libcurl has no %s: it is too old", symbols[i]);
            dlclose(library);
            return -1;
        }
    }
    if (ret->global_init(CURL_ALL) != CURL_OK)
        return error_set(e, ERROR_UNSUPPORTED, "libcurl cannot be set up");
    return 0;
}

enum { FETCH_TRANSFERS = 64, FETCH_CONNECTIONS = 16 };

struct fetch {
    struct remote_setup setup;
    struct curl_functions curl;
    curl_handle multi;
    struct list transfers;
    unsigned n;
    bool no_host;                    /* the host's name was not found: another process may know better, see fetch.c */
    char lacking[ERROR_MESSAGE_MAX]; /* parts of the sandbox that are missing; "": none */
};

/* ---- the sandbox: no files but certificates and the resolver's configuration, no sockets but those of the internet,
 * no new processes, bounded memory ---- */

enum { MEMORY = 1 << 30, FILES = 256 };

/* Not all of these exist. Landlock follows links when the rule is made: resolv.conf is often one to a file below /run,
 * which is replaced at each change, so the rule is for its folder. */
static const char *const readable[] = {"/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates",
                                       "/usr/local/share/ca-certificates", "/usr/lib/ssl", "/usr/share/pki",
                                       "/etc/crypto-policies", "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf",
                                       "/etc/host.conf", "/etc/gai.conf", "/etc/services", "/run/systemd/resolve",
                                       "/run/resolvconf", "/run/NetworkManager",
                                       /* Files that these libraries load late. */
                                       "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/dev/urandom",
                                       "/usr/share/zoneinfo", "/etc/localtime"};

/* Beyond calls_common: files in memory, sockets, and threads, which look up names. */
static const int allowed[] = {
    SCMP_SYS(memfd_create), SCMP_SYS(fcntl),      SCMP_SYS(ftruncate),   SCMP_SYS(dup),      SCMP_SYS(pipe),
    SCMP_SYS(pipe2),        SCMP_SYS(eventfd2),   SCMP_SYS(connect),     SCMP_SYS(bind),     SCMP_SYS(getsockname),
    SCMP_SYS(getpeername),  SCMP_SYS(getsockopt), SCMP_SYS(setsockopt),  SCMP_SYS(sendto),   SCMP_SYS(recvfrom),
    SCMP_SYS(sendmsg),      SCMP_SYS(recvmsg),    SCMP_SYS(sendmmsg),    SCMP_SYS(recvmmsg), SCMP_SYS(shutdown),
    SCMP_SYS(socketpair),   SCMP_SYS(ioctl),      SCMP_SYS(select),      SCMP_SYS(pselect6), SCMP_SYS(epoll_create1),
    SCMP_SYS(epoll_ctl),    SCMP_SYS(epoll_wait), SCMP_SYS(epoll_pwait), SCMP_SYS(tgkill),   SCMP_SYS(prctl)};

/* The internet's, and netlink, by which the C library learns this machine's addresses. */
static const int families[] = {AF_INET, AF_INET6, AF_NETLINK};

static int enter_files(const struct remote_setup *s, struct error *e)
{
    struct files files;

    if (files_begin_with_network(&files, e) < 0)
        return -1;
    for (size_t i = 0; i < sizeof(readable) / sizeof(readable[0]); i++)
        files_allow(&files, readable[i], FILES_READ, NULL); /* many are not there */
    if (*s->ca && files_allow(&files, s->ca, FILES_READ, NULL) < 0) {
        error_set(e, ERROR_UNSUPPORTED, "%.100s: %s (cache.remote_ca)", s->ca, strerror(errno));
        files_abandon(&files);
        return -1;
    }
    return files_enter(&files, e);
}

#define ALLOW(call, ...) seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(call), 1, __VA_ARGS__)

static int fill(scmp_filter_ctx filter)
{
    int r = calls_add(filter, SCMP_ACT_ALLOW, calls_common, calls_common_n);

    if (!r)
        r = calls_add(filter, SCMP_ACT_ALLOW, allowed, sizeof(allowed) / sizeof(allowed[0]));
    for (size_t i = 0; !r && i < sizeof(families) / sizeof(families[0]); i++)
        r = ALLOW(socket, SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i]));
    /* Threads, no processes; of clone3() a filter sees no flags, and the C library falls back to clone(). A library
     * that is loaded late is mapped for execution, never for that and for writing. prlimit64: of this process only. */
    r = r ? r : ALLOW(clone, SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
    r = r ? r : seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    r = r ? r : ALLOW(mmap, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC | PROT_WRITE, PROT_EXEC));
    r = r ? r : ALLOW(mmap, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    r = r ? r : ALLOW(mprotect, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    r = r ? r : ALLOW(prlimit64, SCMP_A0(SCMP_CMP_EQ, 0));
    return r;
}

/* A sanitizer reserves more addresses than any limit leaves. */
#ifdef __SANITIZE_ADDRESS__
static const bool bounds_memory = false;
#else
static const bool bounds_memory = true;
#endif

static int fetch_confine(struct fetch *f, const char *user, struct error *e)
{
    struct addrinfo *found = NULL;
    scmp_filter_ctx filter;

    if (geteuid() == 0 && process_become(user, false, e) < 0)
        return -1;
    if (process_drop_capabilities(e) < 0 || process_refuse_privileges(e) < 0)
        return -1;
    if (chdir("/") < 0)
        return error_set(e, ERROR_UNSUPPORTED, "entering /: %s", strerror(errno));
    if (curl_open(&f->curl, e) < 0)
        return -1;
    if ((bounds_memory && process_limit(RLIMIT_AS, MEMORY) < 0) || process_limit(RLIMIT_CORE, 0) < 0 ||
        process_limit(RLIMIT_FSIZE, f->setup.max_bytes) < 0 || process_limit(RLIMIT_NOFILE, FILES) < 0)
        return error_set(e, ERROR_UNSUPPORTED, "limits: %s", strerror(errno));
    /* Loads what the C library looks names up with, which is not found later. */
    if (getaddrinfo("localhost", "80", NULL, &found) == 0)
        freeaddrinfo(found);
    if (enter_files(&f->setup, e) < 0) {
        if (files_version())
            return -1;
        memcpy(f->lacking, e->message, sizeof(f->lacking)); /* an old kernel */
    }
    filter = calls_new(SCMP_ACT_ERRNO(EPERM));
    if (calls_enter(filter, filter ? fill(filter) : 0, true, e) < 0)
        memcpy(f->lacking, e->message, sizeof(f->lacking));
    return 0;
}

enum {
    HEADER_BYTES = 64 << 10,  /* an answer's header lines, with those of intermediate answers */
    USELESS_BYTES = 64 << 10, /* a body that nobody wants: an error page */
    CONNECT_SHARE = 3,        /* a third of a request's time, at most, until the server has accepted it */
};

struct transfer {
    struct list link;
    struct fetch *fetch;
    struct remote_order order;
    curl_handle easy;
    struct curl_list *headers;
    int fd;         /* GET: made for the body; PUT: the body */
    uint64_t bytes; /* read or written so far */
    uint64_t size;  /* PUT: the body's */
    size_t header_bytes;
    const char *broken; /* why this side gave up; NULL: it did not */
};

static void tell(enum remote_event_kind kind, uint64_t id, enum remote_answer answer, const char *why, int fd)
{
    struct remote_event event = {.kind = kind, .answer = answer, .id = id};

    snprintf(event.why, sizeof(event.why), "%.*s", (int)sizeof(event.why) - 1, why);
    /* The socket has room: the daemon has few requests on their way. Where not, the daemon's own time limit ends it. */
    remote_send(REMOTE_HELPER_FD, &event, sizeof(event), MSG_DONTWAIT, fd);
}

static void tell_answer(uint64_t id, enum remote_answer answer, const char *why, int fd)
{
    tell(REMOTE_EVENT_ANSWER, id, answer, why, fd);
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

static void fetch_begin(struct fetch *f, const struct remote_order *order, int fd)
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
            list_append(&f->transfers, &t->link);
            f->n++;
            why = prepare(t);
            fd = -1;
        }
        if (why)
            tell_answer(order->id, REMOTE_ANSWER_FAILED, why, -1);
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
        tell_answer(t->order.id, REMOTE_ANSWER_MISSING, "", -1);
    } else if (result != CURL_OK) {
        tell_answer(t->order.id, REMOTE_ANSWER_FAILED, t->broken ? t->broken : t->fetch->curl.easy_strerror(result),
                    -1);
    } else if (get ? status == 200 : status == 200 || status == 201 || status == 204) {
        if (get && remote_body_seal(t->fd) < 0)
            tell_answer(t->order.id, REMOTE_ANSWER_FAILED, "its body cannot be sealed", -1);
        else
            tell_answer(t->order.id, REMOTE_ANSWER_OK, "", get ? t->fd : -1);
    } else {
        snprintf(why, sizeof(why), "it answers with status %ld", status);
        tell_answer(t->order.id, REMOTE_ANSWER_FAILED, why, -1);
    }
}

static void fetch_finish(struct fetch *f)
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

enum { A_TURN_MS = 1000, ORDERS_A_TURN = 32 };

/* ---- the helper ---- */

struct arguments {
    const char *user;
    pid_t parent; /* 0: the service manager has started it */
};

bool remote_helper_wanted(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], REMOTE_HELPER_ARGUMENT) == 0;
}

static int parse(int argc, char **argv, struct arguments *ret)
{
    *ret = (struct arguments){.user = "nobody"};
    for (int i = 2; i < argc; i++) {
        if (!strncmp(argv[i], "user=", 5))
            ret->user = argv[i] + 5;
        else if (!strncmp(argv[i], "parent=", 7))
            ret->parent = (pid_t)strtol(argv[i] + 7, NULL, 10);
        else
            return -1;
    }
    return 0;
}

static int close_others(void)
{
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (null < 0)
        return -1;
    for (int fd = 0; fd < REMOTE_HELPER_FD; fd++)
        if (dup2(null, fd) < 0)
            return -1;
    return (int)syscall(SYS_close_range, (unsigned)REMOTE_HELPER_FD + 1, ~0U,
                        0); /* older C libraries have no function */
}

static int receive_setup(struct fetch *f, struct error *e)
{
    int fd = -1;
    long n = remote_receive(REMOTE_HELPER_FD, &f->setup, sizeof(f->setup), 0, &fd);
    struct remote_setup *s = &f->setup;

    if (fd >= 0)
        close(fd);
    if (n != sizeof(*s) || s->version != REMOTE_VERSION)
        return error_set(e, ERROR_UNSUPPORTED, "the helper of the remote cache is of another version than the daemon");
    s->url[sizeof(s->url) - 1] = s->authorization[sizeof(s->authorization) - 1] = s->ca[sizeof(s->ca) - 1] = '\0';
    return 0;
}

static int set_up(struct fetch *f, const struct arguments *a, struct error *e)
{
    list_init(&f->transfers);
    signals_prepare_helper();
    if (receive_setup(f, e) < 0 || fetch_confine(f, a->user, e) < 0)
        return -1;
    if (a->parent && process_bind_to_parent(a->parent) < 0)
        return error_set(e, ERROR_UNSUPPORTED, "the daemon has gone");
    f->multi = f->curl.multi_init();
    if (!f->multi)
        return error_set(e, ERROR_OUT_OF_MEMORY, "libcurl has no memory");
    f->curl.multi_setopt(f->multi, CURL_MULTI_CONNECTIONS, (long)FETCH_CONNECTIONS);
    return 0;
}

static bool take_orders(struct fetch *f)
{
    struct remote_order order;
    long n = -1;

    for (unsigned i = 0; i < ORDERS_A_TURN; i++) {
        int fd = -1;

        n = remote_receive(REMOTE_HELPER_FD, &order, sizeof(order), MSG_DONTWAIT, &fd);
        if (n != sizeof(order)) {
            if (fd >= 0)
                close(fd);
            break;
        }
        fetch_begin(f, &order, fd);
    }
    return n == sizeof(order) || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

/* After a name that was not found the process ends: the resolver's configuration may have been replaced by a file that
 * the sandbox does not let it read. The daemon starts the next one. */
static void serve(struct fetch *f)
{
    int running = 0, ready;

    do {
        struct curl_wait connection = {.fd = REMOTE_HELPER_FD, .events = CURL_READABLE};

        f->curl.multi_perform(f->multi, &running);
        fetch_finish(f);
        if (f->no_host && !f->n)
            return;
        f->curl.multi_wait(f->multi, &connection, 1, A_TURN_MS, &ready);
    } while (take_orders(f));
}

int remote_helper_main(int argc, char **argv)
{
    static struct fetch f;
    struct arguments a;
    struct error e;

    if (parse(argc, argv, &a) < 0 || close_others() < 0)
        return 2;
    prctl(PR_SET_NAME, "kopsd-cache");
    process_go_first();
    if (set_up(&f, &a, &e) < 0) {
        tell(REMOTE_EVENT_FAILED, 0, 0, e.message, -1);
        return 1;
    }
    tell(REMOTE_EVENT_READY, 0, 0, f.lacking, -1);
    serve(&f);
    return 0;
}
