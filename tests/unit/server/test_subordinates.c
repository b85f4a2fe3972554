/* Ranges of subordinate users, as /etc/subuid has them. */
#include "server/account/account.h"
#include "tests/support/folder.h"
#include "tests/support/unit.h"

OPENING_TEST(test_ranges)
{
    static const struct {
        const char *text;
        unsigned count;
        uid_t owners[7][2]; /* a user, and whose it is */
    } files[] = {
        {"1001:200000:100\nroot:100000:65536\n1002:200100:1\n",
         3,
         {{99999, 99999},
          {100000, 0},
          {165535, 0},
          {165536, 165536},
          {200099, 1001},
          {200100, 1002},
          {200101, 200101}}},
        /* lines that make no sense */
        {"\n# a comment\nnobody-of-that-name:1:2\n7:5\n7:x:5\n7:5:0\n7:4294967295:2\n7:-1:5\n8:4294967295:1\n",
         1,
         {{UINT32_MAX, 8}, {1, 1}, {5, 5}}},
        /* ranges that overlap */
        {"2:150:100\n1:100:100\n3:120:10\n", 2, {{125, 1}, {199, 1}, {200, 2}, {249, 2}, {250, 250}}},
        {NULL, 0, {{5, 5}}},
    };

    for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        const char *path = files[i].text ? folder_put(folder_new(), "subuid", files[i].text) : "/nonexistent/subuid";
        struct subordinates s;

        assert_int_equal(subordinates_read(&s, path), 0);
        assert_int_equal(s.count, files[i].count);
        for (unsigned k = 0; k < 7; k++)
            assert_int_equal(subordinates_owner(&s, files[i].owners[k][0]), files[i].owners[k][1]);
        subordinates_free(&s);
    }
}
