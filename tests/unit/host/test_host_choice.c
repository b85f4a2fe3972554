/* The choice between candidates, by costs that the tests make up. */
#include <math.h>
#include <string.h>

#include "choice.h"
#include "support.h"

static const uint8_t order[CHOICE_CANDIDATES] = {2, 0, 1, 3, 4};

enum { ALL = 7 /* candidates 0, 1 and 2 */, KEY = 42 };

struct state {
    struct choices choices;
    double cost[CHOICE_CANDIDATES];
    unsigned used[CHOICE_CANDIDATES];
};

static void open_state(struct state *s, double first, double second, double third)
{
    *s = (struct state){.cost = {first, second, third}};
    assert_true(choices_init(&s->choices));
}

/* `times` uses of the class, each of which takes as long as the candidate costs. Returns the last candidate. */
static unsigned use(struct state *s, uint64_t key, unsigned candidates, unsigned times)
{
    struct choice_turn turn = {0};

    for (unsigned i = 0; i < times; i++) {
        turn = choices_next(&s->choices, key, candidates, order);
        assert_true(candidates & 1U << turn.candidate);
        s->used[turn.candidate]++;
        if (turn.measure)
            choices_report(&s->choices, key, turn.candidate, s->cost[turn.candidate], 1);
    }
    return turn.candidate;
}

static struct choice_class only_class(struct state *s)
{
    struct choice_class c, more;

    assert_true(choices_get(&s->choices, 0, &c));
    assert_false(choices_get(&s->choices, 1, &more));
    return c;
}

static void test_the_fastest_is_chosen(void **unused)
{
    struct state s;
    struct choice_class c;

    open_state(&s, 120, 100, 140);
    assert_int_equal(use(&s, KEY, ALL, 1), 2); /* the first in order has the first turn */
    use(&s, KEY, ALL, 20);
    memset(s.used, 0, sizeof(s.used));
    assert_int_equal(use(&s, KEY, ALL, 200), 1);
    assert_true(s.used[1] >= 190);
    c = only_class(&s);
    assert_int_equal(c.key, KEY);
    assert_int_equal(c.chosen, 1);
    assert_true(c.of[0].best == 120 && c.of[1].best == 100 && c.of[2].best == 140);
    choices_deinit(&s.choices);
}

/* Trials cost little. A slower candidate has few turns. A hopeless one has two, the first of which does not count, and
 * further ones only when they are a small part of all uses' time. */
static void test_trials_are_few(void **unused)
{
    struct state s;

    open_state(&s, 1000, 100, 110);
    use(&s, KEY, ALL, 200);
    assert_true(s.used[0] <= 2);
    use(&s, KEY, ALL, 1800);
    assert_true(s.used[0] <= 4);
    assert_true(s.used[2] < 25);
    choices_deinit(&s.choices);

    open_state(&s, 40e6, 30e6, 44e6); /* ns: long ones have fewer turns */
    use(&s, KEY, ALL, 15);
    assert_true(s.used[0] <= 3 && s.used[2] <= 3);
    choices_deinit(&s.choices);
}

/* The first report of each is left out: it has loaded a library, say. */
static void test_the_first_turn_does_not_count(void **unused)
{
    struct state s;

    open_state(&s, 90, 100, 100);
    for (unsigned i = 0; i < 3; i++) {
        struct choice_turn turn = choices_next(&s.choices, KEY, ALL, order);

        choices_report(&s.choices, KEY, turn.candidate, turn.candidate == 0 ? 1e6 : 1, 1);
    }
    assert_int_equal(use(&s, KEY, ALL, 50), 0);
    choices_deinit(&s.choices);
}

static void test_a_tie_is_the_first_in_order_s(void **unused)
{
    struct state s;

    open_state(&s, 100, 99, 101);
    assert_int_equal(use(&s, KEY, ALL, 100), 2);
    choices_deinit(&s.choices);
}

