/* Lists of users and groups: what they refuse, and how many they take. tests/functional/test_access.py connects users.
 */
#include <stdio.h>

#include "server/account/access_list.h"
#include "tests/support/unit.h"

TEST(test_what_is_refused)
{
    static const char *const wrong[] = {"no-such-user",         "@no-such-group", "@",   "-1",    "4294967295",
                                        "18446744073709551616", "0x10",           "5-6", "1 2 3x"};
    static const gid_t more[] = {70, 71};
    struct access_list list;

    memset(&list, 0xa5, sizeof(list));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        MUST_FAIL(access_list_parse("access.deny", wrong[i], &list, &e), ERROR_INVALID_ARGUMENT, "access.deny: ");
        assert_int_equal(list.n_users, 0xa5a5a5a5);
    }
    MUST(access_list_parse("access.deny", " ,4294967294\t, @71 ,, ", &list, &e));
    assert_true(access_list_has(&list, UINT32_MAX - 1, 6, NULL, 0) && access_list_has(&list, 5, 6, more, 2));
    assert_false(access_list_has(&list, 71, 6, more, 1));
}

TEST(test_lists_are_bounded)
{
    char text[(ACCESS_LIST_MAX + 1) * 8] = "";
    struct access_list list;
    size_t length = 0;

    for (unsigned i = 0; i < ACCESS_LIST_MAX; i++)
        length += (size_t)snprintf(text + length, sizeof(text) - length, "%u ", 1000 + i);
    MUST(access_list_parse("access.allow", text, &list, &e));
    assert_int_equal(list.n_users, ACCESS_LIST_MAX);
    snprintf(text + length, sizeof(text) - length, "5");
    MUST_FAIL(access_list_parse("access.deny", text, &list, &e), ERROR_LIMIT_EXCEEDED, "");
}
