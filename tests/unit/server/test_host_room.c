/* Who is refused memory without pages, with figures in place of the machine's. */
#include "server/account/account.h"
#include "server/account/host_room.h"
#include "tests/support/unit.h"
#include "util/clock.h"

static const uint64_t mib = 1 << 20, available = UINT64_C(1024) << 20;

enum { N_USERS = 8 };

struct fixture {
    struct quota_limits limits;
    struct accounts all;
    struct account *users[N_USERS];
    struct host_room room;
    struct host_part parts[1024];
    unsigned n_parts;
};

static struct fixture *f;

/* As if the kernel had been asked just now; the reserve is 256 MiB, so 768 MiB are free. */
static int open_fixture(void **state)
{
    f = calloc(1, sizeof(*f));
    assert_non_null(f);
    accounts_init(&f->all, &f->limits);
    for (unsigned i = 0; i < N_USERS; i++) {
        f->users[i] = account_get(&f->all, 1000 + i);
        f->users[i]->used[QUOTA_HOST] = 17 * mib; /* not little */
    }
    f->room = (struct host_room){.available = available, .total = 64 * available, .asked_ns = clock_now_ns()};
    return 0;
}

static int close_fixture(void **state)
{
    for (unsigned i = 0; i < f->n_parts; i++)
        host_room_give(&f->room, &f->parts[i]);
    assert_int_equal(f->room.holes, 0);
    assert_int_equal(f->room.mapped, 0);
    for (unsigned i = 0; i < N_USERS; i++) {
        assert_int_equal(f->users[i]->holes, 0);
        f->users[i]->used[QUOTA_HOST] = 0;
        account_unref(f->users[i]);
    }
    accounts_free(&f->all);
    free(f);
    return 0;
}

static bool take(unsigned user, uint64_t size, uint64_t holes)
{
    struct host_part part = {0};
    struct error e = {0};

    f->room.asked_ns = clock_now_ns();
    if (host_room_take(&f->room, f->users[user], size, holes, &part, &e) < 0) {
        assert_int_equal(e.code, ERROR_OUT_OF_MEMORY);
        assert_null(part.account);
        return false;
    }
    f->parts[f->n_parts++] = part;
    return true;
}

#define ROOM_TEST(name) TEST_WITH(name, open_fixture, close_fixture)

ROOM_TEST(one_user_has_two_thirds_at_once_or_bit_by_bit)
{
    assert_true(take(0, 512 * mib, 512 * mib));
    assert_false(take(0, mib, mib));
    assert_true(take(0, mib, 0)); /* its pages are there */
    host_room_give(&f->room, &f->parts[0]);
    for (unsigned i = 0; i < 128; i++)
        assert_true(take(0, 4 * mib, 4 * mib));
    assert_false(take(0, mib, mib));
}

ROOM_TEST(however_many_take_all_the_next_one_finds_some)
{
    uint64_t last = 3 * available;

    for (unsigned i = 0; i < 6; i++) {
        uint64_t taken = 0;

        while (take(i, mib, mib))
            taken += mib;
        assert_in_range(taken, mib, last / 2);
        last = taken;
    }
}

ROOM_TEST(pages_that_are_there_by_now_count_once)
{
    assert_true(take(0, 512 * mib, 512 * mib));
    f->room.available -= 512 * mib; /* the daemon touched them all */
    f->room.resident += 512 * mib;
    assert_true(take(1, 170 * mib, 170 * mib));
    assert_false(take(1, mib, mib));
    f->room.resident -= 256 * mib; /* not those that had none */
    assert_false(take(2, 64 * mib, 64 * mib));
}

/* Those of files without holes are resident as well, and say nothing of other files' holes. */
ROOM_TEST(pages_of_other_files_hide_no_holes)
{
    assert_true(take(0, 600 * mib, 0));
    f->room.resident = 600 * mib;
    assert_true(take(1, 512 * mib, 512 * mib));
    assert_false(take(2, 300 * mib, 300 * mib));
    assert_true(take(2, 170 * mib, 170 * mib));
}

ROOM_TEST(who_has_little_takes_from_half_of_the_reserve)
{
    f->room.available = 256 * mib;
    assert_false(take(0, mib, mib));
    f->users[1]->used[QUOTA_HOST] = 16 * mib;
    assert_true(take(1, 16 * mib, 16 * mib));
    f->room.available = 128 * mib;
    assert_false(take(1, mib, mib));
}
