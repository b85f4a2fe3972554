/* What a well-behaved daemon answers. */
#include "fake.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_uint_fast64_t inflight = 64;
static const char *const all_features[] = {"memfd", "shm", "ordered", "sequence", "program", "priority", "tune", NULL};
static _Atomic(const char *const *) features = all_features;
static _Atomic(const char *) device_uuid = "host";

void fake_set_device(const char *uuid)
{
    atomic_store(&device_uuid, uuid ? uuid : "host");
}

void fake_set_features(const char *const *list)
{
    atomic_store(&features, list ? list : all_features);
}

void fake_set_inflight(uint64_t value)
{
    atomic_store(&inflight, value);
}

static void answer_hello(struct fake_connection *c, const struct fake_request *r)
{
    const char *const *list = atomic_load(&features), *const uuid = atomic_load(&device_uuid);
    const msgpack_object *isolate = fake_param(&r->params, "isolate");
    char isolation[32] = "'user'", said[256] = "";

    for (; *list; list++)
        snprintf(said + strlen(said), sizeof(said) - strlen(said), "'%s', ", *list);
    if (isolate)
        fake_print(isolate, isolation, sizeof(isolation));
    fake_reply(c, r->msgid,
               "{isolation: %s, server: 'kopsd 9.8.7', protocol: 1, protocol_min: 1, pid: 4711,"
               " devices: [{index: 0, name: 'a processor', uuid: '%s', backend: '%s', memory_bytes: 1073741824,"
               "            compute_units: 4, arch: 'avx2', default: true}],"
               " ops: [{name: 'gemm', summary: 'out = a @ b', doc: 'Matrix product.', inputs: ['a', 'b'],"
               "        outputs: ['out'], dtypes: ['f32', 'f64'],"
               "        attrs: [{name: 'alpha', type: 'float', default: 1.0, doc: 'Scales.'},"
               "                {name: 'precision', type: 'choice', default: 'highest', choices: ['highest', 'high'],"
               "                 doc: 'How exact.'}],"
               "        variants: {host: ['blas', 'blocked']}}],"
               " limits: {spin_us: 0, sequence_ops: 1024, message_bytes: 100000, inflight: %llu, rank: 8},"
               " features: [%s], of_the_future: 'ignored',"
               " kernels: {compiler: 'NVRTC 9.8', policy: 'group', allowed: true, arch: ['']}}",
               isolation, uuid, strcmp(uuid, "host") != 0 ? "cuda" : "host", (unsigned long long)atomic_load(&inflight),
               said);
}

/* Of 4096 bytes where no size is given: the answer to a request that is kept without its parameters. */
static void answer_buffer(struct fake_connection *c, const struct fake_request *r)
{
    const unsigned long long id = ++c->next_buffer;
    const msgpack_object *given = fake_param(&r->params, "size");
    const unsigned long long size = given ? given->via.u64 : 4096;
    int fd;

    if (!strcmp(r->method, "register")) {
        fake_reply(c, r->msgid, "{buffer: %llu, size: %llu}", id, size);
        return;
    }
    fd = memfd_create("fake", MFD_CLOEXEC);
    must(!ftruncate(fd, (off_t)size));
    fake_reply_with_fds(c, r->msgid, &fd, 1, "{buffer: %llu, size: %llu, kind: 'memfd', nfds: 1, fd: 0}", id, size);
    close(fd);
}

static void answer_compile(struct fake_connection *c, const struct fake_request *r)
{
    fake_reply(c, r->msgid,
               "{module: %llu, key: '0123', arch: 'sm_90a', cached: '%s', compile_us: 25000.5, log: 'a warning',"
               " entries: [{name: 'f', lowered: '_Z1fPf', registers: 32, params: [8, 4]}]}",
               (unsigned long long)++c->next_buffer, c->number > 1 ? "memory" : "no");
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
        answer_compile(c, r);
    else if (!strcmp(r->method, "kernel") || !strcmp(r->method, "program"))
        fake_reply(c, r->msgid, "{%s: %llu}", r->method, (unsigned long long)++c->next_buffer);
    else if (fake_is_work(r->method))
        fake_reply_run(c, r->msgid, "simple");
    else
        fake_reply(c, r->msgid, "{}");
}

bool fake_is_work(const char *method)
{
    return !strcmp(method, "run") || !strcmp(method, "launch") || !strcmp(method, "sequence") ||
           !strcmp(method, "run_program");
}

void fake_serve_well(struct fake_connection *c, void *context)
{
    struct fake_request r;

    while (fake_next(c, &r))
        fake_answer(c, &r);
}
