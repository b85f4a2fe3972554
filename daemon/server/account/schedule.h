/* Order of work on the loop: deficit round-robin by user, then by task (a connection) within the user.
 *
 * A round gives each user with waiting tasks one quantum of loop time. A user's tasks are served in order, each once,
 * until the quantum is over; the rest keep their places. A piece of work that takes longer than the quantum is a debt,
 * paid off in the next rounds, and so is time added by schedule_charge(). Time that no other user waits for is free:
 * where all waiting users have debts, the least debt is taken off all of them; where one user waits alone, a few pieces
 * a turn are not charged.
 *
 * A turn is the part of a round between two looks at the sockets: it serves users until a quantum's time has passed. A
 * user that comes in between and has credit left in the round is next. So a user with little work waits for one piece
 * of another user's work, not for one piece of every user's.
 *
 * The schedule owns nothing: users are part of accounts, tasks are part of connections. Thread: loop. */
#ifndef KOPS_SERVER_ACCOUNT_SCHEDULE_H
#define KOPS_SERVER_ACCOUNT_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"

enum {
    SCHEDULE_QUANTUM_NS = 150 * 1000,
    SCHEDULE_DEBT_MAX_NS = 20 * 1000 * 1000, /* bounds a jump of the clock, as after the process was stopped */
    SCHEDULE_UNMEASURED = 4                  /* tasks of a user alone that are served without asking the clock */
};

struct schedule_user {
    struct list link;  /* in one of the schedule's lists while a task waits */
    struct list tasks; /* struct schedule_task, the next one first */
    int64_t credit_ns; /* the rest of the quantum; negative: a debt */
    uint64_t round;    /* the last round in which the user got its quantum */
};

struct schedule_task {
    struct list link; /* alone while the task does not wait */
};

struct schedule {
    struct list users;        /* users that may be served in this round, the next one first … */
    struct list later;        /* … and in the next round */
    uint64_t round;           /* number of this round */
    bool fruitless;           /* no user has been served in this round */
    uint64_t (*clock)(void);  /* bounds a piece of work */
    uint64_t (*worked)(void); /* charges a piece of work: processor time, since the thread may have had to wait */
    uint64_t now_ns;          /* the last reading of the clock, by any caller … */
    uint64_t began_ns;        /* … and the first reading of the piece under way; 0: none yet */
    uint64_t limit_ns;        /* how long the piece may take */
    unsigned unmeasured;      /* pieces since the last turn that were not charged: one quantum bounds all of them */
};

void schedule_init(struct schedule *s, uint64_t (*clock)(void), uint64_t (*worked)(void));
void schedule_user_init(struct schedule_user *u);
void schedule_task_init(struct schedule_task *t);

/* Makes the task wait to be served; harmless when it waits already. Its user is next, unless the user's quantum is used
 * up. */
void schedule_add(struct schedule *s, struct schedule_user *u, struct schedule_task *t);
void schedule_remove(struct schedule_user *u, struct schedule_task *t);

static inline bool schedule_waits(const struct schedule *s)
{
    return !list_empty(&s->users) || !list_empty(&s->later);
}

/* Serves waiting tasks, each once at most, until a quantum's time has passed. Tasks that are added meanwhile wait for
 * the next turn. serve() gets a task that is out of the list already and may add and remove any. */
void schedule_turn(struct schedule *s, void (*serve)(struct schedule_task *task));

/* Whether a piece of the user's work may begin at once, outside of a turn: no other user waits. */
bool schedule_begin_at_once(struct schedule *s, const struct schedule_user *u);

/* Notes a reading of the clock by another part of the loop. */
static inline void schedule_note(struct schedule *s, uint64_t now_ns)
{
    s->now_ns = now_ns;
    if (!s->began_ns)
        s->began_ns = now_ns;
}

/* Whether the piece of work under way has had its time, by the last reading of the clock. */
static inline bool schedule_is_over(const struct schedule *s)
{
    return s->now_ns - s->began_ns >= s->limit_ns;
}

/* As schedule_is_over(), after reading the clock. */
static inline bool schedule_is_over_now(struct schedule *s)
{
    schedule_note(s, s->clock());
    return schedule_is_over(s);
}

/* Charges the user for loop time spent elsewhere on its behalf. */
void schedule_charge(struct schedule_user *u, uint64_t ns);

#endif
