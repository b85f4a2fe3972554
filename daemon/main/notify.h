/* Telling the service manager how it goes: sd_notify(3), without the library. The socket is opened once and kept, so
 * that a process out of descriptors still says that it lives. Thread: any, once opened. */
#ifndef KOPS_MAIN_NOTIFY_H
#define KOPS_MAIN_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* The variable with which a supervisor says which descriptor to use instead of a socket with a name. */
#define NOTIFIER_FD "KOPS_SUPERVISOR_FD"

/* A server's message to its supervisor once it has answered a request; a service manager ignores it. */
#define NOTIFIER_SERVED "X_KOPS_SERVED=1"

struct notifier {
    int fd; /* -1: there is no manager */
    struct sockaddr_un address;
    socklen_t length;
};

/* Takes NOTIFY_SOCKET out of the environment: child processes must not notify. */
void notifier_open(struct notifier *n);
void notifier_close(struct notifier *n);

/* One message, of lines. An important message waits for room, a second at most; any other is lost without room. */
void notify(const struct notifier *n, const char *format, ...) __attribute__((format(printf, 2, 3)));
void notify_maybe(const struct notifier *n, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* How often the manager wants to hear WATCHDOG=1, in µs; 0: it does not, or does not ask this process. Takes it out of
 * the environment. */
uint64_t notify_take_watchdog(void);

#endif
