/* The vectors of tests/support/backoff.txt. */
#include <stdio.h>

#include "tests/support/unit.h"
#include "util/process.h"

TEST(follows_the_vectors)
{
    FILE *file = fopen(VECTORS, "re");
    struct backoff b = {0};
    uint64_t now = 1000000;
    unsigned checked = 0;
    char line[200];

    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        char how[20];
        unsigned after, delay, got;

        if (!strncmp(line, "case ", 5))
            b = (struct backoff){0};
        if (sscanf(line, "%19s %u %u", how, &after, &delay) != 3)
            continue;
        now += after;
        if (!strcmp(how, "orderly"))
            b = (struct backoff){0};
        got = strcmp(how, "orderly") != 0 ? backoff_after(&b, !strcmp(how, "served"), now) : 0;
        if (got != delay)
            fail_msg("%u ms, not %u, after: %s", got, delay, line);
        checked++;
    }
    fclose(file);
    assert_in_range(checked, 50, 1000);
}
