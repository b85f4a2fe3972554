#include "server/schedule.h"

void schedule_init(struct schedule *s, uint64_t (*clock)(void), uint64_t (*worked)(void))
{
    *s = (struct schedule){.clock = clock, .worked = worked};
    list_init(&s->users);
}

void schedule_user_init(struct schedule_user *u)
{
    list_init(&u->link);
    list_init(&u->tasks);
    u->credit_ns = 0;
}

void schedule_task_init(struct schedule_task *t)
{
    list_init(&t->link);
}

void schedule_add(struct schedule *s, struct schedule_user *u, struct schedule_task *t)
{
    if (!list_empty(&t->link))
        return;
    list_append(&u->tasks, &t->link);
    if (!list_empty(&u->link))
        return;
    if (u->credit_ns < 0)
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

/* One more piece that is not charged; false: there were enough. */
static bool begin_unmeasured(struct schedule *s)
{
    if (!s->unmeasured)
        begin(s, SCHEDULE_QUANTUM_NS);
    else if (s->unmeasured >= SCHEDULE_UNMEASURED || schedule_is_over_now(s))
        return false;
    s->unmeasured++;
    return true;
}

bool schedule_begin_at_once(struct schedule *s, const struct schedule_user *u)
{
    const bool free = list_empty(&s->users) || (s->users.next == &u->link && s->users.prev == &u->link);

    return free && begin_unmeasured(s);
}

/* Those who come back while the turn goes on were served in it: they go behind everybody. */
static void put_back(struct schedule *s, struct schedule_user *u, struct list *unserved)
{
    while (!list_empty(unserved)) {
        struct list *node = unserved->prev;

        list_remove(node);
        list_append(u->tasks.next, node);
    }
    list_remove(&u->link);
    if (!list_empty(&u->tasks))
        list_append(&s->users, &u->link);
}

/* Each task once, as long as there is credit. */
static void serve_user(struct schedule *s, struct schedule_user *u, bool alone,
                       void (*serve)(struct schedule_task *task))
{
    uint64_t before = 0, now;
    struct list tasks, *node;

    list_take(&tasks, &u->tasks);
    while (alone && (node = list_first(&tasks)) && begin_unmeasured(s)) {
        list_remove(node);
        serve(list_entry(node, struct schedule_task, link));
    }
    if (alone && s->unmeasured && schedule_is_over(s))
        u->credit_ns = 0;
    while ((node = list_first(&tasks)) && u->credit_ns > 0) {
        before = before ? before : s->worked();
        list_remove(node);
        begin(s, u->credit_ns);
        serve(list_entry(node, struct schedule_task, link));
        now = s->worked();
        schedule_charge(u, now - before);
        before = now;
    }
    put_back(s, u, &tasks);
}

/* Nobody who waits has credit: the turns until one of them had some are over at once. */
static void forgive(struct schedule *s)
{
    int64_t least = INT64_MIN;

    list_for_each_safe (node, after, &s->users) {
        const struct schedule_user *u = list_entry(node, struct schedule_user, link);

        least = u->credit_ns > least ? u->credit_ns : least;
    }
    list_for_each_safe (node, after, &s->users)
        list_entry(node, struct schedule_user, link)->credit_ns += SCHEDULE_QUANTUM_NS - least;
}

static bool turn(struct schedule *s, int64_t quantum, void (*serve)(struct schedule_task *task))
{
    const bool alone = s->users.next == s->users.prev; /* nobody or one */
    struct list now;
    bool served = false;

    list_take(&now, &s->users);
    while (!list_empty(&now)) {
        struct schedule_user *u = list_entry(list_first(&now), struct schedule_user, link);

        u->credit_ns = u->credit_ns + quantum < SCHEDULE_QUANTUM_NS ? u->credit_ns + quantum : SCHEDULE_QUANTUM_NS;
        list_remove(&u->link);
        if (u->credit_ns <= 0) {
            list_append(&s->users, &u->link);
            continue;
        }
        served = true;
        serve_user(s, u, alone, serve);
    }
    return served;
}

void schedule_turn(struct schedule *s, void (*serve)(struct schedule_task *task))
{
    if (!list_empty(&s->users) && !turn(s, SCHEDULE_QUANTUM_NS, serve) && !list_empty(&s->users)) {
        forgive(s);
        turn(s, 0, serve);
    }
    s->unmeasured = 0;
}
