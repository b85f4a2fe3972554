/* The golden vectors that concern a client, bytes that it must produce, take, and refuse; and kernels as bytes. */
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "golden_vectors.h"
#include "scene.h"
#include "session/client.h"

static const struct golden_vector *find(const char *name)
{
    for (size_t i = 0; i < sizeof(golden_vectors) / sizeof(golden_vectors[0]); i++)
        if (!strcmp(golden_vectors[i].name, name))
            return &golden_vectors[i];
    fail_msg("no vector %s", name);
    return NULL;
}

/* ---- bytes that it must produce ---- */

static void produces(const char *name, wire_pack *pack, const void *request)
{
    const struct golden_vector *v = find(name);
    struct bytes out = {0};

    pack(&out, 1, request);
    print_message("%s\n", name);
    assert_int_equal(out.length, v->length);
    assert_memory_equal(out.data, v->bytes, v->length);
    bytes_free(&out);
}

TEST(requests_are_canonical)
{
    static const int64_t nothing[1] = {0}, shapes[3][2] = {{0, 1}, {1, 0}, {0, 0}};
    struct native_tensor tensors[3];
    const struct kops_attr attrs[2] = {kops_attr_int("alpha", 2), kops_attr_int("beta", -1)};
    struct wire_run run = {.op = "add", .n_inputs = 2, .n_outputs = 1, .tensors = tensors};
    static const uint32_t first[2] = {0, 0}, second[1] = {1}, add_places[3] = {0, 0, 1}, square_places[2] = {1, 1};
    const struct kops_step steps[2] = {
        {.op = "add", .inputs = first, .n_inputs = 2, .outputs = second, .n_outputs = 1},
        {.op = "square", .inputs = second, .n_inputs = 1, .outputs = second, .n_outputs = 1}};
    const struct wire_how how = {.stream = 3, .no_timing = true, .priority = "high"};
    const struct wire_sequence sequence = {
        .tensors = tensors, .n_tensors = 2, .steps = steps, .n_steps = 2, .how = how};
    const struct wire_run square = {.op = "square", .n_inputs = 1, .n_outputs = 1};
    struct bytes packed_tensors = {0}, packed_ops = {0};
    const struct wire_gathered gathered = {
        .tensors = &packed_tensors, .ops = &packed_ops, .n_tensors = 2, .n_ops = 2, .how = how};

    for (int i = 0; i < 3; i++)
        tensors[i] = (struct native_tensor){.shape = nothing, .rank = 1, .dtype = KOPS_F32};
    wire_gather_tensor(&packed_tensors, &tensors[0]);
    wire_gather_tensor(&packed_tensors, &tensors[1]);
    wire_gather_op(&packed_ops, &run, add_places);
    wire_gather_op(&packed_ops, &square, square_places);
    produces("ping_empty", wire_pack_plain, "ping");
    produces("hello_complete", wire_pack_hello,
             &(struct wire_hello){.client = "golden 1.0", .protocol = WIRE_PROTOCOL});
    produces("register_memfd_read_only", wire_pack_register,
             &(struct wire_register){.kind = "memfd", .size = 1, .fd = true, .access = KOPS_ACCESS_R});
    produces("alloc_minimal", wire_pack_alloc, &(struct wire_alloc){.size = 4096});
    produces("stats_minimal", wire_pack_stats, &(struct kops_stats_filter){0});
    produces("run_empty", wire_pack_run, &run);
    produces("sequence_empty", wire_pack_sequence, &sequence);
    produces("sequence_empty", wire_pack_gathered, &gathered);
    produces("program_empty", wire_pack_program, &sequence);

    for (int i = 0; i < 3; i++)
        tensors[i] = (struct native_tensor){.shape = shapes[i], .rank = 2, .dtype = KOPS_F32};
    run.op = "gemm";
    run.attrs = attrs;
    run.n_attrs = 2;
    produces("run_int_for_float", wire_pack_run, &run);
    bytes_free(&packed_tensors);
    bytes_free(&packed_ops);
}

