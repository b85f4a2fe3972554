/* What a well-behaved daemon answers. */
#include "fake.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_uint_fast64_t inflight = 64;
static const char *const plain_features[] = {"memfd", NULL};
static _Atomic(const char *const *) features = plain_features;
static _Atomic(const char *) device_uuid = "host";

void fake_set_device(const char *uuid)
{
    atomic_store(&device_uuid, uuid ? uuid : "host");
}

void fake_set_features(const char *const *list)
{
    atomic_store(&features, list ? list : plain_features);
}

void fake_set_inflight(uint64_t value)
{
    atomic_store(&inflight, value);
}

static void device(msgpack_packer *p)
{
    msgpack_pack_map(p, 8);
    fake_uint_pair(p, "index", 0);
    fake_text_pair(p, "name", "a processor");
    fake_text_pair(p, "uuid", atomic_load(&device_uuid));
    fake_text_pair(p, "backend", strcmp(atomic_load(&device_uuid), "host") != 0 ? "cuda" : "host");
    fake_uint_pair(p, "memory_bytes", 1 << 30);
    fake_uint_pair(p, "compute_units", 4);
    fake_text_pair(p, "arch", "avx2");
    fake_text(p, "default");
    msgpack_pack_true(p);
}

static void text_list(msgpack_packer *p, const char *key, unsigned n, const char *const *values)
{
    fake_text(p, key);
    msgpack_pack_array(p, n);
    for (unsigned i = 0; i < n; i++)
        fake_text(p, values[i]);
}

static void op(msgpack_packer *p)
{
    msgpack_pack_map(p, 8);
    fake_text_pair(p, "name", "gemm");
    fake_text_pair(p, "summary", "out = a @ b");
    fake_text_pair(p, "doc", "Matrix product.");
    text_list(p, "inputs", 2, (const char *const[]){"a", "b"});
    text_list(p, "outputs", 1, (const char *const[]){"out"});
    text_list(p, "dtypes", 2, (const char *const[]){"f32", "f64"});
    fake_text(p, "attrs");
    msgpack_pack_array(p, 2);
    msgpack_pack_map(p, 4);
    fake_text_pair(p, "name", "alpha");
    fake_text_pair(p, "type", "float");
    fake_text(p, "default");
    msgpack_pack_double(p, 1.0);
    fake_text_pair(p, "doc", "Scales.");
    msgpack_pack_map(p, 5);
    fake_text_pair(p, "name", "precision");
    fake_text_pair(p, "type", "choice");
    fake_text_pair(p, "default", "highest");
    text_list(p, "choices", 2, (const char *const[]){"highest", "high"});
    fake_text_pair(p, "doc", "How exact.");
    fake_text(p, "variants");
    msgpack_pack_map(p, 1);
    text_list(p, "host", 2, (const char *const[]){"blas", "blocked"});
}

static void answer_hello(struct fake_connection *c, const struct fake_request *r)
{
    const msgpack_object *isolate = fake_param(&r->params, "isolate");
    const char *const *list = atomic_load(&features);
    unsigned n_features = 0;
    msgpack_sbuffer b;
    msgpack_packer p;

    while (list[n_features])
        n_features++;

    fake_begin(&b, &p, 11);
    fake_text(&p, "isolation");
    if (isolate)
        msgpack_pack_object(&p, *isolate);
    else
        fake_text(&p, "user");
    fake_text_pair(&p, "server", "kopsd 9.8.7");
    fake_uint_pair(&p, "protocol", 1);
    fake_uint_pair(&p, "protocol_min", 1);
    fake_uint_pair(&p, "pid", 4711);
    fake_text(&p, "devices");
    msgpack_pack_array(&p, 1);
    device(&p);
    fake_text(&p, "ops");
    msgpack_pack_array(&p, 1);
    op(&p);
    fake_text(&p, "limits");
    msgpack_pack_map(&p, 5);
    fake_uint_pair(&p, "spin_us", 0);
    fake_uint_pair(&p, "sequence_ops", 1024);
    fake_uint_pair(&p, "message_bytes", 100000);
    fake_uint_pair(&p, "inflight", atomic_load(&inflight));
    fake_uint_pair(&p, "rank", 8);
    text_list(&p, "features", n_features, list);
    fake_text_pair(&p, "of_the_future", "ignored");
    fake_text(&p, "kernels");
    msgpack_pack_map(&p, 4);
    fake_text_pair(&p, "compiler", "NVRTC 9.8");
    fake_text_pair(&p, "policy", "group");
    fake_text(&p, "allowed");
    msgpack_pack_true(&p);
    text_list(&p, "arch", 1, (const char *const[]){""});
    fake_reply_map(c, r->msgid, &b);
}

static void answer_buffer(struct fake_connection *c, const struct fake_request *r)
{
    bool alloc = !strcmp(r->method, "alloc");
    int fd = alloc ? memfd_create("fake", MFD_CLOEXEC) : -1;
    uint64_t size = fake_param(&r->params, "size")->via.u64;
    msgpack_sbuffer b;
    msgpack_packer p;

    if (alloc && ftruncate(fd, (off_t)size))
        abort();
    fake_begin(&b, &p, alloc ? 5 : 2);
    fake_uint_pair(&p, "buffer", ++c->next_buffer);
    fake_uint_pair(&p, "size", size);
    if (alloc) {
        fake_text_pair(&p, "kind", "memfd");
        fake_uint_pair(&p, "nfds", 1);
        fake_uint_pair(&p, "fd", 0);
    }
    fake_reply_map_with_fds(c, r->msgid, &b, &fd, alloc);
    if (alloc)
        close(fd);
}

void fake_answer(struct fake_connection *c, const struct fake_request *r)
{
    for (unsigned i = 0; i < r->n_fds; i++)
        close(r->fds[i]);
    if (r->type != 0)
        return;
    if (!strcmp(r->method, "hello") && fake_param(&r->params, "shm"))
        fake_shm_answer_hello(c, r->msgid);
    else if (!strcmp(r->method, "hello"))
        answer_hello(c, r);
    else if (!strcmp(r->method, "timelines"))
        fake_answer_timelines(c, r->msgid);
    else if (!strcmp(r->method, "register") || !strcmp(r->method, "alloc"))
        answer_buffer(c, r);
    else if (!strcmp(r->method, "compile"))
        fake_reply_id(c, r->msgid, "module", ++c->next_buffer);
    else if (!strcmp(r->method, "kernel"))
        fake_reply_id(c, r->msgid, "kernel", ++c->next_buffer);
    else if (!strcmp(r->method, "program"))
        fake_reply_id(c, r->msgid, "program", ++c->next_buffer);
    else if (!strcmp(r->method, "run") || !strcmp(r->method, "launch") || !strcmp(r->method, "sequence") ||
             !strcmp(r->method, "run_program"))
        fake_reply_run(c, r->msgid, "simple");
    else
        fake_reply_empty(c, r->msgid);
}

void fake_serve_well(struct fake_connection *c, void *context)
{
    struct fake_request r;

    (void)context;
    while (fake_next(c, &r))
        fake_answer(c, &r);
}
