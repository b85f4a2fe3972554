/* Who is refused memory without pages, with figures in place of the machine's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/host_room.h"
#include "util/clock.h"

static const uint64_t mib = 1 << 20, available = UINT64_C(1024) << 20;

/* As if the kernel had been asked just now; the reserve is 256 MiB. */
static struct host_room room_with(uint64_t holes)
{
    return (struct host_room){
        .holes = holes, .available = available, .total = 64 * available, .asked_ns = clock_now_ns()};
}

static void all_but_the_reserve_is_given(void **state)
{
    struct host_room room = room_with(0);
    struct error e = {0};

    (void)state;
    assert_int_equal(host_room_take(&room, 768 * mib, 768 * mib, &e), 0);
    assert_int_equal(room.holes, 768 * mib);
    assert_int_equal(host_room_take(&room, 769 * mib, mib, &e), -1);
    assert_int_equal(e.code, ERROR_OUT_OF_MEMORY);
    assert_int_equal(room.holes, 768 * mib);
    host_room_give(&room, mib);
    assert_int_equal(host_room_take(&room, 768 * mib, mib, &e), 0);
}

static void who_has_little_takes_from_half_of_the_reserve(void **state)
{
    struct host_room room = room_with(768 * mib);
    struct error e = {0};

    (void)state;
    assert_int_equal(host_room_take(&room, 17 * mib, mib, &e), -1);
    for (unsigned i = 0; i < 128; i++)
        assert_int_equal(host_room_take(&room, mib, mib, &e), 0);
    assert_int_equal(host_room_take(&room, mib, mib, &e), -1); /* what is mapped still fits, and 128 MiB besides */
    assert_int_equal(host_room_take(&room, mib, 0, &e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_but_the_reserve_is_given),
        cmocka_unit_test(who_has_little_takes_from_half_of_the_reserve),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