/* ---- and others, of kernels, as text ---- */

static void assert_packs(wire_pack *pack, const void *request, const char *method, const char *parameters)
{
    struct bytes out = {0};
    char message[2048];

    snprintf(message, sizeof(message), "[0, 1, '%s', [%s]]", method, parameters);
    pack(&out, 1, request);
    assert_packed(out.data, out.length, message);
    bytes_free(&out);
}

static void assert_packs_source(const struct kops_source *source, const char *params)
{
    struct bytes packed = {0};
    struct wire_raw wire = {.method = "compile"};

    wire_pack_source(&packed, source);
    wire.params = packed.data;
    wire.length = packed.length;
    assert_packs(wire_pack_raw, &wire, "compile", params);
    bytes_free(&packed);
}

static void assert_packs_kernel(const struct kops_signature *signature, const char *params)
{
    struct bytes packed = {0};
    const struct wire_kernel wire = {3, &packed};

    wire_pack_signature(&packed, signature);
    assert_packs(wire_pack_kernel, &wire, "kernel", params);
    bytes_free(&packed);
}

TEST(sources)
{
    const char *const entries[] = {"f", "g<int>"}, *const options[] = {"-DN=4"};
    const struct kops_file files[] = {{"a.h", "int a;"}};
    const struct kops_source most = {.text = "s",
                                     .name = "k.cu",
                                     .files = files,
                                     .n_files = 1,
                                     .options = options,
                                     .n_options = 1,
                                     .entries = entries,
                                     .n_entries = 2,
                                     .arch = "sm_90a",
                                     .device = "1"};

    assert_packs_source(&(struct kops_source){.text = "s", .entries = entries, .n_entries = 1},
                        "{source: 's', entries: ['f']}");
    assert_packs_source(&most, "{source: 's', name: 'k.cu', files: {'a.h': 'int a;'}, options: ['-DN=4'],"
                               " entries: ['f', 'g<int>'], arch: 'sm_90a', device: 1}");
}

TEST(declarations)
{
    const struct kops_tensor_map least = {.rank = 1, .box = {"64"}};
    const struct kops_tensor_map most = {.rank = 2,
                                         .box = {"bm", "8"},
                                         .steps = {2, 0},
                                         .swizzle = 32,
                                         .interleave = 16,
                                         .l2 = 64,
                                         .nan = true,
                                         .tf32 = true};
    const struct kops_param params[] = {
        {.name = "c", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .rank = 2, .shape = {"n", NULL}},
        {.name = "a", .kind = KOPS_PARAM_IN, .dtype = KOPS_U8, .rank = 1, .elements = "2 * n", .align = 16},
        {.name = "b", .kind = KOPS_PARAM_INOUT, .dtype = KOPS_F64, .strided = true},
        {.name = "n", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_I32},
        {.name = "d", .kind = KOPS_PARAM_IN, .dtype = KOPS_F16, .map = &least},
        {.name = "e", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .map = &most},
        {.name = "s", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_U8, .lanes = 24}};
    const struct kops_signature signature = {
        .entry = "f",
        .params = params,
        .n_params = 7,
        .geometry = {.grid = {"ceil_div(n, 256)", "2"}, .block = {"256"}, .shared = "1024", .cluster = {"2"}},
        .alias = true,
        .cooperative = true,
        .pdl = true};

    assert_packs_kernel(&(struct kops_signature){.entry = "f"}, "{module: 3, entry: 'f', params: []}");
    assert_packs_kernel(
        &signature, "{module: 3, entry: 'f',"
                    " params: [{name: 'c', kind: 'out', dtype: 'f32', shape: ['n', null]},"
                    "          {name: 'a', kind: 'in', dtype: 'u8', rank: 1, elements: '2 * n', align: 16},"
                    "          {name: 'b', kind: 'inout', dtype: 'f64', strided: true},"
                    "          {name: 'n', kind: 'scalar', dtype: 'i32'},"
                    "          {name: 'd', kind: 'in', dtype: 'f16', map: {box: [64]}},"
                    "          {name: 'e', kind: 'out', dtype: 'f32', map: {box: ['bm', 8], steps: [2, 1], swizzle: 32,"
                    "           interleave: 16, l2: 64, nan: true, tf32: true}},"
                    "          {name: 's', kind: 'scalar', dtype: 'u8', lanes: 24}],"
                    " grid: ['ceil_div(n, 256)', 2], block: [256], shared: 1024, cluster: [2], alias: true,"
                    " cooperative: true, pdl: true}");
}

