/* Compiling, declaring and launching kernels as bytes. */
#include <stdio.h>

#include "test.h"
#include "wire/wire.h"

static void assert_packs(wire_pack *pack, const void *request, const char *method, const char *parameters)
{
    struct bytes out = {0};
    char message[2048];

    snprintf(message, sizeof(message), "[0, 1, '%s', [%s]]", method, parameters);
    pack(&out, 1, request);
    assert_packed(out.data, out.length, message);
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
    assert_packs(wire_pack_compile, &least, "compile", "{source: 's', entries: ['f']}");
    assert_packs(wire_pack_compile, &most, "compile",
                 "{source: 's', name: 'k.cu', files: {'a.h': 'int a;'}, options: ['-DN=4'],"
                 " entries: ['f', 'g<int>'], arch: 'sm_90a', device: 1}");
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
    assert_packs(wire_pack_kernel, &small, "kernel", "{module: 3, entry: 'f', params: []}");
    assert_packs(wire_pack_kernel, &large, "kernel",
                 "{module: 3, entry: 'f',"
                 " params: [{name: 'c', kind: 'out', dtype: 'f32', shape: ['n', null]},"
                 "          {name: 'a', kind: 'in', dtype: 'u8', rank: 1, elements: '2 * n', align: 16},"
                 "          {name: 'b', kind: 'inout', dtype: 'f64', strided: true},"
                 "          {name: 'n', kind: 'scalar', dtype: 'i32'}],"
                 " grid: ['ceil_div(n, 256)', 2], block: [256], shared: 1024, cluster: [2], alias: true}");
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
    assert_packs(wire_pack_kernel, &kernel, "kernel",
                 "{module: 3, entry: 'f',"
                 " params: [{name: 'a', kind: 'in', dtype: 'f16', map: {box: [64]}},"
                 "          {name: 'b', kind: 'out', dtype: 'f32', map: {box: ['bm', 8], steps: [2, 1], swizzle: 32,"
                 "           interleave: 16, l2: 64, nan: true, tf32: true}},"
                 "          {name: 's', kind: 'scalar', dtype: 'u8', lanes: 24}],"
                 " cooperative: true, pdl: true}");
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

/* One step, written in a sequence and gathered in a batch: the same bytes. */
static void steps(void **state)
{
    static const char expected[] = "{tensors: [{shape: [0], dtype: 'f32'}, {shape: [0], dtype: 'f32'}],"
                                   " ops: [{kernel: 9, args: [1, 0, 5], grid: [2]}]}";
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
    assert_packs(wire_pack_sequence, &sequence, "sequence", expected);
    assert_packs(wire_pack_gathered, &gathered, "sequence", expected);
    bytes_free(&packed_tensors);
    bytes_free(&packed_ops);
}

static void administration(void **state)
{
    const struct wire_cache list = {.action = "list"}, clear = {.action = "clear", .key = "0a"},
                            import = {.action = "import", .fd = true};

    (void)state;
    assert_packs(wire_pack_cache, &list, "cache", "{action: 'list'}");
    assert_packs(wire_pack_cache, &clear, "cache", "{action: 'clear', key: '0a'}");
    assert_packs(wire_pack_cache, &import, "cache", "{nfds: 1, action: 'import', fd: 0}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources),  cmocka_unit_test(declarations), cmocka_unit_test(maps_and_ways_to_launch),
        cmocka_unit_test(launches), cmocka_unit_test(steps),        cmocka_unit_test(administration),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
