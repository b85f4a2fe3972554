/* Turns at the compiler: which source is compiled next, and which compile is interrupted so that a user who has a share
 * gets it. Users take turns, and the connections of one user take turns among themselves, so a connection with many
 * requests delays the others only by its running compiles.
 *
 * An interrupted compile is paused and goes on at its next turn, so that its time is not lost. As many are paused as
 * may run, since each keeps its memory; beyond that a compile is ended and begins anew at its next turn, until the time
 * that it lost is too much. */
#include "compile/service_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/clock.h"

/* ---- turns ---- */

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

static struct turn_place *turn_place_ref(struct turn_place *place)
{
    place->refs++;
    return place;
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
    *p = (struct turn_place){.user = u, .connection = connection, .refs = 1};
    list_append(&u->places, &p->link);
    return p;
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

/* Whether `a` is served before `b`: the user with the fewest compiles running is next, of several the one whose last
 * compile began longest ago; of that user's connections the next one is chosen by the same rule. */
static bool turn_is_before(const struct turn_place *a, const struct turn_place *b)
{
    if (a->user == b->user)
        return compare(&a->served, &b->served) < 0;
    return compare(&a->user->served, &b->user->served) < 0;
}

/* Whether a source of `waiting` is compiled in place of one of `running`, another user's, which has been compiled
 * without a break for `ran_ms`: at once when the waiting user has fewer compiles running even with this one, after
 * TURN_SLICE_MS when that only swaps the two numbers. */
static bool turn_may_take(const struct turn_place *waiting, const struct turn_place *running, uint64_t ran_ms)
{
    const unsigned mine = waiting->user->served.running, theirs = running->user->served.running;

    if (waiting->user == running->user || mine >= theirs)
        return false;
    return mine + 1 < theirs || ran_ms >= TURN_SLICE_MS;
}

/* A compile may lose so many times of the time that it may take. */
enum { LOSSES = 2 };

static uint64_t now_ms(void)
{
    return clock_now_ns() / 1000000;
}

int inflight_no_memory(size_t bytes, struct error *e)
{
    return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a source of %zu bytes", bytes);
}

/* ---- one compile ---- */

static void leave_turn(struct inflight *f)
{
    f->service->n_compiling--;
    f->state = QUEUED;
    f->place->served.running--;
    f->place->user->served.running--;
    turn_place_unref(f->place);
    f->place = NULL;
}

static void take_turn(struct inflight *f, struct turn_place *place)
{
    f->service->n_compiling++;
    f->state = COMPILING;
    f->began_ms = now_ms();
    f->place = turn_place_ref(place);
    place->served.running++;
    place->user->served.running++;
    place->served.last = place->user->served.last = ++f->service->turns.begun;
}

static void leave_compiler(struct inflight *f)
{
    if (f->state == COMPILING)
        leave_turn(f);
    else
        f->service->n_paused--;
    f->job = NULL;
}

void inflight_stop(struct inflight *f)
{
    if (!f->job)
        return;
    compile_job_cancel(f->job);
    leave_compiler(f);
}

static void fail(struct inflight *f, const struct error *e, const struct compile_failure *failure)
{
    const bool late = failure && !strcmp(failure->reason, "time");
    struct error more;

    if (late && f->interruptions) {
        error_set(&more, e->code, "%s; other users' compiles interrupted it %u time%s", e->message, f->interruptions,
                  f->interruptions > 1 ? "s" : "");
        e = &more;
    }
    f->service->counters.failures++;
    inflight_finish(f, NULL, CODE_COMPILED, e, failure);
}

static void compile_is_done(void *context, struct compiled *compiled, const struct error *e,
                            const struct compile_failure *failure)
{
    struct inflight *f = context;
    struct code_service *s = f->service;

    service_hold(s);
    leave_compiler(f);
    if (compiled) {
        memcpy(compiled->key, f->key, KEY_BYTES); /* no other reader yet */
        cache_memory_put(s->memory, compiled, clock_now_ns());
        service_store(s, compiled);
        service_publish(s, compiled);
        service_remote_leave(f, true);
        inflight_finish(f, compiled, CODE_COMPILED, e, failure);
    } else {
        fail(f, e, failure);
    }
    compiled_unref(compiled);
    service_start_queued(s);
    service_let_go(s);
}

bool inflight_begin(struct inflight *f, struct turn_place *place)
{
    struct code_service *s = f->service;

    f->job = compiler_compile(s->compiler, &f->request.input, compile_is_done, f);
    if (!f->job)
        return false;
    f->ran_ms = 0;
    s->counters.compiles++;
    take_turn(f, place);
    return true;
}

static bool interrupt(struct inflight *f)
{
    struct code_service *s = f->service;
    const bool pauses = s->n_paused < s->most;

    if (pauses && !compile_job_pause(f->job))
        return false;
    f->ran_ms += now_ms() - f->began_ms;
    f->interruptions++;
    if (pauses) {
        s->n_paused++;
        leave_turn(f);
    } else {
        f->lost_ms += f->ran_ms;
        inflight_stop(f);
    }
    return true;
}

/* ---- who is next ---- */

static struct code_request *first_queued(struct code_service *s)
{
    struct code_request *first = NULL;

