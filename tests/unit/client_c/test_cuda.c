/* Device memory, with a driver that keeps it in host memory (tests/standin_cuda), named by KOPS_CUDA_DRIVER. */
#include <cuda.h>
#include <stdio.h>
#include <unistd.h>

#include "driver.h"
#include "scene.h"

enum { MIDDLE = 528 };

/* A part of the device's memory, and its registration, from the middle of its allocation on. */
static kops_buffer *part;
static CUdeviceptr memory, base; /* of the allocation */
static size_t memory_size;

static int begin(void **state)
{
    struct scene *s;

    if (!context)
        load(NULL);
    s = scene_start(NULL);
    memory = allocate(10000);
    assert_int_equal(cuMemGetAddressRange(&base, &memory_size, memory), 0);
    scene_script(s, "", "register");
    assert_ok(kops_buffer_register_cuda(s->client, memory + MIDDLE, KOPS_ACCESS_RW, &part, &s->error));
    *state = s;
    return 0;
}

static int end(void **state)
{
    kops_buffer_release(part);
    assert_int_equal(cuMemFree(memory), 0);
    return scene_end(state);
}

static enum kops_code square(struct scene *s)
{
    struct kops_tensor t = kops_vector(part, KOPS_F32, 4);

    t.offset = 16;
    return kops_square(s->client, &t, &t, NULL, NULL, &s->error);
}

static int use_no_driver(void *path)
{
    struct kops_connect_options options = {.socket = path};
    struct kops_error error;
    kops_client *client;
    kops_buffer *buffer;

    setenv("KOPS_CUDA_DRIVER", "/nonexistent/libcuda.so", 1);
    if (kops_connect(&options, &client, &error))
        return 1;
    if (kops_buffer_register_cuda(client, 4096, KOPS_ACCESS_RW, &buffer, &error) != KOPS_ERR_NO_CUDA)
        return 2;
    if (!strstr(error.message, "/nonexistent/libcuda.so"))
        return 3;
    return kops_ping(client, 0, &error) ? 4 : 0;
}

/* First, while this process has not loaded a driver yet. */
TEST(without_a_driver)
{
    struct fake *f = fake_start(fake_serve_well, NULL);

    in_child(use_no_driver, (void *)(uintptr_t)fake_path(f));
    fake_stop(f);
}

/* What the daemon is told of the memory, besides its handle. */
static void assert_told(struct scene *s)
{
    const struct scripted seen = scene_seen(s);
    unsigned long long id;
    char expected[3][128];

    assert_int_equal(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, memory), 0);
    snprintf(expected[0], sizeof(expected[0]), "size: %zu", memory_size);
    snprintf(expected[1], sizeof(expected[1]), "alloc_id: %llu", id);
    snprintf(expected[2], sizeof(expected[2]), "device: '%s'", kops_buffer_device(part));
    assert_non_null(strstr(seen.asked, "kind: 'cuda_ipc'"));
    for (int i = 0; i < 3; i++)
        assert_non_null(strstr(seen.asked, expected[i]));
}

#define WITH_PART(name) TEST_OF(struct scene *s, name, begin, end)

WITH_PART(from_the_middle_of_an_allocation)
{
    const uint64_t place = memory + MIDDLE - base;
    char expected[64];
    uint64_t mapped;

    assert_told(s);
    assert_memory_equal(kops_buffer_device(part), "GPU-", 4);
    assert_int_equal(strlen(kops_buffer_device(part)), 40);
    assert_int_equal(kops_buffer_base_offset(part), place);
    assert_int_equal(kops_buffer_size(part), memory_size - place);
    assert_null(kops_buffer_data(part));
    assert_ok(kops_buffer_map_cuda(part, &mapped, &s->error));
    assert_int_equal(mapped, memory + MIDDLE);

    scene_script(s, "", NULL);
    assert_ok(square(s));
    snprintf(expected, sizeof(expected), "in: [{buffer: 1, offset: %llu,", (unsigned long long)place + 16);
    assert_non_null(strstr(scene_seen(s).asked, expected));
}

/* Its place tells the alignment, its device is the one that is meant; the daemon does not get to know the memory. */
WITH_PART(memory_is_tuned_for_where_it_lies)
{
    struct kops_tensor t = kops_vector(part, KOPS_F32, 16);
    const struct kops_request request = {.op = "square", .inputs = &t, .n_inputs = 1, .outputs = &t, .n_outputs = 1};
    struct kops_tune *tune;
    char expected[256];

    t.offset = 8;
    scene_answer(s, "tune", "{candidates: [{}], best: 0, before: 0, usual: 0}");
    assert_ok(kops_tune(s->client, &request, &tune, NULL));
    snprintf(expected, sizeof(expected),
             "{op: 'square', in: [{offset: %llu, shape: [16], dtype: 'f32'}],"
             " out: [{offset: %llu, shape: [16], dtype: 'f32'}], device: '%s'}",
             (unsigned long long)(memory + MIDDLE + 8 - base), (unsigned long long)(memory + MIDDLE + 8 - base),
             kops_buffer_device(part));
    scene_asked(s, expected);
    kops_tune_free(tune);
}

