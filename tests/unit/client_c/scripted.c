#include "scripted.h"

#include <stdio.h>
#include <unistd.h>

static bool is_work(const struct scripted *s, const char *method)
{
    static const char *const methods[] = {"run", "launch", "sequence", "run_program"};

    if (s->method)
        return !strcmp(method, s->method);
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        if (!strcmp(method, methods[i]))
            return true;
    return false;
}

/* What happens to this request; 0: nothing special. */
static char take(struct scripted *s, const struct fake_request *r, unsigned connection, const char **ret_refusal)
{
    char what = 0;

    pthread_mutex_lock(&s->lock);
    if (connection > s->connections)
        s->connections = connection;
    s->registered += !strcmp(r->method, "register");
    s->compiled += !strcmp(r->method, "compile");
    s->defined += !strcmp(r->method, "program") || !strcmp(r->method, "kernel");
    if (r->type == 0 && is_work(s, r->method)) {
        s->work++;
        what = *s->script ? *s->script++ : '.';
    } else if (s->refusal && !strcmp(r->method, "register") && connection > 1) {
        what = 'r';
    }
    *ret_refusal = s->refusal;
    pthread_mutex_unlock(&s->lock);
    return what;
}

static void notify(struct fake_connection *c, const char *code)
{
    char text[128];
    const size_t n = strlen(code);
    int length = snprintf(text, sizeof(text), "\x93\x02\xa5%s\x91\x83\xa4%s%c%s\xa7%s\xa5%s\xa6%s\x80", "error", "code",
                          (char)(0xa0 | n), code, "message", "as it", "detail");

    fake_send(c, text, (size_t)length, NULL, 0);
}

/* False: the connection ends. */
static bool act(struct fake_connection *c, const struct fake_request *r, char what, const char *refusal)
{
    switch (what) {
    case 'x':
        return false;
    case 'd':
    case 'D':
        fake_reply_error(c, r->msgid, "device_lost", "an illegal address was met");
        return what == 'D';
    case 'g':
    case 't':
        fake_reply_text_error(c, r->msgid, what == 'g' ? "device_lost" : "job_timeout", "daemon", "goes_on");
        return true;
    case 's':
    case 'S':
        fake_reply_error(c, r->msgid, "shutting_down", "the daemon is ending");
        return what == 's';
    case 'n':
        notify(c, "device_lost");
        return false;
    case 'k':
        notify(c, "shutting_down");
        return false;
    case 'p':
        notify(c, "protocol_error");
        return false;
    case 'r':
        fake_reply_error(c, r->msgid, refusal, "not this one");
        return true;
    default:
        fake_answer(c, r);
        return true;
    }
}

void scripted_serve(struct fake_connection *c, void *context)
{
    struct scripted *s = context;
    struct fake_request r;

    while (fake_next(c, &r)) {
        const char *refusal;
        char what = take(s, &r, c->number, &refusal);

        if (strchr("xdDgtsSnkpr", what) && what) {
            for (unsigned i = 0; i < r.n_fds; i++)
                close(r.fds[i]);
        }
        if (!act(c, &r, what, refusal))
            return;
    }
}

struct scripted scripted_look(struct scripted *s)
{
    struct scripted copy;

    pthread_mutex_lock(&s->lock);
    copy = *s;
    pthread_mutex_unlock(&s->lock);
    return copy;
}
