/* Modules and kernels: what is sent when, what a new connection is told, what is refused before. */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "session/receive.h"
#include "test.h"

enum { LOG_BYTES = 200000 };

static const char *const with_programs[] = {"memfd", "sequence", "program", NULL};

/* What the daemon saw, as letters: C compile, K kernel, L launch, S sequence, P program, R run_program, r a release;
 * and the last arguments. */
struct seen {
    pthread_mutex_t lock;
    char order[64], args[160], ops[160];
    bool refuse;          /* the next compile */
    bool hang_up;         /* at the next launch, without an answer */
    bool wait_for_cancel; /* with the answer to the next compile */
    unsigned compiles, kernels;
    uint64_t released_module, released_kernel, launched;
};

static const struct {
    const char *method;
    char letter;
} letters[] = {{"compile", 'C'}, {"kernel", 'K'},      {"launch", 'L'}, {"sequence", 'S'},
               {"program", 'P'}, {"run_program", 'R'}, {"release", 'r'}};

static void print(const msgpack_object *o, char *into, size_t size)
{
    if (o)
        msgpack_object_print_buffer(into, size, *o);
}

static void note(struct seen *s, const struct fake_request *r)
{
    const msgpack_object *module = fake_param(&r->params, "module"), *kernel = fake_param(&r->params, "kernel");
    const size_t n = strlen(s->order);

    for (size_t i = 0; i < sizeof(letters) / sizeof(letters[0]); i++)
        if (!strcmp(letters[i].method, r->method) && n + 1 < sizeof(s->order))
            s->order[n] = letters[i].letter;
    print(fake_param(&r->params, "args"), s->args, sizeof(s->args));
    print(fake_param(&r->params, "ops"), s->ops, sizeof(s->ops));
    if (!strcmp(r->method, "release") && module)
        s->released_module = module->via.u64;
    if (!strcmp(r->method, "release") && kernel)
        s->released_kernel = kernel->via.u64;
    s->compiles += !strcmp(r->method, "compile");
    s->kernels += !strcmp(r->method, "kernel");
    if (!strcmp(r->method, "launch"))
        s->launched = kernel->via.u64;
}

static void reply_module(struct fake_connection *c, uint32_t msgid, uint64_t id)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    fake_begin(&b, &p, 7);
    fake_uint_pair(&p, "module", id);
    fake_text_pair(&p, "key", "0123");
    fake_text_pair(&p, "arch", "sm_90a");
    fake_text_pair(&p, "cached", c->number > 1 ? "memory" : "no");
    fake_text(&p, "compile_us"), msgpack_pack_double(&p, 25000.5);
    fake_text_pair(&p, "log", "a warning");
    fake_text(&p, "entries"), msgpack_pack_array(&p, 1), msgpack_pack_map(&p, 4);
    fake_text_pair(&p, "name", "f");
    fake_text_pair(&p, "lowered", "_Z1fPf");
    fake_uint_pair(&p, "registers", 32);
    fake_text(&p, "params"), msgpack_pack_array(&p, 2), msgpack_pack_uint64(&p, 8), msgpack_pack_uint64(&p, 4);
    fake_reply_map(c, msgid, &b);
}

/* [1, msgid, {code, message, detail: {reason, log}}, nil] with a log that no struct kops_error would hold. */
static void reply_refused(struct fake_connection *c, uint32_t msgid)
{
    static char log[LOG_BYTES];
    msgpack_sbuffer b;
    msgpack_packer p;

    memset(log, 'x', sizeof(log));
    fake_begin_error(&b, &p, msgid, "compile_failed", "kernel.cu(1): error: no", 2);
    fake_text_pair(&p, "reason", "source");
    fake_text(&p, "log"), msgpack_pack_str_with_body(&p, log, sizeof(log));
    fake_end_error(c, &b, &p);
}

/* What to do about a request, decided under the lock. */
struct plan {
    bool refuse, hang_up, wait_for_cancel;
};

