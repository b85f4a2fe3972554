/* Memory that ends at a page that cannot be touched. */
#ifndef KOPS_TESTS_GUARDED_H
#define KOPS_TESTS_GUARDED_H

#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/unit.h"

static inline size_t guarded_mapped(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (bytes + page - 1) / page * page + page;
}

static inline unsigned char *guarded_new(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = guarded_mapped(bytes);
    unsigned char *at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(at, MAP_FAILED);
    assert_int_equal(mprotect(at + mapped - page, page, PROT_NONE), 0);
    return at + mapped - page - bytes;
}

static inline void guarded_free(unsigned char *at, size_t bytes)
{
    const size_t mapped = guarded_mapped(bytes);

    munmap(at + bytes + (size_t)sysconf(_SC_PAGESIZE) - mapped, mapped);
}

#endif
