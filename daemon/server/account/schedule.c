#include "server/account/schedule.h"

void schedule_init(struct schedule *s, uint64_t (*clock)(void), uint64_t (*worked)(void))
{
    *s = (struct schedule){.clock = clock, .worked = worked};
    list_init(&s->users);
    list_init(&s->later);
    s->round = 1;
}

void schedule_user_init(struct schedule_user *u)
{
    list_init(&u->link);
    list_init(&u->tasks);
    u->credit_ns = 0;
    u->round = 0;
}

void schedule_task_init(struct schedule_task *t)
{
    list_init(&t->link);
}

/* Whether the user has had its part of this round. */
static bool is_through(const struct schedule *s, const struct schedule_user *u)
{
    return u->round == s->round && u->credit_ns <= 0;
}

void schedule_add(struct schedule *s, struct schedule_user *u, struct schedule_task *t)
{
    if (!list_empty(&t->link))
        return;
    list_append(&u->tasks, &t->link);
    if (!list_empty(&u->link))
        return;
    if (is_through(s, u))
        list_append(&s->later, &u->link);
    else if (u->credit_ns < 0)
        list_append(&s->users, &u->link);
    else
        list_append(s->users.next, &u->link); /* before the first */
}

void schedule_remove(struct schedule_user *u, struct schedule_task *t)
{
    list_remove(&t->link);
    if (list_empty(&u->tasks))
        list_remove(&u->link);
}

void schedule_charge(struct schedule_user *u, uint64_t ns)
{
    if (ns > SCHEDULE_DEBT_MAX_NS)
        ns = SCHEDULE_DEBT_MAX_NS;
    u->credit_ns -= (int64_t)ns;
    if (u->credit_ns < -SCHEDULE_DEBT_MAX_NS)
        u->credit_ns = -SCHEDULE_DEBT_MAX_NS;
}

static void begin(struct schedule *s, int64_t limit_ns)
{
    s->now_ns = s->began_ns = 0;
    s->limit_ns = (uint64_t)limit_ns;
}

/* Begins one more piece that is not charged. False: the limit of such pieces is reached. */
static bool begin_unmeasured(struct schedule *s)
{
    if (!s->unmeasured)
        begin(s, SCHEDULE_QUANTUM_NS);
    else if (s->unmeasured >= SCHEDULE_UNMEASURED || schedule_is_over_now(s))
        return false;
    s->unmeasured++;
    return true;
}

static bool is_only(const struct list *all, const struct list *node)
{
    return all->next == node && all->prev == node;
}

/* Whether no other user waits. */
static bool is_alone(const struct schedule *s, const struct schedule_user *u)
{
    return (list_empty(&s->users) || is_only(&s->users, &u->link)) &&
           (list_empty(&s->later) || is_only(&s->later, &u->link));
}

bool schedule_begin_at_once(struct schedule *s, const struct schedule_user *u)
{
    return is_alone(s, u) && begin_unmeasured(s);
}

/* Puts the nodes of `from` before the first of `to`. */
static void put_first(struct list *to, struct list *from)
{
    for (struct list *node = from->prev; node != from; node = from->prev) {
        list_remove(node);
        list_append(to->next, node);
    }
}

/* Takes the user out of the turn. Tasks that came back during the turn were served in it, so they go behind all
 * others. */
static void put_back(struct schedule *s, struct schedule_user *u, struct list *unserved)
{
    put_first(&u->tasks, unserved);
    list_remove(&u->link);
    if (!list_empty(&u->tasks))
        list_append(is_through(s, u) ? &s->later : &s->users, &u->link);
}

/* Serves each task once, as long as there is credit. Returns the measured time. */
static uint64_t serve_user(struct schedule *s, struct schedule_user *u, bool alone,
                           void (*serve)(struct schedule_task *task))
{
    uint64_t start = 0, before = 0, now;
    struct list tasks, *node;

    list_take(&tasks, &u->tasks);
    while (alone && (node = list_first(&tasks)) && begin_unmeasured(s)) {
        list_remove(node);
        serve(list_entry(node, struct schedule_task, link));
    }
    if (alone && s->unmeasured && schedule_is_over(s))
        u->credit_ns = 0;
    while ((node = list_first(&tasks)) && u->credit_ns > 0) {
        if (!start)
            start = before = s->worked();
        list_remove(node);
        begin(s, u->credit_ns);
        serve(list_entry(node, struct schedule_task, link));
        now = s->worked();
        schedule_charge(u, now - before);
        before = now;
    }
    put_back(s, u, &tasks);
    return before - start;
}

/* Begins the next round with the users that wait. False: there are none. Where no user of the last round had credit,
 * the rounds until one of them has some pass at once. */
static bool begin_round(struct schedule *s)
{
    int64_t least = INT64_MIN;

    if (list_empty(&s->later))
        return false;
    list_take(&s->users, &s->later);
    s->round++;
    list_for_each_safe (node, after, &s->users) {
        const struct schedule_user *u = list_entry(node, struct schedule_user, link);

        least = u->credit_ns > least ? u->credit_ns : least;
    }
    if (s->fruitless && least <= 0)
        list_for_each_safe (node, after, &s->users)
            list_entry(node, struct schedule_user, link)->credit_ns -= least;
    s->fruitless = true;
    return true;
}

/* Gives the user the round's quantum. */
static void give_quantum(struct schedule *s, struct schedule_user *u)
{
    if (u->round == s->round)
        return;
    u->round = s->round;
    u->credit_ns += SCHEDULE_QUANTUM_NS;
    if (u->credit_ns > SCHEDULE_QUANTUM_NS)
        u->credit_ns = SCHEDULE_QUANTUM_NS;
}

/* Serves users in turn. False: no user was served. */
static bool turn(struct schedule *s, void (*serve)(struct schedule_task *task))
{
    const bool alone = s->users.next == s->users.prev && list_empty(&s->later);
    uint64_t spent = 0;
    struct list now, *node;
    bool served = false;

    list_take(&now, &s->users);
    while (spent < SCHEDULE_QUANTUM_NS && (node = list_pop(&now))) {
        struct schedule_user *u = list_entry(node, struct schedule_user, link);

        give_quantum(s, u);
        if (u->credit_ns <= 0) {
            list_append(&s->later, &u->link);
            continue;
        }
        served = true;
        s->fruitless = false;
        spent += serve_user(s, u, alone, serve);
    }
    put_first(&s->users, &now);
    return served;
}

void schedule_turn(struct schedule *s, void (*serve)(struct schedule_task *task))
{
    while (!list_empty(&s->users) || begin_round(s))
        if (turn(s, serve))
            break;
    s->unmeasured = 0;
}