static struct plan plan_for(struct seen *s, const struct fake_request *r)
{
    const bool compile = !strcmp(r->method, "compile"), launch = !strcmp(r->method, "launch");
    struct plan plan;

    pthread_mutex_lock(&s->lock);
    note(s, r);
    plan = (struct plan){compile && s->refuse, launch && s->hang_up, compile && s->wait_for_cancel};
    s->refuse &= !plan.refuse;
    s->hang_up &= !plan.hang_up;
    s->wait_for_cancel &= !plan.wait_for_cancel;
    pthread_mutex_unlock(&s->lock);
    return plan;
}

static void serve(struct fake_connection *c, void *context)
{
    struct seen *s = context;
    struct fake_request r;
    unsigned ids = 0;

    while (fake_next(c, &r)) {
        const struct plan plan = plan_for(s, &r);
        const uint32_t msgid = r.msgid;

        if (plan.hang_up)
            return;
        if (plan.wait_for_cancel)
            while (fake_next(c, &r) && strcmp(r.method, "cancel") != 0)
                fake_answer(c, &r);
        if (plan.refuse)
            reply_refused(c, msgid);
        else if (plan.wait_for_cancel || (r.type == 0 && !strcmp(r.method, "compile")))
            reply_module(c, msgid, 100 * c->number + ++ids);
        else if (r.type == 0 && !strcmp(r.method, "kernel"))
            fake_reply_id(c, msgid, "kernel", 100 * c->number + ++ids);
        else if (r.type == 0 && !strcmp(r.method, "program"))
            fake_reply_id(c, msgid, "program", 100 * c->number + ++ids);
        else if (r.type == 0 && !strcmp(r.method, "launch"))
            fake_reply_run(c, msgid, "user");
        else
            fake_answer(c, &r);
    }
}

static struct seen look(struct seen *s)
{
    struct seen copy;

    pthread_mutex_lock(&s->lock);
    copy = *s;
    pthread_mutex_unlock(&s->lock);
    return copy;
}

static void set(struct seen *s, bool *flag)
{
    pthread_mutex_lock(&s->lock);
    *flag = true;
    pthread_mutex_unlock(&s->lock);
}

/* Notifications sent before it have been read. */
static void settle(kops_client *client)
{
    assert_ok(kops_ping(client, 0, NULL));
}

/* ---- a kernel to play with ---- */

static const struct kops_param params[] = {
    {.name = "c", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .elements = "n"},
    {.name = "n", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_I32},
};
static const struct kops_source source = {.text = "void f(float *c, int n);"};
static const struct kops_signature signature = {
    .entry = "f", .params = params, .n_params = 2, .geometry = {.grid = {"ceil_div(n, 32)"}, .block = {"32"}}};

struct setting {
    struct seen seen;
    struct fake *f;
    kops_client *client;
    kops_kernel *kernel;
    struct kops_tensor c;
    struct kops_argument args[2];
};

static int set_up(void **state)
{
    struct setting *s = calloc(1, sizeof(*s));
    char *log = NULL;

    fake_set_features(with_programs);
    pthread_mutex_init(&s->seen.lock, NULL);
    s->f = fake_start(serve, &s->seen);
    s->client = connect_to(s->f);
    assert_ok(kops_kernel_compile(s->client, &source, &signature, &s->kernel, &log, NULL));
    assert_null(log);
    s->c = kops_vector(NULL, KOPS_F32, 0);
    s->args[0] = kops_arg_tensor(&s->c);
    s->args[1] = kops_arg_int(7);
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    struct setting *s = *state;

    kops_kernel_free(s->kernel);
    kops_close(s->client);
    fake_stop(s->f);
    pthread_mutex_destroy(&s->seen.lock);
    fake_set_features(NULL);
    free(s);
    return 0;
}

/* ---- tests ---- */

