/* The executors that `stats` and `clients` show, of a backend that says what the test wants. How rows are written:
 * functional_executor and functional_identities. */
#include <fcntl.h>

#include "server/observe/executors.h"
#include "server/peer/peers.h"
#include "tests/support/unit.h"

enum { ALICE = 1000, BOB = 1001, ADMINISTRATOR = 999, NOBODY = -1 };

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
    struct executor_rows rows;
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
    f.processes[f.n] = (struct backend_process){.pid = 100 + (int)f.n, .state = state, .domain = domain};
    f.n++;
}

#define EXECUTORS_TEST(name) TEST_WITH(name, set_up, tear_down)

EXECUTORS_TEST(rows_say_whose_they_are)
{
    const struct connection gone = {.uid = ALICE, .number = 77, .isolation = ISOLATE_CONNECTION};
    const struct {
        enum backend_process_state state;
        uint64_t domain;
        bool has_domain;
        enum isolation kind;
        uint64_t number;
        uid_t uid;
        const struct connection *client;
        bool alice_sees;
    } all[] = {
        {PROCESS_SERVING, DOMAIN_COMMON, true, ISOLATE_NONE, 0, (uid_t)NOBODY, NULL, true},
        {PROCESS_SPARE, DOMAIN_COMMON, false, ISOLATE_NONE, 0, (uid_t)NOBODY, NULL, true},
        {PROCESS_SERVING, domain_of_user(ALICE), true, ISOLATE_USER, ALICE, ALICE, NULL, true},
        {PROCESS_STARTING, domain_of_user(0), true, ISOLATE_USER, 0, 0, NULL, false},
        {PROCESS_ENDING, domain_of_user(UINT32_MAX - 1), true, ISOLATE_USER, UINT32_MAX - 1, UINT32_MAX - 1, NULL,
         false},
        {PROCESS_SERVING, connection_domain(&f.alices), true, ISOLATE_CONNECTION, 2, ALICE, &f.alices, true},
        {PROCESS_SERVING, connection_domain(&f.bobs), true, ISOLATE_CONNECTION, 3, BOB, &f.bobs, false},
        {PROCESS_ENDING, connection_domain(&gone), true, ISOLATE_CONNECTION, 77, (uid_t)NOBODY, NULL, false},
    };
    enum { N = sizeof(all) / sizeof(all[0]) };

    for (unsigned i = 0; i < N; i++)
        process(all[i].state, all[i].domain);
    for (unsigned hers = 0; hers < 2; hers++) {
        const struct executor_counters_map counts = executors_rows(hers ? &f.alices : &f.viewer, &f.rows);
        const struct executor_row *row = f.rows.rows;

        for (unsigned i = 0; i < N; i++) {
            if (hers && !all[i].alice_sees)
                continue;
            assert_int_equal(row->process->pid, 100 + i);
            assert_true(row->has_domain == all[i].has_domain && row->kind == all[i].kind);
            assert_true(row->kind == ISOLATE_NONE || row->number == all[i].number);
            assert_true(row->uid == all[i].uid && row->client == all[i].client);
            row++;
        }
        assert_int_equal(f.rows.n, row - f.rows.rows);
        assert_int_equal(f.asked, hers + 1); /* of two devices of a backend one is asked */
        assert_true(counts.started == 7 && counts.replaced == 2 && counts.faults == 1 && counts.jobs_ended == 3);
    }
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
    f.devices[0].backend = f.devices[2].backend = &without;
    executors_look(&f.server, &x);
    assert_true(x.n == 0 && x.counts.started == 0 && executors_pid(&x, DOMAIN_COMMON) == 0);
}
