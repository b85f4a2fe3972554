/* What a daemon tells of itself, clients, stats, metrics, drain, tune, tuning and trace: what is asked, and what
 * becomes of good, sparse, wrong and missing answers. */
#include <math.h>

#include "scripted.h"

static const char methods[] = "clients stats metrics drain conditions tune tuning trace";

static void assert_asked(struct scene *s, const char *parameters)
{
    assert_string_equal(scene_seen(s).asked, parameters);
}

SCENE(clients_are_read)
{
    struct kops_clients *clients;
    const struct kops_client_info *first;
    const struct kops_user_info *user;

    scene_answer(s, methods,
                 "{clients: [{pid: 7, client: 'x', connected_s: 1.5, paused: true, later: 1, isolation: 'user',"
                 "            executor: 5, latency: {total: {count: 2, p50: 3, p999: 4}, queue: {count: 0}}}, {}],"
                 " users: [{uid: 1000, refused: 3, limits: {connections: 9, device_share: 50}}],"
                 " devices: [{index: 1, name: 'd', memory_free: 5}], state: 'draining', uptime_s: 2.5}");
    assert_ok(kops_clients(s->client, &clients, NULL));
    assert_asked(s, "{}");
    first = clients->clients[0];
    user = clients->users[0];
    assert_texts(first->client, "x", first->comm, "", first->isolation, "user", clients->clients[1]->isolation, "",
                 clients->devices[0]->name, "d", clients->state, "draining");
    assert_true(first->pid == 7 && first->connected_s == 1.5 && first->paused && !first->shm && first->executor == 5);
    assert_true(first->latency.total.count == 2 && first->latency.total.p50 == 3 && first->latency.total.p999 == 4);
    assert_true(isnan(first->latency.total.p99) && isnan(first->latency.queue.p50) && !first->latency.device.count);
    assert_true(clients->clients[1]->executor == 0 && !clients->clients[2]);
    assert_true(user->uid == 1000 && user->refused == 3 && user->limits.connections == 9);
    assert_true(user->limits.device_share == 50 && user->limits.buffers == KOPS_NO_LIMIT);
    assert_true(clients->devices[0]->memory_free == 5 && !clients->devices[1] && clients->uptime_s == 2.5);
    assert_null(kops_clients_free(clients));
    assert_null(kops_clients_free(NULL));
}

SCENE(conditions_are_read)
{
    struct kops_conditions *c;

    scene_answer(s, methods,
                 "{device: 'x', conditions: {clock_mhz: 1980, reasons: ['power_cap', 'thermal'], later: 1}}");
    assert_ok(kops_conditions(s->client, "GPU-1", &c, NULL));
    assert_asked(s, "{device: 'GPU-1'}");
    assert_true(c->clock_mhz == 1980 && isnan(c->temperature_c));
    assert_texts(c->missing, "", c->reasons[0], "power_cap", c->reasons[1], "thermal");
    assert_null(c->reasons[2]);
    assert_null(kops_conditions_free(c));
    scene_answer(s, methods, "{device: 'x', conditions: {missing: 'no'}}");
    assert_ok(kops_conditions(s->client, NULL, &c, NULL));
    assert_asked(s, "{}");
    assert_string_equal(c->missing, "no");
    assert_null(c->reasons[0]);
    assert_null(kops_conditions_free(c));
    assert_null(kops_conditions_free(NULL));
}

SCENE(executors_are_read)
{
    const struct kops_executor *const *executors;
    struct kops_stats *stats;

    scene_answer(s, methods,
                 "{executors: [{pid: 5, state: 'serving', domain: 'user', uid: 7, jobs: 2, device_us: 1.5},"
                 "             {pid: 6, state: 'spare', connection: 8, client_pid: 9}],"
                 " executor_counts: {started: 3}}");
    assert_ok(kops_stats_get(s->client, NULL, &stats, NULL));
    executors = stats->executors;
    assert_true(executors[0]->pid == 5 && executors[0]->uid == 7 && executors[0]->connection == 0);
    assert_texts(executors[0]->state, "serving", executors[0]->domain, "user");
    assert_true(executors[0]->jobs == 2 && executors[0]->device_us == 1.5 && isnan(executors[0]->uptime_s));
    assert_null(executors[1]->domain);
    assert_true(executors[1]->uid == -1 && executors[1]->connection == 8 && executors[1]->client_pid == 9);
    assert_null(executors[2]);
    assert_string_equal(stats->executor_counts[0]->name, "started");
    assert_int_equal(stats->executor_counts[0]->value, 3);
    assert_null(kops_stats_free(stats));

    scene_answer(s, methods, "{}"); /* of an older daemon */
    assert_ok(kops_stats_get(s->client, NULL, &stats, NULL));
    assert_null(stats->executors[0]);
    assert_null(stats->executor_counts[0]);
    kops_stats_free(stats);
}

SCENE(metrics_are_a_text)
{
    static const char *const wrong[] = {"{text: 1}", "{}"};
    char *text = NULL;

    scene_answer(s, methods, "{text: 'a 1\nb 2'}");
    assert_ok(kops_metrics(s->client, &text, &s->error));
    assert_string_equal(text, "a 1\nb 2");
    assert_null(kops_metrics_free(text));
    text = NULL;
    for (int i = 0; i < 2; i++) {
        scene_answer(s, methods, wrong[i]);
        assert_int_equal(kops_metrics(s->client, &text, i ? NULL : &s->error), KOPS_ERR_BAD_REPLY);
        assert_null(text);
    }
}

