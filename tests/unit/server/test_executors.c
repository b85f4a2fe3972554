/* The executors that `stats` and `clients` show, of a backend that says what the test wants. */
#include <fcntl.h>
#include <stdio.h>

#include "codec/read.h"
#include "rpc/output.h"
#include "server/observe/executors.h"
#include "server/peer/peers.h"
#include "tests/support/unit.h"
#include "util/clock.h"

enum { ALICE = 1000, BOB = 1001, ADMINISTRATOR = 999 };

static unsigned told(struct backend_device *device, struct backend_process *ret, unsigned max,
                     struct backend_process_counts *ret_counts);

static const struct backend with_processes = {.abi = BACKEND_ABI, .name = "fake", .processes = told};
static const struct backend without = {.abi = BACKEND_ABI, .name = "host"};

static struct {
    struct server server;
    struct backend_device devices[3];
    struct connection viewer, alices, bobs;
    struct backend_process processes[BACKEND_MAX_PROCESSES];
    unsigned n, asked;
    struct rpc_output out;
    const unsigned char *rows[BACKEND_MAX_PROCESSES], *counts;
    unsigned n_rows;
} f;

static unsigned told(struct backend_device *device, struct backend_process *ret, unsigned max,
                     struct backend_process_counts *ret_counts)
{
    assert_ptr_equal(device->backend, &with_processes);
    assert_true(f.n <= max);
    f.asked++;
    memcpy(ret, f.processes, f.n * sizeof(*ret));
    *ret_counts = (struct backend_process_counts){.started = 7, .replaced = 2, .faults = 1, .ended_jobs = 3};
    return f.n;
}

static void add_connection(struct connection *c, uid_t uid, pid_t pid, uint64_t number, enum isolation isolation)
{
    *c = (struct connection){.server = &f.server, .uid = uid, .pid = pid, .number = number, .isolation = isolation};
    list_append(peers_connections(&f.server), &c->link);
}

static int set_up(void **state)
{
    static const struct method_entry methods[METHOD_COUNT];
    static const struct connection_part *const parts[] = {NULL};

    memset(&f, 0, sizeof(f));
    MUST(peers_new(&f.server, open("/dev/null", O_RDONLY | O_CLOEXEC), methods, parts, &e));
    for (unsigned i = 0; i < 3; i++) {
        f.devices[i] = (struct backend_device){.backend = i == 1 ? &without : &with_processes, .index = i};
        f.server.devices.all[f.server.devices.count++] = &f.devices[i];
    }
    add_connection(&f.viewer, ADMINISTRATOR, 10, 1, ISOLATE_USER);
    f.viewer.access = 1U << ACCESS_ADMINISTER;
    add_connection(&f.alices, ALICE, 11, 2, ISOLATE_CONNECTION);
    add_connection(&f.bobs, BOB, 12, 3, ISOLATE_CONNECTION);
    return 0;
}

static int tear_down(void **state)
{
    rpc_output_free(&f.out);
    list_remove(&f.viewer.link);
    list_remove(&f.alices.link);
    list_remove(&f.bobs.link);
    peers_free(&f.server);
    return 0;
}

static uint64_t domain_of_user(uid_t uid)
{
    const struct connection c = {.uid = uid, .isolation = ISOLATE_USER};

    return connection_domain(&c);
}

/* A process with pid 100, 101 … */
static void process(enum backend_process_state state, uint64_t domain)
{
    f.processes[f.n] = (struct backend_process){.pid = 100 + (int)f.n,
                                                .state = state,
                                                .domain = domain,
                                                .jobs = 4,
                                                .started_ns = clock_now_ns() - UINT64_C(5000000000),
                                                .device_ns = 2500000};
    f.n++;
}

/* ---- reading what was written ---- */

static const unsigned char *value_of(const unsigned char *map, const char *key)
{
    struct codec_item head, item;
    const unsigned char *at;

    codec_read(map, &head);
    assert_int_equal(head.type, CODEC_MAP);
    at = head.next;
    for (uint32_t i = 0; i < head.count; i++, at = codec_skip(item.next)) {
        codec_read(at, &item);
        if (item.count == strlen(key) && memcmp(item.text, key, item.count) == 0)
            return item.next;
    }
    return NULL;
}

/* Its words and whole numbers: "pid=100 state=serving …". */
static const char *said(const unsigned char *map)
{
    static char text[256];
    struct codec_item head, key, value;
    const unsigned char *at;
    size_t n = 0;

    codec_read(map, &head);
    at = head.next;
    for (uint32_t i = 0; i < head.count; i++, at = codec_skip(key.next)) {
        codec_read(at, &key);
        codec_read(key.next, &value);
        if (value.type != CODEC_STR && value.type != CODEC_UINT)
            continue;
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%.*s=", n ? " " : "", (int)key.count, key.text);
        if (value.type == CODEC_STR)
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%.*s", (int)value.count, value.text);
        else
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%llu", (unsigned long long)value.u);
    }
    return text;
}

static double number_of(const unsigned char *map, const char *key)
{
    struct codec_item item;

    codec_read(value_of(map, key), &item);
    assert_int_equal(item.type, CODEC_FLOAT);
    return item.f;
}

