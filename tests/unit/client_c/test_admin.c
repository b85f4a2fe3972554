/* What administrators ask of a daemon, and traces: sparse, wrong and missing answers, and what is not asked. Full
 * answers are kopsctl's tests' (tests/ctl) and golden (test_golden.c). */
#include <math.h>

#include "scene.h"

static const char methods[] = "clients stats metrics drain conditions tune tuning trace";

SCENE(what_an_answer_leaves_out_is_said_so)
{
    const struct kops_client_info *first;
    struct kops_clients *clients;

    scene_answer(s, methods,
                 "{clients: [{pid: 7, later: 1, latency: {total: {count: 2, p50: 3}, queue: {count: 0}}}, {}],"
                 " users: [{uid: 1000, limits: {connections: 9}}], devices: [], state: 'serving', uptime_s: 2.5}");
    assert_ok(kops_clients(s->client, &clients, NULL));
    first = clients->clients[0];
    assert_texts(first->client, "", first->isolation, "", clients->clients[1]->comm, "");
    assert_true(first->latency.total.p50 == 3 && isnan(first->latency.total.p99) && isnan(first->latency.queue.p50));
    assert_true(first->pid == 7 && !first->executor && !first->shm && !clients->clients[2] && !clients->devices[0]);
    assert_true(clients->users[0]->limits.connections == 9 && clients->users[0]->limits.buffers == KOPS_NO_LIMIT);
    assert_null(kops_clients_free(clients));
}

/* The daemon that answers the second time would not be the one that was to drain. */
SCENE(drain_is_never_asked_twice)
{
    const struct kops_drain_options wrong[] = {
        {.stop = true, .resume = true}, {.timeout_ms = -1}, {.timeout_ms = 86400001}};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(kops_drain(s->client, &wrong[i], NULL, &s->error), KOPS_ERR_BAD_ARGUMENT);
        assert_int_equal(kops_drain(s->client, &wrong[i], NULL, NULL), KOPS_ERR_BAD_ARGUMENT);
    }
    assert_string_equal(scene_seen(s).last, "hello");
    scene_script(s, "x", methods);
    assert_int_equal(kops_drain(s->client, NULL, NULL, NULL), KOPS_ERR_CONNECTION_LOST);
    assert_ok(kops_ping(s->client, 0, NULL));
    assert_int_equal(scene_seen(s).work, 1);
}

/* ---- tuning ---- */

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

/* The daemon is told of places in memory, not of the memory. */
SCENE(what_runs_can_be_tuned_as_it_is)
{
    kops_buffer *memory = scene_memory(s, 4096);
    struct kops_tuning *tuning;
    struct kops_tune *tune;
    struct product p;

    scene_answer(s, methods, "{candidates: [{us: 3}, {}], best: 1, before: 0, usual: 0}");
    product(&p);
    p.inputs[0].buffer = p.inputs[1].buffer = p.output.buffer = memory;
    p.inputs[1].offset = 64;
    assert_ok(kops_tune(s->client, &p.request, &tune, NULL));
    scene_asked(s, "{op: 'gemm', in: [{shape: [2, 3], dtype: 'f16'}, {offset: 64, shape: [3, 4], dtype: 'f16'}],"
                   " out: [{shape: [2, 4], dtype: 'f32'}]}");
    assert_true(isnan(tune->candidates[1]->us) && isnan(tune->noise));
    assert_texts(tune->candidates[1]->what, "", tune->device, "");
    assert_null(kops_tune_free(tune));

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
    scene_asked(s, "{op: 'gemm', in: [{offset: 34, shape: [7], strides: [5], dtype: 'f16'}],"
                   " out: [{shape: [2, 4], dtype: 'f32'}], attrs: {trans_a: true, precision: 'medium'}, device: 1}");
    kops_tune_free(tune);

    scene_answer(s, methods, "{total: 0}");
    assert_ok(kops_tuning(s->client, 256, true, &tuning, NULL));
    scene_asked(s, "{from: 256, clear: true}");
    assert_null(tuning->choices[0]);
    assert_null(kops_tuning_free(tuning));
}

