/* tune and tuning: what is asked, and what becomes of good, wrong and missing answers. */
#include <math.h>

#include "test.h"

/* Answers both methods with these bytes, a packed map; NULL: as a daemon that does not know them. */
struct told {
    const char *bytes;
    size_t length;
    char asked[512]; /* the last one's parameters */
    unsigned n_asked;
};

static const char *const with_tune[] = {"memfd", "tune", NULL};

#define ANSWER(text) (text), sizeof(text) - 1

/* {candidates: [{us: 3}, {}], best: 1, before: 0, usual: 0} */
#define GOOD                                                                                                           \
    "\x84\xaa"                                                                                                         \
    "candidates\x92\x81\xa2us\x03\x80\xa4"                                                                             \
    "best\x01\xa6"                                                                                                     \
    "before\x00\xa5usual\x00"

static void serve(struct fake_connection *c, void *context)
{
    struct told *t = context;
    struct fake_request r;

    while (fake_next(c, &r)) {
        msgpack_sbuffer b;

        if (strcmp(r.method, "tune") != 0 && strcmp(r.method, "tuning") != 0) {
            fake_answer(c, &r);
            continue;
        }
        msgpack_object_print_buffer(t->asked, sizeof(t->asked), r.params);
        t->n_asked++;
        if (!t->bytes) {
            fake_reply_error(c, r.msgid, "unknown_method", "there is no such method");
            continue;
        }
        msgpack_sbuffer_init(&b);
        msgpack_sbuffer_write(&b, t->bytes, t->length);
        fake_reply_map(c, r.msgid, &b);
    }
}

struct state {
    struct told told;
    struct fake *fake;
    kops_client *client;
};

static int set_up_with(void **state, const char *const *features)
{
    struct state *s = calloc(1, sizeof(*s));

    assert_non_null(s);
    fake_set_features(features);
    s->fake = fake_start(serve, &s->told);
    s->client = connect_to(s->fake);
    *state = s;
    return 0;
}

static int set_up(void **state)
{
    return set_up_with(state, with_tune);
}

static int set_up_without(void **state)
{
    return set_up_with(state, NULL);
}

static int tear_down(void **state)
{
    struct state *s = *state;

    kops_close(s->client);
    fake_stop(s->fake);
    fake_set_features(NULL);
    free(s);
    return 0;
}

static void tell(struct state *s, const char *bytes, size_t length)
{
    s->told.bytes = bytes;
    s->told.length = length;
}

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
    struct state *s = *state;
    struct kops_tune *tune = NULL;
    struct product p;

    tell(s, ANSWER(GOOD));
    assert_ok(kops_tune(s->client, product(&p), &tune, NULL));
    assert_string_equal(s->told.asked,
                        "{\"op\"=>\"gemm\", \"in\"=>[{\"shape\"=>[2, 3], \"dtype\"=>\"f16\"}, {\"shape\"=>[3, 4], "
                        "\"dtype\"=>\"f16\"}], \"out\"=>[{\"shape\"=>[2, 4], \"dtype\"=>\"f32\"}]}");
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
    assert_string_equal(s->told.asked, "{\"op\"=>\"gemm\", \"in\"=>[{\"offset\"=>34, \"shape\"=>[7], \"strides\"=>[5], "
                                       "\"dtype\"=>\"f16\"}], \"out\"=>[{\"shape\"=>[2, 4], \"dtype\"=>\"f32\"}], "
                                       "\"attrs\"=>{\"trans_a\"=>true, \"precision\"=>\"medium\"}, \"device\"=>1}");
    kops_tune_free(tune);
}

/* The daemon is told of the places in memory, not of the memory. */
static void what_runs_can_be_tuned_as_it_is(void **state)
{
    struct state *s = *state;
    struct kops_tune *tune;
    kops_buffer *memory;
    struct product p;

    tell(s, ANSWER(GOOD));
    assert_ok(kops_buffer_alloc_shared(s->client, 4096, &memory, NULL));
    product(&p);
    p.inputs[0].buffer = p.inputs[1].buffer = p.output.buffer = memory;
    p.inputs[1].offset = 64;
    assert_ok(kops_tune(s->client, &p.request, &tune, NULL));
    assert_null(strstr(s->told.asked, "buffer"));
    assert_null(strstr(s->told.asked, "device"));
    assert_non_null(strstr(s->told.asked, "{\"offset\"=>64, \"shape\"=>[3, 4]"));
    kops_tune_free(tune);
    kops_buffer_release(memory);
}

