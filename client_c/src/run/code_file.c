#include "code_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fail.h"

enum kops_code code_file(size_t size, int *ret_fd, struct kops_error *e)
{
    int fd = memfd_create("kops-code", MFD_CLOEXEC | MFD_ALLOW_SEALING), r = 0;

    if (fd < 0)
        return fail_os(e, errno, "memfd_create");
    if (ftruncate(fd, (off_t)size) < 0 || fallocate(fd, 0, 0, (off_t)size) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0) {
        r = errno;
        close(fd);
        return fail_os(e, r, "memory for a kernel's code");
    }
    *ret_fd = fd;
    return KOPS_OK;
}