TEST(launches)
{
    const int64_t shape[] = {4};
    const struct native_tensor tensors[] = {{.buffer = 7, .shape = shape, .rank = 1, .dtype = KOPS_F32},
                                            {.buffer = 8, .offset = 64, .shape = shape, .rank = 1, .dtype = KOPS_F32}};
    const struct kops_argument args[] = {kops_arg_tensor(NULL), kops_arg_null(),         kops_arg_tensor(NULL),
                                         kops_arg_int(-5),      kops_arg_uint(1),        kops_arg_float(-2.0),
                                         kops_arg_bool(true),   kops_arg_bytes("xyz", 3)};
    const struct kops_launch_geometry geometry = {
        .grid = {2, {3, 1}}, .block = {1, {128}}, .cluster = {1, {2}}, .has_shared = true};
    const struct kops_launch_geometry huge = {.grid = {1, {INT64_C(1) << 40}}};
    struct wire_run run = {.kernel = 9, .n_inputs = 2, .tensors = tensors, .args = args, .n_args = 8};

    assert_packs(wire_pack_run, &run, "launch",
                 "{kernel: 9, args: [{buffer: 7, shape: [4], dtype: 'f32'}, null,"
                 " {buffer: 8, offset: 64, shape: [4], dtype: 'f32'}, -5, 1, -2.0, true, <xyz>]}");
    run.n_args = 0;
    run.launch_geometry = &geometry;
    run.how = (struct wire_how){.stream = 3, .ready = 4, .done = 5};
    assert_packs(wire_pack_run, &run, "launch",
                 "{kernel: 9, args: [], grid: [3, 1], block: [128], shared: 0, cluster: [2],"
                 " stream: 3, ready: 4, done: 5}");
    run.how = (struct wire_how){0};
    run.launch_geometry = &huge;
    assert_packs(wire_pack_run, &run, "launch", "{kernel: 9, args: [], grid: [1099511627776]}");
    /* As bindings give it: packed already. */
    run.launch_geometry = NULL;
    run.geometry = "\x81\xa4grid\x91\x07";
    run.geometry_length = 8;
    assert_packs(wire_pack_run, &run, "launch", "{kernel: 9, args: [], grid: [7]}");
}

/* ---- bytes that it is sent ---- */

/* Sends the vector when it is pinged; answers the ping if the client is still there. */
struct sending {
    const struct golden_vector *vector;
    bool half; /* hang up behind it: it is not a whole message */
};

static void serve_vector(struct fake_connection *c, void *context)
{
    const struct sending *s = context;
    struct fake_request r;
    int fds[16];

    while (fake_next(c, &r)) {
        if (strcmp(r.method, "ping") != 0) {
            fake_answer(c, &r);
            continue;
        }
        for (unsigned i = 0; i < s->vector->nfds; i++) {
            fds[i] = memfd_create("golden", MFD_CLOEXEC);
            if (ftruncate(fds[i], 4096))
                abort();
        }
        fake_send(c, s->vector->bytes, s->vector->length, fds, s->vector->nfds);
        for (unsigned i = 0; i < s->vector->nfds; i++)
            close(fds[i]);
        if (s->half)
            return;
        fake_answer(c, &r);
    }
}