WITH_PART(without_a_current_context)
{
    kops_buffer *buffer;
    char out[5] = "";

    assert_int_equal(cuCtxSetCurrent(NULL), 0);
    assert_ok(kops_buffer_register_cuda(s->client, memory, KOPS_ACCESS_RW, &buffer, &s->error));
    assert_ok(kops_buffer_write(buffer, 8, "four", 5, &s->error));
    assert_ok(kops_buffer_read(buffer, 8, out, 5, &s->error));
    assert_string_equal(out, "four");
    assert_int_equal(kops_buffer_write(buffer, memory_size - 1, "xy", 2, &s->error), KOPS_ERR_BAD_ARGUMENT);
    kops_buffer_release(buffer);
    assert_int_equal(cuCtxSetCurrent(context), 0);
}

WITH_PART(what_cannot_be_exported)
{
    const unsigned registered = scene_seen(s).registered;
    CUdeviceptr pooled;
    int local = 0;
    kops_buffer *buffer;

    assert_int_equal(cuMemAllocAsync(&pooled, 4096, NULL), 0);
    assert_int_equal(kops_buffer_register_cuda(s->client, (uintptr_t)&local, KOPS_ACCESS_RW, &buffer, &s->error),
                     KOPS_ERR_NOT_EXPORTABLE);
    assert_non_null(strstr(s->error.message, "kops_buffer_alloc_shared"));
    assert_int_equal(kops_buffer_register_cuda(s->client, pooled, KOPS_ACCESS_RW, &buffer, &s->error),
                     KOPS_ERR_NOT_EXPORTABLE);
    assert_non_null(strstr(s->error.message, "cudaMalloc"));
    assert_int_equal(scene_seen(s).registered, registered);
}

static int use_memory_of_the_parent(void *scene)
{
    struct scene *s = scene;

    if (square(s) != KOPS_ERR_NOT_EXPORTABLE)
        return 1;
    kops_buffer_release(part);
    return kops_ping(s->client, 0, &s->error) ? 2 : 0;
}

/* A child of this process has no CUDA to speak of. */
WITH_PART(registered_anew_but_not_in_a_child)
{
    scene_script(s, "x", NULL);
    assert_int_equal(square(s), KOPS_ERR_CONNECTION_LOST);
    scene_script(s, "", "register");
    assert_ok(square(s));
    assert_int_equal(scene_seen(s).registered, 2);
    assert_told(s);
    in_child(use_memory_of_the_parent, s);
    assert_ok(square(s));
}

/* ---- memory that the daemon made ---- */

enum { CHUNK = 2 << 20 };

/* Answers alloc with device memory, by its descriptor. */
static void serve_vmm(struct fake_connection *c, void *context_)
{
    const int *fd = context_;
    struct fake_request r;

    while (fake_next(c, &r)) {
        if (!strcmp(r.method, "alloc"))
            fake_reply_with_fds(c, r.msgid, fd, 1, "{buffer: 5, size: %d, kind: 'cuda_vmm', nfds: 1, fd: 0}", CHUNK);
        else
            fake_answer(c, &r);
    }
}

WITH_PART(maps_device_memory_of_the_daemon)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle allocation;
    kops_buffer *buffer;
    struct scene *maker;
    uint64_t mapped, again;
    CUdeviceptr none;
    char text[5] = "";
    size_t size;
    int fd;

    assert_int_equal(cuMemCreate(&allocation, CHUNK, &prop, 0), 0);
    assert_int_equal(cuMemExportToShareableHandle(&fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), 0);
    fake_device = kops_buffer_device(part); /* as the stand-in's device is called */
    maker = scene_serve(serve_vmm, &fd, NULL);
    assert_ok(kops_buffer_alloc(maker->client, 1000, NULL, &buffer, &s->error));
    assert_int_equal(kops_buffer_size(buffer), CHUNK);
    assert_null(kops_buffer_data(buffer));
    assert_string_equal(kops_buffer_device(buffer), kops_buffer_device(part));
    assert_ok(kops_buffer_map_cuda(buffer, &mapped, &s->error));
    assert_ok(kops_buffer_write(buffer, CHUNK - 5, "tail", 5, &s->error));
    assert_int_equal(cuMemcpyDtoH(text, mapped + CHUNK - 5, 5), 0);
    assert_string_equal(text, "tail");
    assert_ok(kops_buffer_map_cuda(buffer, &again, &s->error));
    assert_int_equal(again, mapped);
    kops_buffer_release(buffer);
    assert_int_not_equal(cuMemGetAddressRange(&none, &size, mapped), 0); /* unmapped */
    scene_stop(maker);
    cuMemRelease(allocation);
    close(fd);
}
