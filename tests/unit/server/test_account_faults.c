/* Faults of a user's kernels: when kernels are refused, for how long, and whose, by made-up clocks. */
#include "server/account/account.h"
#include "tests/support/unit.h"

enum { PID = 77, ALICE = 1001, BOB = 1002 };
static const uint64_t ms = 1000000, start_ns = UINT64_C(5000000000000);

struct fixture {
    struct quota_limits limits;
    struct accounts all;
    struct account *alice, *bob;
};

static int setup(void **state)
{
    static struct fixture f;

    memset(&f, 0, sizeof(f));
    accounts_init(&f.all, &f.limits);
    f.alice = account_get(&f.all, ALICE);
    f.bob = account_get(&f.all, BOB);
    *state = &f;
    return !f.alice || !f.bob;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    account_unref(f->alice);
    account_unref(f->bob);
    accounts_free(&f->all);
    return 0;
}

static void assert_refused(const struct error *e, const char *quota, int64_t current, int64_t limit)
{
    assert_int_equal(e->code, ERROR_QUOTA_EXCEEDED);
    assert_string_equal(e->details[0].key, "quota");
    assert_string_equal(e->details[0].text, quota);
    assert_string_equal(e->details[1].key, "current");
    assert_int_equal(e->details[1].number, current);
    assert_string_equal(e->details[2].key, "limit");
    assert_int_equal(e->details[2].number, limit);
}

static int64_t retry_of(const struct error *e)
{
    assert_int_equal(e->n_details, 4);
    assert_string_equal(e->details[3].key, "retry_after_ms");
    return e->details[3].number;
}

static const uint64_t second = UINT64_C(1000000000), minute = UINT64_C(60000000000), hour = UINT64_C(3600000000000);

/* So many faults at once, one of each incident. */
static void note_faults(struct account *a, unsigned count, uint64_t now)
{
    static uint64_t incidents;

    while (count--)
        account_note_fault(a, ++incidents, now);
}

/* Whether kernels are refused at `now` and for so many ms more. */
static void assert_paused(struct account *a, uint64_t now, int64_t for_ms)
{
    struct error e;

    assert_int_equal(account_check_faults(a, PID, now, &e), -1);
    assert_refused(&e, "faults", 3, 3);
    assert_int_equal(retry_of(&e), for_ms);
}

static void assert_goes_on(struct account *a, uint64_t now)
{
    struct error e;

    assert_int_equal(account_check_faults(a, PID, now, &e), 0);
}

TEST_WITH(test_faults_pause_a_users_kernels, setup, teardown)
{
    struct fixture *f = *state;
    uint64_t now = start_ns;

    f->limits.faults = 3;
    note_faults(f->alice, 2, now);
    assert_goes_on(f->alice, now);
    note_faults(f->alice, 1, now + 59 * second);
    assert_paused(f->alice, now + 59 * second, 60000);
    assert_paused(f->alice, now + minute + 58 * second + ms, 999);
    assert_goes_on(f->alice, now + minute + 59 * second);
    assert_goes_on(f->bob, now + 59 * second);
    assert_int_equal(f->all.refused[REFUSED_FAULTS], 2);
    assert_int_equal(f->alice->refused, 2);
}

TEST_WITH(test_faults_are_forgotten_after_a_minute, setup, teardown)
{
    struct fixture *f = *state;
    uint64_t now = start_ns;

    f->limits.faults = 3;
    for (unsigned i = 0; i < 3 * ACCOUNT_FAULTS_MAX; i++, now += 30 * second)
        note_faults(f->alice, 1, now);
    assert_goes_on(f->alice, now);
    note_faults(f->alice, 2, now); /* with the one 30 s ago */
    assert_paused(f->alice, now, 60000);
}

TEST_WITH(test_several_ends_are_one_incident, setup, teardown)
{
    struct fixture *f = *state;

    f->limits.faults = 3;
    for (unsigned i = 0; i < 9; i++)
        account_note_fault(f->alice, 1000 + i / 4, start_ns);
    assert_paused(f->alice, start_ns, 60000);
    for (unsigned i = 0; i < 9; i++)
        account_note_fault(f->bob, 1000 + i / 5, start_ns);
    assert_goes_on(f->bob, start_ns);
}

TEST_WITH(test_each_pause_is_twice_as_long, setup, teardown)
{
    static const int64_t pauses_s[] = {60, 120, 240, 480, 960, 1920, 3600, 3600};
    struct fixture *f = *state;
    uint64_t now = start_ns;

    f->limits.faults = 3;
    for (unsigned i = 0; i < sizeof(pauses_s) / sizeof(*pauses_s); i++) {
        note_faults(f->alice, 2, now);
        assert_goes_on(f->alice, now);
        note_faults(f->alice, 1, now);
        assert_paused(f->alice, now, pauses_s[i] * 1000);
        note_faults(f->alice, 3, now + ms); /* began before: no longer pause */
        assert_paused(f->alice, now, pauses_s[i] * 1000);
        now += (uint64_t)pauses_s[i] * second;
        assert_goes_on(f->alice, now);
    }
    /* An hour without a fault in which its kernels might have run. */
    note_faults(f->alice, 3, now + hour - 1);
    assert_paused(f->alice, now + hour - 1, 3600000);
    now += hour - 1 + hour;
    note_faults(f->alice, 3, now + hour);
    assert_paused(f->alice, now + hour, 60000);
}

TEST_WITH(test_a_pause_outlives_connections, setup, teardown)
{
    struct fixture *f = *state;
    struct account *a = account_get(&f->all, 1);

    f->limits.faults = 3;
    note_faults(a, 3, start_ns);
    account_unref(a);
    a = account_get(&f->all, 1);
    assert_paused(a, start_ns, 60000);
    account_unref(a);
}

TEST_WITH(test_no_bound_on_faults, setup, teardown)
{
    struct fixture *f = *state;

    note_faults(f->alice, 1000, start_ns);
    assert_goes_on(f->alice, start_ns);
    f->limits.faults = 3; /* by a reload */
    note_faults(f->alice, 3, start_ns);
    assert_paused(f->alice, start_ns, 60000);
    f->limits.faults = 0;
    assert_goes_on(f->alice, start_ns);
}
