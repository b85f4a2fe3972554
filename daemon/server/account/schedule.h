/* Whose turn it is on the loop: deficit round-robin by user, then by task (a connection) within the user.
 *
 * A round gives each user with tasks that wait one quantum of loop time. A user's tasks are served in order, each once,
 * until the quantum is over; the rest keep their places. A piece of work that takes longer than the quantum is paid off
 * in the next rounds, and so is what schedule_charge() says. Time that nobody else waits for is free: where all who
 * wait owe some, the least debt is taken off all of them, and where one waits alone a few pieces a turn are not
 * charged.
 *
 * A turn is the part of a round between two looks at the sockets: it serves users until a quantum's time has passed.
 * Who comes in between and has not used up the round's quantum is next. So somebody who wants little waits for one
 * piece of somebody's work, not for one of everybody's.
 *
 * Owns nothing: users are part of accounts and tasks of connections. Thread: loop. */
#ifndef KOPS_SERVER_ACCOUNT_SCHEDULE_H
#define KOPS_SERVER_ACCOUNT_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"

enum {
    SCHEDULE_QUANTUM_NS = 150 * 1000,
    SCHEDULE_DEBT_MAX_NS = 20 * 1000 * 1000, /* the clock may have jumped: the process was stopped */
    SCHEDULE_UNMEASURED = 4                  /* tasks of a user alone that are served without asking the clock */
};

struct schedule_user {
    struct list link;  /* in one of the schedule's lists while a task waits */
    struct list tasks; /* struct schedule_task, the next one first */
    int64_t credit_ns; /* what is left of the quantum; negative: a debt */
    uint64_t round;    /* the last one in which it got its quantum */
};

struct schedule_task {
    struct list link; /* alone while it does not wait */
};

struct schedule {
    struct list users;        /* who may be served in this round, the next one first … */
    struct list later;        /* … and in the next one */
    uint64_t round;           /* its number */
    bool fruitless;           /* nobody has been served in this round */
    uint64_t (*clock)(void);  /* what bounds a piece of work … */
    uint64_t (*worked)(void); /* … and what it is charged by: processor time, since the thread may have had to wait */
    uint64_t now_ns;          /* the last reading of the clock, whoever read it … */
    uint64_t began_ns;        /* … and the first one of what is under way; 0: none yet */
    uint64_t limit_ns;        /* how long that may take */
    unsigned unmeasured;      /* pieces since the last turn that were not charged: one quantum bounds all of them */
};

void schedule_init(struct schedule *s, uint64_t (*clock)(void), uint64_t (*worked)(void));
void schedule_user_init(struct schedule_user *u);
void schedule_task_init(struct schedule_task *t);

/* The task waits to be served; nothing changes when it does already. Its user is the next one unless it has used up its
 * quantum. */
void schedule_add(struct schedule *s, struct schedule_user *u, struct schedule_task *t);
void schedule_remove(struct schedule_user *u, struct schedule_task *t);

static inline bool schedule_waits(const struct schedule *s)
{
    return !list_empty(&s->users) || !list_empty(&s->later);
}

/* Serves those who wait, each once at most, until a quantum's time has passed; those who are added meanwhile wait for
 * the next turn. serve() takes a task that is out of the list already and may add and remove any. */
void schedule_turn(struct schedule *s, void (*serve)(struct schedule_task *task));

/* Whether a piece of the user's work may begin here and now, outside of a turn: nobody else waits. */
bool schedule_begin_at_once(struct schedule *s, const struct schedule_user *u);

/* What somebody on the loop has just read from the clock. */
static inline void schedule_note(struct schedule *s, uint64_t now_ns)
{
    s->now_ns = now_ns;
    if (!s->began_ns)
        s->began_ns = now_ns;
}

/* Whether the piece of work that is under way has had its time, as of the last reading of the clock. */
static inline bool schedule_is_over(const struct schedule *s)
{
    return s->now_ns - s->began_ns >= s->limit_ns;
}

/* Asks the clock first. */
static inline bool schedule_is_over_now(struct schedule *s)
{
    schedule_note(s, s->clock());
    return schedule_is_over(s);
}

/* Loop time that was spent on the user's behalf elsewhere. */
void schedule_charge(struct schedule_user *u, uint64_t ns);

#endif
