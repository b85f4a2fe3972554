/* A fake daemon that does to each piece of work what the next letter of a script says, whatever its connection:
 *
 *     .  answers                                   x  hangs up
 *     d  answers device_lost and hangs up          D  answers device_lost
 *     g  answers device_lost, daemon: goes_on      t  answers job_timeout, daemon: goes_on
 *     s  answers shutting_down                     S  answers shutting_down and hangs up
 *     n, k, p  notifies of device_lost, shutting_down, protocol_error and hangs up
 *
 * After the script everything is answered. Work is every request of the method that the test names, or run, launch,
 * sequence and run_program. */
#ifndef KOPS_TEST_SCRIPTED_H
#define KOPS_TEST_SCRIPTED_H

#include <pthread.h>

#include "test.h"

struct scripted {
    pthread_mutex_t lock;
    const char *script;
    const char *method;  /* NULL: those above */
    const char *refusal; /* every registration on a second connection, and later, is refused with this code */
    unsigned work, connections, registered, compiled, defined;
};

#define SCRIPTED(...)                                                                                                  \
    {                                                                                                                  \
        .lock = PTHREAD_MUTEX_INITIALIZER, __VA_ARGS__                                                                 \
    }

void scripted_serve(struct fake_connection *c, void *context);

/* What was counted so far. */
struct scripted scripted_look(struct scripted *s);

#endif
