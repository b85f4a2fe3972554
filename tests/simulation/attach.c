/* A process joins the simulation when it is loaded, and leaves when it exits. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload.h"

struct world *world;
__thread struct party *me;
__thread bool my_turn;
uint64_t program_hash;
static bool is_executor; /* this process, which speaks to the daemon alone */

enum { STEP_NS = 400, GIVE_WAY = 4, COUNTED = 32 };

bool simulated(void)
{
    return me && my_turn;
}

unsigned party_number(const struct party *p)
{
    return (unsigned)(p - world->parties);
}

uint64_t party_key(const void *address)
{
    return ((uint64_t)(uintptr_t)address ^ (uint64_t)me->process << 48) | 1U << 3;
}

static void pass_on(void)
{
    unsigned next;

    look_for_others();
    next = world->request ? 0 : world_choose(world);

    if (!next && !world->request)
        world->request = REQUEST_IDLE;
    if (me == &world->parties[next])
        return;
    my_turn = false;
    world_give(world, next);
    world_wait_for_turn(world, me);
    my_turn = true;
}

static void pass_time(uint64_t ns)
{
    world->now_ns += ns;
    me->ran_ns += ns;
}

void give_way(void)
{
    me->state = PARTY_READY;
    pass_on();
}

/* Whatever is due at this step comes first, and others may. */
static void end_step(void)
{
    if (++world->steps >= world->last_step)
        world->request = REQUEST_STEPS;
    else if (world->steps >= world->next_event)
        world->request = REQUEST_STEP;
    if (world->request || world_random(world) % GIVE_WAY == 0)
        give_way();
}

void step_at(const char *call)
{
    const int before = errno;

    me->looks = 0;
    pass_time(1 + world_random(world) % STEP_NS);
    world_tell(world, "  %.9f %s\n", (double)world->now_ns / 1e9, call);
    end_step();
    errno = before;
}

/* No time passes: what a thread computes would take longer where others have more turns meanwhile. */
void step_within(void)
{
    const int before = errno;

    if (world_random(world) % COUNTED == 0)
        end_step(); /* also a process can be killed here */
    else if (world_random(world) % GIVE_WAY == 0)
        give_way();
    errno = before;
}

bool wait_until(uint64_t until_ns, uint64_t key)
{
    bool came;

    world_tell(world, "  waits until %.9f for %llx\n", until_ns == NEVER ? -1.0 : (double)until_ns / 1e9,
               (unsigned long long)key & 0xffffffffffff);
    me->until_ns = until_ns;
    me->key = key;
    me->stale = 0;
    me->signalled = 0;
    me->state = PARTY_WAITS;
    pass_on();
    came = me->signalled || world->now_ns < until_ns;
    me->state = PARTY_READY;
    me->key = KEY_NONE;
    me->signalled = 0;
    return came;
}

void wake_all(uint64_t key)
{
    for (unsigned i = 1; i < world->n_parties; i++)
        if (world->parties[i].state == PARTY_WAITS && world->parties[i].key == key)
            world->parties[i].signalled = 1;
}

void wake_one(uint64_t key)
{
    unsigned n = 0, at;

    for (unsigned i = 1; i < world->n_parties; i++)
        n += world->parties[i].state == PARTY_WAITS && world->parties[i].key == key && !world->parties[i].signalled;
    if (!n)
        return;
    at = (unsigned)(world_random(world) % n);
    for (unsigned i = 1; i < world->n_parties; i++) {
        struct party *p = &world->parties[i];

        if (p->state == PARTY_WAITS && p->key == key && !p->signalled && at-- == 0)
            p->signalled = 1;
    }
}

/* Also from a signal's handler, whose thread may not have the turn. A client speaks to the daemon and its processes, an
 * executor to the daemon's, and nobody else sees a descriptor that is this process's alone. */
