/* The choice between two ways, by costs that the tests make up. */

#include "gemm.h"
#include "support.h"

enum { KEY = 42 };

static struct choices choices;
static double cost[2];
static unsigned used[2];

static int close_choices(void **unused)
{
    choices_deinit(&choices);
    return 0;
}

static void begin(double first, double second)
{
    close_choices(NULL);
    choices_init(&choices);
    assert_non_null(choices.classes);
    memset(used, 0, sizeof(used));
    cost[0] = first;
    cost[1] = second;
}

/* `times` uses of the class, each of which takes as long as the way costs. Returns the way that most of them had. */
static unsigned use(uint64_t key, unsigned times)
{
    memset(used, 0, sizeof(used));
    for (unsigned i = 0; i < times; i++) {
        const struct choice_turn turn = choices_next(&choices, key);

        used[turn.way]++;
        if (turn.measure)
            choices_report(&choices, key, turn.way, cost[turn.way], 1);
    }
    return used[1] > used[0];
}

TEST(test_the_faster_one_is_chosen)
{
    for (unsigned faster = 0; faster < 2; faster++) {
        begin(faster ? 120 : 100, faster ? 100 : 120);
        assert_int_equal(choices_next(&choices, KEY).way, 0); /* the better one without knowledge has the first turn */
        use(KEY, 20);
        assert_int_equal(use(KEY, 200), faster);
        assert_true(used[faster] >= 190);
        /* A way that is 10 times as slow has two turns, the first of which does not count, and further ones only when
         * they are a small part of all uses' time. */
        begin(faster ? 1000 : 100, faster ? 100 : 1000);
        use(KEY, 200);
        assert_true(used[!faster] <= 2);
        use(KEY, 1800);
        assert_true(used[!faster] <= 5);
    }
}

/* The first report of each is left out: it has loaded a library, say. */
TEST(test_the_first_turn_does_not_count)
{
    begin(90, 100);
    for (unsigned i = 0; i < 2; i++) {
        struct choice_turn turn = choices_next(&choices, KEY);

        choices_report(&choices, KEY, turn.way, turn.way == 0 ? 1e6 : 1, 1);
    }
    use(KEY, 20);
    assert_int_equal(use(KEY, 50), 0);
}

/* A rival that has become faster is seen, but not a gain within noise. A tie is the first one's. */
TEST(test_only_a_gain_replaces_the_chosen_one)
{
    begin(100, 97);
    use(KEY, 20);
    assert_int_equal(use(KEY, 100), 0);
    begin(100, 120);
    use(KEY, 100);
    cost[1] = 97;
    use(KEY, 5000);
    assert_int_equal(use(KEY, 100), 0);
    cost[1] = 80;
    use(KEY, 5000);
    assert_int_equal(use(KEY, 100), 1);
}

/* The trial of one was while its threads slept. It is seen again. */
TEST(test_one_that_looked_hopeless_is_seen_again)
{
    for (unsigned late = 0; late < 2; late++) {
        begin(100, 100);
        cost[late] = 900;
        use(KEY, 32);
        assert_int_equal(use(KEY, 32), !late);
        cost[late] = 50;
        use(KEY, 1 << 11);
        assert_int_equal(use(KEY, 100), late);
    }
}

/* Jobs that fail report nothing; the trial ends all the same. */
TEST(test_turns_that_are_not_reported)
{
    unsigned measured = 0;

    begin(1, 1);
    for (unsigned i = 0; i < 1000; i++)
        measured += choices_next(&choices, KEY).measure;
    assert_true(measured < 100);
    choices_report(&choices, KEY + 1, 0, 1, 1); /* of a class that is not known */
    assert_int_equal(use(KEY, 50), 0);
}

/* Old classes make room for new ones, which are then measured. */
TEST(test_the_table_is_bounded)
{
    begin(120, 100);
    for (uint64_t key = 1; key <= 100 * CHOICE_CLASSES; key++)
        use(key << 8, 20);
    assert_int_equal(use(UINT64_C(100) * CHOICE_CLASSES << 8, 50), 1); /* still known */
    assert_int_equal(use(UINT64_C(1) << 8, 1), 0);                     /* forgotten */
    use(UINT64_C(1) << 8, 20);
    assert_int_equal(use(UINT64_C(1) << 8, 50), 1);
}

ALL_TESTS_WITH(NULL, close_choices)
