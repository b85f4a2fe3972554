/* clients, stats, metrics and drain: what is asked, and what becomes of good, sparse, wrong and missing answers. */
#include <math.h>

#include "scripted.h"

static const char methods[] = "clients stats metrics drain conditions";

static void assert_asked(struct scene *s, const char *parameters)
{
    assert_string_equal(scene_seen(s).asked, parameters);
}

static void clients_are_read(void **state)
{
    struct scene *s = *state;
    struct kops_clients *clients;
    const struct kops_client_info *first;

    scene_answer(s, methods,
                 "{clients: [{pid: 7, client: 'x', connected_s: 1.5, paused: true, later: 1, isolation: 'user',"
                 "            executor: 5, latency: {total: {count: 2, p50: 3, p999: 4}, queue: {count: 0}}}, {}],"
                 " users: [{uid: 1000, refused: 3, limits: {connections: 9, device_share: 50}}],"
                 " devices: [{index: 1, name: 'd', memory_free: 5}], state: 'draining', uptime_s: 2.5}");
    assert_ok(kops_clients(s->client, &clients, NULL));
    assert_asked(s, "{}");
    first = clients->clients[0];
    assert_int_equal(first->pid, 7);
    assert_string_equal(first->client, "x");
    assert_string_equal(first->comm, "");
    assert_true(first->connected_s == 1.5 && first->paused && !first->shm);
    assert_int_equal(first->latency.total.count, 2);
    assert_true(first->latency.total.p50 == 3 && first->latency.total.p999 == 4);
    assert_true(isnan(first->latency.total.p99) && isnan(first->latency.queue.p50));
    assert_int_equal(first->latency.device.count, 0);
    assert_string_equal(first->isolation, "user");
    assert_int_equal(first->executor, 5);
    assert_string_equal(clients->clients[1]->isolation, "");
    assert_int_equal(clients->clients[1]->executor, 0);
    assert_null(clients->clients[2]);
    assert_int_equal(clients->users[0]->uid, 1000);
    assert_int_equal(clients->users[0]->refused, 3);
    assert_int_equal(clients->users[0]->limits.connections, 9);
    assert_int_equal(clients->users[0]->limits.device_share, 50);
    assert_true(clients->users[0]->limits.buffers == KOPS_NO_LIMIT);
    assert_string_equal(clients->devices[0]->name, "d");
    assert_int_equal(clients->devices[0]->memory_free, 5);
    assert_null(clients->devices[1]);
    assert_string_equal(clients->state, "draining");
    assert_true(clients->uptime_s == 2.5);
    assert_null(kops_clients_free(clients));
    assert_null(kops_clients_free(NULL));
}

static void conditions_are_read(void **state)
{
    struct scene *s = *state;
    struct kops_conditions *c;

    scene_answer(s, methods,
                 "{device: 'x', conditions: {clock_mhz: 1980, reasons: ['power_cap', 'thermal'], later: 1}}");
    assert_ok(kops_conditions(s->client, "GPU-1", &c, NULL));
    assert_asked(s, "{device: 'GPU-1'}");
    assert_true(c->clock_mhz == 1980 && isnan(c->temperature_c));
    assert_string_equal(c->missing, "");
    assert_string_equal(c->reasons[0], "power_cap");
    assert_string_equal(c->reasons[1], "thermal");
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

static void executors_are_read(void **state)
{
    struct scene *s = *state;
    const struct kops_executor *const *executors;
    struct kops_stats *stats;

    scene_answer(s, methods,
                 "{executors: [{pid: 5, state: 'serving', domain: 'user', uid: 7, jobs: 2, device_us: 1.5},"
                 "             {pid: 6, state: 'spare', connection: 8, client_pid: 9}],"
                 " executor_counts: {started: 3}}");
    assert_ok(kops_stats_get(s->client, NULL, &stats, NULL));
    executors = stats->executors;
    assert_true(executors[0]->pid == 5 && executors[0]->uid == 7 && executors[0]->connection == 0);
    assert_string_equal(executors[0]->state, "serving");
    assert_string_equal(executors[0]->domain, "user");
    assert_int_equal(executors[0]->jobs, 2);
    assert_true(executors[0]->device_us == 1.5 && isnan(executors[0]->uptime_s));
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

static void metrics_are_a_text(void **state)
{
    static const char *const wrong[] = {"{text: 1}", "{}"};
    struct scene *s = *state;
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

static void drain_says_what_is_left(void **state)
{
    const struct kops_drain_options stop = {.stop = true, .timeout_ms = 250}, resume = {.resume = true};
    struct scene *s = *state;
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

static void what_makes_no_sense_is_refused_before(void **state)
{
    const struct kops_drain_options wrong[] = {
        {.stop = true, .resume = true}, {.timeout_ms = -1}, {.timeout_ms = 86400001}};
    struct scene *s = *state;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(kops_drain(s->client, &wrong[i], NULL, &s->error), KOPS_ERR_BAD_ARGUMENT);
        assert_int_equal(s->error.code, KOPS_ERR_BAD_ARGUMENT);
        assert_int_equal(kops_drain(s->client, &wrong[i], NULL, NULL), KOPS_ERR_BAD_ARGUMENT);
    }
    assert_string_equal(scene_seen(s).last, "hello");
}

static void an_older_daemon_is_told_as_such(void **state)
{
    struct scene *s = *state;
    struct kops_clients *clients;
    char *text;

    scene_script(s, "u*", methods);
    assert_int_equal(kops_clients(s->client, &clients, &s->error), KOPS_ERR_UNSUPPORTED);
    assert_non_null(strstr(s->error.message, "older than the method `clients`"));
    assert_int_equal(kops_metrics(s->client, &text, NULL), KOPS_ERR_UNSUPPORTED);
    assert_int_equal(kops_drain(s->client, NULL, NULL, &s->error), KOPS_ERR_UNSUPPORTED);
    assert_non_null(strstr(s->error.message, "drain"));
}

/* The daemon that answers the second time would not be the one that was to drain. */
static void drain_is_never_asked_twice(void **state)
{
    struct scene *s = *state;

    scene_script(s, "x", methods);
    assert_int_equal(kops_drain(s->client, NULL, NULL, NULL), KOPS_ERR_CONNECTION_LOST);
    assert_ok(kops_ping(s->client, 0, NULL));
    assert_int_equal(scene_seen(s).work, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(clients_are_read),
        TEST(conditions_are_read),
        TEST(executors_are_read),
        TEST(metrics_are_a_text),
        TEST(drain_says_what_is_left),
        TEST(what_makes_no_sense_is_refused_before),
        TEST(an_older_daemon_is_told_as_such),
        TEST(drain_is_never_asked_twice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
