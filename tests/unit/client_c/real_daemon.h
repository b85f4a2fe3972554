/* A kopsd with one backend, started, killed and started again at the same socket. Aborts where that fails. The
 * binary is named by KOPSD in the environment. */
#ifndef KOPS_TEST_REAL_DAEMON_H
#define KOPS_TEST_REAL_DAEMON_H

#include <sys/types.h>

struct real_daemon {
    char folder[64], socket[96], notify[96], memory[96];
    const char *driver; /* of the CUDA backend; NULL: the host's */
    int notifications;
    pid_t pid; /* 0: none runs */
};

/* Makes the folder; no daemon runs yet. */
void real_daemon_init(struct real_daemon *d);
void real_daemon_free(struct real_daemon *d);

/* Waits until it is ready. */
void real_daemon_start(struct real_daemon *d);

/* Sends the signal and waits for the end; returns what waitpid() says. */
int real_daemon_end(struct real_daemon *d, int signal);

#endif
