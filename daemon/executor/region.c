#include "executor/region.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "util/shortage.h"

struct executor_region *region_map(int fd, struct error *e)
{
    void *at = mmap(NULL, sizeof(struct executor_region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at != MAP_FAILED)
        return at;
    error_set(e, ERROR_OUT_OF_MEMORY, "mapping an executor's shared memory: %s", strerror(errno));
    return NULL;
}

struct executor_region *region_new(int *ret_fd, struct error *e)
{
    int fd = memfd_create("kopsd-executor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct executor_region *region;

    if (fd < 0) {
        error_shortage(e, errno, "memfd_create");
        return NULL;
    }
    /* Sealed: a file that the executor cut would end the daemon at its next look. */
    if (ftruncate(fd, sizeof(*region)) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        error_set(e, ERROR_OUT_OF_MEMORY, "an executor's shared memory: %s", strerror(errno));
        goto close_fd;
    }
    region = region_map(fd, e);
    if (!region)
        goto close_fd;
    *ret_fd = fd;
    return region;

close_fd:
    close(fd);
    return NULL;
}

struct executor_region *region_unmap(struct executor_region *region)
{
    if (region)
        munmap(region, sizeof(*region));
    return NULL;
}
