/* A small HTTP server for the metrics, by libmicrohttpd: the daemon itself needs no network.
 *
 * One thread: the loop waits for sockets and signals, answers, and ends connections that are too old. Bounded are the
 * connections, the memory of each, and how long one may be silent and may last. */
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "metrics.h"

enum { MAX_CONNECTIONS = 16, CONNECTION_BYTES = 16384, SILENCE_S = 10, LONGEST_S = 30 };

struct http {
    struct metrics_source *source;
    struct {
        int fd; /* the library's; -1: free */
        time_t since;
    } connections[MAX_CONNECTIONS];
};

static time_t now_s(void)
{
    return (time_t)(ctl_clock_ns() / 1000000000);
}

/* Takes the text over, which may be NULL: there was no memory. */
static enum MHD_Result reply_with(struct MHD_Connection *connection, unsigned status, char *text, const char *type)
{
    struct MHD_Response *response =
        text ? MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE) : NULL;
    enum MHD_Result r;

    if (!response) {
        free(text);
        return MHD_NO; /* ends the connection */
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    r = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return r;
}

static enum MHD_Result answer(void *closure, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **state)
{
    struct http *http = closure;
    const struct kops_error *error = &http->source->ctl->error;
    char *text;
    bool up;

    (void)version;
    (void)upload;
    (void)upload_size;
    (void)state;
    if (strcmp(url, "/metrics") != 0)
        return reply_with(connection, MHD_HTTP_NOT_FOUND, strdup("There is /metrics, and nothing else.\n"),
                          "text/plain; charset=utf-8");
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return reply_with(connection, MHD_HTTP_METHOD_NOT_ALLOWED, strdup("Metrics can be read, not changed.\n"),
                          "text/plain; charset=utf-8");
    text = http->source->read(http->source, &up);
    if (text)
        return reply_with(connection, MHD_HTTP_OK, text, "text/plain; version=0.0.4; charset=utf-8");
    if (asprintf(&text, "%s [%s]\n", error->message, kops_code_name(error->code)) < 0)
        text = NULL;
    return reply_with(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, text, "text/plain; charset=utf-8");
}

static void notice(void *closure, struct MHD_Connection *connection, void **state,
                   enum MHD_ConnectionNotificationCode code)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct http *http = closure;

    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*state)
            *(int *)*state = -1;
        return;
    }
    for (unsigned i = 0; info && i < MAX_CONNECTIONS; i++)
        if (http->connections[i].fd < 0) {
            http->connections[i].fd = info->connect_fd;
            http->connections[i].since = now_s();
            *state = &http->connections[i].fd;
            return;
        }
}

/* Ends connections that are too old: a client that sends a byte now and then is never silent, but takes a place of
 * others. Returns whether there are any connections. */
static bool end_old(struct http *http)
{
    bool any = false;

    for (unsigned i = 0; i < MAX_CONNECTIONS; i++) {
        any |= http->connections[i].fd >= 0;
        if (http->connections[i].fd >= 0 && now_s() - http->connections[i].since > LONGEST_S)
            shutdown(http->connections[i].fd, SHUT_RDWR); /* the library then sees its end, and closes it */
    }
    return any;
}

/* Until `ending`, a signalfd, has a signal. */
static enum ctl_exit serve(struct http *http, struct MHD_Daemon *server, int ending)
{
    for (;;) {
        fd_set in, out, special;
        struct timeval wait = {.tv_sec = 1};
        MHD_socket highest = -1;
        unsigned long long ms;
        bool limited = end_old(http);

        FD_ZERO(&in);
        FD_ZERO(&out);
        FD_ZERO(&special);
        FD_SET(ending, &in);
        if (MHD_get_fdset(server, &in, &out, &special, &highest) != MHD_YES)
            goto fail;
        if (MHD_get_timeout(server, &ms) == MHD_YES && ms < 1000) {
            wait = (struct timeval){.tv_usec = (suseconds_t)ms * 1000};
            limited = true;
        }
        /* Without connections it sleeps until one comes. */
        if (select((highest > ending ? highest : ending) + 1, &in, &out, &special, limited ? &wait : NULL) < 0)
            goto fail;
        if (FD_ISSET(ending, &in))
            return CTL_OK;
        if (MHD_run_from_select(server, &in, &out, &special) != MHD_YES)
            goto fail;
    }
fail:
    return ctl_complain("os_error", "waiting for connections: %s", strerror(errno));
}

