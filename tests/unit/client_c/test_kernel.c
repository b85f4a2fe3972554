/* Modules and kernels: what is sent when, what a new connection is told, what is refused before. */
#include <stdatomic.h>

#include "scene.h"
#include "session/session.h"

/* ---- a kernel to play with ---- */

static const struct kops_param params[] = {
    {.name = "c", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .elements = "n"},
    {.name = "n", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_I32},
};
static const struct kops_source source = {.text = "void f(float *c, int n);"};
static const struct kops_signature signature = {
    .entry = "f", .params = params, .n_params = 2, .geometry = {.grid = {"ceil_div(n, 32)"}, .block = {"32"}}};

static kops_kernel *kernel;
static struct kops_tensor c;
static struct kops_argument args[2];

static int set_up(void **state)
{
    struct scene *s = scene_start(NULL);
    char *log = NULL;

    assert_ok(kops_kernel_compile(s->client, &source, &signature, &kernel, &log, NULL));
    assert_null(log);
    c = kops_vector(NULL, KOPS_F32, 0);
    args[0] = kops_arg_tensor(&c);
    args[1] = kops_arg_int(7);
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    kops_kernel_free(kernel);
    return scene_end(state);
}

static enum kops_code launch(struct scene *s)
{
    return kops_kernel_launch(kernel, args, 2, NULL, NULL, &s->error);
}

/* What was sent in all, also without waiting for a reply. */
static void assert_order(struct scene *s, const char *order)
{
    assert_ok(kops_ping(s->client, 0, NULL));
    assert_string_equal(scene_seen(s).order, order);
}

/* ---- tests ---- */

#define WITH_KERNEL(name) TEST_OF(struct scene *s, name, set_up, tear_down)

WITH_KERNEL(a_module_tells_of_its_entries)
{
    const kops_module *module = kops_kernel_module(kernel);
    const struct kops_module_info *info = kops_module_info(module);
    const struct kops_entry *entry = kops_module_entry(module, "f");

    assert_texts(kops_kernel_entry(kernel), "f", info->key, "0123", info->log, "a warning", entry->lowered, "_Z1fPf");
    assert_true(info->compile_us == 25000.5 && entry->registers == 32 && entry->n_params == 2 && entry->params[1] == 4);
    assert_true(!kops_module_entry(module, "g") && !info->entries[1]);
}

WITH_KERNEL(a_launch_is_sent_and_timed)
{
    const struct kops_launch_options how = {.options = {.repeat = 3}};
    struct kops_result result;
    kops_ticket ticket;

    assert_ok(kops_kernel_launch(kernel, args, 2, &how, &result, NULL));
    scene_asked(s, "{kernel: 2, args: [{shape: [0], dtype: 'f32'}, 7], repeat: 3}");
    assert_true(result.total_us == 20);
    assert_ok(kops_kernel_submit(kernel, args, 2, NULL, &ticket, NULL));
    assert_ok(kops_wait(s->client, ticket, 0, &result, NULL));
    assert_order(s, "CKLL");
    scene_asked(s, "{kernel: 2, args: [{shape: [0], dtype: 'f32'}, 7]}");
}

WITH_KERNEL(the_whole_log_of_a_refusal_is_told)
{
    const struct kops_source wrong = {.text = "?"};
    kops_module *module = NULL;
    char *log = NULL;

    scene_script(s, "cc", "compile");
    assert_int_equal(kops_compile(s->client, &wrong, &module, &log, &s->error), KOPS_ERR_COMPILE_FAILED);
    assert_null(module);
    assert_int_equal(strlen(log), LOG_BYTES);
    assert_string_equal(kops_error_text(&s->error, "reason"), "source");
    assert_string_equal(s->error.message, "kernel.cu(1): error: no");
    kops_log_free(log);
    assert_int_equal(kops_compile(s->client, &wrong, &module, NULL, NULL), KOPS_ERR_COMPILE_FAILED);
    assert_ok(kops_compile(s->client, &wrong, &module, &log, &s->error)); /* the connection is as before */
    assert_null(log);
    kops_module_free(module);
}

