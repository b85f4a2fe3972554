/* The connection to the helper: opened on the pool, watched on the loop, never waited for. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "remote/fetch.h"
#include "remote/remote_internal.h"
#include "util/log.h"
#include "util/shortage.h"
#include "util/spawn.h"
#include "util/watch.h"

enum { READY_MS = 30000 };

/* ---- on the pool ---- */

static int connect_to(const struct remote *r, struct link *l)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memcpy(address.sun_path, r->helper, sizeof(address.sun_path));
    l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return error_shortage(&l->error, errno, "a socket for the remote cache");
    if (connect(l->fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return 0;
    error_set(&l->error, ERROR_UNSUPPORTED, "connecting to %.100s: %s", r->helper, strerror(errno));
    close(l->fd);
    l->fd = -1;
    return -1;
}

/* Of the environment the process gets what finds libraries, and proxies. */
static int spawn(const struct remote *r, int socket, pid_t *ret_pid)
{
    static const char *const kept[] = {"LD_LIBRARY_PATH", "http_proxy",    "https_proxy",  "no_proxy",
                                       "HTTPS_PROXY",     "SSL_CERT_FILE", "SSL_CERT_DIR", "NO_PROXY"};
    enum { KEPT = sizeof(kept) / sizeof(kept[0]) };
    static char name[] = "kopsd", argument[] = REMOTE_HELPER_ARGUMENT;
    char user[sizeof("user=") + sizeof(r->user)], parent[32], *arguments[] = {name, argument, parent, user, NULL};
    char *environment[KEPT + 1] = {NULL};
    const struct spawn_fd fd = {socket, REMOTE_HELPER_FD};
    unsigned n = 0;
    int result;

    snprintf(user, sizeof(user), "user=%s", r->user);
    snprintf(parent, sizeof(parent), "parent=%d", (int)getpid());
    for (unsigned i = 0; i < KEPT; i++) {
        const char *value = getenv(kept[i]);

        if (value && asprintf(&environment[n], "%s=%s", kept[i], value) >= 0)
            n++;
    }
    environment[n] = NULL;
    result = spawn_process(r->binary, arguments, environment, &fd, 1, ret_pid);
    for (unsigned i = 0; i < n; i++)
        free(environment[i]);
    return result;
}

static int start_process(const struct remote *r, struct link *l)
{
    int sockets[2], error;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
        return error_shortage(&l->error, errno, "a socket for the remote cache");
    error = spawn(r, sockets[1], &l->pid);
    close(sockets[1]);
    l->fd = sockets[0];
    if (error) {
        l->pid = 0;
        error_set(&l->error, ERROR_UNSUPPORTED, "starting %.80s: %s", r->binary, strerror(error));
        goto close_socket;
    }
    l->pidfd = (int)syscall(SYS_pidfd_open, l->pid, 0);
    if (l->pidfd >= 0)
        return 0;
    error_shortage(&l->error, errno, "watching the helper of the remote cache");
    close(l->fd); /* it sees that, and ends */
    l->fd = -1;
    waitpid(l->pid, NULL, 0);
    l->pid = 0;
    return -1;

close_socket:
    close(l->fd);
    l->fd = -1;
    return -1;
}

static void open_run(struct work *work)
{
    struct link *l = (struct link *)work;
    const struct remote *r = l->remote;

    if ((*r->helper ? connect_to(r, l) : start_process(r, l)) < 0)
        return;
    if (remote_send(l->fd, &r->setup, sizeof(r->setup), -1) < 0)
        error_set(&l->error, ERROR_UNSUPPORTED, "telling the helper of the remote cache: %s", strerror(errno));
}

/* ---- its end ---- */

static void handle_closed(uv_handle_t *handle)
{
    struct link *l = handle->data;
    struct remote *r = l->remote;

    if (--l->handles)
        return;
    if (l->fd >= 0)
        close(l->fd);
    if (l->pidfd >= 0)
        close(l->pidfd);
    free(l);
    remote_let_go(r);
}

static void close_all(struct link *l)
{
    if (l->polled)
        uv_close((uv_handle_t *)&l->poll, handle_closed);
    if (l->pidfd_polled)
        uv_close((uv_handle_t *)&l->pidfd_poll, handle_closed);
    uv_close((uv_handle_t *)&l->patience, handle_closed);
}

static void end_process(struct link *l)
{
    syscall(SYS_pidfd_send_signal, l->pidfd, SIGKILL, NULL,
            0); /* where it may not be killed it sees the socket's end */
}

void link_stop(struct link *l)
{
    if (l->remote->link == l)
        l->remote->link = NULL;
    if (l->stopped)
        return;
    l->stopped = true;
    uv_timer_stop(&l->patience);
    if (!l->polled)
        return; /* open_done() sees it */
    uv_poll_stop(&l->poll);
    shutdown(l->fd, SHUT_RDWR);
    if (l->pid)
        end_process(l); /* on_exit_of_process() goes on */
    else
        close_all(l);
}

/* ---- on the loop ---- */

static void on_impatience(uv_timer_t *timer)
{
    struct link *l = timer->data;

    remote_link_lost(l->remote, "the helper does not get ready");
}

static void on_event(struct link *l, struct remote_event *event, int fd)
{
    struct remote *r = l->remote;

    event->why[sizeof(event->why) - 1] = '\0';
    if (event->kind == REMOTE_EVENT_ANSWER && l->ready) {
        remote_link_answer(r, event, fd);
        return;
    }
    if (fd >= 0)
        close(fd);
    if (event->kind == REMOTE_EVENT_READY && !l->ready) {
        char quoted[2 * REMOTE_WHY_SIZE];

        l->ready = true;
        uv_timer_stop(&l->patience);
        if (*event->why)
            log_warning("remote_cache", "sandbox=incomplete why=%s",
                        log_quote(quoted, sizeof(quoted), event->why, strlen(event->why)));
        remote_link_ready(r);
    } else if (event->kind == REMOTE_EVENT_FAILED) {
        remote_link_lost(r, event->why);
    }
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    enum { A_TURN = 32 };
    struct link *l = poll->data;
    struct remote *r = l->remote;
    struct remote_event event;

    (void)events;
    r->busy++;
    for (unsigned i = 0; i < A_TURN && !l->stopped; i++) {
        int fd = -1;
        long n = status < 0 ? 0 : remote_receive(l->fd, &event, sizeof(event), MSG_DONTWAIT, &fd);

        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n == sizeof(event)) {
            on_event(l, &event, fd);
            continue;
        }
        if (fd >= 0)
            close(fd);
        remote_link_lost(r, n > 0 ? "the helper does not speak as expected" : "the helper ended");
    }
    remote_let_go(r);
}

