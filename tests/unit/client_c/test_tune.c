/* tune and tuning: what is asked, and what becomes of good, wrong and missing answers. */
#include <math.h>

#include "scripted.h"

static const char methods[] = "tune tuning";
static const char good[] = "{candidates: [{us: 3}, {}], best: 1, before: 0, usual: 0}";

/* A product whose tensors have no memory. */
struct product {
    struct kops_tensor inputs[2], output;
    struct kops_attr attrs[2];
    struct kops_request request;
};

static const struct kops_request *product(struct product *p)
{
    memset(p, 0, sizeof(*p));
    p->inputs[0] = kops_matrix(NULL, KOPS_F16, 2, 3);
    p->inputs[1] = kops_matrix(NULL, KOPS_F16, 3, 4);
    p->output = kops_matrix(NULL, KOPS_F32, 2, 4);
    p->request = (struct kops_request){
        .op = "gemm", .inputs = p->inputs, .n_inputs = 2, .outputs = &p->output, .n_outputs = 1, .attrs = p->attrs};
    return &p->request;
}

static void a_tuning_is_asked_for(void **state)
{
    struct scene *s = *state;
    struct kops_tune *tune = NULL;
    struct product p;

    scene_answer(s, methods, good);
    assert_ok(kops_tune(s->client, product(&p), &tune, NULL));
    assert_string_equal(scene_seen(s).asked,
                        "{op: 'gemm', in: [{shape: [2, 3], dtype: 'f16'}, {shape: [3, 4], dtype: 'f16'}],"
                        " out: [{shape: [2, 4], dtype: 'f32'}]}");
    assert_true(tune->n_candidates == 2 && tune->best == 1 && tune->before == 0 && tune->usual == 0);
    assert_true(tune->candidates[0]->us == 3 && isnan(tune->candidates[1]->us) && isnan(tune->noise));
    assert_string_equal(tune->candidates[1]->what, "");
    assert_string_equal(tune->device, "");
    assert_null(kops_tune_free(tune));
    assert_null(kops_tune_free(NULL));

    product(&p);
    p.inputs[0] = kops_vector(NULL, KOPS_F16, 7);
    p.inputs[0].offset = 34;
    p.inputs[0].has_strides = true;
    p.inputs[0].strides[0] = 5;
    p.attrs[0] = kops_attr_bool("trans_a", true);
    p.attrs[1] = kops_attr_text("precision", "medium");
    p.request.n_inputs = 1;
    p.request.n_attrs = 2;
    p.request.options.device = "1";
    assert_ok(kops_tune(s->client, &p.request, &tune, NULL));
    assert_string_equal(scene_seen(s).asked,
                        "{op: 'gemm', in: [{offset: 34, shape: [7], strides: [5], dtype: 'f16'}],"
                        " out: [{shape: [2, 4], dtype: 'f32'}], attrs: {trans_a: true, precision: 'medium'},"
                        " device: 1}");
    kops_tune_free(tune);
}

/* The daemon is told of the places in memory, not of the memory. */
static void what_runs_can_be_tuned_as_it_is(void **state)
{
    struct scene *s = *state;
    struct kops_tune *tune;
    kops_buffer *memory;
    struct product p;

    scene_answer(s, methods, good);
    assert_ok(kops_buffer_alloc_shared(s->client, 4096, &memory, NULL));
    product(&p);
    p.inputs[0].buffer = p.inputs[1].buffer = p.output.buffer = memory;
    p.inputs[1].offset = 64;
    assert_ok(kops_tune(s->client, &p.request, &tune, NULL));
    assert_string_equal(scene_seen(s).asked,
                        "{op: 'gemm', in: [{shape: [2, 3], dtype: 'f16'}, {offset: 64, shape: [3, 4], dtype: 'f16'}],"
                        " out: [{shape: [2, 4], dtype: 'f32'}]}");
    kops_tune_free(tune);
    kops_buffer_release(memory);
}

