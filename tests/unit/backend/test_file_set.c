/* Open files are found by other descriptors of them, with few questions to the kernel. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backend/file_set.h"
#include "tests/support/unit.h"

enum { MANY = 1000, MOST_QUESTIONS = 11 /* 2^10 = 1024 */ };

static int new_file(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

static void add(struct file_set *set, int fd, void *value)
{
    assert_int_equal(file_set_reserve(set), 0);
    file_set_add(set, fd, value);
}

TEST(finds_by_another_descriptor)
{
    struct file_set set = {0};
    int fds[MANY], values[MANY], foreign = new_file();

    for (int i = 0; i < MANY; i++) {
        fds[i] = new_file();
        add(&set, fds[i], &values[i]);
    }
    for (int i = 0; i < MANY; i++) {
        const int other = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        const uint64_t before = set.comparisons;

        assert_ptr_equal(file_set_find(&set, other), &values[i]);
        assert_in_range(set.comparisons - before, 1, MOST_QUESTIONS);
        close(other);
    }
    set.comparisons = 0;
    assert_null(file_set_find(&set, foreign));
    assert_in_range(set.comparisons, 1, MOST_QUESTIONS);
    for (int i = 0; i < MANY; i += 2)
        file_set_remove(&set, fds[i], &values[i]);
    for (int i = 0; i < MANY; i++)
        assert_ptr_equal(file_set_find(&set, fds[i]), i % 2 ? &values[i] : NULL);
    file_set_free(&set);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    close(foreign);
}

/* As where the kernel does not compare: nothing is found, all can be removed. */
TEST(descriptors_that_are_closed)
{
    struct file_set set = {0};
    int values[3];

    for (int i = 0; i < 3; i++)
        add(&set, 900 + i, &values[i]);
    assert_null(file_set_find(&set, 900));
    for (int i = 0; i < 3; i++)
        file_set_remove(&set, 900 + i, &values[i]);
    assert_int_equal(set.n, 0);
    file_set_free(&set);
}

static int allow_many_files(void **state)
{
    return setrlimit(RLIMIT_NOFILE, &(struct rlimit){4096, 4096});
}

ALL_TESTS_WITH(allow_many_files, NULL)
