#include "scene.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int child_status(int (*work)(void *), void *context)
{
    const pid_t pid = fork();
    int status = 0;

    if (pid == 0)
        _exit(work(context));
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void in_child(int (*work)(void *), void *context)
{
    assert_int_equal(child_status(work, context), 0);
}

void in_threads(unsigned n, void *(*work)(void *), void *contexts, size_t size)
{
    void *said[16];
    pthread_t at[16];

    must(n <= 16);
    for (unsigned i = 0; i < n; i++)
        must(!pthread_create(&at[i], NULL, work, (char *)contexts + i * size));
    for (unsigned i = 0; i < n; i++)
        must(!pthread_join(at[i], &said[i]));
    for (unsigned i = 0; i < n; i++)
        if (said[i])
            fail_msg("thread %u: %s", i, (const char *)said[i]);
}

void assert_packed(const void *data, size_t length, const char *message)
{
    msgpack_sbuffer expected;
    msgpack_unpacked got;
    char text[2048] = "no message";

    fake_pack(&expected, message);
    if (length != expected.size || memcmp(data, expected.data, length) != 0) {
        msgpack_unpacked_init(&got);
        if (msgpack_unpack_next(&got, data, length, NULL) == MSGPACK_UNPACK_SUCCESS)
            fake_print(&got.data, text, sizeof(text));
        fail_msg("%zu bytes, not %zu: %s", length, expected.size, text);
    }
    msgpack_sbuffer_destroy(&expected);
}

/* ---- the daemon ---- */

static bool is_work(const struct scripted *s, const char *method)
{
    char methods[256], word[40];

    if (!s->methods)
        return fake_is_work(method);
    snprintf(methods, sizeof(methods), " %s ", s->methods);
    snprintf(word, sizeof(word), " %s ", method);
    return strstr(methods, word) != NULL;
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

/* Letters that are answered with an error; `hangs_up`: and nothing else. */
static const struct refusal {
    char letter;
    bool hangs_up;
    const char *code, *message, *details;
} refusals[] = {
    {'d', true, "device_lost", "an illegal address was met", "{}"},
    {'D', false, "device_lost", "an illegal address was met", "{}"},
    {'g', false, "device_lost", "it was lost", "{daemon: 'goes_on'}"},
    {'t', false, "job_timeout", "it was lost", "{daemon: 'goes_on'}"},
    {'s', false, "shutting_down", "the daemon is ending", "{}"},
    {'S', true, "shutting_down", "the daemon is ending", "{}"},
    {'u', false, "unknown_method", "there is no such method", "{}"},
    {'f', false, "shape_mismatch", "in[0] has rank 3", "{key: 'in[0].shape', needed: 8, least: -4}"},
};

static const struct refusal *refusal_of(char letter)
{
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
        if (refusals[i].letter == letter)
            return &refusals[i];
    return NULL;
}

static void answer_late(struct fake_connection *c, struct fake_request *r)
{
    if (fake_is_work(r->method))
        fake_reply_run(c, r->msgid, "late");
    else
        fake_answer(c, r);
    r->method[0] = 0;
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
    const struct refusal *refusal = refusal_of(what);
    const uint32_t msgid = r->msgid;
    struct fake_request kept = {.msgid = msgid};

    if (refusal) {
        fake_reply_error(c, msgid, refusal->code, refusal->message, refusal->details);
        return !refusal->hangs_up;
    }
    snprintf(kept.method, sizeof(kept.method), "%s", r->method);
    switch (what) {
    case 'x':
        return false;
    case 'n':
    case 'k':
    case 'p':
        fake_say(c, NULL, 0, "[2, 'error', [{code: '%s', message: 'as it', detail: {}}]]",
                 what == 'n'   ? "device_lost"
                 : what == 'k' ? "shutting_down"
                               : "protocol_error");
        return false;
    case 'r':
        fake_reply_error(c, msgid, text, "not this one", "{}");
        return true;
    case 'c':
        fake_say(c, NULL, 0,
                 "[1, %u, {code: 'compile_failed', message: 'kernel.cu(1): error: no',"
                 " detail: {reason: 'source', log: '%0*d'}}, null]",
                 msgid, LOG_BYTES, 0);
        return true;
    case 'w':
        wait_for_cancel(c, s, msgid);
        answer_late(c, &kept);
        return true;
    case 'W':
        wait_for_cancel(c, s, msgid);
        fake_reply_error(c, msgid, "cancelled", "the run was cancelled", "{}");
        return true;
    case 'l':
        *late = kept;
        return true;
    case '_':
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

        if (late.method[0] && r.type == 0)
            answer_late(c, &late);
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

kops_buffer *scene_memory(struct scene *s, size_t size)
{
    kops_buffer **made = &s->made[s->n_made++];

    must(s->n_made <= sizeof(s->made) / sizeof(s->made[0]));
    if (kops_buffer_alloc_shared(s->client, size, made, &s->error))
        fail_msg("memory: %s", s->error.message);
    return *made;
}

void scene_stop(struct scene *s)
{
    while (s->n_made)
        kops_buffer_release(s->made[--s->n_made]);
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

void scene_asked(struct scene *s, const char *expected)
{
    assert_string_equal(scene_seen(s).asked, expected);
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
