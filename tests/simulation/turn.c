/* Gives the turn on, and lets time pass. */
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

uint64_t world_random(struct world *w)
{
    /* xoroshiro128+, of Blackman and Vigna (2018) */
    const uint64_t a = w->random[0], result = a + w->random[1], b = w->random[1] ^ a;

    w->random[0] = (a << 24 | a >> 40) ^ b ^ b << 16;
    w->random[1] = b << 37 | b >> 27;
    return result;
}

unsigned world_add(struct world *w, pid_t process, uint32_t group, const char *name)
{
    unsigned i = 1;

    while (i < PARTIES && w->parties[i].state != PARTY_NONE && w->parties[i].state != PARTY_ENDED)
        i++;
    if (i == PARTIES) {
        dprintf(2, "simulation: more than %d threads\n", PARTIES);
        _exit(99);
    }
    if (i >= w->n_parties)
        w->n_parties = i + 1;
    w->parties[i] = (struct party){.state = PARTY_BORN, .process = process, .group = group, .until_ns = NEVER};
    w->parties[i].weight = world_random(w) % 8 ? 8 : 1;
    snprintf(w->parties[i].name, NAME_BYTES, "%s", name);
    return i;
}

static bool can_run(const struct world *w, const struct party *p)
{
    if (p->paused)
        return false;
    switch ((enum party_state)p->state) {
    case PARTY_BORN:
    case PARTY_READY:
        return true;
    case PARTY_WAITS:
        return p->until_ns <= w->now_ns || p->signalled || (p->key == KEY_DESCRIPTORS && p->stale);
    default:
        return false;
    }
}

/* Whether all clients sleep, or there is none. */
static bool is_quiet(const struct world *w)
{
    for (unsigned i = 1; i < w->n_parties; i++) {
        const struct party *p = &w->parties[i];

        if (p->state != PARTY_NONE && p->state != PARTY_ENDED && p->group != DAEMON_GROUP && !p->thread && !p->sleeps)
            return false;
    }
    return true;
}

/* All threads wait until then. Counts who wakes for nothing: no client does anything, for some time now. */
static void skip_to(struct world *w, uint64_t to_ns)
{
    static const uint64_t settled_ns = 150000000000;
    const bool quiet = is_quiet(w);

    w->skipped_ns += to_ns - w->now_ns;
    if (!quiet || w->quiet_since_ns == NEVER)
        w->quiet_since_ns = quiet ? w->now_ns : NEVER;
    else if (w->now_ns >= w->quiet_since_ns + settled_ns) {
        w->quiet_ns += to_ns - w->now_ns;
        for (unsigned i = 1; i < w->n_parties; i++) {
            const struct party *p = &w->parties[i];

            if (p->state == PARTY_WAITS && p->until_ns == to_ns && !p->sleeps)
                w->wakes[p->group != DAEMON_GROUP      ? WAKES_CLIENTS
                         : strstr(p->name, "executor") ? WAKES_EXECUTORS
                                                       : WAKES_DAEMON]++;
        }
        world_tell(w, "%.9f skipped to\n", (double)to_ns / 1e9);
    }
    w->now_ns = to_ns;
}

/* The next thread. When all wait, the clock goes on to the first deadline. 0 is the simulator: its alarm is due, or all
 * threads wait for ever. */
unsigned world_choose(struct world *w)
{
    uint64_t first_ns;

    if (w->alarm_ns <= w->now_ns)
        return 0;
    for (;;) {
        uint64_t whole = 0, at;

        for (unsigned i = 1; i < w->n_parties; i++)
            whole += can_run(w, &w->parties[i]) ? w->parties[i].weight : 0;
        if (whole) {
            at = world_random(w) % whole;
            for (unsigned i = 1; i < w->n_parties; i++) {
                const uint64_t weight = can_run(w, &w->parties[i]) ? w->parties[i].weight : 0;

                if (at < weight)
                    return i;
                at -= weight;
            }
        }
        first_ns = NEVER;
        for (unsigned i = 1; i < w->n_parties; i++)
            if (w->parties[i].state == PARTY_WAITS && !w->parties[i].paused && w->parties[i].until_ns < first_ns)
                first_ns = w->parties[i].until_ns;
        if (w->alarm_ns <= first_ns && w->alarm_ns != NEVER) {
            if (w->alarm_ns > w->now_ns)
                skip_to(w, w->alarm_ns);
            return 0;
        }
        if (first_ns == NEVER)
            return 0;
        skip_to(w, first_ns);
    }
}

void world_tell(struct world *w, const char *format, ...)
{
    va_list list;
    int n;

    if (!w->trace || w->n_told + 256 > TRACE_BYTES)
        return;
    va_start(list, format);
    n = vsnprintf(w->told + w->n_told, 256, format, list);
    va_end(list);
    w->n_told += (uint64_t)(n < 255 ? n : 255);
}

void world_give(struct world *w, unsigned party)
{
    struct party *p = &w->parties[party];

    world_tell(w, "%llu %.9f turn of %u, process %d\n", (unsigned long long)w->steps, (double)w->now_ns / 1e9, party,
               (int)p->process);

    w->turns++;
    w->hash = (w->hash ^ party ^ w->now_ns) * 0x100000001b3U;
    w->holder = (int32_t)party;
    p->turn = 1;
    syscall(SYS_futex, &p->turn, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Ends this process when the simulator was killed and its folder removed: there are no more turns then. */
void world_end_with_simulator(const struct world *w)
{
    struct stat status;

    if (stat(w->path, &status) < 0 && errno == ENOENT)
        syscall(SYS_exit_group, 1);
}

void world_wait_for_turn(const struct world *w, struct party *p)
{
    const struct timespec now_and_then = {.tv_sec = 5};

    while (!p->turn)
        if (syscall(SYS_futex, &p->turn, FUTEX_WAIT, 0, &now_and_then, NULL, 0) < 0 && errno == ETIMEDOUT)
            world_end_with_simulator(w);
    p->turn = 0;
}

void world_changed(struct world *w)
{
    for (unsigned i = 1; i < w->n_parties; i++)
        w->parties[i].stale = 1;
    w->descriptors++;
}

/* The threads of the process get no more turns. Its descriptors were closed, which others may wait for. */
void world_process_ended(struct world *w, pid_t process)
{
    for (unsigned i = 1; i < w->n_parties; i++)
        if (w->parties[i].process == process && w->parties[i].state != PARTY_NONE)
            w->parties[i].state = PARTY_ENDED;
    world_changed(w);
}
