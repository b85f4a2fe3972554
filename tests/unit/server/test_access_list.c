/* Lists of users and groups: what they take, and who is in them. */
#include <stdio.h>

#include "server/account/access_list.h"
#include "tests/support/unit.h"

static struct access_list parsed(const char *text)
{
    struct access_list list;

    MUST(access_list_parse("access.allow", text, &list, &e));
    return list;
}

static bool has(const char *text, uid_t uid, gid_t gid)
{
    static const gid_t more[] = {70, 71};
    struct access_list list = parsed(text);

    return access_list_has(&list, uid, gid, more, 2);
}

TEST(test_who_is_in)
{
    assert_false(has("", 5, 6));
    assert_false(has("owner", 5, 6));
    assert_false(has(" ,, \t", 5, 6));
    assert_true(has("*", 5, 6));
    assert_true(has("5", 5, 6));
    assert_true(has("4,5", 5, 6));
    assert_true(has("4\t, 5 ,", 5, 6));
    assert_false(has("6", 5, 6));
    assert_false(has("@5", 5, 6));
    assert_true(has("@6", 5, 6));
    assert_true(has("@71", 5, 6));
    assert_false(has("@72", 5, 6));
    assert_true(has("root", 0, 6));
    assert_true(has("@root", 5, 0));
    assert_true(has("9, @70", 5, 6));
    assert_true(has("4294967294", 4294967294U, 6));
}

TEST(test_what_is_refused)
{
    static const char *const wrong[] = {"no-such-user",         "@no-such-group", "@",   "-1",    "4294967295",
                                        "18446744073709551616", "0x10",           "5-6", "1 2 3x"};
    struct access_list list;

    memset(&list, 0xa5, sizeof(list));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        MUST_FAIL(access_list_parse("access.deny", wrong[i], &list, &e), ERROR_INVALID_ARGUMENT, "access.deny: ");
        assert_int_equal(list.n_users, 0xa5a5a5a5);
    }
}

TEST(test_lists_are_bounded)
{
    char text[(ACCESS_LIST_MAX + 1) * 8] = "";
    struct access_list list;
    size_t length = 0;

    for (unsigned i = 0; i < ACCESS_LIST_MAX; i++)
        length += (size_t)snprintf(text + length, sizeof(text) - length, "%u ", 1000 + i);
    list = parsed(text);
    assert_int_equal(list.n_users, ACCESS_LIST_MAX);
    snprintf(text + length, sizeof(text) - length, "5");
    MUST_FAIL(access_list_parse("access.deny", text, &list, &e), ERROR_LIMIT_EXCEEDED, "");
}