union decoded {
    struct wire_buffer buffer;
    struct wire_timings timings;
    struct wire_info info;
    struct wire_trace trace;
    struct wire_tuned tuned;
    struct wire_choices choices;
};

/* A call that waits for that msgid. The table is grown until it has the place that the msgid means. */
static struct call *expect_msgid(struct kops_client *client, uint32_t msgid, wire_decode *decode, void *into)
{
    struct call *call = call_new(&client->calls);

    while (call->index != (msgid & 0xffff)) {
        call->state = CALL_DONE; /* keeps its place */
        client->calls.inflight--;
        call = call_new(&client->calls);
    }
    call->msgid = msgid;
    call->decode = decode;
    call->into = into;
    return call;
}

/* Of a response: [1, msgid, error, result]. */
static uint32_t msgid_of(const struct golden_vector *v)
{
    msgpack_unpacked message;
    uint32_t msgid;

    msgpack_unpacked_init(&message);
    assert_int_equal(msgpack_unpack_next(&message, (const char *)v->bytes, v->length, NULL), MSGPACK_UNPACK_SUCCESS);
    msgid = (uint32_t)message.data.via.array.ptr[1].via.u64;
    msgpack_unpacked_destroy(&message);
    return msgid;
}

static void check_register(const char *name, union decoded *d)
{
    assert_true(d->buffer.id == 3 && d->buffer.size == 4096);
}

static void check_alloc(const char *name, union decoded *d)
{
    assert_true(d->buffer.id == 1 && !d->buffer.vmm && lseek(d->buffer.fd, 0, SEEK_END) == 4096);
    close(d->buffer.fd);
}

static void check_run(const char *name, union decoded *d)
{
    const struct kops_result *r = &d->timings.result;

    if (!strcmp(name, "result_run_repeat")) {
        assert_true(r->median_us == 2.0 && r->max_us == 2.5 && r->n_samples == 3 && d->timings.samples[1] == 1.5);
    } else if (!strcmp(name, "result_run_integers")) {
        assert_true(r->total_us == 9.0);
    } else if (!strcmp(name, "result_run_float32")) {
        assert_true(r->total_us == 0.5);
    } else {
        assert_true(r->recv_to_start_us == 1.5 && r->host_us == 12.0);
        assert_string_equal(r->device, "host");
        assert_string_equal(r->variant, "fast");
    }
}

static void check_info(const char *name, union decoded *d)
{
    assert_int_equal(d->info.info.pid, 4711);
    assert_string_equal(d->info.info.devices[0]->name, "Example CPU");
}

/* What kopsctl prints of traces and tunings is for tests/ctl; these numbers need all their bits. */
static void check_trace(const char *name, union decoded *d)
{
    const struct kops_trace *t = &d->trace.trace;
    const struct kops_trace_event first = {1, 9, 4294967295, 3, 1000, 1001, 70000, 80000, 9000, 5, false},
                                  second = {1, 9, 2, 0, 4294967296, 0, 0, 4294967297, 0, 1, true};

    if (!strcmp(name, "result_trace_newer")) {
        assert_true(t->n_events == 1 && t->events[0].executions == 9 && t->events[0].finished == 11);
        return;
    }
    assert_true(t->origin_ns == 8000000000000000000 && t->kinds[0]->shapes[1].dims[1] == 4 && t->n_events == 2);
    assert_memory_equal(&t->events[0], &first, offsetof(struct kops_trace_event, failed) + 1);
    assert_memory_equal(&t->events[1], &second, offsetof(struct kops_trace_event, failed) + 1);
}

static void check_tune(const char *name, union decoded *d)
{
    const struct kops_tune *t = &d->tuned.tune;

    if (!strcmp(name, "result_tune"))
        assert_true(t->tried == 0 && !t->goes_on && isnan(t->candidates[2]->us) && !t->candidates[3]);
}

