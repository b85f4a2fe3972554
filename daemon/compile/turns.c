#include "compile/turns.h"

#include <stdlib.h>

/* The turns of a user or a connection. */
struct served {
    unsigned running;
    uint64_t last; /* the number of the compile that began last; 0: none yet */
};

struct turn_user {
    struct list link, places;
    struct turns *turns;
    uint64_t id;
    struct served served;
};

struct turn_place {
    struct list link;
    struct turn_user *user;
    uint64_t connection;
    unsigned refs;
    struct served served;
};

void turns_init(struct turns *turns)
{
    *turns = (struct turns){0};
    list_init(&turns->users);
}

static struct turn_user *get_user(struct turns *turns, uint64_t id)
{
    struct turn_user *u;

    list_for_each_safe (node, after, &turns->users) {
        u = list_entry(node, struct turn_user, link);
        if (u->id == id)
            return u;
    }
    u = calloc(1, sizeof(*u));
    if (!u)
        return NULL;
    u->turns = turns;
    u->id = id;
    list_init(&u->places);
    list_init(&u->link);
    list_append(&turns->users, &u->link);
    return u;
}

static void forget_unused(struct turn_user *u)
{
    if (!list_empty(&u->places))
        return;
    list_remove(&u->link);
    free(u);
}

struct turn_place *turn_place_get(struct turns *turns, uint64_t user, uint64_t connection)
{
    struct turn_user *u = get_user(turns, user);
    struct turn_place *p;

    if (!u)
        return NULL;
    list_for_each_safe (node, after, &u->places) {
        p = list_entry(node, struct turn_place, link);
        if (p->connection == connection)
            return turn_place_ref(p);
    }
    p = calloc(1, sizeof(*p));
    if (!p) {
        forget_unused(u);
        return NULL;
    }
    p->user = u;
    p->connection = connection;
    p->refs = 1;
    list_init(&p->link);
    list_append(&u->places, &p->link);
    return p;
}

struct turn_place *turn_place_ref(struct turn_place *place)
{
    place->refs++;
    return place;
}

void turn_place_unref(struct turn_place *place)
{
    if (!place || --place->refs)
        return;
    list_remove(&place->link);
    forget_unused(place->user);
    free(place);
}

/* < 0: `a` is first. Two that began at the same number have begun nothing. */
static int compare(const struct served *a, const struct served *b)
{
    if (a->running != b->running)
        return a->running < b->running ? -1 : 1;
    return a->last < b->last ? -1 : a->last > b->last;
}

bool turn_is_before(const struct turn_place *a, const struct turn_place *b)
{
    if (a->user == b->user)
        return compare(&a->served, &b->served) < 0;
    return compare(&a->user->served, &b->user->served) < 0;
}

bool turn_may_take(const struct turn_place *waiting, const struct turn_place *running, uint64_t ran_ms)
{
    const unsigned mine = waiting->user->served.running, theirs = running->user->served.running;

    if (waiting->user == running->user || mine >= theirs)
        return false;
    return mine + 1 < theirs || ran_ms >= TURN_SLICE_MS;
}

unsigned turn_running(const struct turn_place *place)
{
    return place->user->served.running;
}

static void begin(struct served *s, uint64_t number)
{
    s->running++;
    s->last = number;
}

void turn_begin(struct turn_place *place)
{
    uint64_t number = ++place->user->turns->begun;

    begin(&place->served, number);
    begin(&place->user->served, number);
}

void turn_end(struct turn_place *place)
{
    place->served.running--;
    place->user->served.running--;
}