WITH_KERNEL(a_new_connection_is_told_what_it_needs)
{
    const struct kops_module_info *info = kops_module_info(kops_kernel_module(kernel));

    c = kops_vector(scene_memory(s, 64), KOPS_F32, 16);
    scene_script(s, "x", NULL);
    assert_int_equal(launch(s), KOPS_ERR_CONNECTION_LOST);
    assert_ok(launch(s));
    assert_order(s, "CKLCKL");
    assert_non_null(strstr(scene_seen(s).asked, "kernel: 103, ")); /* behind the buffer and the module */
    assert_string_equal(info->cached, "no");                       /* what was given out stays */
    assert_ok(launch(s));
    assert_order(s, "CKLCKLL");
}

WITH_KERNEL(what_nobody_holds_is_released)
{
    const char *const entries[] = {"f"};
    const struct kops_source both = {.text = source.text, .entries = entries, .n_entries = 1};
    kops_module *module;
    kops_kernel *second;
    char *log;

    assert_ok(kops_compile(s->client, &both, &module, &log, NULL));
    assert_ok(kops_kernel_define(module, &signature, &second, NULL));
    assert_null(kops_module_free(module)); /* the kernel goes on */
    assert_order(s, "CKCK");
    assert_ok(kops_kernel_launch(second, args, 2, NULL, NULL, NULL));
    assert_null(kops_kernel_free(second));
    assert_order(s, "CKCKLrr");
    assert_string_equal(scene_seen(s).released, "{kernel: 4}{module: 3}");
    assert_null(kops_kernel_free(NULL));
    assert_null(kops_module_free(NULL));
}

WITH_KERNEL(a_module_that_comes_too_late_is_given_back)
{
    struct kops_source impatient = source;
    kops_module *module;

    impatient.timeout_ms = 20;
    scene_script(s, "w", "compile");
    assert_int_equal(kops_compile(s->client, &impatient, &module, NULL, &s->error), KOPS_ERR_TIMEOUT);
    assert_ok(kops_ping(s->client, KOPS_FOREVER, NULL)); /* the module came before its reply, */
    assert_ok(kops_ping(s->client, KOPS_FOREVER, NULL)); /* what was sent then was read before this one's */
    assert_string_equal(scene_seen(s).released, "{module: 3}");
}

static atomic_uint lost;

static void *launch_often(void *unused)
{
    for (int i = 0; i < 40; i++) {
        const enum kops_code r = kops_kernel_launch(kernel, args, 2, NULL, NULL, NULL);

        if (r && r != KOPS_ERR_CONNECTION_LOST)
            return "a launch failed";
        lost += r != KOPS_OK;
    }
    return NULL;
}

/* One of them tells a new connection, once. */
WITH_KERNEL(threads_share_a_kernel)
{
    scene_script(s, "x", NULL);
    in_threads(6, launch_often, NULL, 0);
    assert_in_range(lost, 1, 6);
    assert_int_equal(scene_seen(s).compiled, 2);
    assert_int_equal(scene_seen(s).defined, 2);
}

