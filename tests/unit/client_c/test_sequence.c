/* Sequences and programs: what is sent, what is refused before, how long a program lives. */
#include "scene.h"

static const uint32_t places[] = {0, 1, 2};
static struct kops_tensor tensors[3];
static struct kops_step steps[2];
static const struct kops_sequence sequence = {tensors, 3, steps, 2};

/* square(a + b). */
static void two_steps(kops_buffer *buffer)
{
    vectors_in(buffer, 4, 3, tensors);
    steps[0] = (struct kops_step){.op = "add", .inputs = places, .n_inputs = 2, .outputs = &places[2], .n_outputs = 1};
    steps[1] =
        (struct kops_step){.op = "square", .inputs = &places[2], .n_inputs = 1, .outputs = &places[2], .n_outputs = 1};
}

SCENE(steps_name_their_tensors_by_index)
{
    const struct kops_options options = {.variant = "blas"};
    struct kops_result result;
    kops_buffer *buffer = scene_memory(s, 64);
    kops_ticket ticket;

    two_steps(buffer);
    assert_ok(kops_sequence_run(s->client, &sequence, NULL, &result, &s->error));
    assert_true(result.total_us == 20);
    assert_string_equal(scene_seen(s).order, "S");
    scene_asked(s, "{tensors: [{buffer: 1, shape: [4], dtype: 'f32'},"
                   " {buffer: 1, offset: 16, shape: [4], dtype: 'f32'},"
                   " {buffer: 1, offset: 32, shape: [4], dtype: 'f32'}],"
                   " ops: [{op: 'add', in: [0, 1], out: [2]}, {op: 'square', in: [2], out: [2]}]}");
    assert_ok(kops_sequence_submit(s->client, &sequence, NULL, &ticket, &s->error));
    assert_ok(kops_wait(s->client, ticket, 0, &result, &s->error));

    assert_int_equal(kops_sequence_run(s->client, &sequence, &options, NULL, &s->error), KOPS_ERR_BAD_ARGUMENT);
    steps[1].op = NULL;
    assert_int_equal(kops_sequence_run(s->client, &sequence, NULL, NULL, &s->error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(s->error.message, "steps[1]"));
    two_steps(buffer);
    tensors[2].rank = 9;
    assert_int_equal(kops_sequence_run(s->client, &sequence, NULL, NULL, &s->error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(s->error.message, "tensors[2]"));
    assert_int_equal(scene_seen(s).work, 2);
}

SCENE(a_program_is_defined_once_a_connection)
{
    kops_buffer *buffer = scene_memory(s, 64), *other = scene_memory(s, 64);
    kops_program *program;

    two_steps(buffer);
    assert_ok(kops_program_define(s->client, &sequence, NULL, &program, &s->error));
    memset(steps, 0xee, sizeof(steps)); /* it was copied */
    memset(tensors, 0xee, sizeof(tensors));
    for (int i = 0; i < 3; i++)
        assert_ok(kops_program_run(program, NULL, 0, NULL, NULL, &s->error));
    assert_string_equal(scene_seen(s).order, "PRRR");
    scene_asked(s, "{program: 3}");
    assert_ok(kops_program_run(program, &(struct kops_binding){1, other, 32}, 1, NULL, NULL, &s->error));
    scene_asked(s, "{program: 3, bind: [{index: 1, buffer: 2, offset: 32}]}");
    assert_int_equal(kops_program_run(program, &(struct kops_binding){1, NULL, 0}, 1, NULL, NULL, &s->error),
                     KOPS_ERR_BAD_ARGUMENT);

    scene_script(s, "x", NULL);
    assert_int_equal(kops_program_run(program, NULL, 0, NULL, NULL, &s->error), KOPS_ERR_CONNECTION_LOST);
    assert_ok(kops_program_run(program, NULL, 0, NULL, NULL, &s->error)); /* defined anew */
    assert_string_equal(scene_seen(s).order, "PRRRRRPR");
    scene_asked(s, "{program: 102}");
    kops_program_release(program);
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_string_equal(scene_seen(s).released, "{program: 102}");
    kops_program_release(NULL);
}

TEST(without_the_feature_nothing_is_sent)
{
    struct scene *s;
    kops_program *program;

    fake_offers_little = true;
    s = scene_start(NULL);
    two_steps(NULL);
    assert_int_equal(kops_sequence_run(s->client, &sequence, NULL, NULL, &s->error), KOPS_ERR_UNSUPPORTED);
    assert_int_equal(kops_program_define(s->client, &sequence, NULL, &program, &s->error), KOPS_ERR_UNSUPPORTED);
    assert_int_equal(kops_sequence_enqueue(s->client, &sequence, NULL, NULL, &s->error), KOPS_ERR_UNSUPPORTED);
    assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error)); /* there is nothing to wait for */
    assert_string_equal(scene_seen(s).last, "hello");
    scene_stop(s);
}
