/* A kopsd with the CUDA backend, started, killed and started again at the same socket, and a client of it. Aborts where
 * that fails. The binary is named by KOPSD in the environment. */
#ifndef KOPS_TEST_REAL_DAEMON_H
#define KOPS_TEST_REAL_DAEMON_H

#include <sys/types.h>

#include "scene.h"

struct real {
    const char *folder, *driver;
    char socket[96];
    pid_t pid; /* 0: none runs */
    kops_client *client;
    struct kops_error error;
};

/* Starts a daemon with that driver, and connects. */
void real_init(struct real *r, const char *driver);
void real_free(struct real *r);

void real_kill(struct real *r);

/* Kills the daemon and starts the next one. */
void replace(struct real *r);

#endif
