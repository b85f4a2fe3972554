/* A kopsd with the CUDA backend, started, killed and started again at the same socket. Aborts where that fails. The
 * binary is named by KOPSD in the environment. */
#ifndef KOPS_TEST_REAL_DAEMON_H
#define KOPS_TEST_REAL_DAEMON_H

#include <sys/types.h>

#include "test.h"

struct real_daemon {
    char folder[64], socket[96], notify[96], memory[96];
    const char *driver;
    int notifications;
    pid_t pid; /* 0: none runs */
};

/* Waits until it is ready. */
void real_daemon_start(struct real_daemon *d);

/* Sends the signal and waits for the end; returns what waitpid() says. */
int real_daemon_end(struct real_daemon *d, int signal);

/* A client of such a daemon. */
struct scene {
    struct real_daemon daemon;
    kops_client *client;
    struct kops_error error;
};

void scene_init(struct scene *s, const char *driver);
void scene_free(struct scene *s);

/* Kills the daemon and starts the next one. */
void replace(struct scene *s);

/* Fails the test with the error's message, unless the call went well. */
void succeed(struct scene *s, enum kops_code code);

#endif
