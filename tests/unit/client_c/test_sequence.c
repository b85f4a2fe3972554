/* Sequences and programs: what is sent, what is refused before, how long a program lives. Calls for bindings. */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api/native.h"
#include "test.h"

static const char *const with_programs[] = {"memfd", "sequence", "program", NULL};

/* What the daemon saw last, as text. */
struct seen {
    pthread_mutex_t lock;
    char method[32], ops[64], tensors[256], bind[64];
    unsigned programs, released, runs;
    uint64_t program;
    bool hang_up; /* at the next run_program */
};

static void print(const msgpack_object *o, char *into, size_t size)
{
    if (o)
        msgpack_object_print_buffer(into, size, *o);
    else
        into[0] = 0;
}

/* Notes the request; false: it is answered as usual. */
static bool note(struct seen *s, const struct fake_request *r)
{
    const msgpack_object *program = fake_param(&r->params, "program");

    if (!strcmp(r->method, "release"))
        s->released += program != NULL;
    if (r->type != 0 || (strcmp(r->method, "sequence") && strcmp(r->method, "program") &&
                         strcmp(r->method, "run_program") && strcmp(r->method, "echo")))
        return false;
    snprintf(s->method, sizeof(s->method), "%s", r->method);
    print(fake_param(&r->params, "ops"), s->ops, sizeof(s->ops));
    print(fake_param(&r->params, "tensors"), s->tensors, sizeof(s->tensors));
    print(fake_param(&r->params, "bind"), s->bind, sizeof(s->bind));
    s->program = program ? program->via.u64 : 0;
    s->programs += !strcmp(r->method, "program");
    s->runs += !s->hang_up && (!strcmp(r->method, "run_program") || !strcmp(r->method, "sequence"));
    return true;
}

static struct seen look(struct seen *s)
{
    struct seen copy;

    pthread_mutex_lock(&s->lock);
    copy = *s;
    pthread_mutex_unlock(&s->lock);
    return copy;
}

static void serve_seeing(struct fake_connection *c, void *context)
{
    struct seen *s = context;
    struct fake_request r;

    while (fake_next(c, &r)) {
        bool noted, hang_up;
        unsigned programs;

        pthread_mutex_lock(&s->lock);
        noted = note(s, &r);
        programs = s->programs;
        hang_up = noted && s->hang_up;
        s->hang_up &= !hang_up;
        pthread_mutex_unlock(&s->lock);
        if (hang_up)
            return;
        if (!noted)
            fake_answer(c, &r);
        else if (!strcmp(r.method, "program"))
            fake_reply_id(c, r.msgid, "program", 70 + programs);
        else if (!strcmp(r.method, "echo"))
            fake_reply_error(c, r.msgid, "unknown_method", "what?");
        else
            fake_reply_run(c, r.msgid, "simple");
    }
}

struct work {
    struct kops_tensor tensors[3];
    uint32_t add_in[2], add_out[1];
    struct kops_step steps[2];
    struct kops_sequence sequence;
};

static const struct kops_sequence *two_steps(struct work *w, kops_buffer *buffer)
{
    for (int i = 0; i < 3; i++) {
        w->tensors[i] = kops_vector(buffer, KOPS_F32, 4);
        w->tensors[i].offset = 16 * (uint64_t)i;
    }
    w->add_in[0] = 0;
    w->add_in[1] = 1;
    w->add_out[0] = 2;
    w->steps[0] =
        (struct kops_step){.op = "add", .inputs = w->add_in, .n_inputs = 2, .outputs = w->add_out, .n_outputs = 1};
    w->steps[1] =
        (struct kops_step){.op = "square", .inputs = w->add_out, .n_inputs = 1, .outputs = w->add_out, .n_outputs = 1};
    w->sequence = (struct kops_sequence){w->tensors, 3, w->steps, 2};
    return &w->sequence;
}