static void look_as(const struct connection *viewer)
{
    static struct executor_rows rows_of;
    struct executor_counters_map counts;
    struct codec_item rows;
    const unsigned char *at;

    rpc_output_free(&f.out);
    rpc_output_init(&f.out, 1 << 16);
    counts = executors_rows(viewer, &rows_of);
    rpc_write_map(&f.out, 2);
    rpc_write_text(&f.out, "executors");
    rpc_write_list(&f.out, (struct rpc_values){rows_of.n, executors_each, &rows_of});
    rpc_write_text(&f.out, "executor_counts");
    rpc_write_record(&f.out, &executor_counters_map_record, &counts);
    assert_false(f.out.bytes.failed);
    at = f.out.bytes.data + f.out.bytes.start;
    assert_ptr_equal(codec_skip(at), at + buffer_length(&f.out.bytes)); /* as many entries as maps say */
    f.counts = value_of(at, "executor_counts");
    codec_read(value_of(at, "executors"), &rows);
    f.n_rows = rows.count;
    at = rows.next;
    for (unsigned i = 0; i < rows.count; i++, at = codec_skip(at))
        f.rows[i] = at;
}

/* ---- tests ---- */

#define EXECUTORS_TEST(name) TEST_WITH(name, set_up, tear_down)

EXECUTORS_TEST(rows_say_whose_they_are)
{
    const struct connection gone = {.uid = ALICE, .number = 77, .isolation = ISOLATE_CONNECTION};
    const struct {
        enum backend_process_state state;
        uint64_t domain;
        const char *row;
        bool alice_sees;
    } all[] = {
        {PROCESS_SERVING, DOMAIN_COMMON, "pid=100 state=serving domain=common jobs=4", true},
        {PROCESS_SPARE, DOMAIN_COMMON, "pid=101 state=spare jobs=4", true},
        {PROCESS_SERVING, domain_of_user(ALICE), "pid=102 state=serving domain=user uid=1000 jobs=4", true},
        {PROCESS_STARTING, domain_of_user(0), "pid=103 state=starting domain=user uid=0 jobs=4", false},
        {PROCESS_SERVING, domain_of_user(UINT32_MAX - 1), "pid=104 state=serving domain=user uid=4294967294 jobs=4",
         false},
        {PROCESS_SERVING, connection_domain(&f.alices),
         "pid=105 state=serving domain=connection uid=1000 connection=2 client_pid=11 jobs=4", true},
        {PROCESS_SERVING, connection_domain(&f.bobs),
         "pid=106 state=serving domain=connection uid=1001 connection=3 client_pid=12 jobs=4", false},
        {PROCESS_ENDING, connection_domain(&gone), "pid=107 state=ending domain=connection connection=77 jobs=4",
         false},
    };
    enum { N = sizeof(all) / sizeof(all[0]) };

    for (unsigned i = 0; i < N; i++)
        process(all[i].state, all[i].domain);
    for (unsigned hers = 0; hers < 2; hers++) {
        unsigned n = 0;

        look_as(hers ? &f.alices : &f.viewer);
        for (unsigned i = 0; i < N; i++)
            if (!hers || all[i].alice_sees)
                assert_string_equal(said(f.rows[n++]), all[i].row);
        assert_int_equal(f.n_rows, n);
        assert_int_equal(f.asked, hers + 1); /* of two devices of a backend one is asked */
        assert_string_equal(said(f.counts), "started=7 replaced=2 faults=1 jobs_ended=3");
    }
    assert_true(number_of(f.rows[0], "uptime_s") >= 5);
    assert_true(number_of(f.rows[0], "device_us") == 2500);
}

EXECUTORS_TEST(without_executors_there_is_nothing)
{
    struct executors x;

    process(PROCESS_SERVING, DOMAIN_COMMON);
    f.devices[0].backend = f.devices[2].backend = &without;
    look_as(&f.viewer);
    assert_int_equal(f.n_rows, 0);
    assert_string_equal(said(f.counts), "started=0 replaced=0 faults=0 jobs_ended=0");
    executors_look(&f.server, &x);
    assert_int_equal(executors_pid(&x, DOMAIN_COMMON), 0);
}

EXECUTORS_TEST(a_client_has_the_process_that_serves_it)
{
    struct executors x;

    process(PROCESS_SPARE, DOMAIN_COMMON);
    process(PROCESS_STARTING, connection_domain(&f.alices));
    process(PROCESS_ENDING, connection_domain(&f.bobs));
    process(PROCESS_SERVING, DOMAIN_COMMON);
    process(PROCESS_SERVING, connection_domain(&f.bobs));
    executors_look(&f.server, &x);
    assert_int_equal(executors_pid(&x, DOMAIN_COMMON), 103);
    assert_int_equal(executors_pid(&x, connection_domain(&f.bobs)), 104);
    assert_int_equal(executors_pid(&x, connection_domain(&f.alices)), 0);
    assert_int_equal(executors_pid(&x, domain_of_user(ALICE)), 0);
}
