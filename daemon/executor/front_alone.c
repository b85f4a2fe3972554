/* Exclusive jobs that wait to be alone on a GPU: whose turn it is among users, and which have waited long enough.
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
static uint64_t last_of(const struct front_hold *h, uint64_t owner)
{
    for (unsigned i = 0; i < FRONT_HOLD_USERS; i++)
        if (h->users[i].last_ns && h->users[i].owner == owner)
            return h->users[i].last_ns;
    return 0;
}

void front_alone_note(struct front_hold *h, uint64_t owner, uint64_t now_ns)
{
    struct front_hold_user *at = &h->users[0];

    for (unsigned i = 0; i < FRONT_HOLD_USERS; i++) {
        struct front_hold_user *user = &h->users[i];

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
static struct front_stream *choose(const struct front_hold *h)
{
    struct front_stream *next = NULL;
    uint64_t least_ns = UINT64_MAX;
    unsigned n = 0;

    list_for_each_safe (node, after, &h->alone) {
        struct front_stream *s = list_entry(node, struct front_stream, alone_link);
        const uint64_t last_ns = can_begin(s) ? last_of(h, owner_of(s)) : UINT64_MAX;

        if (last_ns < least_ns) {
            next = s;
            least_ns = last_ns;
        }
        if (++n == LOOKED_AT)
            break;
    }
    return next;
}

bool front_alone_is_next(const struct front_stream *s)
{
    struct front_hold *h = &s->device->hold;

    if (!h->next || !can_begin(h->next))
        h->next = choose(h);
    return h->next == s;
}

void front_alone_wait(struct front_stream *s, uint64_t now_ns)
{
    if (!list_empty(&s->alone_link))
        return;
    s->alone_ns = now_ns;
    list_append(&s->device->hold.alone, &s->alone_link);
    front_set_timer(s->device->front, now_ns + PATIENCE_NS);
}

void front_alone_leave(struct front_stream *s)
{
    struct front_hold *h = &s->device->hold;

    list_remove(&s->alone_link);
    if (h->next == s)
        h->next = NULL;
}

bool front_alone_turn(struct front_device *gpu, uint64_t now_ns)
{
    bool any = false;
    struct list *node;

    while ((node = list_first(&gpu->hold.alone))) {
        struct front_stream *s = list_entry(node, struct front_stream, alone_link);

        if (now_ns < s->alone_ns + PATIENCE_NS) {
            front_set_timer(gpu->front, s->alone_ns + PATIENCE_NS);
            break;
        }
        front_alone_leave(s);
        s->beside = any = true;
    }
    return any;
}