static void steps_name_their_tensors_by_index(void **state)
{
    struct seen s = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct kops_error error;
    struct kops_result result;
    struct kops_options options = {.variant = "blas"};
    kops_buffer *buffer;
    kops_ticket ticket;
    kops_client *client;
    struct work w;
    struct fake *f;

    (void)state;
    fake_set_features(with_programs);
    f = fake_start(serve_seeing, &s);
    client = connect_to(f);
    assert_ok(kops_buffer_alloc_shared(client, 64, &buffer, &error));
    assert_ok(kops_sequence_run(client, two_steps(&w, buffer), NULL, &result, &error));
    assert_true(result.total_us == 20);
    assert_string_equal(look(&s).method, "sequence");
    assert_non_null(strstr(look(&s).ops, "\"op\"=>\"add\", \"in\"=>[0, 1], \"out\"=>[2]"));
    assert_non_null(strstr(look(&s).tensors, "\"buffer\"=>1, \"offset\"=>16, \"shape\"=>[4], \"dtype\"=>\"f32\""));
    assert_ok(kops_sequence_submit(client, &w.sequence, NULL, &ticket, &error));
    assert_ok(kops_wait(client, ticket, 0, &result, &error));
    assert_int_equal(look(&s).runs, 2);

    assert_int_equal(kops_sequence_run(client, &w.sequence, &options, NULL, &error), KOPS_ERR_BAD_ARGUMENT);
    w.steps[1].op = NULL;
    assert_int_equal(kops_sequence_run(client, &w.sequence, NULL, NULL, &error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(error.message, "steps[1]"));
    two_steps(&w, buffer);
    w.tensors[2].rank = 9;
    assert_int_equal(kops_sequence_run(client, &w.sequence, NULL, NULL, &error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(error.message, "tensors[2]"));
    assert_int_equal(look(&s).runs, 2);
    kops_buffer_release(buffer);
    kops_close(client);
    fake_stop(f);
    fake_set_features(NULL);
}

static void a_program_is_defined_once_a_connection(void **state)
{
    struct seen s = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct kops_error error;
    kops_buffer *buffer, *other;
    kops_program *program;
    kops_client *client;
    struct work w;
    struct fake *f;

    (void)state;
    fake_set_features(with_programs);
    f = fake_start(serve_seeing, &s);
    client = connect_to(f);
    assert_ok(kops_buffer_alloc_shared(client, 64, &buffer, &error));
    assert_ok(kops_buffer_alloc_shared(client, 64, &other, &error));
    assert_ok(kops_program_define(client, two_steps(&w, buffer), NULL, &program, &error));
    memset(&w, 0xee, sizeof(w)); /* it was copied */
    for (int i = 0; i < 3; i++)
        assert_ok(kops_program_run(program, NULL, 0, NULL, NULL, &error));
    assert_int_equal(look(&s).programs, 1);
    assert_int_equal(look(&s).program, 71);
    assert_string_equal(look(&s).bind, "");
    assert_ok(kops_program_run(program, &(struct kops_binding){1, other, 32}, 1, NULL, NULL, &error));
    assert_string_equal(look(&s).bind, "[{\"index\"=>1, \"buffer\"=>2, \"offset\"=>32}]");
    assert_int_equal(kops_program_run(program, &(struct kops_binding){1, NULL, 0}, 1, NULL, NULL, &error),
                     KOPS_ERR_BAD_ARGUMENT);

    pthread_mutex_lock(&s.lock);
    s.hang_up = true;
    pthread_mutex_unlock(&s.lock);
    assert_int_equal(kops_program_run(program, NULL, 0, NULL, NULL, &error), KOPS_ERR_CONNECTION_LOST);
    assert_ok(kops_program_run(program, NULL, 0, NULL, NULL, &error)); /* defined anew */
    assert_int_equal(look(&s).programs, 2);
    assert_int_equal(look(&s).program, 72);
    assert_int_equal(look(&s).runs, 5);
    kops_program_release(program);
    assert_ok(kops_ping(client, 0, &error));
    assert_int_equal(look(&s).released, 1);
    kops_program_release(NULL);
    kops_buffer_release(other);
    kops_buffer_release(buffer);
    kops_close(client);
    fake_stop(f);
    fake_set_features(NULL);
}

static void without_the_feature_nothing_is_sent(void **state)
{
    struct seen s = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct kops_error error;
    struct fake *f = fake_start(serve_seeing, &s);
    kops_client *client = connect_to(f);
    kops_program *program;
    struct work w;

    (void)state;
    assert_int_equal(kops_sequence_run(client, two_steps(&w, NULL), NULL, NULL, &error), KOPS_ERR_UNSUPPORTED);
    assert_int_equal(kops_program_define(client, &w.sequence, NULL, &program, &error), KOPS_ERR_UNSUPPORTED);
    assert_int_equal(kops_sequence_enqueue(client, &w.sequence, NULL, NULL, &error), KOPS_ERR_UNSUPPORTED);
    assert_ok(kops_synchronize(client, KOPS_ALL_STREAMS, 0, &error)); /* there is nothing to wait for */
    kops_close(client);
    fake_stop(f);
    assert_string_equal(look(&s).method, "");
}

/* ---- bindings ---- */

/* Sends and waits. */
static enum kops_code call(kops_client *client, struct native_raw request, struct native_reply *reply)
{
    kops_ticket ticket;
    enum kops_code r = native_submit(client, &request, &ticket, NULL);

    return r ? r : native_wait(client, ticket, 0, reply, NULL);
}

static void a_binding_calls_any_method(void **state)
{
    static const char register_params[] = "\x84\xa4nfds\x01\xa4kind\xa5memfd\xa4size\x40\xa2"
                                          "fd\x00";
    struct native_reply reply = {.data = NULL};
    struct seen s = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct kops_error error;
    struct fake *f = fake_start(serve_seeing, &s);
    kops_client *client = connect_to(f);
    const struct native_raw echo = {.method = "echo", .params = "\x80", .length = 1};
    struct native_raw late = {.method = "ping", .params = "\x80", .length = 1};
    kops_ticket ticket;
    int fd = memfd_create("x", MFD_CLOEXEC);

    (void)state;
    assert_ok(call(client, (struct native_raw){.method = "ping", .params = "\x80", .length = 1}, &reply));
    assert_int_equal(reply.length, 1);
    assert_memory_equal(reply.data, "\x80", 1);
    assert_false(reply.is_error);
    assert_int_equal(reply.generation, native_generation(client, 0, &error));
    assert_ok(call(client,
                   (struct native_raw){.method = "register",
                                       .params = register_params,
                                       .length = sizeof(register_params) - 1,
                                       .fds = {fd},
                                       .n_fds = 1},
                   &reply));
    assert_memory_equal(reply.data,
                        "\x82\xa6"
                        "buffer\x01\xa4size\x40",
                        reply.length);
    assert_ok(call(client, (struct native_raw){.method = "alloc", .params = "\x81\xa4size\x40", .length = 7}, &reply));
    assert_int_equal(reply.n_fds, 1);
    assert_int_equal(lseek(reply.fds[0], 0, SEEK_END), 64);
    close(reply.fds[0]);
    reply.n_fds = 0;
    assert_ok(native_submit(client, &echo, &ticket, &error));
    assert_ok(native_wait(client, ticket, 0, &reply, &error));
    assert_true(reply.is_error);
    assert_non_null(memmem(reply.data, reply.length, "unknown_method", 14));
    assert_int_equal(native_wait(client, ticket, 0, &reply, &error), KOPS_ERR_BAD_ARGUMENT);
    late.generation = reply.generation + 1;
    assert_int_equal(call(client, late, &reply), KOPS_ERR_CONNECTION_LOST);
    native_notify(client, native_generation(client, 0, &error), "release", "\x81\xa7program\x05", 10, false);
    assert_ok(kops_ping(client, 0, &error));
    assert_int_equal(look(&s).released, 1);
    native_reply_free(&reply);
    close(fd);
    kops_close(client);
    fake_stop(f);
}

static void a_binding_runs_by_ids(void **state)
{
    static const int64_t shape[1] = {0};
    const struct native_tensor tensors[2] = {{.shape = shape, .rank = 1, .dtype = KOPS_F32},
                                             {.shape = shape, .rank = 1, .dtype = KOPS_F32}};
    struct kops_error error;
    kops_ticket ticket;
    struct fake *f = fake_start(fake_serve_well, NULL);
    kops_client *client = connect_to(f);
    struct native_request request = {.generation = native_generation(client, 0, &error),
                                     .op = "square",
                                     .n_inputs = 1,
                                     .n_outputs = 1,
                                     .tensors = tensors,
                                     .attrs = "\x81\xa3tag\xa1x",
                                     .attrs_length = 7};

    (void)state;
    assert_ok(native_submit_run(client, &request, &ticket, &error));
    assert_ok(kops_wait(client, ticket, 0, NULL, &error));
    request.generation++;
    assert_int_equal(native_submit_run(client, &request, &ticket, &error), KOPS_ERR_CONNECTION_LOST);
    assert_int_equal(native_enqueued(client), 0);
    assert_true(native_completed(client, 0));
    kops_close(client);
    fake_stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_name_their_tensors_by_index),
        cmocka_unit_test(a_program_is_defined_once_a_connection),
        cmocka_unit_test(without_the_feature_nothing_is_sent),
        cmocka_unit_test(a_binding_calls_any_method),
        cmocka_unit_test(a_binding_runs_by_ids),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