/* A rival that has become faster is seen, but not a gain within noise. */
static void test_only_a_gain_replaces_the_chosen_one(void **unused)
{
    struct state s;

    open_state(&s, 120, 100, 140);
    use(&s, KEY, ALL, 100);
    s.cost[0] = 97;
    use(&s, KEY, ALL, 5000);
    assert_int_equal(only_class(&s).chosen, 1);
    s.cost[0] = 80;
    use(&s, KEY, ALL, 5000);
    assert_int_equal(only_class(&s).chosen, 0);
    choices_deinit(&s.choices);
}

static void test_each_rival_has_its_turns(void **unused)
{
    struct state s;

    open_state(&s, 100, 105, 110);
    s.cost[3] = 115, s.cost[4] = 120;
    use(&s, KEY, 31, 100);
    for (unsigned faster = 1; faster < 5; faster++) {
        s.cost[faster] = 100 - 10 * (double)faster;
        use(&s, KEY, 31, 1 << 13);
        assert_int_equal(only_class(&s).chosen, faster);
    }
    choices_deinit(&s.choices);
}

/* The trial of one was while its threads slept. It is seen again, also where there are many others. */
static void test_one_that_looked_hopeless_is_seen_again(void **unused)
{
    struct state s;

    for (unsigned late = 0; late < 5; late++) {
        open_state(&s, 100, 105, 110);
        s.cost[3] = 115, s.cost[4] = 120;
        s.cost[late] = 900;
        use(&s, KEY, 31, 32);
        assert_int_not_equal(only_class(&s).chosen, late);
        s.cost[late] = 50;
        use(&s, KEY, 31, 1 << 13);
        assert_int_equal(only_class(&s).chosen, late);
        choices_deinit(&s.choices);
    }
}

/* Jobs that fail report nothing; the trial ends all the same. */
static void test_turns_that_are_not_reported(void **unused)
{
    struct state s;
    unsigned measured = 0;

    open_state(&s, 1, 1, 1);
    for (unsigned i = 0; i < 1000; i++)
        measured += choices_next(&s.choices, KEY, ALL, order).measure;
    assert_true(measured < 100);
    choices_report(&s.choices, KEY + 1, 0, 1, 1); /* of a class that is not known */
    assert_int_equal(only_class(&s).chosen, 2);
    choices_deinit(&s.choices);
}

static void test_other_candidates_begin_anew(void **unused)
{
    struct state s;

    open_state(&s, 100, 50, 200);
    assert_int_equal(use(&s, KEY, ALL, 100), 1);
    assert_int_equal(use(&s, KEY, 5, 100), 0);
    assert_int_equal(use(&s, KEY, 4, 10), 2); /* without a choice */
    choices_deinit(&s.choices);
}

static void test_the_table_is_bounded(void **unused)
{
    struct choice_class c;
    struct state s;
    unsigned n = 0;

    open_state(&s, 120, 100, 140);
    for (uint64_t key = 1; key <= 100 * CHOICE_CLASSES; key++)
        use(&s, key << 8, ALL, 1);
    while (choices_get(&s.choices, n, &c))
        n++;
    assert_true(n > 0 && n <= CHOICE_CLASSES);
    assert_int_equal(use(&s, UINT64_C(100) * CHOICE_CLASSES << 8, ALL, 50), 1);
    choices_deinit(&s.choices);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_fastest_is_chosen),
        cmocka_unit_test(test_trials_are_few),
        cmocka_unit_test(test_the_first_turn_does_not_count),
        cmocka_unit_test(test_a_tie_is_the_first_in_order_s),
        cmocka_unit_test(test_only_a_gain_replaces_the_chosen_one),
        cmocka_unit_test(test_each_rival_has_its_turns),
        cmocka_unit_test(test_one_that_looked_hopeless_is_seen_again),
        cmocka_unit_test(test_turns_that_are_not_reported),
        cmocka_unit_test(test_other_candidates_begin_anew),
        cmocka_unit_test(test_the_table_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