WITH_KERNEL(kernels_are_steps_of_sequences)
{
    kops_client *client = s->client;
    const struct kops_tensor tensors[] = {kops_vector(NULL, KOPS_F32, 0)};
    const struct kops_argument places[] = {kops_arg_index(0), kops_arg_int(7)};
    const uint32_t zero[] = {0};
    struct kops_step steps[] = {{.kernel = kernel, .args = places, .n_args = 2},
                                {.op = "square", .inputs = zero, .n_inputs = 1, .outputs = zero, .n_outputs = 1}};
    const struct kops_sequence sequence = {tensors, 1, steps, 2};
    kops_program *program;

    scene_script(s, "", "sequence program");
    assert_ok(kops_sequence_run(client, &sequence, NULL, NULL, &s->error));
    assert_non_null(strstr(scene_seen(s).asked, "ops: [{kernel: 2, args: [0, 7]}, {op: 'square', in: [0], out: [0]}]"));
    assert_ok(kops_program_define(client, &sequence, NULL, &program, &s->error));

    /* The program keeps the kernel, also for the next connection. */
    kops_kernel_free(kernel);
    kernel = NULL;
    memset(steps, 0, sizeof(steps));
    assert_order(s, "CKSP");
    pthread_mutex_lock(&client->lock);
    session_lost(client, KOPS_ERR_CONNECTION_LOST, "for a test");
    session_close_lost(client);
    pthread_mutex_unlock(&client->lock);
    assert_ok(kops_program_run(program, NULL, 0, NULL, NULL, &s->error));
    assert_order(s, "CKSPCKPR");
    assert_non_null(
        strstr(scene_seen(s).asked, "ops: [{kernel: 102, args: [0, 7]}, {op: 'square', in: [0], out: [0]}]"));
    kops_program_release(program);
    assert_order(s, "CKSPCKPRrrr");
}

WITH_KERNEL(what_makes_no_sense_is_refused_before)
{
    kops_client *client = s->client;
    const struct kops_argument index[] = {kops_arg_index(0), kops_arg_int(7)}, no_tensor[] = {kops_arg_tensor(NULL)};
    const struct kops_launch_options variant = {.options = {.variant = "user"}}, device = {.options = {.device = "0"}},
                                     wide = {.geometry = {.grid = {4, {1, 1, 1}}}};
    const struct kops_step mixed = {.kernel = kernel, .op = "add"},
                           by_value = {.kernel = kernel, .args = args, .n_args = 2};
    const struct kops_sequence sequences[] = {{.steps = &mixed, .n_steps = 1}, {.steps = &by_value, .n_steps = 1}};
    const struct kops_param no_kind[] = {{.name = "x", .dtype = KOPS_F32}},
                            no_dtype[] = {{.name = "x", .kind = KOPS_PARAM_IN}};
    const struct kops_signature no_entry = {.entry = NULL}, kindless = {.entry = "f", .params = no_kind, .n_params = 1},
                                typeless = {.entry = "f", .params = no_dtype, .n_params = 1};
    const struct kops_source nothing = {.name = "x"};
    struct kops_argument many[KOPS_MAX_KERNEL_TENSORS + 1];
    kops_kernel *refused;
    kops_module *module;

#define REFUSED(call) assert_int_equal(call, KOPS_ERR_BAD_ARGUMENT)
    for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++)
        many[i] = args[0];
    REFUSED(kops_kernel_launch(kernel, index, 2, NULL, NULL, NULL));
    REFUSED(kops_kernel_launch(kernel, no_tensor, 1, NULL, NULL, NULL));
    REFUSED(kops_kernel_launch(kernel, many, KOPS_MAX_KERNEL_TENSORS + 1, NULL, NULL, NULL));
    REFUSED(kops_kernel_launch(kernel, args, 2, &variant, NULL, NULL));
    REFUSED(kops_kernel_launch(kernel, args, 2, &device, NULL, NULL));
    REFUSED(kops_kernel_launch(kernel, args, 2, &wide, NULL, NULL));
    REFUSED(kops_sequence_run(client, &sequences[0], NULL, NULL, NULL));
    REFUSED(kops_sequence_run(client, &sequences[1], NULL, NULL, NULL));
    REFUSED(kops_kernel_compile(client, &source, &no_entry, &refused, NULL, NULL));
    REFUSED(kops_kernel_compile(client, &source, &kindless, &refused, NULL, NULL));
    REFUSED(kops_kernel_compile(client, &source, &typeless, &refused, NULL, NULL));
    REFUSED(kops_compile(client, &nothing, &module, NULL, NULL));
#undef REFUSED
    assert_order(s, "CK");
    assert_ok(kops_kernel_launch(kernel, many, KOPS_MAX_KERNEL_TENSORS, NULL, NULL, NULL));
}
