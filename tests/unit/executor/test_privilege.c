/* Where the privilege to read counters is needed. Which thread has it: functional_counters_privileged. */
#include "executor/privilege.h"
#include "tests/support/folder.h"
#include "tests/support/unit.h"

OPENING_TEST(test_parameters)
{
    static const struct {
        const char *text;
        bool needed;
    } cases[] = {
        {"RmProfilingAdminOnly: 1\n", true},
        {"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\nPreserveVideoMemoryAllocations: 0\n", true},
        {"ResmanDebugLevel: 1\nRmProfilingAdminOnly: 0\nPreserveVideoMemoryAllocations: 1\n", false},
        {"ResmanDebugLevel: 1\n", false},
        {"NotRmProfilingAdminOnly: 1\n", false},
        {"", false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (privilege_is_needed(folder_put(folder_new(), "params", cases[i].text)) != cases[i].needed)
            fail_msg("%s", cases[i].text);
    assert_false(privilege_is_needed("/nowhere/params"));
}

static unsigned uses;

static int use(void *context, struct error *e)
{
    uses++;
    return *(int *)context;
}

TEST(test_without_it_nothing_is_called)
{
    struct error why, e;
    int answer = 0, result = 0;

    assert_int_equal(privilege_use(use, &answer, &result, &why, &e), 0);
    assert_true(result == -1 && uses == 0);
}
