/* Accounts: what is counted, refused and given back; rates, shares and pauses by made-up clocks. */
#include "server/account/account.h"
#include "tests/support/unit.h"

enum { PID = 77, ALICE = 1001, BOB = 1002 };
static const uint64_t ms = 1000000, start_ns = UINT64_C(5000000000000);

struct fixture {
    struct quota_limits limits;
    struct accounts all;
    struct account *alice, *bob;
    struct error error;
};

static struct fixture *f;

static int setup(void **state)
{
    static struct fixture fixture;

    f = &fixture;
    memset(f, 0, sizeof(*f));
    accounts_init(&f->all, &f->limits);
    f->alice = account_get(&f->all, ALICE);
    f->bob = account_get(&f->all, BOB);
    return !f->alice || !f->bob;
}

static int teardown(void **state)
{
    account_unref(f->alice);
    account_unref(f->bob);
    accounts_free(&f->all);
    return 0;
}

#define ACCOUNT_TEST(name) TEST_WITH(name, setup, teardown)

static void assert_refused(const char *quota, int64_t current, int64_t limit)
{
    const struct error *e = &f->error;

    assert_int_equal(e->code, ERROR_QUOTA_EXCEEDED);
    assert_texts(e->details[0].key, "quota", e->details[0].text, quota, e->details[1].key, "current");
    assert_int_equal(e->details[1].number, current);
    assert_string_equal(e->details[2].key, "limit");
    assert_int_equal(e->details[2].number, limit);
}

static int64_t retry_of(void)
{
    const struct error *e = &f->error;

    assert_int_equal(e->n_details, 4);
    assert_string_equal(e->details[3].key, "retry_after_ms");
    return e->details[3].number;
}

ACCOUNT_TEST(test_charges)
{
    for (enum quota q = 0; q < QUOTA_COUNT; q++) {
        struct charge a = {0}, b = {0}, rest = {0}, refused = {0};

        f->limits.of[q] = 10;
        assert_int_equal(charge_take(&a, f->alice, PID, q, 7, &f->error), 0);
        assert_int_equal(charge_take(&b, f->bob, PID, q, 10, &f->error), 0);
        assert_int_equal(charge_take(&refused, f->alice, PID, q, 4, &f->error), -1);
        assert_refused(quota_names[q], 7, 10);
        assert_int_equal(charge_take(&refused, f->alice, PID, q, UINT64_MAX, &f->error), -1);
        assert_int_equal(charge_take(&rest, f->alice, PID, q, 3, &f->error), 0);
        assert_int_equal(charge_take(&refused, f->alice, PID, q, 1, &f->error), -1);
        f->limits.of[q] = 5; /* what is there stays */
        assert_int_equal(charge_take(&refused, f->alice, PID, q, 1, &f->error), -1);
        assert_refused(quota_names[q], 10, 5);
        f->limits.of[q] = 0;
        assert_int_equal(charge_change(&rest, PID, UINT32_MAX, &f->error), 0);
        charge_free(&refused); /* nothing was taken */
        assert_int_equal(f->alice->used[q], 7 + (uint64_t)UINT32_MAX);
        charge_free(&a);
        charge_free(&rest);
        charge_free(&rest); /* given back once */
        charge_free(&b);
        assert_int_equal(f->alice->used[q], 0);
        assert_int_equal(f->bob->used[q], 0);
    }
    assert_int_equal(f->alice->refused, 4 * QUOTA_COUNT);
    assert_int_equal(f->bob->refused, 0);
}