/* By the start of their names: how results are read, and what must be in them. The last one is of all others. */
static const struct reader {
    const char *name;
    wire_decode *decode;
    void (*check)(const char *name, union decoded *d);
    bool arena; /* comes first in what was read */
} readers[] = {{"result_register", wire_decode_register, check_register, false},
               {"result_unknown_keys", wire_decode_register, check_register, false},
               {"result_alloc", wire_decode_alloc, check_alloc, false},
               {"result_run", wire_decode_run, check_run, false},
               {"result_trace", wire_decode_trace, check_trace, true},
               {"result_tune", wire_decode_tune, check_tune, true},
               {"result_tuning", wire_decode_tuning, NULL, true},
               {"result_hello", wire_decode_info, check_info, true},
               {"", wire_decode_nothing, NULL, false}};

static const struct reader *reader_of(const char *name)
{
    const struct reader *r = readers;

    while (strncmp(r->name, name, strlen(r->name)) != 0)
        r++;
    return r;
}

static void takes(const struct golden_vector *v)
{
    const bool notification = !strcmp(v->expect, "notification");
    const struct reader *reader = reader_of(v->name);
    struct sending sending = {.vector = v, .half = notification};
    struct scene *s = scene_serve(serve_vector, &sending, NULL);
    union decoded into = {0};
    struct call *call = NULL;
    double samples[4];

    if (reader->decode == wire_decode_run) {
        into.timings.samples = samples;
        into.timings.samples_room = 4;
    }
    if (!notification)
        call = expect_msgid(s->client, msgid_of(v), reader->decode, &into);
    s->client->max_inflight = UINT32_MAX;
    if (notification) {
        assert_int_equal(kops_ping(s->client, 0, &s->error), KOPS_ERR_PROTOCOL_ERROR);
    } else {
        assert_ok(kops_ping(s->client, 0, &s->error)); /* the vector came before its reply */
        assert_int_equal(call->state, CALL_DONE);
        assert_string_equal(kops_code_name(call->code), v->code ? v->code : "ok");
        if (v->key)
            assert_string_equal(kops_error_text(call->error, "key"), v->key);
        if (!call->code && reader->check)
            reader->check(v->name, &into);
        if (!call->code && reader->arena)
            arena_free(&into.info.arena);
    }
    scene_stop(s);
}

static void refuses(const struct golden_vector *v)
{
    const bool more = !strcmp(v->expect, "more");
    struct sending sending = {.vector = v, .half = more};
    struct scene *s = scene_serve(serve_vector, &sending, NULL);
    const uint32_t generation = s->client->generation;
    struct call *call = expect_msgid(s->client, 1, wire_decode_nothing, NULL);

    s->client->max_inflight = UINT32_MAX;
    assert_int_equal(kops_ping(s->client, 0, &s->error), more ? KOPS_ERR_CONNECTION_LOST : KOPS_ERR_BAD_REPLY);
    assert_int_equal(call->state, CALL_DONE);
    assert_int_not_equal(s->error.message[0], 0);
    /* Whatever is asked next, it is not asked on that connection. */
    kops_ping(s->client, 0, &s->error);
    assert_int_not_equal(s->client->generation, generation);
    scene_stop(s);
}

static void all_of(const char *file, void (*test)(const struct golden_vector *v))
{
    unsigned n = 0;

    for (size_t i = 0; i < sizeof(golden_vectors) / sizeof(golden_vectors[0]); i++) {
        if (strcmp(golden_vectors[i].file, file) != 0)
            continue;
        print_message("%s\n", golden_vectors[i].name);
        test(&golden_vectors[i]);
        n++;
    }
    assert_true(n > 10);
}

TEST(responses_are_taken)
{
    all_of("responses", takes);
}

TEST(bad_responses_are_refused)
{
    all_of("bad_responses", refuses);
}
