/* The line about clocks, temperature and power: of the same readings the same as the Python client's, but in ASCII. */
#include <math.h>
#include <stdio.h>

#include "tests/support/unit.h"
#include "view/rows.h"

#include "conditions_vectors.h"

TEST(test_vectors)
{
    char line[400];

    for (size_t i = 0; i < sizeof(conditions) / sizeof(conditions[0]); i++) {
        print_message("%s\n", conditions[i].name);
        assert_string_equal(conditions_text(&conditions[i].before, &conditions[i].after, line, sizeof(line)),
                            conditions[i].line);
    }
}

TEST(test_a_line_without_room_is_cut)
{
    char whole[400], line[400];

    for (size_t i = 0; i < sizeof(conditions) / sizeof(conditions[0]); i++) {
        conditions_text(&conditions[i].before, &conditions[i].after, whole, sizeof(whole));
        for (size_t size = 1; size <= strlen(whole); size++) {
            conditions_text(&conditions[i].before, &conditions[i].after, line, size);
            assert_true(strlen(line) < size && strncmp(line, whole, strlen(line)) == 0);
        }
    }
}
