/* Compiling, declaring and launching kernels as bytes. */
#include <stdio.h>

#include "test.h"
#include "wire/wire.h"

/* The bytes that `pack` makes, against a literal. */
#define assert_packs(pack, request, literal) assert_bytes(pack, request, literal, sizeof(literal) - 1)

static void assert_bytes(wire_pack *pack, const void *request, const char *expected, size_t length)
{
    struct bytes out = {0};

    pack(&out, 1, request);
    if (out.length != length || memcmp(out.data, expected, length) != 0) {
        for (size_t i = 0; i < out.length; i++)
            fprintf(stderr, out.data[i] >= ' ' && out.data[i] < 127 ? "%c" : "\\x%02x", (unsigned char)out.data[i]);
        fail_msg("other bytes");
    }
    bytes_free(&out);
}

static void sources(void **state)
{
    const char *const entries[] = {"f", "g<int>"}, *const options[] = {"-DN=4"};
    const struct kops_file files[] = {{"a.h", "int a;"}};
    const struct kops_source least = {.text = "s", .entries = entries, .n_entries = 1};
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

    (void)state;
    assert_packs(wire_pack_compile, &least,
                 "\x94\x00\x01\xa7"
                 "compile\x91\x82\xa6source\xa1s\xa7"
                 "entries\x91\xa1"
                 "f");
    assert_packs(wire_pack_compile, &most,
                 "\x94\x00\x01\xa7"
                 "compile\x91\x87\xa6source\xa1s\xa4name\xa4k.cu\xa5"
                 "files\x81\xa3"
                 "a.h\xa6int a;\xa7options\x91\xa5-DN=4\xa7"
                 "entries\x92\xa1"
                 "f\xa6g<int>\xa4"
                 "arch\xa6sm_90a\xa6"
                 "device\x01");
}

static void declarations(void **state)
{
    const struct kops_param params[] = {
        {.name = "c", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .rank = 2, .shape = {"n", NULL}},
        {.name = "a", .kind = KOPS_PARAM_IN, .dtype = KOPS_U8, .rank = 1, .elements = "2 * n", .align = 16},
        {.name = "b", .kind = KOPS_PARAM_INOUT, .dtype = KOPS_F64, .strided = true},
        {.name = "n", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_I32}};
    const struct kops_signature least = {.entry = "f"};
    const struct kops_signature most = {
        .entry = "f",
        .params = params,
        .n_params = 4,
        .geometry = {.grid = {"ceil_div(n, 256)", "2"}, .block = {"256"}, .shared = "1024", .cluster = {"2"}},
        .alias = true};
    const struct wire_kernel small = {3, &least}, large = {3, &most};

    (void)state;
    assert_packs(wire_pack_kernel, &small,
                 "\x94\x00\x01\xa6kernel\x91\x83\xa6module\x03\xa5"
                 "entry\xa1"
                 "f\xa6params\x90");
    assert_packs(wire_pack_kernel, &large,
                 "\x94\x00\x01\xa6kernel\x91\x88\xa6module\x03\xa5"
                 "entry\xa1"
                 "f\xa6params\x94"
                 "\x84\xa4name\xa1"
                 "c\xa4kind\xa3out\xa5"
                 "dtype\xa3"
                 "f32\xa5shape\x92\xa1n\xc0"
                 "\x86\xa4name\xa1"
                 "a\xa4kind\xa2in\xa5"
                 "dtype\xa2u8\xa4rank\x01\xa8"
                 "elements\xa5"
                 "2 * n\xa5"
                 "align\x10"
                 "\x84\xa4name\xa1"
                 "b\xa4kind\xa5inout\xa5"
                 "dtype\xa3"
                 "f64\xa7strided\xc3"
                 "\x83\xa4name\xa1n\xa4kind\xa6scalar\xa5"
                 "dtype\xa3i32"
                 "\xa4grid\x92\xb0"
                 "ceil_div(n, 256)\x02\xa5"
                 "block\x91\xcd\x01\x00\xa6shared\xcd\x04\x00\xa7"
                 "cluster\x91\x02\xa5"
                 "alias\xc3");
}

static void maps_and_ways_to_launch(void **state)
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
    const struct kops_param params[] = {{.name = "a", .kind = KOPS_PARAM_IN, .dtype = KOPS_F16, .map = &least},
                                        {.name = "b", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .map = &most},
                                        {.name = "s", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_U8, .lanes = 24}};
    const struct kops_signature signature = {
        .entry = "f", .params = params, .n_params = 3, .cooperative = true, .pdl = true};
    const struct wire_kernel kernel = {3, &signature};

    (void)state;
    assert_packs(wire_pack_kernel, &kernel,
                 "\x94\x00\x01\xa6kernel\x91\x85\xa6module\x03\xa5"
                 "entry\xa1"
                 "f\xa6params\x93"
                 "\x84\xa4name\xa1"
                 "a\xa4kind\xa2in\xa5"
                 "dtype\xa3"
                 "f16\xa3map\x81\xa3"
                 "box\x91\x40"
                 "\x84\xa4name\xa1"
                 "b\xa4kind\xa3out\xa5"
                 "dtype\xa3"
                 "f32\xa3map\x87\xa3"
                 "box\x92\xa2"
                 "bm\x08\xa5steps\x92\x02\x01\xa7swizzle\x20\xaainterleave\x10\xa2l2\x40\xa3nan\xc3\xa4tf32\xc3"
                 "\x84\xa4name\xa1s\xa4kind\xa6scalar\xa5"
                 "dtype\xa2u8\xa5lanes\x18"
                 "\xab"
                 "cooperative\xc3\xa3pdl\xc3");
}

