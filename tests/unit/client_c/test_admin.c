/* clients, stats, metrics and drain: what is asked, and what becomes of good, sparse, wrong and missing answers. */
#include <math.h>

#include "scripted.h"
#include "test.h"

/* Answers the four methods with these bytes, a packed map; NULL: as a daemon that is older than them. */
struct told {
    const char *bytes;
    size_t length;
    char asked[128]; /* the last one's parameters */
};

#define ANSWER(text) (text), sizeof(text) - 1

static void serve(struct fake_connection *c, void *context)
{
    struct told *t = context;
    struct fake_request r;

    while (fake_next(c, &r)) {
        msgpack_sbuffer b;

        if (strcmp(r.method, "clients") != 0 && strcmp(r.method, "stats") != 0 && strcmp(r.method, "metrics") != 0 &&
            strcmp(r.method, "drain") != 0 && strcmp(r.method, "conditions") != 0) {
            fake_answer(c, &r);
            continue;
        }
        msgpack_object_print_buffer(t->asked, sizeof(t->asked), r.params);
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

static int set_up(void **state)
{
    struct state *s = calloc(1, sizeof(*s));

    assert_non_null(s);
    s->fake = fake_start(serve, &s->told);
    s->client = connect_to(s->fake);
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    struct state *s = *state;

    kops_close(s->client);
    fake_stop(s->fake);
    free(s);
    return 0;
}

static void tell(struct state *s, const char *bytes, size_t length)
{
    s->told.bytes = bytes;
    s->told.length = length;
}

static void clients_are_read(void **state)
{
    struct state *s = *state;
    struct kops_clients *clients;

    /* {clients: [{pid: 7, client: "x", connected_s: 1.5, paused: true, later: 1,
     *             latency: {total: {count: 2, p50: 3, p999: 4}, queue: {count: 0}}}],
     *  users: [{uid: 1000, refused: 3, limits: {connections: 9, device_share: 50}}],
     *  devices: [{index: 1, name: "d", memory_free: 5}], state: "draining", uptime_s: 2.5} */
    tell(s, ANSWER("\x85\xa7"
                   "clients\x91\x86\xa3pid\x07\xa6"
                   "client\xa1x\xab"
                   "connected_s\xcb\x3f\xf8\0\0\0\0\0\0\xa6paused\xc3\xa5later\x01\xa7latency\x82\xa5total\x83\xa5"
                   "count\x02\xa3p50\x03\xa4p999\x04\xa5queue\x81\xa5"
                   "count\x00\xa5users\x91\x83\xa3uid\xcd\x03\xe8\xa7refused\x03\xa6limits\x82\xab"
                   "connections\x09\xac"
                   "device_share\x32\xa7"
                   "devices\x91\x83\xa5index\x01\xa4name\xa1"
                   "d\xabmemory_free\x05\xa5state\xa8"
                   "draining\xa8uptime_s\xcb\x40\x04\0\0\0\0\0\0"));
    assert_ok(kops_clients(s->client, &clients, NULL));
    assert_string_equal(s->told.asked, "{}");
    assert_int_equal(clients->clients[0]->pid, 7);
    assert_string_equal(clients->clients[0]->client, "x");
    assert_string_equal(clients->clients[0]->comm, "");
    assert_true(clients->clients[0]->connected_s == 1.5 && clients->clients[0]->paused && !clients->clients[0]->shm);
    assert_int_equal(clients->clients[0]->latency.total.count, 2);
    assert_true(clients->clients[0]->latency.total.p50 == 3 && clients->clients[0]->latency.total.p999 == 4);
    assert_true(isnan(clients->clients[0]->latency.total.p99) && isnan(clients->clients[0]->latency.queue.p50));
    assert_int_equal(clients->clients[0]->latency.device.count, 0);
    assert_null(clients->clients[1]);
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
    struct state *s = *state;
    struct kops_conditions *c;

    /* {device: "x", conditions: {clock_mhz: 1980, reasons: ["power_cap", "thermal"], later: 1}} */
    tell(s, ANSWER("\x82\xa6"
                   "device\xa1x\xaa"
                   "conditions\x83\xa9"
                   "clock_mhz\xcd\x07\xbc\xa7reasons\x92\xa9power_cap\xa7thermal\xa5later\x01"));
    assert_ok(kops_conditions(s->client, "GPU-1", &c, NULL));
    assert_string_equal(s->told.asked, "{\"device\"=>\"GPU-1\"}");
    assert_true(c->clock_mhz == 1980 && isnan(c->temperature_c));
    assert_string_equal(c->missing, "");
    assert_string_equal(c->reasons[0], "power_cap");
    assert_string_equal(c->reasons[1], "thermal");
    assert_null(c->reasons[2]);
    assert_null(kops_conditions_free(c));
    tell(s, ANSWER("\x82\xa6"
                   "device\xa1x\xaa"
                   "conditions\x81\xa7missing\xa2no"));
    assert_ok(kops_conditions(s->client, NULL, &c, NULL));
    assert_string_equal(s->told.asked, "{}");
    assert_string_equal(c->missing, "no");
    assert_null(c->reasons[0]);
    assert_null(kops_conditions_free(c));
    assert_null(kops_conditions_free(NULL));
}

static void executors_are_read(void **state)
{
    struct state *s = *state;
    struct kops_clients *clients;
    struct kops_stats *stats;

    /* {executors: [{pid: 5, state: "serving", domain: "user", uid: 7, jobs: 2, device_us: 1.5},
     *              {pid: 6, state: "spare", connection: 8, client_pid: 9}],
     *  executor_counts: {started: 3}} */
    tell(s, ANSWER("\x82\xa9"
                   "executors\x92\x86\xa3pid\x05\xa5state\xa7serving\xa6"
                   "domain\xa4user\xa3uid\x07\xa4jobs\x02\xa9"
                   "device_us\xcb\x3f\xf8\0\0\0\0\0\0\x84\xa3pid\x06\xa5state\xa5spare\xaa"
                   "connection\x08\xaa"
                   "client_pid\x09\xaf"
                   "executor_counts\x81\xa7started\x03"));
    assert_ok(kops_stats_get(s->client, NULL, &stats, NULL));
    assert_int_equal(stats->executors[0]->pid, 5);
    assert_string_equal(stats->executors[0]->state, "serving");
    assert_string_equal(stats->executors[0]->domain, "user");
    assert_int_equal(stats->executors[0]->uid, 7);
    assert_int_equal(stats->executors[0]->connection, 0);
    assert_int_equal(stats->executors[0]->jobs, 2);
    assert_true(stats->executors[0]->device_us == 1.5 && isnan(stats->executors[0]->uptime_s));
    assert_null(stats->executors[1]->domain);
    assert_int_equal(stats->executors[1]->uid, -1);
    assert_int_equal(stats->executors[1]->connection, 8);
    assert_int_equal(stats->executors[1]->client_pid, 9);
    assert_null(stats->executors[2]);
    assert_string_equal(stats->executor_counts[0]->name, "started");
    assert_int_equal(stats->executor_counts[0]->value, 3);
    assert_null(kops_stats_free(stats));

    /* {} of an older daemon */
    tell(s, ANSWER("\x80"));
    assert_ok(kops_stats_get(s->client, NULL, &stats, NULL));
    assert_null(stats->executors[0]);
    assert_null(stats->executor_counts[0]);
    kops_stats_free(stats);

    /* {clients: [{pid: 7, isolation: "user", executor: 5}, {}]} */
    tell(s, ANSWER("\x81\xa7"
                   "clients\x92\x83\xa3pid\x07\xa9isolation\xa4user\xa8"
                   "executor\x05\x80"));
    assert_ok(kops_clients(s->client, &clients, NULL));
    assert_string_equal(clients->clients[0]->isolation, "user");
    assert_int_equal(clients->clients[0]->executor, 5);
    assert_string_equal(clients->clients[1]->isolation, "");
    assert_int_equal(clients->clients[1]->executor, 0);
    kops_clients_free(clients);
}

static void metrics_are_a_text(void **state)
{
    struct state *s = *state;
    struct kops_error error;
    char *text = NULL;

    tell(s, ANSWER("\x81\xa4text\xa7"
                   "a 1\nb 2"));
    assert_ok(kops_metrics(s->client, &text, &error));
    assert_string_equal(text, "a 1\nb 2");
    assert_null(kops_metrics_free(text));
    text = NULL;
    tell(s, ANSWER("\x81\xa4text\x01"));
    assert_int_equal(kops_metrics(s->client, &text, &error), KOPS_ERR_BAD_REPLY);
    assert_null(text);
    tell(s, ANSWER("\x80"));
    assert_int_equal(kops_metrics(s->client, &text, NULL), KOPS_ERR_BAD_REPLY);
}

static void drain_says_what_is_left(void **state)
{
    const struct kops_drain_options stop = {.stop = true, .timeout_ms = 250}, resume = {.resume = true};
    struct state *s = *state;
    struct kops_drain_result result;

    tell(s, ANSWER("\x83\xa7"
                   "drained\xc2\xa4jobs\x03\xab"
                   "connections\x02"));
    assert_ok(kops_drain(s->client, &stop, &result, NULL));
    assert_string_equal(s->told.asked, "{\"stop\"=>true, \"timeout_ms\"=>250}");
    assert_false(result.drained);
    assert_int_equal(result.jobs, 3);
    assert_int_equal(result.connections, 2);
    assert_ok(kops_drain(s->client, &resume, NULL, NULL));
    assert_string_equal(s->told.asked, "{\"resume\"=>true}");
    assert_ok(kops_drain(s->client, NULL, NULL, NULL));
    assert_string_equal(s->told.asked, "{}");
    tell(s, ANSWER("\x81\xa7"
                   "drained\x01"));
    assert_int_equal(kops_drain(s->client, NULL, &result, NULL), KOPS_ERR_BAD_REPLY);
}

static void what_makes_no_sense_is_refused_before(void **state)
{
    const struct kops_drain_options wrong[] = {
        {.stop = true, .resume = true}, {.timeout_ms = -1}, {.timeout_ms = 86400001}};
    struct state *s = *state;
    struct kops_error error;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(kops_drain(s->client, &wrong[i], NULL, &error), KOPS_ERR_BAD_ARGUMENT);
        assert_int_equal(error.code, KOPS_ERR_BAD_ARGUMENT);
        assert_int_equal(kops_drain(s->client, &wrong[i], NULL, NULL), KOPS_ERR_BAD_ARGUMENT);
    }
    assert_string_equal(s->told.asked, "");
}

static void an_older_daemon_is_told_as_such(void **state)
{
    struct state *s = *state;
    struct kops_clients *clients;
    struct kops_error error;
    char *text;

    assert_int_equal(kops_clients(s->client, &clients, &error), KOPS_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "older than the method `clients`"));
    assert_int_equal(kops_metrics(s->client, &text, NULL), KOPS_ERR_UNSUPPORTED);
    assert_int_equal(kops_drain(s->client, NULL, NULL, &error), KOPS_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "drain"));
}

/* The daemon that answers the second time would not be the one that was to drain. */
static void drain_is_never_asked_twice(void **state)
{
    struct scripted script = SCRIPTED(.script = "x", .method = "drain");
    struct fake *fake = fake_start(scripted_serve, &script);
    kops_client *client = connect_to(fake);

    (void)state;
    assert_int_equal(kops_drain(client, NULL, NULL, NULL), KOPS_ERR_CONNECTION_LOST);
    assert_ok(kops_ping(client, 0, NULL));
    assert_int_equal(script.work, 1);
    kops_close(client);
    fake_stop(fake);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(clients_are_read),
        TEST(conditions_are_read),
        TEST(executors_are_read),
        TEST(metrics_are_a_text),
        TEST(drain_says_what_is_left),
        TEST(what_makes_no_sense_is_refused_before),
        TEST(an_older_daemon_is_told_as_such),
        cmocka_unit_test(drain_is_never_asked_twice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
