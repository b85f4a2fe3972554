/* Device memory: registering this process's own, and asking the daemon for some. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "export.h"
#include "register.h"
#include "session/call.h"
#include "session/connect.h"

enum kops_code kops_buffer_register_cuda(kops_client *client, uint64_t pointer, enum kops_access access,
                                         kops_buffer **ret_buffer, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const struct cuda_driver *d;
    struct kops_buffer *b;
    enum kops_code r;

    fail_clear(e);
    if (access != KOPS_ACCESS_RW && access != KOPS_ACCESS_R)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "access is KOPS_ACCESS_RW or KOPS_ACCESS_R");
    d = cuda_load(e);
    if (!d)
        return KOPS_ERR_NO_CUDA;
    client_enter(client, e);
    b = buffer_new(client, BUFFER_CUDA, 0, access);
    if (!b) {
        client_leave(client);
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a buffer");
    }
    r = export_memory(d, pointer, b, e);
    if (!r)
        r = buffer_ensure(b, client_deadline(client, 0), e);
    if (r) {
        buffer_free_leave(b);
        return r;
    }
    client_leave(client);
    *ret_buffer = b;
    return KOPS_OK;
}

enum kops_code kops_buffer_alloc(kops_client *client, size_t size, const char *device, kops_buffer **ret_buffer,
                                 struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const struct kops_device *where = kops_info_device(client, device);
    struct wire_alloc request = {.size = size, .device = device};
    struct wire_buffer made = {.fd = -1};
    struct kops_buffer *b;
    uint32_t generation;
    enum kops_code r;

    if (where && !strcmp(where->backend, "host"))
        return kops_buffer_alloc_shared(client, size, ret_buffer, ret_error);
    client_enter(client, e);
    r = session_connect(client, client_deadline(client, 0), e);
    if (r) {
        client_leave(client);
        return r;
    }
    generation = client->generation;
    r = session_call(client, wire_pack_alloc, &request, -1, wire_decode_alloc, &made, client_deadline(client, 0),
                     SESSION_ATTEMPTS, e);
    if (r) {
        client_leave(client);
        return r;
    }
    b = buffer_new(client, made.vmm ? BUFFER_VMM : BUFFER_SHARED, made.size, KOPS_ACCESS_RW);
    if (!b) {
        session_release(client, "buffer", made.id);
        client_leave(client);
        close(made.fd);
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a buffer");
    }
    b->fd = made.fd;
    /* Where the connection changed meanwhile the id may be of either: the next use registers the descriptor anew. */
    remote_defined(client, &b->remote, made.id, generation);
    if (made.vmm && where)
        snprintf(b->device, sizeof(b->device), "%s", where->uuid);
    r = made.vmm ? KOPS_OK : buffer_map_shared(b, e);
    client_leave(client);
    if (r) {
        kops_buffer_release(b);
        return r;
    }
    *ret_buffer = b;
    return KOPS_OK;
}
