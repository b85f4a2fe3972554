#include "scripted.h"

#include <stdio.h>
#include <unistd.h>

static bool is_work(const struct scripted *s, const char *method)
{
    const char *found = s->methods ? strstr(s->methods, method) : NULL;
    const size_t length = strlen(method);

    if (!s->methods)
        return fake_is_work(method);
    while (found && ((found > s->methods && found[-1] != ' ') || (found[length] && found[length] != ' ')))
        found = strstr(found + 1, method);
    return found != NULL;
}

static void append(char *to, size_t size, const char *text)
{
    const size_t n = strlen(to);

    snprintf(to + n, size - n, "%s", text);
}

static void note(struct scripted *s, const struct fake_connection *c, const struct fake_request *r)
{
    static const struct {
        const char *method, *letter;
    } letters[] = {{"compile", "C"}, {"kernel", "K"},      {"launch", "L"}, {"sequence", "S"},
                   {"program", "P"}, {"run_program", "R"}, {"release", "r"}};
    char text[128];

    if (c->number > s->connections)
        s->connections = c->number;
    if (c->number < sizeof(s->requests) / sizeof(s->requests[0]))
        s->requests[c->number]++;
    *(c->by_ring ? &s->by_ring : &s->by_socket) += 1;
    s->with_fds_by_ring += c->by_ring && r->n_fds;
    s->registered += !strcmp(r->method, "register");
    s->compiled += !strcmp(r->method, "compile");
    s->defined += !strcmp(r->method, "program") || !strcmp(r->method, "kernel");
    snprintf(s->last, sizeof(s->last), "%s", r->method);
    for (size_t i = 0; i < sizeof(letters) / sizeof(letters[0]); i++)
        if (!strcmp(letters[i].method, r->method))
            append(s->order, sizeof(s->order), letters[i].letter);
    if (!strcmp(r->method, "release")) {
        fake_print(&r->params, text, sizeof(text));
        append(s->released, sizeof(s->released), text);
    }
}

static char next_letter(struct scripted *s)
{
    if (!s->script || !*s->script)
        return '.';
    if (s->script[1] == '*')
        return *s->script;
    return *s->script++;
}

/* What happens to this request, and what is to be said; 0: nothing special. */
static char take(struct scripted *s, const struct fake_connection *c, const struct fake_request *r,
                 const char **ret_text)
{
    char what = 0;

    pthread_mutex_lock(&s->lock);
    note(s, c, r);
    *ret_text = s->refusal;
    if (r->type == 0 && is_work(s, r->method)) {
        s->work++;
        fake_print(&r->params, s->asked, sizeof(s->asked));
        what = next_letter(s);
        if (what == '.')
            *ret_text = s->answer;
    } else if (s->refusal && !strcmp(r->method, "register") && c->number > 1) {
        what = 'r';
    }
    pthread_mutex_unlock(&s->lock);
    if (s->look_at)
        s->look_at(s->context, r);
    return what;
}

static void notify(struct fake_connection *c, const char *code)
{
    msgpack_sbuffer b;
    char text[128];

    snprintf(text, sizeof(text), "[2, 'error', [{code: '%s', message: 'as it', detail: {}}]]", code);
    fake_pack(&b, text);
    fake_send(c, b.data, b.size, NULL, 0);
    msgpack_sbuffer_destroy(&b);
}

static void reply_long_log(struct fake_connection *c, uint32_t msgid)
{
    char *details;

    must(asprintf(&details, "{reason: 'source', log: '%0*d'}", LOG_BYTES, 0) > 0);
    fake_reply_error(c, msgid, "compile_failed", "kernel.cu(1): error: no", details);
    free(details);
}

static void answer_late(struct fake_connection *c, const struct fake_request *r)
{
    if (fake_is_work(r->method))
        fake_reply_run(c, r->msgid, "late");
    else
        fake_answer(c, r);
}

/* The next message must cancel the request. */
static void wait_for_cancel(struct fake_connection *c, struct scripted *s, uint32_t msgid)
{
    struct fake_request r;

    if (!fake_next(c, &r))
        return;
    must(!strcmp(r.method, "cancel") && fake_param(&r.params, "msgid")->via.u64 == msgid);
    pthread_mutex_lock(&s->lock);
    s->cancelled++;
    pthread_mutex_unlock(&s->lock);
}