static void a_module_tells_of_its_entries(void **state)
{
    const struct setting *s = *state;
    const kops_module *module = kops_kernel_module(s->kernel);
    const struct kops_module_info *info = kops_module_info(module);
    const struct kops_entry *entry = kops_module_entry(module, "f");

    assert_string_equal(kops_info(s->client)->kernels->policy, "group");
    assert_true(kops_info(s->client)->kernels->allowed);
    assert_string_equal(kops_kernel_entry(s->kernel), "f");
    assert_string_equal(info->key, "0123");
    assert_string_equal(info->log, "a warning");
    assert_true(info->compile_us == 25000.5);
    assert_string_equal(entry->lowered, "_Z1fPf");
    assert_int_equal(entry->registers, 32);
    assert_int_equal(entry->n_params, 2);
    assert_int_equal(entry->params[1], 4);
    assert_null(kops_module_entry(module, "g"));
    assert_null(info->entries[1]);
}

static void a_launch_is_sent_and_timed(void **state)
{
    struct setting *s = *state;
    const struct kops_launch_options how = {.options = {.repeat = 3}};
    struct kops_result result;
    kops_ticket ticket;

    assert_ok(kops_kernel_launch(s->kernel, s->args, 2, &how, &result, NULL));
    assert_string_equal(result.variant, "user");
    assert_ok(kops_kernel_submit(s->kernel, s->args, 2, NULL, &ticket, NULL));
    assert_ok(kops_wait(s->client, ticket, 0, &result, NULL));
    assert_string_equal(look(&s->seen).order, "CKLL");
    assert_int_equal(look(&s->seen).launched, 102);
    assert_string_equal(look(&s->seen).args, "[{\"shape\"=>[0], \"dtype\"=>\"f32\"}, 7]");
}

static void the_whole_log_of_a_refusal_is_told(void **state)
{
    struct setting *s = *state;
    struct kops_error error;
    kops_module *module = NULL;
    char *log = NULL;
    const struct kops_source wrong = {.text = "?"};

    set(&s->seen, &s->seen.refuse);
    assert_int_equal(kops_compile(s->client, &wrong, &module, &log, &error), KOPS_ERR_COMPILE_FAILED);
    assert_null(module);
    assert_int_equal(strlen(log), LOG_BYTES);
    assert_string_equal(kops_error_text(&error, "reason"), "source");
    assert_string_equal(error.message, "kernel.cu(1): error: no");
    kops_log_free(log);
    set(&s->seen, &s->seen.refuse);
    assert_int_equal(kops_compile(s->client, &wrong, &module, NULL, NULL), KOPS_ERR_COMPILE_FAILED);
    assert_ok(kops_compile(s->client, &wrong, &module, &log, &error)); /* the connection is as before */
    assert_null(log);
    kops_module_free(module);
}

static void a_new_connection_is_told_what_it_needs(void **state)
{
    struct setting *s = *state;
    const struct kops_module_info *info = kops_module_info(kops_kernel_module(s->kernel));
    struct kops_error error;
    kops_buffer *buffer;

    assert_ok(kops_buffer_alloc_shared(s->client, 64, &buffer, NULL));
    s->c = kops_vector(buffer, KOPS_F32, 16);
    set(&s->seen, &s->seen.hang_up);
    assert_int_equal(kops_kernel_launch(s->kernel, s->args, 2, NULL, NULL, &error), KOPS_ERR_CONNECTION_LOST);
    assert_ok(kops_kernel_launch(s->kernel, s->args, 2, NULL, NULL, &error));
    assert_string_equal(look(&s->seen).order, "CKLCKL");
    assert_int_equal(look(&s->seen).launched, 202);
    assert_string_equal(info->cached, "no"); /* what was given out stays */
    assert_ok(kops_kernel_launch(s->kernel, s->args, 2, NULL, NULL, &error));
    assert_string_equal(look(&s->seen).order, "CKLCKLL");
    kops_buffer_release(buffer);
}