ACCOUNT_TEST(test_a_charge_that_changes)
{
    struct charge charge, other;

    f->limits.of[QUOTA_ALLOCATED] = 10;
    assert_int_equal(charge_take(&charge, f->alice, PID, QUOTA_ALLOCATED, 4, &f->error), 0);
    assert_int_equal(charge_take(&other, f->alice, PID, QUOTA_ALLOCATED, 3, &f->error), 0);
    assert_int_equal(charge_change(&charge, PID, 7, &f->error), 0);
    assert_int_equal(charge_change(&charge, PID, 8, &f->error), -1);
    assert_refused("allocated_bytes", 3, 10); /* without this charge */
    assert_int_equal(charge.amount, 7);
    assert_int_equal(charge_change(&charge, PID, 2, &f->error), 0);
    assert_int_equal(f->alice->used[QUOTA_ALLOCATED], 5);
    charge_note(&charge, 20);
    assert_int_equal(charge_check(&charge, PID, &f->error), -1);
    assert_int_equal(charge_check(&other, PID, &f->error), -1);
    assert_int_equal(charge_change(&charge, PID, 15, &f->error), 0); /* less is never refused */
    charge_free(&charge);
    assert_int_equal(charge_check(&other, PID, &f->error), 0);
    charge_free(&other);
    assert_int_equal(f->alice->used[QUOTA_ALLOCATED], 0);
}

/* The holder of a charge gives it back, however long its user has been gone. */
ACCOUNT_TEST(test_charges_outlive_connections)
{
    struct account *a = account_get(&f->all, 5);
    struct charge first, second;
    struct shared_charge *h;

    MUST(charge_take(&first, a, PID, QUOTA_FDS, 2, &e));
    h = shared_charge_take(a, PID, QUOTA_KERNEL, &f->error, 10, &f->error);
    account_unref(a);
    second = charge_move(&first);
    charge_free(&first); /* it is the other's */
    assert_int_equal(a->used[QUOTA_FDS], 2);
    assert_int_equal(a->used[QUOTA_KERNEL], 10);
    charge_free(&second);
    assert_int_equal(a->used[QUOTA_FDS], 0);
    assert_int_equal(a->references, 1);
    shared_charge_unref(h);
    assert_int_equal(a->references, 0);
}

ACCOUNT_TEST(test_a_thing_is_counted_once_a_user)
{
    int thing;
    struct charge charge;
    struct shared_charge *a, *again, *b;

    f->limits.of[QUOTA_MAPPED] = 100;
    MUST(charge_take(&charge, f->alice, PID, QUOTA_MAPPED, 30, &e));
    a = shared_charge_take(f->alice, PID, QUOTA_MAPPED, &thing, 1, &f->error);
    b = shared_charge_take(f->bob, PID, QUOTA_MAPPED, &thing, 1, &f->error);
    assert_null(shared_charge_take(f->alice, PID, QUOTA_MAPPED, &thing, 71, &f->error));
    assert_refused("mapped_bytes", 30, 100);
    again = shared_charge_take(f->alice, PID, QUOTA_MAPPED, &thing, 70, &f->error);
    assert_ptr_equal(a, again);
    assert_ptr_not_equal(a, b);
    assert_int_equal(a->references, 2);
    assert_int_equal(f->alice->used[QUOTA_MAPPED], 100);
    shared_charge_unref(again);
    shared_charges_note_size(&f->all, &thing, 80); /* it is larger than anybody has said */
    assert_int_equal(f->alice->used[QUOTA_MAPPED], 110);
    assert_int_equal(f->bob->used[QUOTA_MAPPED], 80);
    MUST(shared_charge_check(b, PID, &e));
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(shared_charge_check(a, PID, &f->error), -1);
        assert_refused("mapped_bytes", 30, 100);
    }
    charge_free(&charge);
    MUST(shared_charge_check(a, PID, &e));
    /* Opened again it is no larger; a quota that has become less is for what comes. */
    f->limits.of[QUOTA_MAPPED] = 50;
    shared_charges_note_size(&f->all, &thing, 80);
    MUST(shared_charge_check(a, PID, &e));
    shared_charge_unref(a);
    assert_int_equal(f->alice->used[QUOTA_MAPPED], 0);
    assert_int_equal(f->bob->used[QUOTA_MAPPED], 80);
    shared_charge_unref(b);
    assert_int_equal(f->bob->used[QUOTA_MAPPED], 0);
    assert_null(shared_charge_unref(NULL));
}