static void launches(void **state)
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

    (void)state;
    assert_packs(wire_pack_run, &run,
                 "\x94\x00\x01\xa6launch\x91\x82\xa6kernel\x09\xa4"
                 "args\x98"
                 "\x83\xa6"
                 "buffer\x07\xa5shape\x91\x04\xa5"
                 "dtype\xa3"
                 "f32\xc0"
                 "\x84\xa6"
                 "buffer\x08\xa6offset\x40\xa5shape\x91\x04\xa5"
                 "dtype\xa3"
                 "f32\xfb\x01\xcb\xc0\x00\x00\x00\x00\x00\x00\x00\xc3\xc4\x03xyz");
    run.n_args = 0;
    run.launch_geometry = &geometry;
    run.how = (struct wire_how){.stream = 3, .ready = 4, .done = 5};
    assert_packs(wire_pack_run, &run,
                 "\x94\x00\x01\xa6launch\x91\x89\xa6kernel\x09\xa4"
                 "args\x90\xa4grid\x92\x03\x01\xa5"
                 "block\x91\xcc\x80\xa6shared\x00\xa7"
                 "cluster\x91\x02\xa6stream\x03\xa5ready\x04\xa4"
                 "done\x05");
    run.how = (struct wire_how){0};
    run.launch_geometry = &huge;
    assert_packs(wire_pack_run, &run,
                 "\x94\x00\x01\xa6launch\x91\x83\xa6kernel\x09\xa4"
                 "args\x90\xa4grid\x91\xcf\x00\x00\x01\x00\x00\x00\x00\x00");
    /* As bindings give it: packed already. */
    run.launch_geometry = NULL;
    run.geometry = "\x81\xa4grid\x91\x07";
    run.geometry_length = 8;
    assert_packs(wire_pack_run, &run,
                 "\x94\x00\x01\xa6launch\x91\x83\xa6kernel\x09\xa4"
                 "args\x90\xa4grid\x91\x07");
}

/* One step, written in a sequence and gathered in a batch: the same bytes. */
static void steps(void **state)
{
    static const char expected[] = "\x94\x00\x01\xa8sequence\x91\x82\xa7tensors\x92"
                                   "\x82\xa5shape\x91\x00\xa5"
                                   "dtype\xa3"
                                   "f32\x82\xa5shape\x91\x00\xa5"
                                   "dtype\xa3"
                                   "f32\xa3ops\x91\x83\xa6kernel\x09\xa4"
                                   "args\x93\x01\x00\x05\xa4grid\x91\x02";
    const int64_t nothing[] = {0};
    const struct native_tensor tensors[] = {{.shape = nothing, .rank = 1, .dtype = KOPS_F32},
                                            {.shape = nothing, .rank = 1, .dtype = KOPS_F32}};
    const struct kops_argument places[] = {kops_arg_index(1), kops_arg_index(0), kops_arg_int(5)};
    const struct kops_argument args[] = {kops_arg_tensor(NULL), kops_arg_tensor(NULL), kops_arg_int(5)};
    const struct kops_launch_geometry geometry = {.grid = {1, {2}}};
    const struct kops_step step = {
        .kernel = (kops_kernel *)(uintptr_t)1, .args = places, .n_args = 3, .geometry = &geometry};
    const struct wire_sequence sequence = {
        .tensors = tensors, .n_tensors = 2, .steps = &step, .n_steps = 1, .kernels = (const uint64_t[]){9}};
    const struct wire_run launch = {
        .kernel = 9, .n_inputs = 2, .args = args, .n_args = 3, .launch_geometry = &geometry};
    struct bytes packed_tensors = {0}, packed_ops = {0};
    const struct wire_gathered gathered = {.tensors = &packed_tensors, .ops = &packed_ops, .n_tensors = 2, .n_ops = 1};

    (void)state;
    wire_gather_tensor(&packed_tensors, &tensors[0]);
    wire_gather_tensor(&packed_tensors, &tensors[1]);
    wire_gather_op(&packed_ops, &launch, (const uint32_t[]){1, 0});
    assert_bytes(wire_pack_sequence, &sequence, expected, sizeof(expected) - 1);
    assert_bytes(wire_pack_gathered, &gathered, expected, sizeof(expected) - 1);
    bytes_free(&packed_tensors);
    bytes_free(&packed_ops);
}

static void administration(void **state)
{
    const struct wire_cache list = {.action = "list"}, clear = {.action = "clear", .key = "0a"},
                            import = {.action = "import", .fd = true};

    (void)state;
    assert_packs(wire_pack_cache, &list,
                 "\x94\x00\x01\xa5"
                 "cache\x91\x81\xa6"
                 "action\xa4list");
    assert_packs(wire_pack_cache, &clear,
                 "\x94\x00\x01\xa5"
                 "cache\x91\x82\xa6"
                 "action\xa5"
                 "clear\xa3key\xa2"
                 "0a");
    assert_packs(wire_pack_cache, &import,
                 "\x94\x00\x01\xa5"
                 "cache\x91\x83\xa4nfds\x01\xa6"
                 "action\xa6import\xa2"
                 "fd\x00");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources),  cmocka_unit_test(declarations), cmocka_unit_test(maps_and_ways_to_launch),
        cmocka_unit_test(launches), cmocka_unit_test(steps),        cmocka_unit_test(administration),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
