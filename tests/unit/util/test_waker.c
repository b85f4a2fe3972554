/* Every wake-up is written, by the caller or the thread, and none after waker_settle(). */
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/support/unit.h"
#include "util/waker.h"

enum { DESCRIPTORS = 8, ROUNDS = 20000 };

TEST(test_every_wake_up_is_written)
{
    uint64_t wanted[DESCRIPTORS] = {0}, got;
    struct waker *waker;
    int fds[DESCRIPTORS];

    MUST(waker_new(&waker, &e));
    for (unsigned i = 0; i < DESCRIPTORS; i++)
        fds[i] = eventfd(0, EFD_NONBLOCK);
    for (unsigned round = 0; round < ROUNDS; round++) {
        waker_turn(waker);
        /* One, which is written at once; or all, which the thread writes. */
        for (unsigned i = 0; i < (round % 100 < 50 ? 1U : DESCRIPTORS); i++) {
            waker_wake(waker, fds[i]);
            wanted[i]++;
        }
    }
    waker_settle(waker);
    for (unsigned i = 0; i < DESCRIPTORS; i++) {
        assert_int_equal(read(fds[i], &got, sizeof(got)), sizeof(got));
        assert_int_equal(got, wanted[i]);
        close(fds[i]);
    }
    assert_null(waker_free(waker));
}

TEST(test_a_sleeping_thread_is_woken)
{
    struct waker *waker;
    uint64_t got;
    int fd = eventfd(0, EFD_SEMAPHORE); /* a read blocks until it is written */

    waker_wake(NULL, fd); /* without a waker it is written at once */
    assert_int_equal(read(fd, &got, sizeof(got)), sizeof(got));
    waker_settle(NULL);
    assert_null(waker_free(NULL));
    MUST(waker_new(&waker, &e));
    for (unsigned round = 0; round < 200; round++) {
        waker_turn(waker);
        for (unsigned i = 0; i < 5; i++)
            waker_wake(waker, fd);
        for (unsigned i = 0; i < 5; i++)
            assert_int_equal(read(fd, &got, sizeof(got)), sizeof(got));
        if (round % 10 == 0)
            usleep(100); /* longer than it stays up: both ways of finding it are taken */
    }
    waker_free(waker);
    close(fd);
}
