/* The choice between candidates, by costs that the tests make up. */

#include "choice.h"
#include "support.h"

static const uint8_t order[CHOICE_CANDIDATES] = {2, 0, 1, 3, 4};

enum { ALL = 7 /* candidates 0, 1 and 2 */, KEY = 42 };

static struct choices choices;
static double cost[CHOICE_CANDIDATES];
static unsigned used[CHOICE_CANDIDATES];

static int close_choices(void **unused)
{
    choices_deinit(&choices);
    return 0;
}

/* The costs of candidates 0, 1 and 2. */
static void begin(double first, double second, double third)
{
    close_choices(NULL);
    assert_true(choices_init(&choices));
    memset(used, 0, sizeof(used));
    memcpy(cost, (double[CHOICE_CANDIDATES]){first, second, third}, sizeof(cost));
}

/* `times` uses of the class, each of which takes as long as the candidate costs. Returns the last candidate. */
static unsigned use(uint64_t key, unsigned candidates, unsigned times)
{
    struct choice_turn turn = {0};

    for (unsigned i = 0; i < times; i++) {
        turn = choices_next(&choices, key, candidates, order);
        assert_true(candidates & 1U << turn.candidate);
        used[turn.candidate]++;
        if (turn.measure)
            choices_report(&choices, key, turn.candidate, cost[turn.candidate], 1);
    }
    return turn.candidate;
}

static struct choice_class only_class(void)
{
    struct choice_class c, more;

    assert_true(choices_get(&choices, 0, &c));
    assert_false(choices_get(&choices, 1, &more));
    return c;
}

TEST(test_the_fastest_is_chosen)
{
    struct choice_class c;

    begin(120, 100, 140);
    assert_int_equal(use(KEY, ALL, 1), 2); /* the first in order has the first turn */
    use(KEY, ALL, 20);
    memset(used, 0, sizeof(used));
    assert_int_equal(use(KEY, ALL, 200), 1);
    assert_true(used[1] >= 190);
    c = only_class();
    assert_int_equal(c.key, KEY);
    assert_int_equal(c.chosen, 1);
    assert_true(c.of[0].best == 120 && c.of[1].best == 100 && c.of[2].best == 140);
}

/* Trials cost little. A slower candidate has few turns. A hopeless one has two, the first of which does not count, and
 * further ones only when they are a small part of all uses' time. */
TEST(test_trials_are_few)
{
    begin(1000, 100, 110);
    use(KEY, ALL, 200);
    assert_true(used[0] <= 2);
    use(KEY, ALL, 1800);
    assert_true(used[0] <= 4);
    assert_true(used[2] < 25);

    begin(40e6, 30e6, 44e6); /* ns: long ones have fewer turns */
    use(KEY, ALL, 15);
    assert_true(used[0] <= 3 && used[2] <= 3);
}

/* The first report of each is left out: it has loaded a library, say. */
TEST(test_the_first_turn_does_not_count)
{
    begin(90, 100, 100);
    for (unsigned i = 0; i < 3; i++) {
        struct choice_turn turn = choices_next(&choices, KEY, ALL, order);

        choices_report(&choices, KEY, turn.candidate, turn.candidate == 0 ? 1e6 : 1, 1);
    }
    assert_int_equal(use(KEY, ALL, 50), 0);
}

TEST(test_a_tie_is_the_first_in_order_s)
{
    begin(100, 99, 101);
    assert_int_equal(use(KEY, ALL, 100), 2);
}

/* A rival that has become faster is seen, but not a gain within noise. */
TEST(test_only_a_gain_replaces_the_chosen_one)
{
    begin(120, 100, 140);
    use(KEY, ALL, 100);
    cost[0] = 97;
    use(KEY, ALL, 5000);
    assert_int_equal(only_class().chosen, 1);
    cost[0] = 80;
    use(KEY, ALL, 5000);
    assert_int_equal(only_class().chosen, 0);
}

TEST(test_each_rival_has_its_turns)
{
    begin(100, 105, 110);
    cost[3] = 115, cost[4] = 120;
    use(KEY, 31, 100);
    for (unsigned faster = 1; faster < 5; faster++) {
        cost[faster] = 100 - 10 * (double)faster;
        use(KEY, 31, 1 << 13);
        assert_int_equal(only_class().chosen, faster);
    }
}

/* The trial of one was while its threads slept. It is seen again, also where there are many others. */
TEST(test_one_that_looked_hopeless_is_seen_again)
{
    for (unsigned late = 0; late < 5; late++) {
        begin(100, 105, 110);
        cost[3] = 115, cost[4] = 120;
        cost[late] = 900;
        use(KEY, 31, 32);
        assert_int_not_equal(only_class().chosen, late);
        cost[late] = 50;
        use(KEY, 31, 1 << 13);
        assert_int_equal(only_class().chosen, late);
    }
}

/* Jobs that fail report nothing; the trial ends all the same. */
TEST(test_turns_that_are_not_reported)
{
    unsigned measured = 0;

    begin(1, 1, 1);
    for (unsigned i = 0; i < 1000; i++)
        measured += choices_next(&choices, KEY, ALL, order).measure;
    assert_true(measured < 100);
    choices_report(&choices, KEY + 1, 0, 1, 1); /* of a class that is not known */
    assert_int_equal(only_class().chosen, 2);
}

TEST(test_other_candidates_begin_anew)
{
    begin(100, 50, 200);
    assert_int_equal(use(KEY, ALL, 100), 1);
    assert_int_equal(use(KEY, 5, 100), 0);
    assert_int_equal(use(KEY, 4, 10), 2); /* without a choice */
}

TEST(test_the_table_is_bounded)
{
    struct choice_class c;
    unsigned n = 0;

    begin(120, 100, 140);
    for (uint64_t key = 1; key <= 100 * CHOICE_CLASSES; key++)
        use(key << 8, ALL, 1);
    while (choices_get(&choices, n, &c))
        n++;
    assert_true(n > 0 && n <= CHOICE_CLASSES);
    assert_int_equal(use(UINT64_C(100) * CHOICE_CLASSES << 8, ALL, 50), 1);
}

ALL_TESTS_WITH(NULL, close_choices)
