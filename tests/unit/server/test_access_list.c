/* Lists of users and groups: who is in them, what they refuse, and how many they take. */
#include <stdio.h>

#include "server/account/access_list.h"
#include "tests/support/unit.h"

TEST(test_who_is_in)
{
    static const struct {
        const char *text;
        uid_t uid;
        gid_t gid;
        bool in;
    } lists[] = {
        {"", 5, 6, false},    {"owner", 5, 6, false}, {" ,, \t", 5, 6, false},  {"*", 5, 6, true},
        {"5", 5, 6, true},    {"4,5", 5, 6, true},    {"4\t, 5 ,", 5, 6, true}, {"6", 5, 6, false},
        {"@5", 5, 6, false},  {"@6", 5, 6, true},     {"@71", 5, 6, true},      {"@72", 5, 6, false},
        {"root", 0, 6, true}, {"@root", 5, 0, true},  {"9, @70", 5, 6, true},   {"4294967294", 4294967294U, 6, true},
    };
    static const gid_t more[] = {70, 71};

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        struct access_list list;

        MUST(access_list_parse("access.allow", lists[i].text, &list, &e));
        if (access_list_has(&list, lists[i].uid, lists[i].gid, more, 2) != lists[i].in)
            fail_msg("\"%s\"", lists[i].text);
    }
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
    MUST(access_list_parse("access.allow", text, &list, &e));
    assert_int_equal(list.n_users, ACCESS_LIST_MAX);
    snprintf(text + length, sizeof(text) - length, "5");
    MUST_FAIL(access_list_parse("access.deny", text, &list, &e), ERROR_LIMIT_EXCEEDED, "");
}
