/* What a well-behaved daemon answers. */
#include "fake.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_uint_fast64_t inflight = 64, spin_us;
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

void fake_set_spin(uint64_t us)
{
    atomic_store(&spin_us, us);
}

void fake_set_inflight(uint64_t value)
{
    atomic_store(&inflight, value);
}

static void text(msgpack_packer *p, const char *t)
{
    msgpack_pack_str_with_body(p, t, strlen(t));
}

static void text_pair(msgpack_packer *p, const char *key, const char *value)
{
    text(p, key);
    text(p, value);
}

static void uint_pair(msgpack_packer *p, const char *key, uint64_t value)
{
    text(p, key);
    msgpack_pack_uint64(p, value);
}

static void device(msgpack_packer *p)
{
    msgpack_pack_map(p, 8);
    uint_pair(p, "index", 0);
    text_pair(p, "name", "a processor");
    text_pair(p, "uuid", atomic_load(&device_uuid));
    text_pair(p, "backend", strcmp(atomic_load(&device_uuid), "host") != 0 ? "cuda" : "host");
    uint_pair(p, "memory_bytes", 1 << 30);
    uint_pair(p, "compute_units", 4);
    text_pair(p, "arch", "avx2");
    text(p, "default");
    msgpack_pack_true(p);
}

static void text_list(msgpack_packer *p, const char *key, unsigned n, const char *const *values)
{
    text(p, key);
    msgpack_pack_array(p, n);
    for (unsigned i = 0; i < n; i++)
        text(p, values[i]);
}

static void op(msgpack_packer *p)
{
    msgpack_pack_map(p, 8);
    text_pair(p, "name", "gemm");
    text_pair(p, "summary", "out = a @ b");
    text_pair(p, "doc", "Matrix product.");
    text_list(p, "inputs", 2, (const char *const[]){"a", "b"});
    text_list(p, "outputs", 1, (const char *const[]){"out"});
    text_list(p, "dtypes", 2, (const char *const[]){"f32", "f64"});
    text(p, "attrs");
    msgpack_pack_array(p, 2);
    msgpack_pack_map(p, 4);
    text_pair(p, "name", "alpha");
    text_pair(p, "type", "float");
    text(p, "default");
    msgpack_pack_double(p, 1.0);
    text_pair(p, "doc", "Scales.");
    msgpack_pack_map(p, 5);
    text_pair(p, "name", "precision");
    text_pair(p, "type", "choice");
    text_pair(p, "default", "highest");
    text_list(p, "choices", 2, (const char *const[]){"highest", "high"});
    text_pair(p, "doc", "How exact.");
    text(p, "variants");
    msgpack_pack_map(p, 1);
    text_list(p, "host", 2, (const char *const[]){"blas", "blocked"});
}

static void answer_hello(struct fake_connection *c, uint32_t msgid)
{
    const char *const *list = atomic_load(&features);
    unsigned n_features = 0;
    msgpack_sbuffer b;
    msgpack_packer p;

    while (list[n_features])
        n_features++;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msgpack_pack_map(&p, 10);
    text_pair(&p, "server", "kopsd 9.8.7");
    uint_pair(&p, "protocol", 1);
    uint_pair(&p, "protocol_min", 1);
    uint_pair(&p, "pid", 4711);
    text(&p, "devices");
    msgpack_pack_array(&p, 1);
    device(&p);
    text(&p, "ops");
    msgpack_pack_array(&p, 1);
    op(&p);
    text(&p, "limits");
    msgpack_pack_map(&p, 5);
    uint_pair(&p, "spin_us", atomic_load(&spin_us));
    uint_pair(&p, "sequence_ops", 1024);
    uint_pair(&p, "message_bytes", 100000);
    uint_pair(&p, "inflight", atomic_load(&inflight));
    uint_pair(&p, "rank", 8);
    text_list(&p, "features", n_features, list);
    text_pair(&p, "of_the_future", "ignored");
    text(&p, "kernels");
    msgpack_pack_map(&p, 4);
    text_pair(&p, "compiler", "NVRTC 9.8");
    text_pair(&p, "policy", "group");
    text(&p, "allowed");
    msgpack_pack_true(&p);
    text_list(&p, "arch", 1, (const char *const[]){""});
    fake_reply_map(c, msgid, &b);
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
    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msgpack_pack_map(&p, alloc ? 5 : 2);
    uint_pair(&p, "buffer", ++c->next_buffer);
    uint_pair(&p, "size", size);
    if (alloc) {
        text_pair(&p, "kind", "memfd");
        uint_pair(&p, "nfds", 1);
        uint_pair(&p, "fd", 0);
    }
    fake_reply_map_with_fds(c, r->msgid, &b, &fd, alloc);
    if (alloc)
        close(fd);
}

/* Of a module or a kernel, about which nothing more is told. */
static void answer_id(struct fake_connection *c, const struct fake_request *r, const char *key)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msgpack_pack_map(&p, 1);
    uint_pair(&p, key, ++c->next_buffer);
    fake_reply_map(c, r->msgid, &b);
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
        answer_hello(c, r->msgid);
    else if (!strcmp(r->method, "timelines"))
        fake_answer_timelines(c, r->msgid);
    else if (!strcmp(r->method, "register") || !strcmp(r->method, "alloc"))
        answer_buffer(c, r);
    else if (!strcmp(r->method, "compile"))
        answer_id(c, r, "module");
    else if (!strcmp(r->method, "kernel"))
        answer_id(c, r, "kernel");
    else if (!strcmp(r->method, "program"))
        answer_id(c, r, "program");
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