static void what_nobody_holds_is_released(void **state)
{
    struct setting *s = *state;
    kops_module *module;
    kops_kernel *second;
    char *log;
    const char *const entries[] = {"f"};
    const struct kops_source both = {.text = source.text, .entries = entries, .n_entries = 1};

    assert_ok(kops_compile(s->client, &both, &module, &log, NULL));
    assert_ok(kops_kernel_define(module, &signature, &second, NULL));
    assert_null(kops_module_free(module)); /* the kernel goes on */
    settle(s->client);
    assert_string_equal(look(&s->seen).order, "CKCK");
    assert_ok(kops_kernel_launch(second, s->args, 2, NULL, NULL, NULL));
    assert_null(kops_kernel_free(second));
    settle(s->client);
    assert_string_equal(look(&s->seen).order, "CKCKLrr");
    assert_int_equal(look(&s->seen).released_kernel, 104);
    assert_int_equal(look(&s->seen).released_module, 103);
    assert_null(kops_kernel_free(NULL));
    assert_null(kops_module_free(NULL));
}

static void a_module_that_comes_too_late_is_given_back(void **state)
{
    struct setting *s = *state;
    struct kops_source impatient = source;
    struct kops_error error;
    kops_module *module;

    impatient.timeout_ms = 20;
    set(&s->seen, &s->seen.wait_for_cancel);
    assert_int_equal(kops_compile(s->client, &impatient, &module, NULL, &error), KOPS_ERR_TIMEOUT);
    assert_ok(kops_ping(s->client, KOPS_FOREVER, &error)); /* the module came before its reply, */
    assert_ok(kops_ping(s->client, KOPS_FOREVER, &error)); /* what was sent then was read before this one's */
    assert_int_equal(look(&s->seen).released_module, 103);
}

enum { THREADS = 6, LAUNCHES = 40 };

static void *launch_often(void *context)
{
    const struct setting *s = context;
    struct kops_error error;
    uintptr_t lost = 0;

    for (int i = 0; i < LAUNCHES; i++) {
        const enum kops_code r = kops_kernel_launch(s->kernel, s->args, 2, NULL, NULL, &error);

        if (r && r != KOPS_ERR_CONNECTION_LOST)
            fail_msg("%s", error.message);
        lost += r != KOPS_OK;
    }
    return (void *)lost;
}

/* One of them tells a new connection, once. */
static void threads_share_a_kernel(void **state)
{
    struct setting *s = *state;
    pthread_t threads[THREADS];
    uintptr_t lost = 0;
    void *of_thread;

    set(&s->seen, &s->seen.hang_up);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, launch_often, s), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &of_thread), 0);
        lost += (uintptr_t)of_thread;
    }
    assert_in_range(lost, 1, THREADS);
    assert_int_equal(look(&s->seen).compiles, 2);
    assert_int_equal(look(&s->seen).kernels, 2);
}

static void kernels_are_steps_of_sequences(void **state)
{
    struct setting *s = *state;
    const struct kops_tensor tensors[] = {kops_vector(NULL, KOPS_F32, 0)};
    const struct kops_argument args[] = {kops_arg_index(0), kops_arg_int(7)};
    const uint32_t zero[] = {0};
    struct kops_step steps[] = {{.kernel = s->kernel, .args = args, .n_args = 2},
                                {.op = "square", .inputs = zero, .n_inputs = 1, .outputs = zero, .n_outputs = 1}};
    const struct kops_sequence sequence = {tensors, 1, steps, 2};
    struct kops_error error;
    kops_program *program;

    assert_ok(kops_sequence_run(s->client, &sequence, NULL, NULL, &error));
    assert_string_equal(look(&s->seen).ops,
                        "[{\"kernel\"=>102, \"args\"=>[0, 7]}, {\"op\"=>\"square\", \"in\"=>[0], \"out\"=>[0]}]");
    assert_ok(kops_program_define(s->client, &sequence, NULL, &program, &error));

    /* The program keeps the kernel, also for the next connection. */
    kops_kernel_free(s->kernel);
    s->kernel = NULL;
    memset(steps, 0, sizeof(steps));
    settle(s->client);
    assert_string_equal(look(&s->seen).order, "CKSP");
    pthread_mutex_lock(&s->client->lock);
    session_lost(s->client, KOPS_ERR_CONNECTION_LOST, "for a test");
    session_close_lost(s->client);
    pthread_mutex_unlock(&s->client->lock);
    assert_ok(kops_program_run(program, NULL, 0, NULL, NULL, &error));
    assert_string_equal(look(&s->seen).order, "CKSPCKPR");
    assert_string_equal(look(&s->seen).ops,
                        "[{\"kernel\"=>202, \"args\"=>[0, 7]}, {\"op\"=>\"square\", \"in\"=>[0], \"out\"=>[0]}]");
    kops_program_release(program);
    settle(s->client);
    assert_string_equal(look(&s->seen).order, "CKSPCKPRrrr");
}

