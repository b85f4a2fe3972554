/* Identities: their names, their numbers, and accounts that are no user's. */
#include <stdio.h>

#include "server/account/account.h"
#include "tests/support/unit.h"

TEST(test_names)
{
    static const char *const names[] = {"a",  "0",  "team-a", "a.b_c-d", "A9",  "",    ".",        ".a",
                                        "-a", "_a", "a b",    "a/b",     "a\n", "a\"", "\xc3\xbc", "a\xff"};
    char longest[IDENTITY_NAME_MAX + 2];

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_int_equal(identity_name_is_valid(names[i]), i < 5);
    memset(longest, 'x', sizeof(longest));
    longest[IDENTITY_NAME_MAX + 1] = '\0';
    assert_false(identity_name_is_valid(longest));
    longest[IDENTITY_NAME_MAX] = '\0';
    assert_true(identity_name_is_valid(longest));
}

TEST(test_numbers)
{
    struct identities *all = calloc(1, sizeof(*all));
    struct identity *a, *b;
    char who[WHO_MAX], name[16];
    struct error e;

    assert_non_null(all);
    a = identities_get(all, "a", &e);
    b = identities_get(all, "b", &e);
    assert_ptr_equal(identities_get(all, "a", &e), a);
    assert_int_not_equal(a->number, b->number);
    assert_true(uid_is_identity(a->number) && uid_is_identity(b->number));
    assert_false(uid_is_identity(0) || uid_is_identity(IDENTITY_FIRST - 1) || uid_is_identity((uid_t)-1) ||
                 uid_is_identity(IDENTITY_FIRST + IDENTITIES_MAX));
    assert_ptr_equal(identities_find(all, b->number), b);
    assert_null(identities_find(all, 1000));
    assert_null(identities_find(all, b->number + 1)); /* nobody's yet */
    assert_texts(identities_who(all, a->number, who), "identity=a", identities_name(all, 1000), "");
    assert_string_equal(identities_who(all, 1000, who), "uid=1000");
    for (unsigned i = 2; i < IDENTITIES_MAX; i++) {
        snprintf(name, sizeof(name), "n%u", i);
        assert_non_null(identities_get(all, name, &e));
    }
    assert_null(identities_get(all, "one-more", &e));
    assert_int_equal(e.code, ERROR_LIMIT_EXCEEDED);
    assert_non_null(identities_get(all, "n7", &e));
    identities_free(all);
    free(all);
}

TEST(test_an_account_has_the_identity_s_limits)
{
    struct quota_limits limits = {.of = {[QUOTA_BUFFERS] = 5}};
    struct subordinate range = {IDENTITY_FIRST, UINT32_MAX - 1, 1000}, to_identity = {2000, 2000, IDENTITY_FIRST};
    struct accounts *all = calloc(1, sizeof(*all));
    struct charge charge = {0};
    struct identity *identity;
    struct account *a, *user;
    struct error e;

    assert_non_null(all);
    accounts_init(all, &limits);
    identity = identities_get(&all->identities, "a", &e);
    identity->limits.of[QUOTA_BUFFERS] = 2;
    /* Ranges of /etc/subuid make no user of an identity … */
    limits.subordinates = (struct subordinates){&range, 1};
    a = account_get(all, identity->number);
    assert_int_equal(a->uid, identity->number);
    assert_int_equal(charge_take(&charge, a, 1, QUOTA_BUFFERS, 3, &e), -1);
    assert_non_null(strstr(e.message, "identity \"a\""));
    assert_int_equal(charge_take(&charge, a, 1, QUOTA_BUFFERS, 2, &e), 0);
    charge_free(&charge);
    /* … and no identity of a user. */
    limits.subordinates = (struct subordinates){&to_identity, 1};
    user = account_get(all, 2000);
    assert_int_equal(user->uid, 2000);
    assert_int_equal(charge_take(&charge, user, 1, QUOTA_BUFFERS, 5, &e), 0);
    charge_free(&charge);
    account_unref(user);
    account_unref(a);
    accounts_free(all);
    free(all);
}