static void on_exit_of_process(uv_poll_t *poll, int status, int events)
{
    struct link *l = poll->data;
    int ended = 0;

    (void)status;
    (void)events;
    if (waitpid(l->pid, &ended, WNOHANG) == 0)
        return;
    log_debug("remote_cache", "pid=%d ended=%d", (int)l->pid, ended);
    if (!l->stopped)
        on_readable(&l->poll, 0, UV_READABLE); /* its last words; then the end, which stops it */
    if (!l->stopped)
        remote_link_lost(l->remote, "the helper ended");
    uv_poll_stop(poll);
    close_all(l);
}

static int add_poll(struct link *l, uv_poll_t *poll, int fd, bool *made)
{
    int error = uv_poll_init(l->remote->loop, poll, fd);

    if (error < 0)
        return error;
    poll->data = l;
    *made = true;
    l->handles++;
    return 0;
}

static int watch(struct link *l)
{
    int error = 0;

    if (l->pid) {
        error = add_poll(l, &l->pidfd_poll, l->pidfd, &l->pidfd_polled);
        if (!error)
            error = watch_start(&l->pidfd_poll, UV_READABLE, on_exit_of_process);
    }
    if (!error)
        error = add_poll(l, &l->poll, l->fd, &l->polled);
    if (!error)
        error = watch_start(&l->poll, UV_READABLE, on_readable);
    if (error < 0 && l->pid) { /* it has only just begun, so that reaping it takes no time */
        end_process(l);
        shutdown(l->fd, SHUT_RDWR);
        waitpid(l->pid, NULL, 0);
        l->pid = 0;
    }
    return error;
}

static void open_done(struct work *work)
{
    struct link *l = (struct link *)work;
    struct remote *r = l->remote;
    const bool stopped = l->stopped;
    int error;

    if (l->fd >= 0 && (error = watch(l)) < 0)
        error_set(&l->error, ERROR_OUT_OF_MEMORY, "the helper of the remote cache cannot be watched: %s",
                  uv_strerror(error));
    r->busy++;
    if (stopped) {
        l->stopped = false;
        link_stop(l);
    } else if (l->error.code) {
        remote_link_lost(r, l->error.message);
    } else {
        uv_timer_start(&l->patience, on_impatience, READY_MS, 0);
    }
    if (!l->polled) { /* nothing else will close it; a process that could not be watched was reaped */
        l->stopped = true;
        close_all(l);
    }
    remote_let_go(r);
}

int link_start(struct remote *r, struct error *e)
{
    struct link *l = calloc(1, sizeof(*l));

    if (!l)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the helper of the remote cache");
    l->remote = r;
    l->fd = l->pidfd = -1;
    uv_timer_init(r->loop, &l->patience);
    l->patience.data = l;
    l->handles = 1;
    r->busy++;
    r->link = l;
    work_submit(r->loop, &l->work, open_run, open_done);
    return 0;
}
