/* Device memory, with a driver that keeps it in host memory (tests/standin_cuda), named by KOPS_CUDA_DRIVER. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

typedef uint64_t pointer;

static struct {
    int (*init)(unsigned);
    int (*device_get)(int *, int);
    int (*retain)(void **, int);
    int (*set)(void *);
    int (*alloc)(pointer *, size_t);
    int (*free)(pointer);
    int (*alloc_async)(pointer *, size_t, void *);
    int (*attribute)(void *, int, pointer);
    int (*range)(pointer *, size_t *, pointer);
    int (*to_host)(void *, pointer, size_t);
    int (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
    int (*export)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long);
    int (*release)(CUmemGenericAllocationHandle);
} cu;

static void *context;

static void load(void)
{
    static const struct {
        const char *name;
        void *into;
    } functions[] = {{"cuInit", &cu.init},
                     {"cuDeviceGet", &cu.device_get},
                     {"cuDevicePrimaryCtxRetain", &cu.retain},
                     {"cuCtxSetCurrent", &cu.set},
                     {"cuMemAlloc_v2", &cu.alloc},
                     {"cuMemFree_v2", &cu.free},
                     {"cuMemAllocAsync", &cu.alloc_async},
                     {"cuPointerGetAttribute", &cu.attribute},
                     {"cuMemGetAddressRange_v2", &cu.range},
                     {"cuMemcpyDtoH_v2", &cu.to_host},
                     {"cuMemCreate", &cu.create},
                     {"cuMemExportToShareableHandle", &cu.export},
                     {"cuMemRelease", &cu.release}};
    void *library = dlopen(getenv("KOPS_CUDA_DRIVER"), RTLD_NOW);
    int device;

    for (size_t i = 0; library && i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *symbol = dlsym(library, functions[i].name);

        memcpy(functions[i].into, &symbol, sizeof(symbol));
    }
    if (!library || cu.init(0) || cu.device_get(&device, 0) || cu.retain(&context, device) || cu.set(context))
        fail_msg("no driver: %s", dlerror());
}

/* What the daemon saw. */
struct seen {
    char kind[16], device[48];
    unsigned char handle[64];
    uint64_t handle_size, size, alloc_id, offset;
    char tuned_on[48]; /* the device that `tune` names */
    unsigned registers;
    atomic_bool hang_up; /* at the next run; the connection that follows sees that it was done */
};

static void answer_tune(struct fake_connection *c, const struct fake_request *r)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    fake_begin(&b, &p, 4);
    fake_text(&p, "candidates");
    msgpack_pack_array(&p, 1);
    msgpack_pack_map(&p, 0);
    fake_uint_pair(&p, "best", 0);
    fake_uint_pair(&p, "before", 0);
    fake_uint_pair(&p, "usual", 0);
    fake_reply_map(c, r->msgid, &b);
}

static void serve_seeing(struct fake_connection *c, void *context_)
{
    struct seen *s = context_;
    struct fake_request r;

    while (fake_next(c, &r)) {
        if (!strcmp(r.method, "register")) {
            const msgpack_object *handle = fake_param(&r.params, "handle"), *kind = fake_param(&r.params, "kind"),
                                 *device = fake_param(&r.params, "device");

            s->registers++;
            snprintf(s->kind, sizeof(s->kind), "%.*s", (int)kind->via.str.size, kind->via.str.ptr);
            snprintf(s->device, sizeof(s->device), "%.*s", (int)device->via.str.size, device->via.str.ptr);
            s->handle_size = handle->type == MSGPACK_OBJECT_BIN ? handle->via.bin.size : 0;
            if (s->handle_size == sizeof(s->handle))
                memcpy(s->handle, handle->via.bin.ptr, sizeof(s->handle));
            s->size = fake_param(&r.params, "size")->via.u64;
            s->alloc_id = fake_param(&r.params, "alloc_id")->via.u64;
        }
        if (!strcmp(r.method, "run")) {
            if (atomic_exchange(&s->hang_up, false))
                return;
            s->offset = fake_param(&fake_param(&r.params, "in")->via.array.ptr[0], "offset")->via.u64;
        }
        if (!strcmp(r.method, "tune")) {
            const msgpack_object *in = fake_param(&r.params, "in")->via.array.ptr,
                                 *device = fake_param(&r.params, "device");

            s->offset = fake_param(&in[0], "offset")->via.u64;
            if (!fake_param(&in[0], "buffer"))
                snprintf(s->tuned_on, sizeof(s->tuned_on), "%.*s", (int)device->via.str.size, device->via.str.ptr);
            answer_tune(c, &r);
            continue;
        }
        fake_answer(c, &r);
    }
}

