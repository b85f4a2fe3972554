/* Users' code in an executor. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "executor/front.h"
#include "util/shortage.h"

/* A descriptor of the bytes; the caller's. */
static int in_memory(const unsigned char *bytes, size_t size, int *ret_fd, struct error *e)
{
    int fd = memfd_create("kopsd-code", MFD_CLOEXEC);
    size_t done = 0;

    if (fd < 0)
        return error_shortage(e, errno, "memfd_create");
    while (done < size) {
        ssize_t n = write(fd, bytes + done, size - done);

        if (n < 0 && errno != EINTR) {
            error_set(e, ERROR_OUT_OF_MEMORY, "handing a binary to an executor: %s", strerror(errno));
            close(fd);
            return -1;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    *ret_fd = fd;
    return 0;
}

int front_code_load(struct backend_device *device, uint64_t domain, const void *binary, size_t size,
                    struct backend_code **ret_code, struct error *e)
{
    const struct front_device *d = front_device(device);
    struct call_request request = {.kind = CALL_CODE_LOAD, .device = d->number, .size = size, .n_fds = 1};
    struct call_reply reply;
    int fd, r;

    (void)domain;
    if (in_memory(binary, size, &fd, e) < 0)
        return -1;
    r = front_call(d->executor, &request, NULL, &fd, &reply, NULL, e);
    close(fd);
    if (r == 0 && !reply.code)
        r = error_set(e, ERROR_DEVICE_LOST, "the executor of the GPU gives no number for a binary");
    if (r == 0)
        *ret_code = (struct backend_code *)(uintptr_t)reply.code; /* the executor's number: never followed here */
    return r;
}

void front_code_unload(struct backend_device *device, struct backend_code *code)
{
    const struct front_device *d = front_device(device);
    struct call_request request = {.kind = CALL_CODE_UNLOAD,
                                   .device = d->number,
                                   .code = (uintptr_t)code,
                                   .position = atomic_load(&d->executor->region->to_executor.written)};
    struct call_reply reply;
    struct error ignored;

    front_call(d->executor, &request, NULL, NULL, &reply, NULL, &ignored);
}

int front_code_function(struct backend_device *device, struct backend_code *code, const char *lowered,
                        struct backend_function *ret_function, struct error *e)
{
    const struct front_device *d = front_device(device);
    struct call_request request = {.kind = CALL_CODE_FUNCTION,
                                   .device = d->number,
                                   .code = (uintptr_t)code,
                                   .text_size = (uint32_t)strlen(lowered) + 1};
    struct call_reply reply;

    if (request.text_size > CALL_TEXT_MAX)
        return error_set(e, ERROR_LIMIT_EXCEEDED, "the entry's name has more than %d bytes", CALL_TEXT_MAX - 1);
    if (front_call(d->executor, &request, lowered, NULL, &reply, NULL, e) < 0)
        return -1;
    *ret_function = reply.function;
    return 0;
}
