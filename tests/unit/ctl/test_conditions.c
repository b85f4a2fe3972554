/* The line about clocks, temperature and power: of the same readings the same as the Python client's, but in ASCII. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "view/conditions.h"

#include "conditions_vectors.h"

static void test_vectors(void **state)
{
    char line[400];

    (void)state;
    for (size_t i = 0; i < sizeof(conditions) / sizeof(conditions[0]); i++) {
        print_message("%s\n", conditions[i].name);
        assert_string_equal(conditions_text(&conditions[i].before, &conditions[i].after, line, sizeof(line)),
                            conditions[i].line);
    }
}

static void test_a_line_without_room_is_cut(void **state)
{
    char whole[400], line[400];

    (void)state;
    for (size_t i = 0; i < sizeof(conditions) / sizeof(conditions[0]); i++) {
        conditions_text(&conditions[i].before, &conditions[i].after, whole, sizeof(whole));
        for (size_t size = 1; size <= strlen(whole); size++) {
            conditions_text(&conditions[i].before, &conditions[i].after, line, size);
            assert_true(strlen(line) < size && strncmp(line, whole, strlen(line)) == 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_a_line_without_room_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
