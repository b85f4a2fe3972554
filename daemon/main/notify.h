/* Notifications to the service manager: sd_notify(3), without the library. The socket is opened once and kept, so that
 * a process out of descriptors can still notify. Thread: any, once opened. */
#ifndef KOPS_MAIN_NOTIFY_H
#define KOPS_MAIN_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* The variable that names a supervisor's descriptor, used instead of a socket with a name. */
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

/* Send a message of lines. notify() waits for room, a second at most; notify_maybe() drops the message where there is
 * none. */
void notify(const struct notifier *n, const char *format, ...) __attribute__((format(printf, 2, 3)));
void notify_maybe(const struct notifier *n, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns how often the manager expects WATCHDOG=1, in µs; 0: never, or not from this process. Removes the variable
 * from the environment. */
uint64_t notify_take_watchdog(void);

#endif
