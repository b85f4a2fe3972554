/* Turns of the loop by a made-up clock: who is served when, and what each has had of the time. */
#include "server/account/schedule.h"
#include "tests/support/unit.h"

enum { USERS = 3, TASKS = 64, US = 1000, QUANTUM = SCHEDULE_QUANTUM_NS };

struct client {
    struct schedule_task task;
    unsigned user, left; /* pieces of work that it has */
    uint64_t costs_ns;   /* of one piece */
    unsigned served;
};

static struct {
    struct schedule schedule;
    struct schedule_user users[USERS];
    struct client clients[USERS][TASKS];
    uint64_t now_ns, spent_ns[USERS];
    unsigned readings, order[1024], n_order; /* the users in the order served */
} f;

static uint64_t read_clock(void)
{
    f.readings++;
    return f.now_ns;
}

static int setup(void **state)
{
    memset(&f, 0, sizeof(f));
    f.now_ns = 1;
    schedule_init(&f.schedule, read_clock, read_clock);
    for (unsigned u = 0; u < USERS; u++) {
        schedule_user_init(&f.users[u]);
        for (unsigned i = 0; i < TASKS; i++) {
            schedule_task_init(&f.clients[u][i].task);
            f.clients[u][i].user = u;
        }
    }
    return 0;
}

static void give(unsigned user, unsigned i, unsigned pieces, uint64_t costs_ns)
{
    struct client *c = &f.clients[user][i];

    c->left = pieces;
    c->costs_ns = costs_ns;
    schedule_add(&f.schedule, &f.users[user], &c->task);
}

/* As many pieces as the time allows, one at least; then it waits again. */
static void serve(struct schedule_task *task)
{
    struct client *c = list_entry(task, struct client, task);

    c->served++;
    if (f.n_order < sizeof(f.order) / sizeof(f.order[0]))
        f.order[f.n_order++] = c->user;
    do {
        schedule_note(&f.schedule, f.now_ns);
        f.now_ns += c->costs_ns;
        f.spent_ns[c->user] += c->costs_ns;
        c->left--;
        schedule_note(&f.schedule, f.now_ns);
    } while (c->left && !schedule_is_over(&f.schedule));
    if (c->left)
        schedule_add(&f.schedule, &f.users[c->user], &c->task);
}

static void turn(void)
{
    schedule_turn(&f.schedule, serve);
}

/* To the end of a round. */
static void finish_round(void)
{
    do
        turn();
    while (!list_empty(&f.schedule.users));
}

static void assert_about(uint64_t got, uint64_t expected, uint64_t slack)
{
    assert_in_range(got, expected > slack ? expected - slack : 0, expected + slack);
}

/* One task of a user beside some of another one. */
TEST_WITH(users_have_equal_time, setup, NULL)
{
    static const struct {
        unsigned tasks;
        uint64_t cost_ns, others_cost_ns, elsewhere_ns; /* of a piece; charged for each round */
        unsigned share;                                 /* of the other's time: 1 or a half */
        uint64_t slack_ns;
    } cases[] = {{TASKS, 10 * US, 10 * US, 0, 1, 20 * US},
                 {1, 10 * QUANTUM, QUANTUM / 10, 0, 1, 11 * QUANTUM}, /* long pieces are paid off */
                 {1, 10 * US, 10 * US, QUANTUM / 2, 2, 100 * US}};

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        setup(state);
        for (unsigned k = 0; k < cases[i].tasks; k++)
            give(0, k, 1000000, cases[i].cost_ns);
        give(1, 0, 1000000, cases[i].others_cost_ns);
        for (unsigned k = 0; k < 1000; k++) {
            schedule_charge(&f.users[0], cases[i].elsewhere_ns);
            finish_round();
        }
        assert_about(cases[i].share * f.spent_ns[0], f.spent_ns[1], cases[i].slack_ns);
        for (unsigned k = 0; i == 0 && k < TASKS; k++) /* and they share it */
            assert_in_range(f.clients[0][k].served, 1000 / TASKS - 1, 1000 / TASKS + 2);
        if (i != 1)
            assert_about(f.spent_ns[1], 1000 * (uint64_t)QUANTUM, 20 * US);
    }
}

