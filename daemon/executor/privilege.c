#include "executor/privilege.h"

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sandbox/process.h"

bool privilege_is_needed(const char *parameters)
{
    static const char name[] = "\nRmProfilingAdminOnly:";
    char text[8192] = "\n", *at;
    const int fd = open(parameters, O_RDONLY | O_CLOEXEC);
    size_t length = 1;
    ssize_t n = 0;

    if (fd < 0)
        return false;
    while (length < sizeof(text) - 1 && (n = read(fd, text + length, sizeof(text) - 1 - length)) > 0)
        length += (size_t)n;
    close(fd);
    text[length] = '\0';
    at = strstr(text, name);
    return n >= 0 && at && strtol(at + strlen(name), NULL, 10) != 0;
}

/* ---- the thread that has it ---- */

static struct {
    bool started;
    pthread_t thread;
    sem_t wanted;
    int (*use)(void *context, struct error *e);
    void *context;
    int result;
    struct error why;
} user;

static void *use_it(void *argument)
{
    struct error ignored;

    (void)argument;
    while (sem_wait(&user.wanted) < 0)
        ;
    if (user.use)
        user.result = process_use_one(PRIVILEGE, &user.why);
    if (user.use && user.result == 0)
        user.result = user.use(user.context, &user.why);
    process_drop_capabilities(&ignored); /* a look at all threads follows */
    return NULL;
}

int privilege_hand_over(struct error *e)
{
    sem_init(&user.wanted, 0, 0);
    if (pthread_create(&user.thread, NULL, use_it, NULL) == 0)
        user.started = true;
    if (process_drop_capabilities(e) < 0)
        return -1;
    return user.started ? 0 : error_set(e, ERROR_OUT_OF_MEMORY, "a thread for reading counters cannot be made");
}

/* Lets the thread work and end. Libraries may have started threads on the way. */
static int finish(struct error *e)
{
    sem_post(&user.wanted);
    pthread_join(user.thread, NULL);
    user.started = false;
    return threads_drop_capabilities(e);
}

int privilege_use(int (*use)(void *context, struct error *e), void *context, int *ret, struct error *why,
                  struct error *e)
{
    int r;

    *ret = -1;
    if (!user.started)
        return error_set(why, ERROR_PERMISSION_DENIED, "the process has no CAP_PRIVILEGE, or no whole sandbox"), 0;
    user.use = use;
    user.context = context;
    r = finish(e);
    *ret = user.result;
    *why = user.why;
    return r;
}

int privilege_drop(struct error *e)
{
    return user.started ? finish(e) : 0;
}