static bool is_loopback(const struct sockaddr *address)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;

    if (address->sa_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
        return v6->sin6_addr.s6_addr[12] == IN_LOOPBACKNET;
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

/* "127.0.0.1:9464", "[::1]:9464"; names are not looked up, since their addresses may change. */
static struct addrinfo *parse(const char *text)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    const char *port = strrchr(text, ':');
    struct addrinfo *found;
    uint64_t number;
    char host[64];
    size_t length;

    if (!port || port == text || !ctl_parse_uint(port + 1, 0, UINT16_MAX, &number))
        return NULL;
    length = (size_t)(port - text);
    if ((*text == '[') != (text[length - 1] == ']') || (*text != '[' && memchr(text, ':', length)))
        return NULL;
    if (*text == '[') {
        text++;
        length -= 2;
    }
    if (length >= sizeof(host))
        return NULL;
    memcpy(host, text, length);
    host[length] = 0;
    return getaddrinfo(host, port + 1, &hints, &found) ? NULL : found;
}

/* A socket that listens; -1 after the error was printed. */
static int listen_on(const struct addrinfo *address, const char *text)
{
    const int on = 1;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) &&
        (address->ai_family != AF_INET6 || !setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on))) &&
        !bind(fd, address->ai_addr, address->ai_addrlen) && !listen(fd, MAX_CONNECTIONS))
        return fd;
    ctl_complain("os_error", "listening on %s: %s", text, strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

/* With port 0 the system chooses one. */
static void tell_address(int fd)
{
    struct sockaddr_storage bound = {0};
    socklen_t length = sizeof(bound);
    char host[64], port[8];

    if (!getsockname(fd, (struct sockaddr *)&bound, &length) &&
        !getnameinfo((struct sockaddr *)&bound, length, host, sizeof(host), port, sizeof(port),
                     NI_NUMERICHOST | NI_NUMERICSERV))
        printf(bound.ss_family == AF_INET6 ? "serving http://[%s]:%s/metrics\n" : "serving http://%s:%s/metrics\n",
               host, port);
    fflush(stdout);
}

static enum ctl_exit run(struct http *http, const struct addrinfo *address, const char *text)
{
    struct MHD_Daemon *server;
    enum ctl_exit status;
    sigset_t signals;
    int ending, fd = listen_on(address, text);

    if (fd < 0)
        return CTL_FAILED;
    ctl_block_ending(&signals);
    ending = signalfd(-1, &signals, SFD_CLOEXEC);
    if (ending < 0) {
        close(fd);
        return ctl_complain("os_error", "waiting for signals: %s", strerror(errno));
    }
    server =
        MHD_start_daemon(MHD_NO_FLAG, 0, NULL, NULL, answer, http, MHD_OPTION_LISTEN_SOCKET, fd,
                         MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SILENCE_S,
                         MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_CONNECTION, notice, http, MHD_OPTION_END);
    if (server) {
        tell_address(fd);
        status = serve(http, server, ending);
        MHD_stop_daemon(server); /* closes the socket, too */
    } else {
        close(fd);
        status = ctl_complain("os_error", "the HTTP server does not start on %s", text);
    }
    close(ending);
    return status;
}

enum ctl_exit metrics_listen(struct metrics_source *s, const char *address, bool allow_remote)
{
    struct http http = {.source = s};
    struct addrinfo *found = parse(address);
    enum ctl_exit status;

    for (unsigned i = 0; i < MAX_CONNECTIONS; i++)
        http.connections[i].fd = -1;
    if (!found)
        return ctl_usage("--listen takes ADDRESS:PORT in numbers, such as 127.0.0.1:9464 or [::1]:9464, not `%s`",
                         address);
    if (!allow_remote && !is_loopback(found->ai_addr))
        status =
            ctl_usage("%s can be reached from other machines; use 127.0.0.1 or [::1], or say --allow-remote", address);
    else
        status = run(&http, found, address);
    freeaddrinfo(found);
    return status;
}
