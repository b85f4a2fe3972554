#include "main/notify.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { MESSAGE_MAX = 1024 };

/* -1: this process was not started by a supervisor. */
static int take_fd(void)
{
    const char *text = getenv(NOTIFIER_FD);
    const int fd = text && isdigit((unsigned char)*text) ? (int)strtol(text, NULL, 10) : -1;

    unsetenv(NOTIFIER_FD);
    return fd >= 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? fd : -1;
}

void notifier_open(struct notifier *n)
{
    const struct timeval patience = {.tv_sec = 1};
    const char *path = getenv("NOTIFY_SOCKET");
    size_t length = path ? strlen(path) : 0;

    *n = (struct notifier){.fd = take_fd(), .address = {.sun_family = AF_UNIX}};
    if (n->fd >= 0) {
        setsockopt(n->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
        return;
    }
    if (length < 2 || length >= sizeof(n->address.sun_path) || (*path != '/' && *path != '@'))
        return;
    memcpy(n->address.sun_path, path, length);
    if (*path == '@')
        n->address.sun_path[0] = '\0';
    n->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (n->fd >= 0) {
        setsockopt(n->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
        /* Now, before the rights are dropped. A failure is retried with each message. */
        connect(n->fd, (const struct sockaddr *)&n->address, n->length);
    }
    unsetenv("NOTIFY_SOCKET");
}

void notifier_close(struct notifier *n)
{
    if (n->fd >= 0)
        close(n->fd);
    n->fd = -1;
}

/* To the connected socket; by name where that has gone and another may have come. */
static ssize_t send_once(const struct notifier *n, int flags, const char *text, size_t length)
{
    ssize_t sent = send(n->fd, text, length, MSG_NOSIGNAL | flags);

    if (sent < 0 && (errno == ECONNREFUSED || errno == ENOTCONN || errno == ECONNRESET))
        sent = sendto(n->fd, text, length, MSG_NOSIGNAL | flags, (const struct sockaddr *)&n->address, n->length);
    return sent;
}

static void __attribute__((format(printf, 3, 0)))
tell(const struct notifier *n, int flags, const char *format, va_list args)
{
    char text[MESSAGE_MAX];
    int length = vsnprintf(text, sizeof(text), format, args);

    if (n->fd < 0 || length < 0)
        return;
    if (length >= (int)sizeof(text))
        length = (int)sizeof(text) - 1;
    while (send_once(n, flags, text, (size_t)length) < 0 && errno == EINTR)
        ;
}

void notify(const struct notifier *n, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    tell(n, 0, format, args);
    va_end(args);
}

void notify_maybe(const struct notifier *n, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    tell(n, MSG_DONTWAIT, format, args);
    va_end(args);
}

uint64_t notify_take_watchdog(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    uint64_t us = 0;

    if (usec && isdigit((unsigned char)*usec) && (!pid || strtol(pid, NULL, 10) == getpid()))
        us = strtoull(usec, NULL, 10);
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return us;
}