static void what_makes_no_sense_is_refused_before(void **state)
{
    struct setting *s = *state;
    const struct kops_argument index[] = {kops_arg_index(0), kops_arg_int(7)}, no_tensor[] = {kops_arg_tensor(NULL)};
    const struct kops_launch_options variant = {.options = {.variant = "user"}}, device = {.options = {.device = "0"}},
                                     wide = {.geometry = {.grid = {4, {1, 1, 1}}}};
    const struct kops_step mixed = {.kernel = s->kernel, .op = "add"},
                           by_value = {.kernel = s->kernel, .args = s->args, .n_args = 2};
    const struct kops_sequence sequences[] = {{.steps = &mixed, .n_steps = 1}, {.steps = &by_value, .n_steps = 1}};
    const struct kops_param no_kind[] = {{.name = "x", .dtype = KOPS_F32}},
                            no_dtype[] = {{.name = "x", .kind = KOPS_PARAM_IN}};
    const struct kops_signature signatures[] = {{.entry = NULL},
                                                {.entry = "f", .params = no_kind, .n_params = 1},
                                                {.entry = "f", .params = no_dtype, .n_params = 1}};
    const struct kops_source nothing = {.name = "x"};
    struct kops_argument many[KOPS_MAX_KERNEL_TENSORS + 1];
    kops_kernel *kernel;
    kops_module *module;

    for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++)
        many[i] = s->args[0];
    assert_int_equal(kops_kernel_launch(s->kernel, index, 2, NULL, NULL, NULL), KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(kops_kernel_launch(s->kernel, no_tensor, 1, NULL, NULL, NULL), KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(kops_kernel_launch(s->kernel, many, KOPS_MAX_KERNEL_TENSORS + 1, NULL, NULL, NULL),
                     KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(kops_kernel_launch(s->kernel, s->args, 2, &variant, NULL, NULL), KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(kops_kernel_launch(s->kernel, s->args, 2, &device, NULL, NULL), KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(kops_kernel_launch(s->kernel, s->args, 2, &wide, NULL, NULL), KOPS_ERR_BAD_ARGUMENT);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(kops_sequence_run(s->client, &sequences[i], NULL, NULL, NULL), KOPS_ERR_BAD_ARGUMENT);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(kops_kernel_compile(s->client, &source, &signatures[i], &kernel, NULL, NULL),
                         KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(kops_compile(s->client, &nothing, &module, NULL, NULL), KOPS_ERR_BAD_ARGUMENT);
    settle(s->client);
    assert_string_equal(look(&s->seen).order, "CK");
    assert_ok(kops_kernel_launch(s->kernel, many, KOPS_MAX_KERNEL_TENSORS, NULL, NULL, NULL));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_module_tells_of_its_entries),         TEST(a_launch_is_sent_and_timed),
        TEST(the_whole_log_of_a_refusal_is_told),    TEST(a_new_connection_is_told_what_it_needs),
        TEST(what_nobody_holds_is_released),         TEST(a_module_that_comes_too_late_is_given_back),
        TEST(kernels_are_steps_of_sequences),        TEST(threads_share_a_kernel),
        TEST(what_makes_no_sense_is_refused_before),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
