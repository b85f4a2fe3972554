/* The memory that control groups leave: both versions, and the groups above. */
#include "tests/support/folder.h"
#include "tests/support/unit.h"
#include "util/host_memory.h"

OPENING_TEST(test_groups)
{
    static const char two[] = "0::/system.slice/kopsd.service\n", one[] = "5:cpu:/\n4:memory:/box\n0::/\n";
    static const struct {
        const char *file, *text, *groups; /* a file is written; NULL: not looked at yet */
        uint64_t limit, available;
    } steps[] = {
        {"none", "", "0::/somewhere/else\nnonsense\n", UINT64_MAX, UINT64_MAX},
        {"system.slice/memory.max", "9000\n", NULL, 0, 0},
        {"system.slice/memory.current", "8000\n", NULL, 0, 0},
        {"system.slice/memory.stat", "anon 5\ninactive_file 500\n", NULL, 0, 0},
        {"system.slice/kopsd.service/memory.max", "max\n", two, 9000, 1500},
        {"system.slice/kopsd.service/memory.max", "4000\n", NULL, 0, 0},
        {"system.slice/kopsd.service/memory.current", "5000\n", two, 4000, 0},
        {"memory/memory.limit_in_bytes", "9223372036854771712\n", "4:memory:/\n", UINT64_MAX, UINT64_MAX},
        {"memory/box/memory.limit_in_bytes", "7000\n", NULL, 0, 0},
        {"memory/box/memory.usage_in_bytes", "1000\n", NULL, 0, 0},
        /* What can be reclaimed is no more than there is. */
        {"memory/box/memory.stat", "inactive_file 900\ntotal_inactive_file 9999\n", one, 7000, 7000},
    };
    const char *root = folder_new();

    for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        struct host_memory_limits l;

        folder_put(root, steps[i].file, steps[i].text);
        if (!steps[i].groups)
            continue;
        l = host_memory_limits(folder_put(root, "groups", steps[i].groups), root);
        assert_int_equal(l.limit, steps[i].limit);
        assert_int_equal(l.available, steps[i].available);
    }
    assert_true(host_memory_limits("/nonexistent", root).limit == UINT64_MAX);
}

TEST(test_this_machine)
{
    assert_true(host_memory_total() > 0 && host_memory_total() < UINT64_MAX);
    assert_true(host_memory_available() > 0);
}