static void what_makes_no_sense_is_refused_before(void **state)
{
    struct scene *s = *state;
    struct kops_tune *tune = NULL;
    struct product p;

#define REFUSED(change, about)                                                                                         \
    do {                                                                                                               \
        product(&p);                                                                                                   \
        change;                                                                                                        \
        if (kops_tune(s->client, &p.request, &tune, &s->error) != KOPS_ERR_BAD_ARGUMENT ||                             \
            !strstr(s->error.message, about))                                                                          \
            fail_msg("%s: %s", #change, s->error.message);                                                             \
    } while (0)
    REFUSED(p.request.options.variant = "tiled", "variant");
    REFUSED(p.request.op = NULL, "");
    REFUSED(p.inputs[1].rank = KOPS_MAX_RANK + 1, "inputs[1].rank");
    REFUSED(p.request.n_inputs = KOPS_MAX_OPERANDS + 1, "");
#undef REFUSED
    assert_int_equal(kops_tune(s->client, &p.request, &tune, NULL), KOPS_ERR_BAD_ARGUMENT);
    assert_null(tune);
    assert_string_equal(scene_seen(s).last, "hello");
}

/* Each of the three is an index for the caller. */
static void wrong_answers_are_bad_replies(void **state)
{
    static const char *const wrong[] = {
        "{}",
        "{best: 0, before: 0, usual: 0}",
        "{candidates: [{}], best: 1, before: 0, usual: 0}",
        "{candidates: [{}], best: 0, before: 1, usual: 0}",
        "{candidates: [{}], best: 0, before: 0, usual: 1}",
        "{candidates: [{}], best: 0, before: 0}",
    };
    struct scene *s = *state;
    struct kops_tuning *tuning = NULL;
    struct kops_tune *tune = NULL;
    struct product p;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        scene_answer(s, methods, wrong[i]);
        if (kops_tune(s->client, product(&p), &tune, NULL) != KOPS_ERR_BAD_REPLY || tune)
            fail_msg("taken: %s", wrong[i]);
    }
    scene_answer(s, methods, "{}");
    assert_int_equal(kops_tuning(s->client, 0, false, &tuning, NULL), KOPS_ERR_BAD_REPLY);
    assert_null(tuning);
}

static void choices_are_read(void **state)
{
    struct scene *s = *state;
    struct kops_tuning *tuning;

    scene_answer(s, methods, "{total: 2, choices: [{what: 'x', us: 2, at: 1.5}, {usual_us: 3}]}");
    assert_ok(kops_tuning(s->client, 0, false, &tuning, NULL));
    assert_string_equal(scene_seen(s).asked, "{}");
    assert_int_equal(tuning->total, 2);
    assert_string_equal(tuning->choices[0]->what, "x");
    assert_true(tuning->choices[0]->us == 2 && tuning->choices[0]->at == 1.5 && isnan(tuning->choices[0]->usual_us));
    assert_true(tuning->choices[1]->usual_us == 3 && !tuning->choices[2]);
    assert_null(kops_tuning_free(tuning));
    assert_null(kops_tuning_free(NULL));

    scene_answer(s, methods, "{total: 0}");
    assert_ok(kops_tuning(s->client, 256, true, &tuning, NULL));
    assert_string_equal(scene_seen(s).asked, "{from: 256, clear: true}");
    assert_null(tuning->choices[0]);
    kops_tuning_free(tuning);
}

/* Neither one whose hello says so, which is not asked, nor one that took the place of the first. */
static void an_older_daemon_is_told_as_such(void **state)
{
    static const char *const features[] = {"memfd", NULL};
    struct kops_tuning *tuning = NULL;
    struct kops_tune *tune = NULL;
    struct product p;

    (void)state;
    for (int asked = 0; asked < 2; asked++) {
        struct scene *s;

        fake_set_features(asked ? NULL : features);
        s = scene_start(NULL);
        scene_script(s, "u*", methods);
        assert_int_equal(kops_tune(s->client, product(&p), &tune, &s->error), KOPS_ERR_UNSUPPORTED);
        assert_non_null(strstr(s->error.message, asked ? "older than the method `tune`" : "no feature `tune`"));
        assert_int_equal(kops_tuning(s->client, 0, false, &tuning, &s->error), KOPS_ERR_UNSUPPORTED);
        assert_non_null(strstr(s->error.message, asked ? "older than the method `tuning`" : "no feature `tune`"));
        assert_int_equal(scene_seen(s).work, asked ? 2 : 0);
        assert_true(!tune && !tuning);
        scene_stop(s);
    }
    fake_set_features(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_tuning_is_asked_for),
        TEST(what_runs_can_be_tuned_as_it_is),
        TEST(what_makes_no_sense_is_refused_before),
        TEST(wrong_answers_are_bad_replies),
        TEST(choices_are_read),
        cmocka_unit_test(an_older_daemon_is_told_as_such),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
