/* Device memory, with a driver that keeps it in host memory (tests/standin_cuda), named by KOPS_CUDA_DRIVER. */
#include <cuda.h>
#include <stdio.h>
#include <unistd.h>

#include "driver.h"
#include "scene.h"

/* A part of the device's memory, and its registration, from the middle of its allocation on. */
struct part {
    struct scene *s;
    kops_buffer *buffer;
    uint64_t memory, base; /* of the allocation */
    size_t size;
};

enum { MIDDLE = 528 };

static int begin(void **state)
{
    struct part *p = calloc(1, sizeof(*p));

    if (!context)
        load(NULL);
    p->s = scene_start(NULL);
    p->memory = allocate(10000);
    assert_int_equal(cu.range(&p->base, &p->size, p->memory), 0);
    scene_script(p->s, "", "register");
    assert_ok(kops_buffer_register_cuda(p->s->client, p->memory + MIDDLE, KOPS_ACCESS_RW, &p->buffer, &p->s->error));
    *state = p;
    return 0;
}

static int end(void **state)
{
    struct part *p = *state;

    kops_buffer_release(p->buffer);
    scene_stop(p->s);
    assert_int_equal(cu.mem_free(p->memory), 0);
    free(p);
    return 0;
}

static enum kops_code square(struct part *p)
{
    struct kops_tensor t = kops_vector(p->buffer, KOPS_F32, 4);

    t.offset = 16;
    return kops_square(p->s->client, &t, &t, NULL, NULL, &p->s->error);
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

/* The start of what the daemon is told of the memory, up to its handle. */
static void assert_told(struct part *p, char *ret_asked, size_t size)
{
    unsigned long long id;
    char expected[128];

    snprintf(ret_asked, size, "%s", scene_seen(p->s).asked);
    assert_int_equal(cu.attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p->memory), 0);
    snprintf(expected, sizeof(expected), "size: %zu", p->size);
    assert_non_null(strstr(ret_asked, expected));
    snprintf(expected, sizeof(expected), "alloc_id: %llu", id);
    assert_non_null(strstr(ret_asked, expected));
    snprintf(expected, sizeof(expected), "device: '%s'", kops_buffer_device(p->buffer));
    assert_non_null(strstr(ret_asked, expected));
    assert_non_null(strstr(ret_asked, "kind: 'cuda_ipc'"));
}

#define WITH_PART(name) TEST_OF(struct part *p, name, begin, end)

WITH_PART(from_the_middle_of_an_allocation)
{
    const uint64_t place = p->memory + MIDDLE - p->base;
    char asked[1024], expected[64];
    uint64_t mapped;

    assert_told(p, asked, sizeof(asked));
    assert_memory_equal(kops_buffer_device(p->buffer), "GPU-", 4);
    assert_int_equal(strlen(kops_buffer_device(p->buffer)), 40);
    assert_int_equal(kops_buffer_base_offset(p->buffer), place);
    assert_int_equal(kops_buffer_size(p->buffer), p->size - place);
    assert_null(kops_buffer_data(p->buffer));
    assert_ok(kops_buffer_map_cuda(p->buffer, &mapped, &p->s->error));
    assert_int_equal(mapped, p->memory + MIDDLE);

    scene_script(p->s, "", NULL);
    assert_ok(square(p));
    snprintf(expected, sizeof(expected), "in: [{buffer: 1, offset: %llu,", (unsigned long long)place + 16);
    assert_non_null(strstr(scene_seen(p->s).asked, expected));
}

/* Its place tells the alignment, its device is the one that is meant; the daemon does not get to know the memory. */
WITH_PART(memory_is_tuned_for_where_it_lies)
{
    struct kops_tensor t = kops_vector(p->buffer, KOPS_F32, 16);
    const struct kops_request request = {.op = "square", .inputs = &t, .n_inputs = 1, .outputs = &t, .n_outputs = 1};
    struct kops_tune *tune;
    char expected[256];

    t.offset = 8;
    scene_answer(p->s, "tune", "{candidates: [{}], best: 0, before: 0, usual: 0}");
    assert_ok(kops_tune(p->s->client, &request, &tune, NULL));
    snprintf(expected, sizeof(expected),
             "{op: 'square', in: [{offset: %llu, shape: [16], dtype: 'f32'}],"
             " out: [{offset: %llu, shape: [16], dtype: 'f32'}], device: '%s'}",
             (unsigned long long)(p->memory + MIDDLE + 8 - p->base),
             (unsigned long long)(p->memory + MIDDLE + 8 - p->base), kops_buffer_device(p->buffer));
    assert_string_equal(scene_seen(p->s).asked, expected);
    kops_tune_free(tune);
}