static void what_makes_no_sense_is_refused_before(void **state)
{
    struct state *s = *state;
    struct kops_tune *tune = NULL;
    struct kops_error error;
    struct product p;

    product(&p);
    p.request.options.variant = "tiled";
    assert_int_equal(kops_tune(s->client, &p.request, &tune, &error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(error.message, "variant"));
    product(&p);
    p.request.op = NULL;
    assert_int_equal(kops_tune(s->client, &p.request, &tune, NULL), KOPS_ERR_BAD_ARGUMENT);
    product(&p);
    p.inputs[1].rank = KOPS_MAX_RANK + 1;
    assert_int_equal(kops_tune(s->client, &p.request, &tune, &error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(error.message, "inputs[1].rank"));
    product(&p);
    p.request.n_inputs = KOPS_MAX_OPERANDS + 1;
    assert_int_equal(kops_tune(s->client, &p.request, &tune, NULL), KOPS_ERR_BAD_ARGUMENT);
    assert_null(tune);
    assert_int_equal(s->told.n_asked, 0);
}

/* Each of the three is an index for the caller. */
static void wrong_answers_are_bad_replies(void **state)
{
    static const struct {
        const char *bytes;
        size_t length;
    } wrong[] = {
        {ANSWER("\x80")},
        {ANSWER("\x83\xa4"
                "best\x00\xa6"
                "before\x00\xa5usual\x00")},
        {ANSWER("\x84\xaa"
                "candidates\x91\x80\xa4"
                "best\x01\xa6"
                "before\x00\xa5usual\x00")},
        {ANSWER("\x84\xaa"
                "candidates\x91\x80\xa4"
                "best\x00\xa6"
                "before\x01\xa5usual\x00")},
        {ANSWER("\x84\xaa"
                "candidates\x91\x80\xa4"
                "best\x00\xa6"
                "before\x00\xa5usual\x01")},
        {ANSWER("\x83\xaa"
                "candidates\x91\x80\xa4"
                "best\x00\xa6"
                "before\x00")},
    };
    struct state *s = *state;
    struct kops_tuning *tuning = NULL;
    struct kops_tune *tune = NULL;
    struct product p;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        tell(s, wrong[i].bytes, wrong[i].length);
        assert_int_equal(kops_tune(s->client, product(&p), &tune, NULL), KOPS_ERR_BAD_REPLY);
        assert_null(tune);
    }
    assert_int_equal(s->told.n_asked, sizeof(wrong) / sizeof(wrong[0]));
    tell(s, ANSWER("\x80"));
    assert_int_equal(kops_tuning(s->client, 0, false, &tuning, NULL), KOPS_ERR_BAD_REPLY);
    assert_null(tuning);
}

static void choices_are_read(void **state)
{
    struct state *s = *state;
    struct kops_tuning *tuning;

    /* {total: 2, choices: [{what: "x", us: 2, at: 1.5}, {usual_us: 3}]} */
    tell(s, ANSWER("\x82\xa5total\x02\xa7"
                   "choices\x92\x83\xa4what\xa1x\xa2us\x02\xa2"
                   "at\xcb\x3f\xf8\0\0\0\0\0\0\x81\xa8usual_us\x03"));
    assert_ok(kops_tuning(s->client, 0, false, &tuning, NULL));
    assert_string_equal(s->told.asked, "{}");
    assert_int_equal(tuning->total, 2);
    assert_string_equal(tuning->choices[0]->what, "x");
    assert_true(tuning->choices[0]->us == 2 && tuning->choices[0]->at == 1.5 && isnan(tuning->choices[0]->usual_us));
    assert_true(tuning->choices[1]->usual_us == 3 && !tuning->choices[2]);
    assert_null(kops_tuning_free(tuning));
    assert_null(kops_tuning_free(NULL));

    tell(s, ANSWER("\x81\xa5total\x00"));
    assert_ok(kops_tuning(s->client, 256, true, &tuning, NULL));
    assert_string_equal(s->told.asked, "{\"from\"=>256, \"clear\"=>true}");
    assert_null(tuning->choices[0]);
    kops_tuning_free(tuning);
}

static void a_daemon_without_the_feature_is_not_asked(void **state)
{
    struct state *s = *state;
    struct kops_tuning *tuning = NULL;
    struct kops_tune *tune = NULL;
    struct kops_error error;
    struct product p;

    tell(s, ANSWER(GOOD));
    assert_int_equal(kops_tune(s->client, product(&p), &tune, &error), KOPS_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "no feature `tune`"));
    assert_int_equal(kops_tuning(s->client, 0, false, &tuning, &error), KOPS_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "no feature `tune`"));
    assert_int_equal(s->told.n_asked, 0);
    assert_true(!tune && !tuning);
}

/* As when an older one took the place of the first. */
static void an_older_daemon_is_told_as_such(void **state)
{
    struct state *s = *state;
    struct kops_tuning *tuning;
    struct kops_tune *tune;
    struct kops_error error;
    struct product p;

    assert_int_equal(kops_tune(s->client, product(&p), &tune, &error), KOPS_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "older than the method `tune`"));
    assert_int_equal(kops_tuning(s->client, 0, false, &tuning, NULL), KOPS_ERR_UNSUPPORTED);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_tuning_is_asked_for),
        TEST(what_runs_can_be_tuned_as_it_is),
        TEST(what_makes_no_sense_is_refused_before),
        TEST(wrong_answers_are_bad_replies),
        TEST(choices_are_read),
        TEST(an_older_daemon_is_told_as_such),
        cmocka_unit_test_setup_teardown(a_daemon_without_the_feature_is_not_asked, set_up_without, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