    list_for_each_safe (node, after, &s->inflight) {
        struct inflight *f = list_entry(node, struct inflight, link);

        if (f->state != QUEUED)
            continue;
        list_for_each_safe (waiter, next, &f->waiters) {
            struct code_request *q = list_entry(waiter, struct code_request, link);

            if (!first || turn_is_before(q->place, first->place) ||
                (q->place == first->place && q->number < first->number))
                first = q;
        }
    }
    return first;
}

/* The compile to interrupt for one of `place` that waits: of the users with the most compiles, the one that has
 * been compiled longest, after *ret_in_ms. NULL: nobody has more than that place's user. */
static struct inflight *find_longest(struct code_service *s, const struct turn_place *place, uint64_t *ret_in_ms)
{
    const uint64_t now = now_ms();
    struct inflight *longest = NULL;

    list_for_each_safe (node, after, &s->inflight) {
        struct inflight *f = list_entry(node, struct inflight, link);
        unsigned running, most;

        if (f->state != COMPILING || !turn_may_take(place, f->place, TURN_SLICE_MS))
            continue;
        running = f->place->user->served.running;
        most = longest ? longest->place->user->served.running : 0;
        if (!longest || running > most || (running == most && f->began_ms < longest->began_ms))
            longest = f;
    }
    if (longest) {
        const uint64_t ran = now - longest->began_ms;

        *ret_in_ms = turn_may_take(place, longest->place, ran) ? 0 : TURN_SLICE_MS - ran;
    }
    return longest;
}

static void on_slice(uv_timer_t *timer)
{
    service_start_queued(timer->data);
}

static bool make_room(struct code_service *s, const struct turn_place *place)
{
    struct inflight *longest;
    uint64_t in_ms;

    if (s->n_compiling < s->most)
        return true;
    longest = find_longest(s, place, &in_ms);
    if (longest && in_ms)
        uv_timer_start(&s->slice, on_slice, in_ms, 0);
    return longest && !in_ms && interrupt(longest);
}

bool service_has_room(struct code_service *s, const struct turn_place *place)
{
    const struct code_request *first = first_queued(s);

    return (!first || turn_is_before(place, first->place)) && make_room(s, place);
}

void service_start_queued(struct code_service *s)
{
    const struct compile_failure late = {.reason = "time", .log = ""};
    struct code_request *q;
    struct inflight *f;
    struct error e;

    service_hold(s);
    while (!s->closing && (q = first_queued(s)) && make_room(s, q->place)) {
        f = q->inflight;
        if (f->job) {
            s->n_paused--;
            compile_job_resume(f->job);
            take_turn(f, q->place);
        } else if (s->time_ms && f->lost_ms >= LOSSES * s->time_ms) {
            error_set(&e, ERROR_COMPILE_FAILED,
                      "the compile took longer than %.0f s in all and was stopped (kernels.time_s)",
                      (double)f->lost_ms / 1000);
            fail(f, &e, &late);
        } else if (!inflight_begin(f, q->place)) {
            inflight_no_memory(f->request.input.length, &e);
            inflight_finish(f, NULL, CODE_COMPILED, &e, NULL);
        }
    }
    service_let_go(s);
}

void inflight_queue(struct inflight *f)
{
    f->state = QUEUED;
    service_start_queued(f->service);
}

void service_watch_turns(struct code_service *s)
{
    uv_timer_start(&s->slice, on_slice, 0, 0);
}

void service_queue_begin(struct code_service *s)
{
    uv_timer_init(s->loop, &s->slice);
    s->slice.data = s;
    uv_unref((uv_handle_t *)&s->slice);
}

static void slice_closed(uv_handle_t *handle)
{
    service_let_go(handle->data);
}

void service_queue_end(struct code_service *s)
{
    service_hold(s);
    uv_close((uv_handle_t *)&s->slice, slice_closed);
}