TEST_WITH(nobody_pays_for_time_that_nobody_wants, setup, NULL)
{
    give(0, 0, 1000000, 10 * US);
    schedule_charge(&f.users[0], SCHEDULE_DEBT_MAX_NS);
    turn();
    assert_int_equal(f.clients[0][0].served, 1);
    schedule_charge(&f.users[0], SCHEDULE_DEBT_MAX_NS);
    give(1, 0, 1000000, 10 * US);
    schedule_charge(&f.users[1], SCHEDULE_DEBT_MAX_NS / 2);
    turn(); /* both owe: the one that owes less goes on */
    assert_int_equal(f.clients[1][0].served, 1);
    assert_int_equal(f.clients[0][0].served, 1);
    schedule_charge(&f.users[0], UINT64_MAX); /* a jump of the clock is not held against anybody for long */
    for (unsigned turns = 0; f.clients[0][0].served == 1; turns++) {
        assert_in_range(turns, 0, SCHEDULE_DEBT_MAX_NS / QUANTUM + 2);
        turn();
    }
}

/* Between two looks at the sockets there is one long piece, not one of everybody's. */
TEST_WITH(who_wants_little_waits_for_one_piece, setup, NULL)
{
    give(0, 0, 1000000, 10 * QUANTUM);
    give(1, 0, 1000000, 10 * QUANTUM);
    for (unsigned i = 0; i < 10000; i++) {
        const struct schedule_user *u = &f.users[2];
        /* Once in a round: then it is behind those who waited. */
        const bool used_up =
            (u->round == f.schedule.round && u->credit_ns <= 0) || !list_empty(&f.clients[2][0].task.link);

        f.n_order = 0;
        give(2, 0, 1, 5 * US);
        turn();
        assert_in_range(f.n_order, 1, 2);
        if (!used_up)
            assert_int_equal(f.order[0], 2);
    }
    assert_about(f.spent_ns[0], f.spent_ns[1], 11 * QUANTUM);
    assert_true(f.clients[0][0].served > 10);
}

/* However often it comes back, it has a quantum a round. */
TEST_WITH(who_comes_back_at_once_does_not_push_in, setup, NULL)
{
    give(0, 0, 1000000, 10 * US);
    give(1, 0, 1000000, 10 * US);
    for (unsigned i = 0; i < 10000; i++) {
        give(2, 0, 1, QUANTUM / 2);
        turn();
    }
    assert_about(f.spent_ns[0], f.spent_ns[1], 2 * QUANTUM);
    assert_about(f.spent_ns[2], f.spent_ns[1], 2 * QUANTUM);
}

TEST_WITH(one_alone_costs_no_readings, setup, NULL)
{
    give(0, 0, 1000000, 10 * US);
    for (unsigned i = 0; i < 100; i++)
        turn();
    assert_int_equal(f.readings, 0);
    assert_true(f.clients[0][0].served == 100);
    assert_false(schedule_begin_at_once(&f.schedule, &f.users[1])); /* the other one waits */
    for (unsigned n = 0; n < SCHEDULE_UNMEASURED; n++)
        assert_true(schedule_begin_at_once(&f.schedule, &f.users[0]));
    assert_false(schedule_begin_at_once(&f.schedule, &f.users[0]));
}

TEST_WITH(a_turn_of_many_tasks_ends, setup, NULL)
{
    for (unsigned i = 0; i < TASKS; i++)
        give(0, i, 1, QUANTUM / 10);
    turn();
    assert_in_range(f.n_order, SCHEDULE_UNMEASURED + 10, SCHEDULE_UNMEASURED + 11);
    setup(state);
    for (unsigned i = 0; i < TASKS; i++)
        give(0, i, 1, QUANTUM);
    turn();
    assert_int_equal(f.n_order, 1);
    for (unsigned i = 0; i < TASKS; i++)
        turn();
    for (unsigned i = 0; i < TASKS; i++)
        assert_int_equal(f.clients[0][i].served, 1);
    assert_false(schedule_waits(&f.schedule));
}

static struct client *victim;

static void serve_and_end_another(struct schedule_task *task)
{
    struct client *c = list_entry(task, struct client, task);

    c->served++;
    if (victim)
        schedule_remove(&f.users[victim->user], &victim->task);
    victim = NULL;
}

TEST_WITH(tasks_may_go_at_any_time, setup, NULL)
{
    for (unsigned u = 0; u < 2; u++) { /* of the user that is served; of another one that waits in the same turn */
        setup(state);
        give(0, 0, 1, 1);
        give(0, 1, 1, 1);
        schedule_charge(&f.users[1], 1); /* so that it comes behind */
        give(1, 1, 1, 1);
        victim = &f.clients[u][1];
        schedule_turn(&f.schedule, serve_and_end_another);
        assert_int_equal(f.clients[0][0].served, 1);
        assert_int_equal(f.clients[u][1].served, 0);
        assert_false(schedule_waits(&f.schedule));
    }
}
