/* Geometry of user kernels' launches: declared or given, within the device's limits. */
#include "kernel_support.h"

KERNEL_TEST(an_empty_grid_is_for_empty_tensors)
{
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct tensor empty = DENSE(DTYPE_F32, 0, 3), t = DENSE(DTYPE_F32, 5);
    struct kernel_signature *s;
    struct call c;
    struct error e;
    struct plan p;

    d.block.at[0] = (struct kernel_value)TEXT("min(n, 256)");
    d.cluster = (struct kernel_dimensions_declaration){1, {NUMBER(2)}};
    s = signature_of(&d);
    c = add_call(s, &empty, 0);
    p = plans(s, &c);
    assert_true(plan_is_empty(&p));
    assert_int_equal(p.kernel.grid[0], 0);
    assert_int_equal(p.kernel.grid[1], 1);
    assert_int_equal(p.kernel.block[0], 1);
    c.tensors[2] = &t;
    e = refuses_call(s, &c, ERROR_OUT_OF_RANGE, "grid[0]",
                     "grid[0]: `ceil_div(n, 256)` is 0, but it must be from 1 to 2147483647 (0 only");
    is_number(&e, "value", 0);
    is_number(&e, "min", 1);
    is_number(&e, "max", 2147483647);
    c.tensors[2] = &empty;
    set_integer(&c, s, 3, -257);
    c.tensors[0] = c.tensors[1] = &empty;
    e = refuses_call(s, &c, ERROR_OUT_OF_RANGE, "grid[0]", "is -1");
    is_number(&e, "min", 0);
}

KERNEL_TEST(ways_to_launch)
{
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct kernel_signature *s = signature_of(&d);
    struct tensor t = DENSE(DTYPE_F32, 1000);
    struct call c = add_call(s, &t, 1000);
    struct plan p = plans(s, &c);
    struct error e = {0};

    assert_int_equal(p.kernel.cooperative, 0);
    assert_int_equal(p.kernel.pdl, 0);
    d.pdl = true;
    s = signature_of(&d);
    assert_int_equal(plans(s, &c).kernel.pdl, 1);
    c.limits.pdl = 0;
    assert_int_equal(plans(s, &c).kernel.pdl, 0); /* in order is right, too */
    d.cooperative = true;
    refuses(&d, ERROR_INVALID_ARGUMENT, "pdl", "not with cooperative");
    d.pdl = false;
    s = signature_of(&d);
    p = plans(s, &c);
    assert_int_equal(p.kernel.cooperative, 1);
    assert_int_equal(kernel_check_cooperative(&p.kernel, 4, &e), 0);
    assert_int_equal(kernel_check_cooperative(&p.kernel, 3, &e), -1);
    is_error(&e, ERROR_OUT_OF_RANGE, "grid", "4 x 1 x 1 are 4 blocks");
    is_number(&e, "max", 3);
    c.limits.cooperative = 0;
    refuses_call(s, &c, ERROR_UNSUPPORTED, "cooperative", "no cooperative launches");
}

#define DIMENSIONS(which, ...)                                                                                         \
    {                                                                                                                  \
        .which = { __VA_ARGS__ }                                                                                       \
    }
#define GRID(...)    DIMENSIONS(grid, __VA_ARGS__)
#define BLOCK(...)   DIMENSIONS(block, __VA_ARGS__)
#define CLUSTER(...) DIMENSIONS(cluster, __VA_ARGS__)
#define SHARED(n)                                                                                                      \
    {                                                                                                                  \
        .has_shared = true, .shared = (n)                                                                              \
    }

