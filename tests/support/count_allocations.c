/* Preloaded into the daemon: counts calls of the allocator. KOPS_TEST_COUNT is a file of 8 bytes that holds the number,
 * shared with the test. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);

static _Atomic uint64_t nowhere, *count = &nowhere;

__attribute__((constructor)) static void open_count(void)
{
    const char *path = getenv("KOPS_TEST_COUNT");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*count), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (fd >= 0)
        close(fd);
    if (at != MAP_FAILED)
        count = at;
}

__attribute__((visibility("default"))) void *malloc(size_t size)
{
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
    return __libc_malloc(size);
}

__attribute__((visibility("default"))) void *calloc(size_t n, size_t size)
{
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
    return __libc_calloc(n, size);
}

__attribute__((visibility("default"))) void *realloc(void *old, size_t size)
{
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
    return __libc_realloc(old, size);
}