/* False: the connection ends. What is answered behind the next request is left in `late`. */
static bool act(struct fake_connection *c, struct scripted *s, const struct fake_request *r, char what,
                const char *text, struct fake_request *late)
{
    const uint32_t msgid = r->msgid;

    switch (what) {
    case 'x':
        return false;
    case 'd':
    case 'D':
        fake_reply_error(c, msgid, "device_lost", "an illegal address was met", "{}");
        return what == 'D';
    case 'g':
    case 't':
        fake_reply_error(c, msgid, what == 'g' ? "device_lost" : "job_timeout", "it was lost", "{daemon: 'goes_on'}");
        return true;
    case 's':
    case 'S':
        fake_reply_error(c, msgid, "shutting_down", "the daemon is ending", "{}");
        return what == 's';
    case 'n':
    case 'k':
    case 'p':
        notify(c, what == 'n' ? "device_lost" : what == 'k' ? "shutting_down" : "protocol_error");
        return false;
    case 'u':
        fake_reply_error(c, msgid, "unknown_method", "there is no such method", "{}");
        return true;
    case 'r':
        fake_reply_error(c, msgid, text, "not this one", "{}");
        return true;
    case 'c':
        reply_long_log(c, msgid);
        return true;
    case 'f':
        fake_reply_error(c, msgid, "shape_mismatch", "in[0] has rank 3", "{key: 'in[0].shape', needed: 8, least: -4}");
        return true;
    case 'w':
    case 'W':
    case 'l':
    case '_':
        *late = (struct fake_request){.msgid = msgid};
        snprintf(late->method, sizeof(late->method), "%s", what == '_' ? "" : r->method);
        if (what == 'l' || what == '_')
            return true;
        wait_for_cancel(c, s, msgid);
        if (what == 'w')
            answer_late(c, late);
        else
            fake_reply_error(c, msgid, "cancelled", "the run was cancelled", "{}");
        late->method[0] = 0;
        return true;
    default:
        if (what == '.' && text)
            fake_reply(c, msgid, "%s", text);
        else
            fake_answer(c, r);
        return what != 'b';
    }
}

void scripted_serve(struct fake_connection *c, void *context)
{
    struct fake_request r, late = {.method = ""};
    struct scripted *s = context;

    while (fake_next(c, &r)) {
        const char *text;
        const char what = take(s, c, &r, &text);

        if (late.method[0] && r.type == 0) {
            answer_late(c, &late);
            late.method[0] = 0;
        }
        if (what && what != '.' && what != 'b')
            for (unsigned i = 0; i < r.n_fds; i++)
                close(r.fds[i]);
        if (!act(c, s, &r, what, text, &late))
            return;
    }
}

/* ---- a scene ---- */

struct scene *scene_serve(fake_serve *serve, void *context, const struct kops_connect_options *options)
{
    struct kops_connect_options with_socket = options ? *options : (struct kops_connect_options){.socket = NULL};
    struct scene *s = calloc(1, sizeof(*s));

    must(s);
    pthread_mutex_init(&s->d.lock, NULL);
    s->fake = fake_start(serve, context ? context : &s->d);
    with_socket.socket = fake_path(s->fake);
    if (kops_connect(&with_socket, &s->client, &s->error))
        fail_msg("connect: %s", s->error.message);
    return s;
}

struct scene *scene_start(const struct kops_connect_options *options)
{
    return scene_serve(scripted_serve, NULL, options);
}

void scene_stop(struct scene *s)
{
    kops_close(s->client);
    fake_stop(s->fake);
    pthread_mutex_destroy(&s->d.lock);
    free(s);
}

void scene_script(struct scene *s, const char *script, const char *methods)
{
    pthread_mutex_lock(&s->d.lock);
    s->d.script = script;
    s->d.methods = methods;
    s->d.work = 0;
    pthread_mutex_unlock(&s->d.lock);
}

void scene_answer(struct scene *s, const char *methods, const char *answer)
{
    pthread_mutex_lock(&s->d.lock);
    s->d.methods = methods;
    s->d.answer = answer;
    pthread_mutex_unlock(&s->d.lock);
}

struct scripted scene_seen(struct scene *s)
{
    struct scripted copy;

    pthread_mutex_lock(&s->d.lock);
    copy = s->d;
    pthread_mutex_unlock(&s->d.lock);
    return copy;
}

enum kops_code scene_run(struct scene *s)
{
    return kops_run(s->client, tagged_run(&s->t, "x"), NULL, &s->error);
}

int scene_begin(void **state)
{
    *state = scene_start(NULL);
    return 0;
}

int scene_end(void **state)
{
    scene_stop(*state);
    return 0;
}
