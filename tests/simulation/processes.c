/* Processes: their births, ends, signals, and who waits for them. */
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "preload.h"

/* ---- births ---- */

EXPORT pid_t fork(void)
{
    unsigned party;
    pid_t pid;

    if (!simulated())
        return REAL(fork)();
    party = world_add(world, 0, me->group, me->name);
    forget_alone();
    pid = REAL(fork)();
    if (pid < 0) {
        world->parties[party].state = PARTY_ENDED;
    } else if (pid) {
        world->parties[party].process = pid;
        step();
    } else {
        me = &world->parties[party];
        my_turn = false;
        forget_alone();
        world_wait_for_turn(world, me);
        my_turn = true;
        me->process = process_number();
        me->state = PARTY_READY;
    }
    return pid;
}

EXPORT pid_t vfork(void)
{
    return fork(); /* the child of a real one runs while its parent has the turn */
}

/* The child shares nothing with the caller once it is another program, which joins by itself. */
static int spawned(int r, pid_t pid, unsigned party)
{
    struct party *p = &world->parties[party];
    siginfo_t info = {0};

    if (r) {
        p->state = PARTY_ENDED;
        return r;
    }
    p->process = pid;
    while (p->state == PARTY_BORN) { /* for real: it loads its libraries */
        if (!REAL(waitid)(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid) {
            world_process_ended(world, pid);
            break;
        }
        syscall(SYS_sched_yield);
    }
    changed_descriptors(false);
    step();
    return 0;
}

static const char *variable(char *const environment[], const char *name)
{
    for (; *environment; environment++)
        if (!strncmp(*environment, name, strlen(name)) && (*environment)[strlen(name)] == '=')
            return *environment;
    return NULL;
}

/* An environment of few variables gets those with which the program joins. The caller frees it. */
static char **joining(char *const environment[])
{
    static const char *const names[] = {"LD_PRELOAD", WORLD_VARIABLE};
    size_t n = 0, more = 0;
    char **all;

    while (environment[n])
        n++;
    all = calloc(n + sizeof(names) / sizeof(names[0]) + 1, sizeof(*all));
    if (!all)
        return NULL;
    memcpy(all, environment, n * sizeof(*all));
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *given = variable(environment, names[i]) ? NULL : variable(environ, names[i]);

        if (given)
            all[n + more++] = (char *)(uintptr_t)given;
    }
    return all;
}

#define SPAWN(name)                                                                                                    \
    EXPORT int name(pid_t *restrict ret, const char *restrict program,                                                 \
                    const posix_spawn_file_actions_t *restrict actions, const posix_spawnattr_t *restrict attributes,  \
                    char *const arguments[restrict], char *const environment[restrict])                                \
    {                                                                                                                  \
        unsigned party;                                                                                                \
        char **all;                                                                                                    \
        pid_t pid = 0;                                                                                                 \
        int r;                                                                                                         \
                                                                                                                       \
        if (!simulated())                                                                                              \
            return REAL(name)(ret, program, actions, attributes, arguments, environment);                              \
        party = world_add(world, 0, me->group, "spawned");                                                             \
        all = joining(environment);                                                                                    \
        r = REAL(name)(&pid, program, actions, attributes, arguments, all ? all : environment);                        \
        free(all);                                                                                                     \
        if (ret && !r)                                                                                                 \
            *ret = pid;                                                                                                \
        return spawned(r, pid, party);                                                                                 \
    }

SPAWN(posix_spawn)
SPAWN(posix_spawnp)

/* ---- ends ---- */

EXPORT void _exit(int status)
{
    if (simulated())
        leave(true);
    REAL(_exit)(status);
    __builtin_unreachable();
}

EXPORT void _Exit(int status)
{
    _exit(status);
}

EXPORT pid_t waitpid(pid_t pid, int *status, int flags)
{
    pid_t r;

    if (!simulated())
        return REAL(waitpid)(pid, status, flags);
    step();
    while (!(r = REAL(waitpid)(pid, status, flags | WNOHANG)) && !(flags & WNOHANG))
        wait_until(NEVER, KEY_DESCRIPTORS);
    return r;
}

EXPORT pid_t wait4(pid_t pid, int *status, int flags, struct rusage *used)
{
    pid_t r;

    if (!simulated())
        return REAL(wait4)(pid, status, flags, used);
    step();
    while (!(r = REAL(wait4)(pid, status, flags | WNOHANG, used)) && !(flags & WNOHANG))
        wait_until(NEVER, KEY_DESCRIPTORS);
    return r;
}

EXPORT int waitid(idtype_t type, id_t id, siginfo_t *info, int flags)
{
    siginfo_t own = {0}, *found = info ? info : &own;
    int r;

    if (!simulated())
        return REAL(waitid)(type, id, info, flags);
    step();
    for (;;) {
        found->si_pid = 0;
        r = REAL(waitid)(type, id, found, flags | WNOHANG);
        if (r || found->si_pid || flags & WNOHANG)
            return r;
        wait_until(NEVER, KEY_DESCRIPTORS);
    }
}

/* ---- signals ---- */

/* The signal has been taken before the caller goes on: by a handler, or by the end of the process. */
static void signal_taken(pid_t pid, int signal)
{
    enum { LOOKS = 100000 };
    char path[40], line[256];
    bool known = false;

    for (unsigned i = 1; i < world->n_parties; i++)
        known |= world->parties[i].process == pid && world->parties[i].state != PARTY_ENDED;
    if (!known)
        return;
    if (signal == SIGKILL) {
        world->request_process = pid;
        world->request = REQUEST_ENDS;
        give_way();
        return;
    }
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    for (unsigned i = 0; i < LOOKS; i++) {
        FILE *f = fopen(path, "re");
        unsigned long long pending = 0, shared = 0;
        char state = f || errno == ENOENT ? 'Z' : '?'; /* the caller may have no descriptor left */

        while (f && fgets(line, sizeof(line), f))
            if (sscanf(line, "State: %c", &state) != 1 && sscanf(line, "SigPnd: %llx", &pending) != 1)
                sscanf(line, "ShdPnd: %llx", &shared);
        if (f)
            fclose(f);
        if (state == 'Z') {
            world_process_ended(world, pid);
            break;
        }
        if (!((pending | shared) & 1ULL << (signal - 1)))
            break;
        syscall(SYS_sched_yield);
    }
    changed_descriptors(false);
    step();
}

EXPORT int kill(pid_t pid, int signal)
{
    const int r = REAL(kill)(pid, signal);

    if (simulated() && !r && signal && pid && pid != getpid())
        signal_taken(pid < 0 ? -pid : pid, signal); /* of a group it is the only one */
    return r;
}

static pid_t process_of(int pidfd)
{
    char path[40], line[128];
    int pid = -1;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        sscanf(line, "Pid: %d", &pid);
    if (f)
        fclose(f);
    return pid;
}

EXPORT long syscall(long number, ...)
{
    typedef long call(long, ...);
    static call *real;
    long a[6], r;
    va_list list;

    if (!real)
        real = (call *)(uintptr_t)dlsym(RTLD_NEXT, "syscall");
    va_start(list, number);
    for (unsigned i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    r = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (simulated() && number == SYS_kcmp)
        return order_of_files(r, (int)a[3], (int)a[4]);
    if (simulated() && number == SYS_pidfd_send_signal && !r && a[1]) {
        const pid_t pid = process_of((int)a[0]);

        if (pid > 0 && pid != getpid())
            signal_taken(pid, (int)a[1]);
    }
    return r;
}
