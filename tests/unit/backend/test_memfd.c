/* What counts as shared memory that a daemon may trust. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/memfd.h"
#include "tests/support/unit.h"

static int made(size_t size, int seals)
{
    int fd = memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC);

    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void refused(int fd, uint64_t size, bool writable, enum error_code code)
{
    struct backend_memory *m = NULL;

    MUST_FAIL(memfd_map(fd, size, writable, &m, &e), code, "");
    assert_null(m);
    close(fd);
}

TEST(checks_descriptors)
{
    char path[] = "/tmp/test-kops-test-XXXXXX";
    int plain = mkstemp(path), pipes[2];

    unlink(path);
    assert_int_equal(pipe(pipes), 0);
    refused(made(4096, F_SEAL_SHRINK), 4097, true, ERROR_INVALID_FD);
    refused(made(4096, F_SEAL_GROW), 4096, true, ERROR_INVALID_FD);
    refused(made(4096, F_SEAL_SHRINK | F_SEAL_WRITE), 4096, true, ERROR_READ_ONLY);
    refused(made(4096, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE), 4096, true, ERROR_READ_ONLY);
    refused(plain, 1, false, ERROR_INVALID_FD);
    refused(pipes[0], 1, false, ERROR_INVALID_FD);
    refused(pipes[1], 1, false, ERROR_INVALID_FD);
    refused(open("/dev/zero", O_RDWR), 1, false, ERROR_INVALID_FD);
    refused(made(4096, F_SEAL_SHRINK), UINT64_MAX / 2, false, ERROR_INVALID_FD);
}

TEST(maps_what_is_sealed)
{
    int fd = made(8192, F_SEAL_SHRINK);
    struct backend_memory *a, *b;

    MUST(memfd_map(fd, 5000, true, &a, &e));
    MUST(memfd_map(fd, 8192, false, &b, &e));
    assert_int_equal(a->size, 5000);
    a->host[4999] = 7;
    assert_int_equal(b->host[4999], 7);
    assert_false(b->writable);
    memfd_unmap(a);
    memfd_unmap(b);
    close(fd);
    fd = made(4096, F_SEAL_SHRINK | F_SEAL_WRITE);
    MUST(memfd_map(fd, 4096, false, &a, &e));
    memfd_unmap(a);
    close(fd);
}

TEST(own_memory_is_zero_and_sealed)
{
    struct backend_memory *m;
    int fd;

    MUST(memfd_new(10000, &m, &fd, &e));
    for (int i = 0; i < 10000; i++)
        assert_int_equal(m->host[i], 0);
    assert_int_equal(ftruncate(fd, 10), -1);
    assert_int_equal(ftruncate(fd, 20000), -1);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    memfd_unmap(m);
    MUST_FAIL(memfd_new(UINT64_MAX, &m, &fd, &e), ERROR_OUT_OF_MEMORY, "");
}