/* First, while this process has not loaded a driver yet. */
static void without_a_driver(void **state)
{
    struct fake *f = fake_start(fake_serve_well, NULL);
    pid_t pid = fork();
    int status;

    (void)state;
    if (pid == 0) {
        struct kops_connect_options options = {.socket = fake_path(f)};
        struct kops_error error;
        kops_client *client;
        kops_buffer *buffer;

        setenv("KOPS_CUDA_DRIVER", "/nonexistent/libcuda.so", 1);
        if (kops_connect(&options, &client, &error))
            _exit(1);
        if (kops_buffer_register_cuda(client, 4096, KOPS_ACCESS_RW, &buffer, &error) != KOPS_ERR_NO_CUDA)
            _exit(2);
        if (!strstr(error.message, "/nonexistent/libcuda.so"))
            _exit(3);
        _exit(kops_ping(client, 0, &error) ? 4 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    fake_stop(f);
}

static void from_the_middle_of_an_allocation(void **state)
{
    struct seen seen = {0};
    struct fake *f = fake_start(serve_seeing, &seen);
    kops_client *client = connect_to(f);
    struct kops_error error;
    struct kops_tensor t;
    kops_buffer *buffer;
    unsigned long long id;
    pointer p, base, mapped;
    size_t size;

    (void)state;
    load();
    assert_int_equal(cu.alloc(&p, 10000), 0);
    assert_int_equal(cu.range(&base, &size, p), 0);
    assert_int_equal(cu.attribute(&id, 7, p), 0);
    assert_ok(kops_buffer_register_cuda(client, p + 512, KOPS_ACCESS_RW, &buffer, &error));
    assert_string_equal(seen.kind, "cuda_ipc");
    assert_int_equal(seen.handle_size, 64);
    assert_int_equal(seen.size, size);
    assert_int_equal(seen.alloc_id, id);
    assert_memory_equal(seen.device, "GPU-", 4);
    assert_int_equal(strlen(seen.device), 40);
    assert_string_equal(kops_buffer_device(buffer), seen.device);
    assert_int_equal(kops_buffer_base_offset(buffer), p + 512 - base);
    assert_int_equal(kops_buffer_size(buffer), size - (size_t)(p + 512 - base));
    assert_null(kops_buffer_data(buffer));
    assert_ok(kops_buffer_map_cuda(buffer, &mapped, &error));
    assert_int_equal(mapped, p + 512);

    t = kops_vector(buffer, KOPS_F32, 4);
    t.offset = 16;
    assert_ok(kops_square(client, &t, &t, NULL, NULL, &error));
    assert_int_equal(seen.offset, p + 512 - base + 16);
    kops_buffer_release(buffer);
    kops_close(client);
    fake_stop(f);
    cu.free(p);
}

/* Its place tells the alignment, its device is the one that is meant; the daemon does not get to know the memory. */
static void memory_is_tuned_for_where_it_lies(void **state)
{
    static const char *const features[] = {"memfd", "tune", NULL};
    struct seen seen = {0};
    struct kops_tensor t;
    const struct kops_request request = {.op = "square", .inputs = &t, .n_inputs = 1, .outputs = &t, .n_outputs = 1};
    struct kops_tune *tune;
    kops_client *client;
    kops_buffer *buffer;
    pointer p, base;
    struct fake *f;
    size_t size;

    (void)state;
    load();
    fake_set_features(features);
    f = fake_start(serve_seeing, &seen);
    client = connect_to(f);
    assert_int_equal(cu.alloc(&p, 10000), 0);
    assert_int_equal(cu.range(&base, &size, p), 0);
    assert_ok(kops_buffer_register_cuda(client, p + 528, KOPS_ACCESS_RW, &buffer, NULL));
    t = kops_vector(buffer, KOPS_F32, 16);
    t.offset = 8;
    assert_ok(kops_tune(client, &request, &tune, NULL));
    assert_int_equal(seen.offset, p + 536 - base);
    assert_string_equal(seen.tuned_on, kops_buffer_device(buffer));
    kops_tune_free(tune);
    kops_buffer_release(buffer);
    kops_close(client);
    fake_stop(f);
    fake_set_features(NULL);
    assert_int_equal(cu.free(p), 0);
}

static void without_a_current_context(void **state)
{
    struct seen seen = {0};
    struct fake *f = fake_start(serve_seeing, &seen);
    kops_client *client = connect_to(f);
    struct kops_error error;
    kops_buffer *buffer;
    pointer p;
    char out[5] = "";

    (void)state;
    assert_int_equal(cu.alloc(&p, 4096), 0);
    assert_int_equal(cu.set(NULL), 0);
    assert_ok(kops_buffer_register_cuda(client, p, KOPS_ACCESS_RW, &buffer, &error));
    assert_ok(kops_buffer_write(buffer, 8, "four", 5, &error));
    assert_ok(kops_buffer_read(buffer, 8, out, 5, &error));
    assert_string_equal(out, "four");
    assert_int_equal(kops_buffer_write(buffer, 4095, "xy", 2, &error), KOPS_ERR_BAD_ARGUMENT);
    kops_buffer_release(buffer);
    assert_int_equal(cu.set(context), 0);
    kops_close(client);
    fake_stop(f);
    cu.free(p);
}

static void what_cannot_be_exported(void **state)
{
    struct seen seen = {0};
    struct fake *f = fake_start(serve_seeing, &seen);
    kops_client *client = connect_to(f);
    struct kops_error error;
    kops_buffer *buffer;
    pointer p;
    int local = 0;

    (void)state;
    assert_int_equal(kops_buffer_register_cuda(client, (uint64_t)(uintptr_t)&local, KOPS_ACCESS_RW, &buffer, &error),
                     KOPS_ERR_NOT_EXPORTABLE);
    assert_non_null(strstr(error.message, "kops_buffer_alloc_shared"));
    assert_int_equal(cu.alloc_async(&p, 4096, NULL), 0);
    assert_int_equal(kops_buffer_register_cuda(client, p, KOPS_ACCESS_RW, &buffer, &error), KOPS_ERR_NOT_EXPORTABLE);
    assert_non_null(strstr(error.message, "cudaMalloc"));
    assert_int_equal(seen.registers, 0);
    kops_close(client);
    fake_stop(f);
}

/* A daemon that was restarted gets the same handle; a child of this process has no CUDA to speak of. */
static void registered_anew_but_not_in_a_child(void **state)
{
    struct seen seen = {0}, first;
    struct fake *f = fake_start(serve_seeing, &seen);
    kops_client *client = connect_to(f);
    struct kops_error error;
    struct kops_tensor t;
    kops_buffer *buffer;
    pointer p;
    pid_t pid;
    int status;

    (void)state;
    assert_int_equal(cu.alloc(&p, 4096), 0);
    assert_ok(kops_buffer_register_cuda(client, p, KOPS_ACCESS_RW, &buffer, &error));
    t = kops_vector(buffer, KOPS_F32, 4);
    t.offset = 16;
    first = seen;
    seen.hang_up = true;
    assert_int_equal(kops_square(client, &t, &t, NULL, NULL, &error), KOPS_ERR_CONNECTION_LOST);
    assert_ok(kops_square(client, &t, &t, NULL, NULL, &error));
    assert_int_equal(seen.registers, 2);
    assert_memory_equal(seen.handle, first.handle, 64);
    assert_int_equal(seen.alloc_id, first.alloc_id);

    pid = fork();
    if (pid == 0) {
        if (kops_square(client, &t, &t, NULL, NULL, &error) != KOPS_ERR_NOT_EXPORTABLE)
            _exit(1);
        kops_buffer_release(buffer);
        _exit(kops_ping(client, 0, &error) ? 2 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_ok(kops_square(client, &t, &t, NULL, NULL, &error));
    kops_buffer_release(buffer);
    kops_close(client);
    fake_stop(f);
    cu.free(p);
}

/* ---- memory that the daemon made ---- */

enum { CHUNK = 2 << 20 };

/* Answers alloc with device memory, by its descriptor. hello's only device is given the stand-in's UUID. */
static void serve_vmm(struct fake_connection *c, void *context_)
{
    const int *fd = context_;
    struct fake_request r;

    while (fake_next(c, &r)) {
        msgpack_sbuffer b;
        msgpack_packer p;

        if (strcmp(r.method, "alloc") != 0) {
            fake_answer(c, &r);
            continue;
        }
        fake_begin(&b, &p, 5);
        fake_uint_pair(&p, "buffer", 5);
        fake_uint_pair(&p, "size", CHUNK);
        fake_text_pair(&p, "kind", "cuda_vmm");
        fake_uint_pair(&p, "nfds", 1);
        fake_uint_pair(&p, "fd", 0);
        fake_reply_map_with_fds(c, r.msgid, &b, fd, 1);
    }
}

static void maps_device_memory_of_the_daemon(void **state)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle allocation;
    struct kops_error error;
    kops_buffer *buffer, *own;
    kops_client *client;
    struct fake *f;
    pointer mapped, again, p;
    char text[5] = "";
    size_t size;
    int fd;

    (void)state;
    assert_int_equal(cu.create(&allocation, CHUNK, &prop, 0), 0);
    assert_int_equal(cu.export(&fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), 0);
    /* The device's UUID in text, as registering tells it. */
    f = fake_start(serve_vmm, &fd);
    client = connect_to(f);
    assert_int_equal(cu.alloc(&p, 4096), 0);
    assert_ok(kops_buffer_register_cuda(client, p, KOPS_ACCESS_RW, &own, &error));
    fake_set_device(kops_buffer_device(own));
    kops_close(client);
    client = connect_to(f);

    assert_ok(kops_buffer_alloc(client, 1000, NULL, &buffer, &error));
    assert_int_equal(kops_buffer_size(buffer), CHUNK);
    assert_null(kops_buffer_data(buffer));
    assert_string_equal(kops_buffer_device(buffer), kops_buffer_device(own));
    assert_ok(kops_buffer_map_cuda(buffer, &mapped, &error));
    assert_ok(kops_buffer_write(buffer, CHUNK - 5, "tail", 5, &error));
    assert_int_equal(cu.to_host(text, mapped + CHUNK - 5, 5), 0);
    assert_string_equal(text, "tail");
    assert_ok(kops_buffer_map_cuda(buffer, &again, &error));
    assert_int_equal(again, mapped);
    kops_buffer_release(buffer);
    assert_int_not_equal(cu.range(&again, &size, mapped), 0); /* unmapped */

    kops_buffer_release(own);
    fake_set_device(NULL);
    cu.free(p);
    cu.release(allocation);
    close(fd);
    kops_close(client);
    fake_stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_driver),
        cmocka_unit_test(from_the_middle_of_an_allocation),
        cmocka_unit_test(memory_is_tuned_for_where_it_lies),
        cmocka_unit_test(without_a_current_context),
        cmocka_unit_test(what_cannot_be_exported),
        cmocka_unit_test(registered_anew_but_not_in_a_child),
        cmocka_unit_test(maps_device_memory_of_the_daemon),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
