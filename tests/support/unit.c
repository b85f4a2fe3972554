#include "unit.h"

enum { MAX_TESTS = 256 };

static struct CMUnitTest tests[MAX_TESTS];
static unsigned lines[MAX_TESTS], n_tests;
static CMFixtureFunction set_up_all, tear_down_all;

/* Constructors run in any order. */
void unit_add(const char *name, CMUnitTestFunction test, CMFixtureFunction set_up, CMFixtureFunction tear_down,
              unsigned line)
{
    unsigned at = n_tests;

    if (n_tests++ == MAX_TESTS)
        abort();
    for (; at && lines[at - 1] > line; at--) {
        tests[at] = tests[at - 1];
        lines[at] = lines[at - 1];
    }
    tests[at] = (struct CMUnitTest){name, test, set_up, tear_down, NULL};
    lines[at] = line;
}

void unit_around_all(CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    set_up_all = set_up;
    tear_down_all = tear_down;
}

int main(void)
{
    return _cmocka_run_group_tests("tests", tests, n_tests, set_up_all, tear_down_all);
}
