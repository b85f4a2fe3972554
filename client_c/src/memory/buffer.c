/* Every kind of buffer: making and freeing, the descriptor's mapping, and device memory in this process. */
#include "buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "available.h"
#include "base/fail.h"

/* ---- device memory in this process ---- */

/* Unmaps memory. Addresses that the driver does not unmap stay reserved, so that nothing else comes to lie there. */
static void unmap(const struct cuda_driver *d, cuda_pointer pointer, size_t size)
{
    if (d->vmm_unmap(pointer, size) == 0)
        d->vmm_unreserve(pointer, size);
}

static enum kops_code map_allocation(const struct cuda_driver *d, struct kops_buffer *b, int ordinal,
                                     struct kops_error *e)
{
    const struct cuda_access access = {CUDA_LOCATION_DEVICE, ordinal, CUDA_ACCESS_RW};
    const char *what = "cuMemImportFromShareableHandle";
    cuda_allocation allocation;
    cuda_pointer pointer;
    cuda_status status = d->vmm_import(&allocation, (void *)(intptr_t)b->fd, CUDA_HANDLE_TYPE_FD);

    if (status)
        return cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, what);
    what = "cuMemAddressReserve";
    status = d->vmm_reserve(&pointer, b->size, 0, 0, 0);
    if (status)
        goto release_allocation;
    what = "cuMemMap";
    status = d->vmm_map(pointer, b->size, 0, allocation, 0);
    if (status)
        goto free_reservation;
    what = "cuMemSetAccess";
    status = d->vmm_set_access(pointer, b->size, &access, 1);
    if (status)
        goto unmap;
    d->vmm_release(allocation); /* the mapping keeps it */
    b->pointer = pointer;
    b->ordinal = ordinal;
    atomic_store_explicit(&b->cuda_process, process_id(), memory_order_release);
    return KOPS_OK;

unmap:
    unmap(d, pointer, b->size);
    goto release_allocation;
free_reservation:
    d->vmm_unreserve(pointer, b->size);
release_allocation:
    d->vmm_release(allocation);
    return cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, what);
}

enum kops_code cuda_map_pointer(const struct cuda_driver *d, struct kops_buffer *b, struct kops_error *e)
{
    cuda_context current = NULL;
    enum kops_code r;
    int ordinal;

    if (cuda_map_is_here(b, process_id()))
        return KOPS_OK;
    if (b->kind != BUFFER_VMM)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "the buffer is %s",
                    b->kind == BUFFER_SHARED ? "shared memory, not device memory"
                                             : "device memory of the parent process");
    r = cuda_find_device(d, b->device, &ordinal, e);
    if (r)
        return r;
    d->context_get(&current);
    if (!current) {
        r = cuda_push_primary(d, ordinal, e);
        if (r)
            return r;
    }
    r = map_allocation(d, b, ordinal, e);
    if (!current)
        cuda_pop(d);
    return r;
}

/* Unmaps the memory, where it is mapped. */
static void cuda_map_drop(struct kops_buffer *b)
{
    struct kops_error unwanted;
    const struct cuda_driver *d;

    if (b->kind != BUFFER_VMM || !cuda_map_is_here(b, process_id()))
        return;
    d = cuda_load(&unwanted);
    if (!d)
        return;
    unmap(d, b->pointer, b->size);
    b->cuda_process = 0;
}

enum kops_code kops_buffer_map_cuda(kops_buffer *buffer, uint64_t *ret_pointer, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const struct cuda_driver *d;
    enum kops_code r;

    fail_clear(e);
    if (buffer->kind == BUFFER_SHARED)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "the buffer is shared memory, not device memory: use kops_buffer_data()");
    d = cuda_load(e);
    if (!d)
        return KOPS_ERR_NO_CUDA;
    client_enter(buffer->client, e);
    r = cuda_map_pointer(d, buffer, e);
    if (!r)
        *ret_pointer = buffer->pointer;
    client_leave(buffer->client);
    return r;
}

enum kops_code cuda_map_copy(struct kops_buffer *b, uint64_t offset, void *to, const void *from, size_t size,
                             struct kops_error *e)
{
    const struct cuda_driver *d = cuda_load(e);
    cuda_status status = 0;
    enum kops_code r;
    int ordinal;

    if (!d)
        return KOPS_ERR_NO_CUDA;
    r = cuda_find_device(d, b->device, &ordinal, e);
    if (!r)
        r = cuda_push_primary(d, ordinal, e);
    if (r)
        return r;
    r = cuda_map_pointer(d, b, e);
    if (!r && size) {
        status =
            to ? d->copy_to_host(to, b->pointer + offset, size) : d->copy_to_device(b->pointer + offset, from, size);
        /* A copy from pageable memory returns once the source was read; the daemon must see the data in place. */
        if (!status)
            status = d->context_synchronize();
    }
    cuda_pop(d);
    if (r)
        return r;
    return status ? cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "copying to or from the device") : KOPS_OK;
}

/* ---- of every kind ---- */

