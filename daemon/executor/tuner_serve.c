/* The process that tunes. Thread: one. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "executor/arguments.h"
#include "executor/call.h"
#include "executor/confine.h"
#include "executor/tuner.h"
#include "util/log.h"
#include "util/signals.h"

struct tuning {
    struct tuning_pace pace; /* first */
    const struct gpu_backend *gpus;
    struct backend_device *devices[BACKEND_MAX_DEVICES];
    unsigned n_devices;
    uint32_t active; /* devices that have a context, a bit each */
    struct tuner_message message;
};

static int receive(struct tuner_message *m, size_t least)
{
    int fds[CALL_FDS_MAX];
    unsigned n = 0;

    const int got = call_receive(CALL_CONTROL_FD, m, sizeof(*m), fds, &n);

    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
    return got >= (int)least ? 0 : -1;
}

static int send_kind(enum tuner_message_kind kind)
{
    const uint32_t words[2] = {kind, 0};

    return call_send(CALL_CONTROL_FD, words, sizeof(words), NULL, 0);
}

/* The daemon is gone where it does not answer. */
static int wait_for_go(struct tuning_pace *pace, struct error *e)
{
    static struct tuner_message answer;

    (void)pace;
    if (send_kind(TUNER_PAUSE) < 0 || receive(&answer, 2 * sizeof(uint32_t)) < 0)
        _exit(0);
    return answer.kind == TUNER_GO ? 0 : error_set(e, ERROR_CANCELLED, "the tuning was cancelled");
}

static int tell_list(struct tuning_pace *pace, struct tuning_result *result, struct error *e)
{
    static struct tuner_message said;

    (void)pace;
    memset(&said, 0, sizeof(said));
    said.kind = TUNER_LISTED;
    said.result = *result;
    if (call_send(CALL_CONTROL_FD, &said, sizeof(said), NULL, 0) < 0 || receive(&said, 2 * sizeof(uint32_t)) < 0)
        _exit(0);
    if (said.kind != TUNER_LISTED)
        return error_set(e, ERROR_CANCELLED, "the tuning was cancelled");
    *result = said.result;
    return 0;
}

static void no_wake(void *context)
{
    (void)context; /* nothing runs here but a tuning */
}

static int open_devices(struct tuning *t, const struct backend_config *config, struct error *e)
{
    const struct backend_host host = {.wake = no_wake, .context = t};

    if (t->gpus->base.open(config, &host, t->devices, BACKEND_MAX_DEVICES, &t->n_devices, e) < 0)
        return -1;
    for (unsigned i = 0; i < t->n_devices; i++)
        t->devices[i]->index = i;
    return 0;
}

static int tune(struct tuning *t, const char *uuid, const struct tuning_request *request, struct tuning_result *ret,
                struct error *e)
{
    struct backend_device *d = NULL;
    unsigned i = 0;

    for (; i < t->n_devices && !d; i++)
        if (!strncmp(t->devices[i]->info.uuid, uuid, sizeof(t->devices[i]->info.uuid)))
            d = t->devices[i];
    if (!d)
        return error_set(e, ERROR_INTERNAL, "the tuner has no such device");
    if (!(t->active & 1U << d->index) && t->gpus->activate(d, e) < 0)
        return -1;
    t->active |= 1U << d->index;
    return t->gpus->base.tune(d, request, &t->pace, ret, e);
}

static void serve(struct tuning *t)
{
    static struct tuning_request request;
    struct tuner_message *m = &t->message;
    char uuid[sizeof(m->uuid)];

    while (receive(m, offsetof(struct tuner_message, request) + sizeof(m->request)) == 0 && m->kind == TUNER_TUNE) {
        request = m->request;
        memcpy(uuid, m->uuid, sizeof(uuid));
        uuid[sizeof(uuid) - 1] = '\0';
        memset(m, 0, sizeof(*m));
        m->kind = TUNER_DONE;
        if (tune(t, uuid, &request, &m->result, &m->error) == 0)
            m->error.code = ERROR_NONE;
        if (call_send(CALL_CONTROL_FD, m, sizeof(*m), NULL, 0) < 0)
            return;
    }
}

bool tuner_wanted(int argc, char **argv)
{
    return argc > 1 && !strcmp(argv[1], TUNER_ARGUMENT);
}

static int take_table(struct backend_config *config, struct error *e)
{
    uint32_t words[2];
    int fds[CALL_FDS_MAX], r = 0;
    unsigned n = 0;

    if (call_receive(CALL_CONTROL_FD, words, sizeof(words), fds, &n) < 0)
        return error_set(e, ERROR_INTERNAL, "the daemon said nothing");
    if (n > 0)
        r = tuning_table_map(fds[0], &config->tuning, e);
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
    return r;
}

static int prepare(struct tuning *t, struct backend_config *config, struct error *e)
{
    const struct confine_what what = {.common = false};

    if (confine_begin(config, what, e) < 0 || take_table(config, e) < 0 || open_devices(t, config, e) < 0)
        return -1;
    return confine_finish(e);
}

int tuner_main(int argc, char **argv, const struct gpu_backend *local)
{
    static struct tuning t;
    struct backend_config config = {0};
    struct tuner_message *m = &t.message;

    if (fcntl(CALL_CONTROL_FD, F_SETFD, FD_CLOEXEC) < 0)
        return 2; /* not started by a daemon */
    prctl(PR_SET_NAME, "kopsd-tuner");
    signals_prepare_helper();
    for (int i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '=');

        if (value) {
            *value = '\0';
            arguments_read(argv[i], value + 1, &config);
        }
    }
    t.gpus = local;
    t.pace = (struct tuning_pace){.wait = wait_for_go, .listed = tell_list};
    m->kind = TUNER_READY;
    if (prepare(&t, &config, &m->error) == 0)
        m->error.code = ERROR_NONE;
    if (call_send(CALL_CONTROL_FD, m, offsetof(struct tuner_message, result), NULL, 0) == 0 && !m->error.code)
        serve(&t);
    _exit(0); /* the driver's own handlers of exit() would wait */
}