SCENE(drain_says_what_is_left)
{
    const struct kops_drain_options stop = {.stop = true, .timeout_ms = 250}, resume = {.resume = true};
    struct kops_drain_result result;

    scene_answer(s, methods, "{drained: false, jobs: 3, connections: 2}");
    assert_ok(kops_drain(s->client, &stop, &result, NULL));
    assert_asked(s, "{stop: true, timeout_ms: 250}");
    assert_true(!result.drained && result.jobs == 3 && result.connections == 2);
    assert_ok(kops_drain(s->client, &resume, NULL, NULL));
    assert_asked(s, "{resume: true}");
    assert_ok(kops_drain(s->client, NULL, NULL, NULL));
    assert_asked(s, "{}");
    scene_answer(s, methods, "{drained: 1}");
    assert_int_equal(kops_drain(s->client, NULL, &result, NULL), KOPS_ERR_BAD_REPLY);
}

SCENE(what_makes_no_sense_is_refused_before)
{
    const struct kops_drain_options wrong[] = {
        {.stop = true, .resume = true}, {.timeout_ms = -1}, {.timeout_ms = 86400001}};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(kops_drain(s->client, &wrong[i], NULL, &s->error), KOPS_ERR_BAD_ARGUMENT);
        assert_int_equal(s->error.code, KOPS_ERR_BAD_ARGUMENT);
        assert_int_equal(kops_drain(s->client, &wrong[i], NULL, NULL), KOPS_ERR_BAD_ARGUMENT);
    }
    assert_string_equal(scene_seen(s).last, "hello");
}

SCENE(an_older_daemon_is_told_as_such)
{
    struct kops_clients *clients;
    char *text;

    scene_script(s, "u*", methods);
    assert_int_equal(kops_clients(s->client, &clients, &s->error), KOPS_ERR_UNSUPPORTED);
    assert_non_null(strstr(s->error.message, "older than the method `clients`"));
    assert_int_equal(kops_metrics(s->client, &text, NULL), KOPS_ERR_UNSUPPORTED);
    assert_int_equal(kops_drain(s->client, NULL, NULL, &s->error), KOPS_ERR_UNSUPPORTED);
    assert_non_null(strstr(s->error.message, "drain"));
    assert_int_equal(kops_trace_begin(s->client, NULL, &s->error), KOPS_ERR_UNSUPPORTED);
    assert_non_null(strstr(s->error.message, "older than the method `trace`"));
}

/* The daemon that answers the second time would not be the one that was to drain. */
SCENE(drain_is_never_asked_twice)
{
    scene_script(s, "x", methods);
    assert_int_equal(kops_drain(s->client, NULL, NULL, NULL), KOPS_ERR_CONNECTION_LOST);
    assert_ok(kops_ping(s->client, 0, NULL));
    assert_int_equal(scene_seen(s).work, 1);
}

/* ---- tuning ---- */

static const char good_tune[] = "{candidates: [{us: 3}, {}], best: 1, before: 0, usual: 0}";

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

SCENE(a_tuning_is_asked_for)
{
    struct kops_tune *tune = NULL;
    struct product p;

    scene_answer(s, methods, good_tune);
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
SCENE(what_runs_can_be_tuned_as_it_is)
{
    struct kops_tune *tune;
    kops_buffer *memory;
    struct product p;

    scene_answer(s, methods, good_tune);
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

SCENE(a_tuning_that_makes_no_sense_is_refused_before)
{
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
SCENE(wrong_answers_are_bad_replies)
{
    static const char *const wrong[] = {
        "{}",
        "{best: 0, before: 0, usual: 0}",
        "{candidates: [{}], best: 1, before: 0, usual: 0}",
        "{candidates: [{}], best: 0, before: 1, usual: 0}",
        "{candidates: [{}], best: 0, before: 0, usual: 1}",
        "{candidates: [{}], best: 0, before: 0}",
    };
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

SCENE(choices_are_read)
{
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
TEST(a_daemon_that_cannot_tune_is_told_as_such)
{
    static const char *const features[] = {"memfd", NULL};
    struct kops_tuning *tuning = NULL;
    struct kops_tune *tune = NULL;
    struct product p;

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

TRACING(a_trace_is_read_in_parts)
{
    struct kops_trace *trace;

    assert_ok(kops_trace_begin(s->client, NULL, NULL));
    scene_answer(s, methods, TRACE("[" EVENT ", " EVENT "]"));
    assert_ok(kops_trace_read(s->client, false, &trace, NULL));
    assert_int_equal(trace->n_events, 2);
    assert_int_equal(trace->events[1].executions, 10);
    assert_null(kops_trace_free(trace));
    scene_answer(s, methods, TRACE("[]"));
    assert_ok(kops_trace_read(s->client, true, &trace, NULL));
    assert_true(trace->n_events == 0 && !trace->kinds[0] && !trace->clients[0]);
    assert_null(kops_trace_free(trace));
    assert_null(kops_trace_free(NULL));
}

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

    assert_ok(kops_trace_begin(s->client, NULL, NULL));
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
    assert_ok(kops_trace_read(s->client, false, &trace, NULL));
    kops_trace_free(trace);
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