static void assert_limited(uint64_t now, int64_t for_ms)
{
    assert_int_equal(account_admit_message(f->alice, PID, now, &f->error), -1);
    assert_refused("messages_per_s", 10, 10);
    assert_int_equal(retry_of(), for_ms);
}

ACCOUNT_TEST(test_messages_a_second)
{
    uint64_t now = start_ns;
    unsigned taken = 0;

    for (unsigned i = 0; i < 1000; i++)
        MUST(account_admit_message(f->alice, PID, now, &e));
    f->limits.messages_per_s = 10;
    for (unsigned i = 0; i < 10; i++)
        MUST(account_admit_message(f->alice, PID, now, &e));
    assert_limited(now, 100);
    MUST(account_admit_message(f->bob, PID, now, &e));
    assert_limited(now + 60 * ms, 40);
    now += 100 * ms;
    MUST(account_admit_message(f->alice, PID, now, &e));
    /* Being refused costs nothing; ten seconds of asking a thousand times get ten seconds' worth. */
    for (unsigned i = 0; i < 10000; i++) {
        now += ms;
        taken += account_admit_message(f->alice, PID, now, &f->error) == 0;
    }
    assert_int_equal(taken, 100);
    assert_int_equal(f->alice->requests, 1000 + 13 + 10000);
}

ACCOUNT_TEST(test_a_share_while_others_wait)
{
    uint64_t now = start_ns + 30 * ms;

    f->limits.device_share = 20;
    account_begin_run(f->alice);
    account_add_device_us(f->alice, 500000, now);
    assert_int_equal(account_check_share(f->alice, PID, now, &f->error), 0); /* alone */
    account_begin_run(f->bob);
    assert_int_equal(account_check_share(f->bob, PID, now, &f->error), 0);
    assert_int_equal(account_check_share(f->alice, PID, now, &f->error), -1);
    assert_refused("device_share", 50, 20);
    /* 30 ms in this tenth, 100 in each of four before it and 70 in the fifth: 130 are left once the second one before
     * it is forgotten, a second after it began. */
    assert_int_equal(retry_of(), 770);
    assert_int_equal(account_check_share(f->alice, PID, now + 769 * ms, &f->error), -1);
    assert_int_equal(retry_of(), 1);
    assert_int_equal(account_check_share(f->alice, PID, now + 770 * ms, &f->error), 0);
    account_add_device_us(f->alice, 100000, now + 770 * ms);
    assert_int_equal(account_check_share(f->alice, PID, now + 770 * ms, &f->error), -1);
    account_end_run(f->bob);
    assert_int_equal(account_check_share(f->alice, PID, now + 770 * ms, &f->error), 0);
    account_end_run(f->alice);
    assert_int_equal(f->all.runs, 0);
    assert_true(f->alice->device_us == 600000);
    /* A run of ten seconds counts with its last one. */
    account_begin_run(f->alice);
    now = start_ns + 99 * ms;
    account_add_device_us(f->bob, 1e7, now);
    f->limits.device_share = 100;
    assert_int_equal(account_check_share(f->bob, PID, now, &f->error), 0);
    f->limits.device_share = 99;
    assert_int_equal(account_check_share(f->bob, PID, now, &f->error), -1);
    assert_int_equal(account_check_share(f->bob, PID, now + 5000 * ms, &f->error), 0);
    account_end_run(f->alice);
}

