#include "remote/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "remote/fetch_internal.h"
#include "sandbox/process.h"
#include "util/signals.h"

enum { A_TURN_MS = 1000, ORDERS_A_TURN = 32 };

struct arguments {
    const char *user;
    pid_t parent; /* 0: the service manager has started it */
};

bool remote_helper_wanted(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], REMOTE_HELPER_ARGUMENT) == 0;
}

static int parse(int argc, char **argv, struct arguments *ret)
{
    *ret = (struct arguments){.user = "nobody"};
    for (int i = 2; i < argc; i++) {
        if (!strncmp(argv[i], "user=", 5))
            ret->user = argv[i] + 5;
        else if (!strncmp(argv[i], "parent=", 7))
            ret->parent = (pid_t)strtol(argv[i] + 7, NULL, 10);
        else
            return -1;
    }
    return 0;
}

/* Nothing but the connection stays. */
static int close_others(void)
{
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (null < 0)
        return -1;
    for (int fd = 0; fd < REMOTE_HELPER_FD; fd++)
        if (dup2(null, fd) < 0)
            return -1;
    return (int)syscall(SYS_close_range, (unsigned)REMOTE_HELPER_FD + 1, ~0U,
                        0); /* older C libraries have no function */
}

static void tell(enum remote_event_kind kind, const char *why)
{
    struct remote_event event = {.kind = kind};

    snprintf(event.why, sizeof(event.why), "%.*s", (int)sizeof(event.why) - 1, why);
    remote_send(REMOTE_HELPER_FD, &event, sizeof(event), -1);
}

static int receive_setup(struct fetch *f, struct error *e)
{
    int fd = -1;
    long n = remote_receive(REMOTE_HELPER_FD, &f->setup, sizeof(f->setup), 0, &fd);
    struct remote_setup *s = &f->setup;

    if (fd >= 0)
        close(fd);
    if (n != sizeof(*s) || s->version != REMOTE_VERSION)
        return error_set(e, ERROR_UNSUPPORTED, "the helper of the remote cache is of another version than the daemon");
    s->url[sizeof(s->url) - 1] = s->authorization[sizeof(s->authorization) - 1] = s->ca[sizeof(s->ca) - 1] = '\0';
    return 0;
}

static int prepare(struct fetch *f, const struct arguments *a, struct error *e)
{
    list_init(&f->transfers);
    signals_prepare_helper();
    if (receive_setup(f, e) < 0 || fetch_confine(f, a->user, e) < 0)
        return -1;
    if (a->parent && process_bind_to_parent(a->parent) < 0)
        return error_set(e, ERROR_UNSUPPORTED, "the daemon has gone");
    f->multi = f->curl.multi_init();
    if (!f->multi)
        return error_set(e, ERROR_OUT_OF_MEMORY, "libcurl has no memory");
    f->curl.multi_setopt(f->multi, CURL_MULTI_CONNECTIONS, (long)FETCH_CONNECTIONS);
    return 0;
}

/* False: the daemon has gone. */
static bool take_orders(struct fetch *f)
{
    struct remote_order order;
    long n = -1;

    for (unsigned i = 0; i < ORDERS_A_TURN; i++) {
        int fd = -1;

        n = remote_receive(REMOTE_HELPER_FD, &order, sizeof(order), MSG_DONTWAIT, &fd);
        if (n != sizeof(order)) {
            if (fd >= 0)
                close(fd);
            break;
        }
        fetch_begin(f, &order, fd);
    }
    return n == sizeof(order) || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

/* After a name that was not found the process ends: the resolver's configuration may have been replaced by a file that
 * the sandbox does not let it read. The daemon starts the next one. */
static void serve(struct fetch *f)
{
    int running = 0, ready;

    do {
        struct curl_wait connection = {.fd = REMOTE_HELPER_FD, .events = CURL_READABLE};

        f->curl.multi_perform(f->multi, &running);
        fetch_finish(f);
        if (f->no_host && !f->n)
            return;
        f->curl.multi_wait(f->multi, &connection, 1, A_TURN_MS, &ready);
    } while (take_orders(f));
}

int remote_helper_main(int argc, char **argv)
{
    static struct fetch f;
    struct arguments a;
    struct error e;

    if (parse(argc, argv, &a) < 0 || close_others() < 0)
        return 2;
    prctl(PR_SET_NAME, "kopsd-cache");
    process_go_first();
    if (prepare(&f, &a, &e) < 0) {
        tell(REMOTE_EVENT_FAILED, e.message);
        return 1;
    }
    tell(REMOTE_EVENT_READY, f.lacking);
    serve(&f);
    return 0;
}