void changed_descriptors(bool alone)
{
    const struct party *by = me;

    if (!world)
        return;
    if (!by) {
        world_changed(world);
        return;
    }
    for (unsigned i = 1; i < world->n_parties; i++) {
        struct party *p = &world->parties[i];

        if (p->process == by->process || (!alone && (p->group == DAEMON_GROUP || p->group == by->group ||
                                                     (by->group == DAEMON_GROUP && !is_executor))))
            p->stale = 1;
    }
    world->descriptors++;
}

/* Its number outside of a namespace of processes that it may be in. */
pid_t process_number(void)
{
    char text[16] = "";

    return readlink("/proc/self", text, sizeof(text) - 1) > 0 ? (pid_t)strtol(text, NULL, 10) : getpid();
}

static pid_t thread_number(void)
{
    char text[48] = "", *at;

    if (readlink("/proc/thread-self", text, sizeof(text) - 1) <= 0)
        return (pid_t)syscall(SYS_gettid);
    at = strrchr(text, '/');
    return at ? (pid_t)strtol(at + 1, NULL, 10) : 0;
}

void leave(bool process)
{
    me->state = PARTY_ENDED;
    world->request_process = me->process;
    world->request_thread = thread_number();
    world->request =
        process ? REQUEST_ENDS : REQUEST_THREAD_ENDS; /* what that does to others comes before their turns */
    my_turn = false;
    me = NULL;
    world_give(world, 0);
}

static struct party *of_this_process(void)
{
    const pid_t inside = getpid(), outside = process_number();

    for (unsigned i = 1; i < world->n_parties; i++) {
        struct party *p = &world->parties[i];

        if ((p->process == inside || p->process == outside) && p->state != PARTY_ENDED && !p->thread)
            return p;
    }
    return NULL;
}

static const char *value_of(char **environment, const char *name)
{
    const size_t n = strlen(name);

    for (; *environment; environment++)
        if (!strncmp(*environment, name, n))
            return *environment + n;
    return NULL;
}

/* Before all other libraries are begun, the C library among them: `environ` is not set yet. */
__attribute__((constructor)) static void attach(int argc, char **argv, char **environment)
{
    const char *path = value_of(environment, WORLD_VARIABLE "="), *name;
    const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    struct world *w = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (fd >= 0)
        REAL(close)(fd);
    if (w == MAP_FAILED)
        return;
    world = w;
    while (!(me = of_this_process())) { /* whose parent writes its number once it knows it */
        world_end_with_simulator(world);
        syscall(SYS_sched_yield);
    }
    me->process = process_number();
    is_executor = argc > 1 && !strcmp(argv[1], "--executor");
    name = argc && strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    for (const char *c = name; *c; c++)
        program_hash = (program_hash ^ (uint64_t)*c) * 0x100000001b3U;
    snprintf(me->name, NAME_BYTES, "%s%s%.16s", name, is_executor || (argc > 1 && argv[1][0] != '-') ? " " : "",
             is_executor                     ? "executor"
             : argc > 1 && argv[1][0] != '-' ? argv[1]
                                             : "");
    for (unsigned i = 1; i < world->n_parties; i++) /* threads of the program that this process was before */
        if (world->parties[i].process == me->process && world->parties[i].thread)
            world->parties[i].state = PARTY_ENDED;
    if (world->holder == (int32_t)party_number(me)) { /* it was this process that has become another program */
        my_turn = true;
        return;
    }
    me->state = PARTY_READY;
    world_wait_for_turn(world, me);
    my_turn = true;
    if (is_executor && world->slow_start_ns)
        wait_until(world->now_ns + (world->slow_start_ns + world_random(world) % world->slow_start_ns) / 2, KEY_NONE);
}

/* Other libraries may have work to do after this, as joining their threads: the simulator sees when the process is
 * gone. */
__attribute__((destructor)) static void detach(void)
{
    if (!simulated())
        return;
    world->ending = me->process;
    syscall(SYS_futex, &world->parties[0].turn, FUTEX_WAKE, 1, NULL, NULL, 0);
}
