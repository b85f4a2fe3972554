/* Ranges of subordinate users, as /etc/subuid has them. */
#include "server/account/account.h"
#include "tests/support/folder.h"
#include "tests/support/unit.h"

static struct subordinates read_from(const char *text)
{
    struct subordinates s;

    assert_int_equal(subordinates_read(&s, folder_put(folder_new(), "subuid", text)), 0);
    return s;
}

OPENING_TEST(test_ranges)
{
    struct subordinates s = read_from("1001:200000:100\nroot:100000:65536\n1002:200100:1\n");

    assert_int_equal(s.count, 3);
    assert_int_equal(subordinates_owner(&s, 99999), 99999);
    assert_int_equal(subordinates_owner(&s, 100000), 0);
    assert_int_equal(subordinates_owner(&s, 165535), 0);
    assert_int_equal(subordinates_owner(&s, 165536), 165536);
    assert_int_equal(subordinates_owner(&s, 200099), 1001);
    assert_int_equal(subordinates_owner(&s, 200100), 1002);
    assert_int_equal(subordinates_owner(&s, 200101), 200101);
    assert_int_equal(subordinates_owner(&s, UINT32_MAX), UINT32_MAX);
    subordinates_free(&s);
}

OPENING_TEST(test_lines_that_make_no_sense)
{
    struct subordinates s = read_from("\n# a comment\nnobody-of-that-name:1:2\n7:5\n7:x:5\n7:5:0\n7:4294967295:2\n"
                                      "7:-1:5\n8:4294967295:1\n");

    assert_int_equal(s.count, 1);
    assert_int_equal(subordinates_owner(&s, UINT32_MAX), 8);
    subordinates_free(&s);
}

OPENING_TEST(test_ranges_that_overlap)
{
    struct subordinates s = read_from("2:150:100\n1:100:100\n3:120:10\n");

    assert_int_equal(subordinates_owner(&s, 125), 1);
    assert_int_equal(subordinates_owner(&s, 199), 1);
    assert_int_equal(subordinates_owner(&s, 200), 2);
    assert_int_equal(subordinates_owner(&s, 249), 2);
    assert_int_equal(subordinates_owner(&s, 250), 250);
    subordinates_free(&s);
}

TEST(test_no_file)
{
    struct subordinates s;

    assert_int_equal(subordinates_read(&s, "/nonexistent/subuid"), 0);
    assert_int_equal(subordinates_owner(&s, 5), 5);
    subordinates_free(&s);
}
