/* Shared memory of this process. */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "available.h"
#include "base/fail.h"
#include "register.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static const size_t touched_at_once = (size_t)64 << 20;

static enum kops_code make_memfd(size_t size, int *ret_fd, struct kops_error *e)
{
    int fd = memfd_create("kops", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL), r;

    if (fd < 0 && errno == EINVAL) /* Linux before 6.3 */
        fd = memfd_create("kops", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return fail_os(e, errno, "memfd_create");
    if (ftruncate(fd, (off_t)size) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        r = errno;
        close(fd);
        return fail_os(e, r, "sizing shared memory");
    }
    *ret_fd = fd;
    return KOPS_OK;
}

/* Takes every page now. The kernel charges a shared page to the process that first touches it: that is to be this one,
 * and not the daemon that writes an output there. Before Linux 5.14 without mapping the pages. */
static enum kops_code touch_all(const struct kops_buffer *b, struct kops_error *e)
{
    bool populates = true;
    size_t length;

    for (size_t at = 0; at < b->size; at += length) {
        int r;

        length = b->size - at < touched_at_once ? b->size - at : touched_at_once;
        do {
            r = populates ? madvise((char *)b->data + at, length, MADV_POPULATE_WRITE)
                          : fallocate(b->fd, 0, (off_t)at, (off_t)length);
            if (r && populates && errno == EINVAL) {
                populates = false;
                errno = EINTR;
            }
        } while (r && errno == EINTR);
        if (r && !populates && errno == EOPNOTSUPP)
            return KOPS_OK;
        if (r)
            return fail(e, KOPS_ERR_OUT_OF_MEMORY, "the system has no memory for the pages of %llu bytes: %s",
                        (unsigned long long)b->size, strerror(errno));
    }
    return KOPS_OK;
}

/* Registers first: the daemon's check of the descriptor has the better message, its quota is asked before there are
 * pages, and touching a mapping longer than its file kills the process. */
static enum kops_code give_out_shared(struct kops_buffer *b, bool touch, kops_buffer **ret_buffer, struct kops_error *e)
{
    struct kops_client *c = b->client;
    enum kops_code r = buffer_ensure(b, client_deadline(c, 0), e);

    if (!r)
        r = buffer_map_shared(b, e);
    client_leave(c);
    if (!r && touch)
        r = touch_all(b, e);
    if (r) {
        kops_buffer_release(b);
        return r;
    }
    *ret_buffer = b;
    return KOPS_OK;
}

enum kops_code kops_buffer_alloc_shared(kops_client *client, size_t size, kops_buffer **ret_buffer,
                                        struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct kops_buffer *b;
    enum kops_code r;
    int fd = -1;

    fail_clear(e);
    if (!size)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "a buffer has at least one byte");
    r = memory_check(size, e);
    if (!r)
        r = make_memfd(size, &fd, e);
    if (r)
        return r;
    client_enter(client, e);
    b = buffer_new(client, BUFFER_SHARED, size, KOPS_ACCESS_RW);
    if (!b) {
        client_leave(client);
        close(fd);
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a buffer");
    }
    b->fd = fd;
    return give_out_shared(b, true, ret_buffer, e);
}

enum kops_code kops_buffer_register_memfd(kops_client *client, int fd, size_t size, enum kops_access access,
                                          kops_buffer **ret_buffer, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct kops_buffer *b;
    int own;

    fail_clear(e);
    if (!size || size > INT64_MAX || (access != KOPS_ACCESS_RW && access != KOPS_ACCESS_R))
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "a buffer has at least one byte, and access is KOPS_ACCESS_RW or _R");
    own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return fail_os(e, errno, "duplicating the descriptor");
    client_enter(client, e);
    b = buffer_new(client, BUFFER_SHARED, size, access);
    if (!b) {
        client_leave(client);
        close(own);
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a buffer");
    }
    b->fd = own;
    return give_out_shared(b, false, ret_buffer, e);
}
