/* Exclusive jobs that wait to be alone on the GPUs: whose turn it is among users, and which have waited long enough.
 * Thread: loop. */
#include "executor/front_policy.h"
#include "util/clock.h"

enum { LOOKED_AT = 64 /* waiting streams, when the next one is chosen */ };

#define PATIENCE_NS UINT64_C(2000000000) /* how long a job waits; then it runs beside others, and says so */

static uint64_t owner_of(const struct front_stream *s)
{
    return list_entry(s->unsent, struct backend_job, link)->owner;
}

/* When the user's last exclusive job began; 0: it is not remembered. */
static uint64_t last_of(const struct front *f, uint64_t owner)
{
    for (unsigned i = 0; i < FRONT_HOLD_USERS; i++)
        if (f->hold_users[i].last_ns && f->hold_users[i].owner == owner)
            return f->hold_users[i].last_ns;
    return 0;
}

void front_alone_note(struct front *f, uint64_t owner, uint64_t now_ns)
{
    struct front_hold_user *at = &f->hold_users[0];

    for (unsigned i = 0; i < FRONT_HOLD_USERS; i++) {
        struct front_hold_user *user = &f->hold_users[i];

        if (user->last_ns && user->owner == owner) {
            at = user;
            break;
        }
        at = user->last_ns < at->last_ns ? user : at;
    }
    *at = (struct front_hold_user){.owner = owner, .last_ns = now_ns};
}

/* Its domain may have lost the executor meanwhile. */
static bool can_begin(const struct front_stream *s)
{
    const struct executor *x = s->domain ? s->domain->executor : NULL;

    return x && x->ready && !atomic_load(&x->gone);
}

/* Of the streams, that of the user whose last one was the longest ago; of those, the one that waits for longest. */
static struct front_stream *choose(struct front *f)
{
    struct front_stream *next = NULL;
    uint64_t least_ns = UINT64_MAX;
    unsigned n = 0;

    list_for_each_safe (node, after, &f->alone) {
        struct front_stream *s = list_entry(node, struct front_stream, alone_link);
        const uint64_t last_ns = can_begin(s) ? last_of(f, owner_of(s)) : UINT64_MAX;

        if (last_ns < least_ns) {
            next = s;
            least_ns = last_ns;
        }
        if (++n == LOOKED_AT)
            break;
    }
    return next;
}

bool front_alone_is_next(struct front *f, const struct front_stream *s)
{
    if (!f->hold_next || !can_begin(f->hold_next))
        f->hold_next = choose(f);
    return f->hold_next == s;
}

void front_alone_wait(struct front_stream *s, uint64_t now_ns)
{
    struct front *f = s->device->front;

    if (!list_empty(&s->alone_link))
        return;
    s->alone_ns = now_ns;
    list_append(&f->alone, &s->alone_link);
    front_set_timer(f, now_ns + PATIENCE_NS);
}

void front_alone_leave(struct front_stream *s)
{
    struct front *f = s->device->front;

    list_remove(&s->alone_link);
    if (f->hold_next == s)
        f->hold_next = NULL;
}

bool front_alone_turn(struct front *f, uint64_t now_ns)
{
    bool any = false;
    struct list *node;

    while ((node = list_first(&f->alone))) {
        struct front_stream *s = list_entry(node, struct front_stream, alone_link);

        if (now_ns < s->alone_ns + PATIENCE_NS) {
            front_set_timer(f, s->alone_ns + PATIENCE_NS);
            break;
        }
        front_alone_leave(s);
        s->beside = any = true;
    }
    return any;
}