WITH_PART(without_a_current_context)
{
    kops_buffer *buffer;
    char out[5] = "";

    assert_int_equal(cu.set(NULL), 0);
    assert_ok(kops_buffer_register_cuda(p->s->client, p->memory, KOPS_ACCESS_RW, &buffer, &p->s->error));
    assert_ok(kops_buffer_write(buffer, 8, "four", 5, &p->s->error));
    assert_ok(kops_buffer_read(buffer, 8, out, 5, &p->s->error));
    assert_string_equal(out, "four");
    assert_int_equal(kops_buffer_write(buffer, p->size - 1, "xy", 2, &p->s->error), KOPS_ERR_BAD_ARGUMENT);
    kops_buffer_release(buffer);
    assert_int_equal(cu.set(context), 0);
}

WITH_PART(what_cannot_be_exported)
{
    const unsigned registered = scene_seen(p->s).registered;
    uint64_t pooled;
    int local = 0;
    kops_buffer *buffer;

    assert_int_equal(cu.alloc_async(&pooled, 4096, NULL), 0);
    assert_int_equal(kops_buffer_register_cuda(p->s->client, (uintptr_t)&local, KOPS_ACCESS_RW, &buffer, &p->s->error),
                     KOPS_ERR_NOT_EXPORTABLE);
    assert_non_null(strstr(p->s->error.message, "kops_buffer_alloc_shared"));
    assert_int_equal(kops_buffer_register_cuda(p->s->client, pooled, KOPS_ACCESS_RW, &buffer, &p->s->error),
                     KOPS_ERR_NOT_EXPORTABLE);
    assert_non_null(strstr(p->s->error.message, "cudaMalloc"));
    assert_int_equal(scene_seen(p->s).registered, registered);
}

static int use_memory_of_the_parent(void *context_)
{
    struct part *p = context_;

    if (square(p) != KOPS_ERR_NOT_EXPORTABLE)
        return 1;
    kops_buffer_release(p->buffer);
    return kops_ping(p->s->client, 0, &p->s->error) ? 2 : 0;
}

/* The handle of each registration. */
struct handles {
    unsigned char bytes[2][64];
    unsigned n;
};

static void look_at_handle(void *context_, const struct fake_request *r)
{
    const msgpack_object *handle = fake_param(&r->params, "handle");
    struct handles *h = context_;

    if (!handle || h->n == 2)
        return;
    must(handle->type == MSGPACK_OBJECT_BIN && handle->via.bin.size == 64);
    memcpy(h->bytes[h->n++], handle->via.bin.ptr, 64);
}

/* A daemon that was restarted gets the same handle; a child of this process has no CUDA to speak of. */
WITH_PART(registered_anew_but_not_in_a_child)
{
    struct handles handles = {.n = 0};
    kops_buffer *again;
    char asked[1024];

    p->s->d.context = &handles;
    p->s->d.look_at = look_at_handle;
    assert_ok(kops_buffer_register_cuda(p->s->client, p->memory + MIDDLE, KOPS_ACCESS_RW, &again, &p->s->error));
    kops_buffer_release(again);
    scene_script(p->s, "x", NULL);
    assert_int_equal(square(p), KOPS_ERR_CONNECTION_LOST);
    scene_script(p->s, "", "register");
    assert_ok(square(p));
    assert_int_equal(scene_seen(p->s).registered, 3);
    assert_int_equal(handles.n, 2);
    assert_memory_equal(handles.bytes[0], handles.bytes[1], 64);
    assert_told(p, asked, sizeof(asked));
    in_child(use_memory_of_the_parent, p);
    assert_ok(square(p));
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
    struct scene *s;
    uint64_t mapped, again;
    char text[5] = "";
    size_t size;
    int fd;

    assert_int_equal(cu.create(&allocation, CHUNK, &prop, 0), 0);
    assert_int_equal(cu.export(&fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), 0);
    fake_device = kops_buffer_device(p->buffer); /* as the stand-in's device is called */
    s = scene_serve(serve_vmm, &fd, NULL);
    assert_ok(kops_buffer_alloc(s->client, 1000, NULL, &buffer, &s->error));
    assert_int_equal(kops_buffer_size(buffer), CHUNK);
    assert_null(kops_buffer_data(buffer));
    assert_string_equal(kops_buffer_device(buffer), kops_buffer_device(p->buffer));
    assert_ok(kops_buffer_map_cuda(buffer, &mapped, &s->error));
    assert_ok(kops_buffer_write(buffer, CHUNK - 5, "tail", 5, &s->error));
    assert_int_equal(cu.to_host(text, mapped + CHUNK - 5, 5), 0);
    assert_string_equal(text, "tail");
    assert_ok(kops_buffer_map_cuda(buffer, &again, &s->error));
    assert_int_equal(again, mapped);
    kops_buffer_release(buffer);
    assert_int_not_equal(cu.range(&again, &size, mapped), 0); /* unmapped */
    scene_stop(s);
    cu.release(allocation);
    close(fd);
}