KERNEL_TEST(geometry_has_the_devices_limits)
{
    static const struct {
        struct kernel_launch launch;
        unsigned function_threads, static_shared;
        const char *key, *word; /* of the refusal; NULL: it is taken */
        int64_t value, max;     /* told with it; 0: not looked at */
    } cases[] = {
        {GRID(1, {INT64_C(1) << 40}), 0, 0, "grid[0]", "1099511627776", INT64_C(1) << 40, 2147483647},
        {GRID(3, {1, 65535, 65536}), 0, 0, "grid[2]", "65536", 65536, 65535},
        {GRID(3, {2147483647, 65535, 65535}), 0, 0, NULL, NULL, 0, 0},
        {BLOCK(3, {1, 1, 65}), 0, 0, "block[2]", "from 1 to 64 on this device", 65, 64},
        {BLOCK(1, {0}), 0, 0, "block[0]", "0", 0, 0},
        {BLOCK(2, {64, 17}), 0, 0, "block", "64 x 17 x 1 are 1088 threads, but a block of this device", 1088, 1024},
        {BLOCK(1, {1024}), 0, 0, NULL, NULL, 0, 0},
        {BLOCK(1, {1024}), 640, 0, "block", "registers or its launch bounds, runs with at most 640", 1024, 640},
        {SHARED(232448), 0, 0, NULL, NULL, 232448, 0},
        {SHARED(232448), 0, 1024, "shared", "from 0 to 231424", 232448, 231424},
        {SHARED(231424), 0, 1024, NULL, NULL, 231424, 0},
        {SHARED(-1), 0, 1024, "shared", "-1", -1, 231424},
        {CLUSTER(1, {9}), 0, 0, "cluster[0]", "from 1 to 8", 9, 8},
        {CLUSTER(2, {4, 4}), 0, 0, "cluster", "16", 16, 8},
        {CLUSTER(1, {4}), 0, 0, NULL, NULL, 0, 0},
    };
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct kernel_signature *s = signature_of(&d);
    struct tensor t = DENSE(DTYPE_F32, 1000);
    struct call c = add_call(s, &t, 1000);
    struct error e;

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        c.launch = cases[i].launch;
        c.limits.function_threads = cases[i].function_threads;
        c.limits.static_shared = cases[i].static_shared;
        if (!cases[i].key) {
            assert_int_equal(plans(s, &c).kernel.shared_bytes, cases[i].value);
            continue;
        }
        e = refuses_call(s, &c, ERROR_OUT_OF_RANGE, cases[i].key, cases[i].word);
        if (cases[i].max) {
            is_number(&e, "value", cases[i].value);
            is_number(&e, "max", cases[i].max);
        }
    }
    c.limits.static_shared = 0;
    c.launch = (struct kernel_launch)CLUSTER(1, {3});
    e = refuses_call(s, &c, ERROR_INVALID_ARGUMENT, "grid[0]", "4 is no multiple of the cluster's 3");
    is_number(&e, "value", 4);
    is_number(&e, "cluster", 3);
    c.launch = (struct kernel_launch)CLUSTER(1, {4});
    c.limits.max_cluster = 0;
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "cluster[0]", "from 1 to 1");
}

KERNEL_TEST(geometry_may_be_declared_in_expressions)
{
    struct kernel_declaration d = declaration_of(ADD, 4);
    struct tensor t = DENSE(DTYPE_F32, 100000);
    struct kernel_signature *s;
    struct call c;

    d.grid.at[0] = (struct kernel_value)TEXT("min(ceil_div(n, 256), multiprocessors * 2)");
    d.shared = (struct kernel_value)TEXT("n * 4");
    s = signature_of(&d);
    c = add_call(s, &t, 50000);
    assert_int_equal(plans(s, &c).kernel.grid[0], 196);
    assert_int_equal(plans(s, &c).kernel.shared_bytes, 200000);
    set_integer(&c, s, 3, 100000);
    refuses_call(s, &c, ERROR_OUT_OF_RANGE, "shared", "`n * 4` is 400000");
    c.launch.has_shared = true;
    assert_int_equal(plans(s, &c).kernel.grid[0], 264);
    assert_int_equal(plans(s, &c).kernel.shared_bytes, 0);

    d.shared = (struct kernel_value)TEXT("256 / (n - 100000)"); /* not looked at where the launch gives another */
    s = signature_of(&d);
    plans(s, &c);
    c.launch.has_shared = false;
    refuses_call(s, &c, ERROR_INVALID_ARGUMENT, "shared",
                 "shared: `256 / (n - 100000)`: character 5: division by zero");
    c.launch.has_shared = true;

    d.grid.n = 0;
    s = signature_of(&d);
    refuses_call(s, &c, ERROR_MISSING_KEY, "grid", "neither");
    c.launch.grid = (struct kernel_launch_dimensions){1, {7}};
    assert_int_equal(plans(s, &c).kernel.grid[0], 7);
    d.block.n = 0;
    s = signature_of(&d);
    refuses_call(s, &c, ERROR_MISSING_KEY, "block", "neither");
}