SCENE(a_tuning_that_makes_no_sense_is_refused_before)
{
    struct kops_tune *tune = NULL;
    struct product p;

    product(&p);
    p.request.options.variant = "tiled";
    assert_int_equal(kops_tune(s->client, &p.request, &tune, &s->error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(s->error.message, "variant"));
    p.request.options.variant = NULL;
    p.inputs[1].rank = KOPS_MAX_RANK + 1;
    assert_int_equal(kops_tune(s->client, &p.request, &tune, &s->error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(s->error.message, "inputs[1].rank"));
    p.request.op = NULL;
    assert_int_equal(kops_tune(s->client, &p.request, &tune, NULL), KOPS_ERR_BAD_ARGUMENT);
    product(&p);
    p.request.n_inputs = KOPS_MAX_OPERANDS + 1;
    assert_int_equal(kops_tune(s->client, &p.request, &tune, NULL), KOPS_ERR_BAD_ARGUMENT);
    assert_null(tune);
    assert_string_equal(scene_seen(s).last, "hello");
}

/* Each index in a tune's answer is one for the caller. */
SCENE(wrong_answers_are_bad_replies)
{
    static const char *const wrong[] = {
        "{}",
        "{best: 0, before: 0, usual: 0}",
        "{candidates: [{}], best: 1, before: 0, usual: 0}",
        "{candidates: [{}], best: 0, before: 1, usual: 0}",
        "{candidates: [{}], best: 0, before: 0, usual: 1}",
        "{candidates: [{}], best: 0, before: 0}",
        "{drained: 1}",
        "{text: 1}",
    };
    struct kops_tuning *tuning = NULL;
    struct kops_drain_result drained;
    struct kops_tune *tune = NULL;
    char *text = NULL;
    struct product p;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        scene_answer(s, methods, wrong[i]);
        if (kops_tune(s->client, product(&p), &tune, NULL) != KOPS_ERR_BAD_REPLY || tune ||
            kops_tuning(s->client, 0, false, &tuning, NULL) != KOPS_ERR_BAD_REPLY || tuning ||
            kops_metrics(s->client, &text, &s->error) != KOPS_ERR_BAD_REPLY || text)
            fail_msg("taken: %s", wrong[i]);
    }
    scene_answer(s, methods, "{drained: 1}");
    assert_int_equal(kops_drain(s->client, NULL, &drained, NULL), KOPS_ERR_BAD_REPLY);
}

/* Neither a daemon whose hello says so, which is not asked, nor one that took the place of the first. */
TEST(a_daemon_that_is_older_is_told_as_such)
{
    struct kops_tuning *tuning = NULL;
    struct kops_tune *tune = NULL;
    struct product p;

    for (int asked = 0; asked < 2; asked++) {
        struct scene *s;

        fake_offers_little = !asked;
        s = scene_start(NULL);
        scene_script(s, "u*", methods);
        assert_int_equal(kops_tune(s->client, product(&p), &tune, &s->error), KOPS_ERR_UNSUPPORTED);
        assert_non_null(strstr(s->error.message, asked ? "older than the method `tune`" : "no feature `tune`"));
        assert_int_equal(kops_tuning(s->client, 0, false, &tuning, &s->error), KOPS_ERR_UNSUPPORTED);
        assert_non_null(strstr(s->error.message, asked ? "older than the method `tuning`" : "no feature `tune`"));
        assert_int_equal(scene_seen(s).work, asked ? 2 : 0);
        assert_true(!tune && !tuning);
        assert_int_equal(kops_trace_begin(s->client, NULL, &s->error), KOPS_ERR_UNSUPPORTED);
        assert_non_null(strstr(s->error.message, "older than the method `trace`"));
        scene_stop(s);
    }
}

/* ---- a trace belongs to its connection; its bytes are golden: test_golden.c ---- */

#define TRACE(events)                                                                                                  \
    "{recording: true, origin_ns: 1, now_ns: 2, dropped: 0, kinds: [], clients: [], events: " events "}"
#define EVENT "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]"

static int begin_tracing(void **state)
{
    struct scene *s = scene_start(NULL);

    scene_answer(s, methods, TRACE("[]"));
    *state = s;
    return 0;
}

#define TRACING(name) TEST_OF(struct scene *s, name, begin_tracing, scene_end)

TRACING(a_trace_is_begun_first)
{
    struct kops_trace *trace;

    assert_int_equal(kops_trace_read(s->client, false, &trace, &s->error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(s->error.message, "kops_trace_begin"));
    assert_int_equal(kops_trace_read(s->client, true, &trace, NULL), KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(scene_seen(s).work, 0);
}

TRACING(a_trace_ends_with_its_connection)
{
    struct kops_trace *trace;

    assert_ok(kops_trace_begin(s->client, &(struct kops_trace_options){.events = 65536}, NULL));
    scene_asked(s, "{begin: true, events: 65536}");
    scene_script(s, "x", methods);
    assert_int_equal(kops_trace_read(s->client, false, &trace, NULL), KOPS_ERR_CONNECTION_LOST);
    assert_ok(kops_ping(s->client, 0, NULL));
    /* The daemon that is there now is not asked: it would say that there are no events. */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kops_trace_read(s->client, i, &trace, &s->error), KOPS_ERR_CONNECTION_LOST);
        assert_non_null(strstr(s->error.message, "begin another one"));
    }
    assert_int_equal(scene_seen(s).work, 1);
    assert_ok(kops_trace_begin(s->client, NULL, NULL));
    scene_asked(s, "{begin: true}");
    assert_ok(kops_trace_read(s->client, true, &trace, NULL));
    scene_asked(s, "{end: true}");
    assert_true(trace->n_events == 0 && !trace->kinds[0] && !trace->clients[0]);
    assert_null(kops_trace_free(trace));
}

/* The daemon may have begun it, on a connection that is over. */
TRACING(a_beginning_without_reply_is_not_repeated)
{
    struct kops_trace *trace;

    scene_script(s, "x", methods);
    assert_int_equal(kops_trace_begin(s->client, NULL, NULL), KOPS_ERR_CONNECTION_LOST);
    assert_int_equal(scene_seen(s).work, 1);
    assert_int_equal(kops_trace_read(s->client, false, &trace, NULL), KOPS_ERR_BAD_ARGUMENT);
}

TRACING(a_wrong_trace_is_refused)
{
    static const char *const wrong[] = {
        TRACE("[[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]"), /* ten columns */
        TRACE("[" EVENT ", []]"),
        TRACE("[5]"),
        TRACE("[[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, false]]"),
        TRACE("[[1, 2, 3, 4, -1, 6, 7, 8, 9, 10, 0]]"),
        TRACE("5"),
        "{}",
    };
    struct kops_trace *trace;

    assert_ok(kops_trace_begin(s->client, NULL, NULL));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        scene_answer(s, methods, wrong[i]);
        if (kops_trace_read(s->client, false, &trace, NULL) != KOPS_ERR_BAD_REPLY)
            fail_msg("taken: %s", wrong[i]);
    }
    /* Of an older daemon, and of a newer one. */
    scene_answer(s, methods, TRACE("[" EVENT "]"));
    assert_ok(kops_trace_read(s->client, false, &trace, NULL));
    assert_true(trace->events[0].busy == 9 && trace->events[0].finished == 0);
    kops_trace_free(trace);
    scene_answer(s, methods, TRACE("[[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 11, 12, null]]"));
    assert_ok(kops_trace_read(s->client, false, &trace, NULL));
    assert_true(trace->events[0].began == 11 && trace->events[0].finished == 12);
    kops_trace_free(trace);
}
