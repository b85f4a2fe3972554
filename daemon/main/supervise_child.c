#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "main/supervise_internal.h"

enum { LISTEN_FD = 3, NOTIFY_FD = 4 };

int child_listen(struct supervisor *s, struct error *e)
{
    const int yes = 1;
    int ends[2];

    /* A socket pair, since other processes could fill a named socket. The kernel names each message's sender. */
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) < 0)
        return error_set(e, ERROR_INTERNAL, "the socket for notifications: %s", strerror(errno));
    s->inner = ends[0];
    s->inner_end = fcntl(ends[1], F_DUPFD_CLOEXEC, NOTIFY_FD + 1); /* above the child's descriptors */
    close(ends[1]);
    if (s->inner_end < 0 || fcntl(s->inner, F_SETFL, O_NONBLOCK) < 0 ||
        setsockopt(s->inner, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes)) < 0)
        return error_set(e, ERROR_INTERNAL, "the socket for notifications: %s", strerror(errno));
    return 0;
}

/* ---- starting ---- */

static char **child_arguments(const struct flags *f)
{
    char **argv = calloc((size_t)f->argc + 1, sizeof(*argv));
    unsigned n = 0;

    for (int i = 0; argv && i < f->argc; i++)
        if (f->argv[i] != f->supervise_argument)
            argv[n++] = f->argv[i];
    return argv;
}

static void set_number(const char *name, unsigned long long value)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", value);
    setenv(name, text, 1);
}

static _Noreturn void become_server(const struct supervisor *s, char **argv, pid_t parent)
{
    sigset_t hangup;

    /* As long as we live; also when we have gone before this was said. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILURE);
    if (s->listener.fd == LISTEN_FD)
        fcntl(LISTEN_FD, F_SETFD, 0);
    else if (dup2(s->listener.fd, LISTEN_FD) < 0)
        _exit(EXIT_FAILURE);
    if (dup2(s->inner_end, NOTIFY_FD) < 0)
        _exit(EXIT_FAILURE);
    set_number("LISTEN_PID", (unsigned long long)getpid());
    set_number("LISTEN_FDS", 1);
    setenv("LISTEN_FDNAMES", "kopsd", 1);
    set_number(NOTIFIER_FD, NOTIFY_FD);
    if (s->patience_ns) {
        set_number("WATCHDOG_USEC", s->patience_ns / 1000);
        set_number("WATCHDOG_PID", (unsigned long long)getpid());
    }
    sigemptyset(&hangup);
    sigaddset(&hangup, SIGHUP); /* the child unblocks it when it can read its settings again */
    sigprocmask(SIG_SETMASK, &hangup, NULL);
    execv("/proc/self/exe", argv);
    execvp(argv[0], argv);
    fprintf(stderr, "kopsd: starting the server: %s\n", strerror(errno));
    _exit(EXIT_FAILURE);
}

int child_start(struct supervisor *s, struct error *e)
{
    char **argv = child_arguments(s->flags);
    const pid_t parent = getpid();
    pid_t child;

    if (!argv)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start the server");
    child = fork();
    if (child == 0)
        become_server(s, argv, parent);
    free(argv);
    if (child < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "fork: %s", strerror(errno));
    s->child = child;
    return 0;
}

/* ---- hearing ---- */

static void hear_line(struct child_message *m, const char *line, size_t length)
{
    static const char extend[] = "EXTEND_TIMEOUT_USEC=";
    const size_t used = strlen(m->passed);

    if (length == 7 && !strncmp(line, "READY=1", length))
        m->ready = true;
    if (length == 10 && !strncmp(line, "WATCHDOG=1", length)) {
        m->alive = true; /* whether we live is for us to say */
        return;
    }
    if (length == 10 && !strncmp(line, "STOPPING=1", length)) {
        m->stopping = true; /* the child's end is not ours */
        return;
    }
    if (length == strlen(NOTIFIER_SERVED) && !strncmp(line, NOTIFIER_SERVED, length)) {
        m->served = true;
        return;
    }
    if (length > strlen(extend) && !strncmp(line, extend, strlen(extend)))
        m->extend_us = strtoull(line + strlen(extend), NULL, 10);
    snprintf(m->passed + used, sizeof(m->passed) - used, "%s%.*s", used ? "\n" : "", (int)length, line);
}

/* -1: nothing is there. */
static ssize_t receive(int fd, char *text, size_t size, pid_t *ret_sender)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(struct ucred))];
    } control = {0};
    struct iovec part = {.iov_base = text, .iov_len = size};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    const struct cmsghdr *c;
    struct ucred sender;
    ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);

    *ret_sender = 0;
    if (n < 0)
        return -1;
    c = CMSG_FIRSTHDR(&message);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) {
        memcpy(&sender, CMSG_DATA(c), sizeof(sender));
        *ret_sender = sender.pid;
    }
    return n;
}

bool child_hear(const struct supervisor *s, struct child_message *ret)
{
    char text[1024 + 1];
    pid_t sender;
    ssize_t n;

    do
        n = receive(s->inner, text, sizeof(text) - 1, &sender);
    while (n >= 0 && (!s->child || sender != s->child));
    if (n < 0)
        return false;
    text[n] = '\0';
    *ret = (struct child_message){0};
    for (const char *line = text; *line;) {
        const size_t length = strcspn(line, "\n");

        if (length)
            hear_line(ret, line, length);
        line += length + (line[length] != '\0');
    }
    return true;
}
