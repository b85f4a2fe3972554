/* Every bell is rung, whoever rings it, and none after ringer_settle(). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "util/ringer.h"

enum { BELLS = 8, ROUNDS = 20000 };

static void test_every_bell_is_rung(void **state)
{
    uint64_t wanted[BELLS] = {0}, got;
    struct ringer *ringer;
    struct error e;
    int fds[BELLS];

    (void)state;
    assert_int_equal(ringer_new(&ringer, &e), 0);
    for (unsigned i = 0; i < BELLS; i++)
        fds[i] = eventfd(0, EFD_NONBLOCK);
    for (unsigned round = 0; round < ROUNDS; round++) {
        ringer_turn(ringer);
        /* One, which is rung at once; or all, which the thread gets. */
        for (unsigned i = 0; i < (round % 100 < 50 ? 1U : BELLS); i++) {
            ringer_ring(ringer, fds[i]);
            wanted[i]++;
        }
    }
    ringer_settle(ringer);
    for (unsigned i = 0; i < BELLS; i++) {
        assert_int_equal(read(fds[i], &got, sizeof(got)), sizeof(got));
        assert_int_equal(got, wanted[i]);
        close(fds[i]);
    }
    assert_null(ringer_free(ringer));
}

static void test_a_sleeping_thread_is_woken(void **state)
{
    struct ringer *ringer;
    struct error e;
    uint64_t got;
    int fd = eventfd(0, EFD_SEMAPHORE); /* reading blocks until it rings */

    (void)state;
    assert_int_equal(ringer_new(&ringer, &e), 0);
    for (unsigned round = 0; round < 200; round++) {
        ringer_turn(ringer);
        for (unsigned i = 0; i < 5; i++)
            ringer_ring(ringer, fd);
        for (unsigned i = 0; i < 5; i++)
            assert_int_equal(read(fd, &got, sizeof(got)), sizeof(got));
        if (round % 10 == 0)
            usleep(100); /* longer than it stays up: both ways of finding it are taken */
    }
    ringer_free(ringer);
    close(fd);
}

static void test_without_a_ringer_it_rings_at_once(void **state)
{
    int fd = eventfd(0, EFD_NONBLOCK);
    uint64_t got;

    (void)state;
    ringer_ring(NULL, fd);
    assert_int_equal(read(fd, &got, sizeof(got)), sizeof(got));
    ringer_settle(NULL);
    assert_null(ringer_free(NULL));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bell_is_rung),
        cmocka_unit_test(test_a_sleeping_thread_is_woken),
        cmocka_unit_test(test_without_a_ringer_it_rings_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