struct kops_buffer *buffer_new(struct kops_client *c, enum buffer_kind kind, uint64_t size, enum kops_access access)
{
    struct kops_buffer *b = calloc(1, sizeof(*b));

    if (!b)
        return NULL;
    b->client = c;
    b->kind = kind;
    b->size = size;
    b->access = access;
    b->fd = -1;
    c->references++;
    return b;
}

void buffer_free_leave(struct kops_buffer *b)
{
    struct kops_client *c = b->client;

    cuda_map_drop(b);
    if (b->data)
        munmap(b->data, b->size);
    if (b->fd >= 0)
        close(b->fd);
    free(b->chunks);
    free(b);
    client_leave_unref(c);
}

enum kops_code buffer_map_shared(struct kops_buffer *b, struct kops_error *e)
{
    int protection = b->access == KOPS_ACCESS_R ? PROT_READ : PROT_READ | PROT_WRITE;
    void *data = mmap(NULL, b->size, protection, MAP_SHARED, b->fd, 0);

    if (data == MAP_FAILED)
        return fail_os(e, errno, "mapping shared memory");
    b->data = data;
    return KOPS_OK;
}

kops_buffer *kops_buffer_release(kops_buffer *buffer)
{
    struct kops_client *c;

    if (!buffer)
        return NULL;
    c = buffer->client;
    client_enter(c, NULL);
    remote_release(c, &buffer->remote, "buffer");
    buffer_free_leave(buffer);
    return NULL;
}

/* ---- accessors ---- */

void *kops_buffer_data(const kops_buffer *buffer)
{
    return buffer->data;
}

size_t kops_buffer_size(const kops_buffer *buffer)
{
    return buffer->size;
}

uint64_t kops_buffer_base_offset(const kops_buffer *buffer)
{
    return buffer->base_offset;
}

const char *kops_buffer_device(const kops_buffer *buffer)
{
    return buffer->kind == BUFFER_SHARED ? NULL : buffer->device;
}

/* ---- shared memory ---- */

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

/* Touches every page now. The kernel charges a shared page to the process that first touches it, which must be this
 * one, not the daemon that writes an output there. Before Linux 5.14, fallocate() takes the pages instead. */
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

/* Gives out a buffer in shared memory. Registers before it touches the pages: the daemon's check of the descriptor has
 * the better message, its quota is asked before there are pages, and touching a mapping longer than its file kills the
 * process. */
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

/* ---- the memory of a tensor ---- */

/* SPACE_ADDRESSES: CUDA addresses in this process, where all devices share one range. */
enum { SPACE_NOTHING, SPACE_FILE, SPACE_ADDRESSES, SPACE_UNMAPPED };

/* Computes the bytes from the first element to the end of the last; false: they do not fit, or make no sense. */
static bool covered(const struct kops_tensor *t, uint64_t *ret_bytes)
{
    const uint64_t element = kops_dtype_size(t->dtype);
    uint64_t last = 0, stride = 1, bytes;

    *ret_bytes = 0;
    for (unsigned i = 0; i < t->rank; i++)
        if (t->shape[i] <= 0)
            return t->shape[i] == 0;
    for (unsigned i = t->rank; i-- > 0;) {
        uint64_t step;

        if (t->has_strides && t->strides[i] < 0)
            return false;
        if (__builtin_mul_overflow((uint64_t)t->shape[i] - 1, t->has_strides ? (uint64_t)t->strides[i] : stride,
                                   &step) ||
            __builtin_add_overflow(last, step, &last) || __builtin_mul_overflow(stride, (uint64_t)t->shape[i], &stride))
            return false;
    }
    if (__builtin_add_overflow(last, 1, &last) || __builtin_mul_overflow(last, element, &bytes))
        return false;
    *ret_bytes = bytes;
    return true;
}

bool span_of(const struct kops_tensor *t, struct span *ret)
{
    const struct kops_buffer *b = t->buffer;
    struct stat st;

    *ret = (struct span){{SPACE_NOTHING}, t->offset, 0};
    if (!covered(t, &ret->length))
        return false;
    if (!b || !ret->length)
        return true;
    if (b->kind == BUFFER_SHARED) {
        /* A file may be registered twice, with two descriptors. */
        if (fstat(b->fd, &st))
            return false;
        ret->space[0] = SPACE_FILE;
        ret->space[1] = st.st_dev;
        ret->space[2] = st.st_ino;
    } else if (b->kind == BUFFER_VMM && !b->pointer) {
        ret->space[0] = SPACE_UNMAPPED;
        ret->space[1] = (uintptr_t)b;
    } else {
        ret->space[0] = SPACE_ADDRESSES;
        ret->begin += b->pointer;
    }
    return true;
}

bool spans_meet(const struct span *a, const struct span *b)
{
    if (!a->length || !b->length || memcmp(a->space, b->space, sizeof(a->space)) != 0)
        return false;
    return a->begin < b->begin ? b->begin - a->begin < a->length : a->begin - b->begin < b->length;
}
