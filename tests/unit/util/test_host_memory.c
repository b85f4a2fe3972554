/* The memory that control groups leave: both versions, and the groups above. */
#include "tests/support/folder.h"
#include "tests/support/unit.h"
#include "util/host_memory.h"

static const char *root;

static int setup(void **state)
{
    root = folder_new();
    return 0;
}

static struct host_memory_limits of(const char *groups)
{
    return host_memory_limits(folder_put(root, "groups", groups), root);
}

TEST_WITH(test_the_second_version, setup, close_opened)
{
    struct host_memory_limits l;

    folder_put(root, "system.slice/memory.max", "9000\n");
    folder_put(root, "system.slice/memory.current", "8000\n");
    folder_put(root, "system.slice/memory.stat", "anon 5\ninactive_file 500\n");
    folder_put(root, "system.slice/kopsd.service/memory.max", "max\n");
    l = of("0::/system.slice/kopsd.service\n");
    assert_int_equal(l.limit, 9000);
    assert_int_equal(l.available, 1500);
    folder_put(root, "system.slice/kopsd.service/memory.max", "4000\n");
    folder_put(root, "system.slice/kopsd.service/memory.current", "5000\n");
    l = of("0::/system.slice/kopsd.service\n");
    assert_int_equal(l.limit, 4000);
    assert_int_equal(l.available, 0);
}

TEST_WITH(test_the_first_version, setup, close_opened)
{
    struct host_memory_limits l;

    folder_put(root, "memory/memory.limit_in_bytes", "9223372036854771712\n");
    folder_put(root, "memory/box/memory.limit_in_bytes", "7000\n");
    folder_put(root, "memory/box/memory.usage_in_bytes", "1000\n");
    folder_put(root, "memory/box/memory.stat", "inactive_file 900\ntotal_inactive_file 9999\n");
    l = of("5:cpu:/\n4:memory:/box\n0::/\n");
    assert_int_equal(l.limit, 7000);
    assert_int_equal(l.available, 7000); /* what can be reclaimed is no more than there is */
    l = of("4:memory:/\n");
    assert_true(l.limit == UINT64_MAX && l.available == UINT64_MAX);
}

TEST_WITH(test_nothing_is_said, setup, close_opened)
{
    struct host_memory_limits l;

    l = of("0::/somewhere/else\nnonsense\n");
    assert_true(l.limit == UINT64_MAX && l.available == UINT64_MAX);
    l = host_memory_limits("/nonexistent", root);
    assert_true(l.limit == UINT64_MAX);
}

TEST(test_this_machine)
{
    assert_true(host_memory_total() > 0 && host_memory_total() < UINT64_MAX);
    assert_true(host_memory_available() > 0);
}