/* Of what all users share: each takes all that it may, and the next one still finds some. */
ACCOUNT_TEST(test_common_resources_are_shared)
{
    struct charge charges[6][700] = {0};
    unsigned last = UINT32_MAX;

    f->limits.of_all[QUOTA_MAPPINGS] = 1000;
    for (unsigned u = 0; u < 6; u++) {
        struct account *a = account_get(&f->all, 2000 + u);
        unsigned n = 0;

        while (n < 700 && charge_take(&charges[u][n], a, PID, QUOTA_MAPPINGS, 1, &f->error) == 0)
            n++;
        assert_in_range(n, 1, u ? last / 2 : 667);
        last = n;
        assert_texts(f->error.details[0].text, "mappings", f->error.details[1].key, "users", f->error.details[1].text,
                     "all");
        assert_int_equal(f->error.details[3].number, 1000);
        account_unref(a);
    }
    for (unsigned u = 0; u < 6; u++)
        for (unsigned n = 0; n < 700; n++)
            charge_free(&charges[u][n]);
    f->limits.of_all[QUOTA_MAPPINGS] = 2; /* rounded up: a user alone has all of so few */
    assert_int_equal(charge_take(&charges[0][0], f->alice, PID, QUOTA_MAPPINGS, 1, &f->error), 0);
    assert_int_equal(charge_take(&charges[0][1], f->alice, PID, QUOTA_MAPPINGS, 1, &f->error), 0);
    charge_free(&charges[0][0]);
    charge_free(&charges[0][1]);
}

/* ---- faults of a user's kernels: when kernels are refused, for how long, and whose ---- */

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
    assert_int_equal(account_check_faults(a, PID, now, &f->error), -1);
    assert_refused("faults", 3, 3);
    assert_int_equal(retry_of(), for_ms);
}

static void assert_goes_on(struct account *a, uint64_t now)
{
    MUST(account_check_faults(a, PID, now, &e));
}

/* Three faults of a minute pause the kernels of a user, and of no other. Several ends are one incident. */
ACCOUNT_TEST(test_faults_pause_a_users_kernels)
{
    uint64_t now = start_ns;

    note_faults(f->alice, 1000, now); /* no bound */
    assert_goes_on(f->alice, now);
    f->limits.faults = 3; /* by a reload */
    now += 2 * minute;
    for (unsigned i = 0; i < 3 * ACCOUNT_FAULTS_MAX; i++, now += 30 * second)
        note_faults(f->alice, 1, now);
    assert_goes_on(f->alice, now);
    note_faults(f->alice, 2, now); /* with the one 30 s ago */
    assert_paused(f->alice, now, 60000);
    assert_paused(f->alice, now + minute - ms, 1);
    assert_goes_on(f->alice, now + minute);
    for (unsigned i = 0; i < 9; i++)
        account_note_fault(f->bob, 1000 + i / 5, now);
    assert_goes_on(f->bob, now);
    account_note_fault(f->bob, 1002, now);
    assert_paused(f->bob, now, 60000);
    assert_int_equal(f->all.refused[REFUSED_FAULTS], 3);
    assert_int_equal(f->alice->refused, 2);
    f->limits.faults = 0;
    assert_goes_on(f->bob, now);
}

ACCOUNT_TEST(test_each_pause_is_twice_as_long)
{
    static const int64_t pauses_s[] = {60, 120, 240, 480, 960, 1920, 3600, 3600};
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

/* The account of who has gone is kept until enough others have gone, too. */
ACCOUNT_TEST(test_a_pause_outlives_connections)
{
    struct account *a = account_get(&f->all, 1);

    f->limits.faults = 3;
    note_faults(a, 3, start_ns);
    account_unref(a);
    a = account_get(&f->all, 1);
    assert_paused(a, start_ns, 60000);
    account_unref(a);
    for (uid_t uid = 10000; uid < 10000 + ACCOUNTS_IDLE_MAX; uid++)
        account_unref(account_get(&f->all, uid));
    assert_int_equal(f->all.n_idle, ACCOUNTS_IDLE_MAX);
    a = account_get(&f->all, 1);
    assert_goes_on(a, start_ns);
    account_unref(a);
}
