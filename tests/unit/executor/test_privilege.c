/* The privilege to read counters: where it is needed, which thread has it, and that none is left. */
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/privilege.h"
#include "sandbox/process.h"
#include "sandbox/threads.h"
#include "tests/support/folder.h"
#include "tests/support/unit.h"

enum { NOT_HERE = 77 };

static bool needed(const char *text)
{
    return privilege_is_needed(folder_put(folder_new(), "params", text));
}

OPENING_TEST(test_parameters)
{
    assert_true(needed("RmProfilingAdminOnly: 1\n"));
    assert_true(needed("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\nPreserveVideoMemoryAllocations: 0\n"));
    assert_false(needed("ResmanDebugLevel: 1\nRmProfilingAdminOnly: 0\nPreserveVideoMemoryAllocations: 1\n"));
    assert_false(needed("ResmanDebugLevel: 1\n"));
    assert_false(needed("NotRmProfilingAdminOnly: 1\n"));
    assert_false(needed(""));
    assert_false(privilege_is_needed("/nowhere/params"));
}

/* ---- who has it ---- */

static uint64_t permitted, in_effect; /* of the thread that called look() */

static void look(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct has[_LINUX_CAPABILITY_U32S_3] = {{0}};

    syscall(SYS_capget, &header, has);
    permitted = has[0].permitted | (uint64_t)has[1].permitted << 32;
    in_effect = has[0].effective | (uint64_t)has[1].effective << 32;
}

static int use(void *context, struct error *e)
{
    look();
    return *(int *)context;
}

/* ---- threads that are started by it ---- */

static sem_t stays;

/* `argument`: the signals that it blocks. */
static void *wait_for_ever(void *argument)
{
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, argument, NULL, sizeof(uint64_t));
    sem_post(&stays);
    for (;;)
        pause();
    return argument;
}

static void *work_for_ever(void *argument)
{
    sem_post(&stays);
    for (;;)
        sched_yield();
    return argument;
}

static bool start_one(void *(*body)(void *), uint64_t *mask)
{
    pthread_t thread;

    return pthread_create(&thread, NULL, body, mask) == 0 && sem_wait(&stays) == 0;
}

static int use_with_threads(void *context, struct error *e)
{
    static uint64_t none, all_of_libc = ~(UINT64_C(3) << 31);

    for (unsigned i = 0; i < 8; i++)
        if (!start_one(wait_for_ever, &none) || !start_one(wait_for_ever, &all_of_libc))
            return -1;
    return start_one(work_for_ever, NULL) ? use(context, e) : -1;
}

static int use_with_deaf_thread(void *context, struct error *e)
{
    static uint64_t all = UINT64_MAX;

    return start_one(wait_for_ever, &all) ? use(context, e) : -1;
}

static bool keep(struct error *e)
{
    return process_may_keep(PRIVILEGE) && process_keep_over_users(e) == 0 && process_become("nobody", true, e) == 0 &&
           process_keep_one(PRIVILEGE, e) == 0 && process_refuse_privileges(e) == 0;
}

static bool one_thread_has_it(void)
{
    struct error why, e;
    int answer = 0, result;

    if (!keep(&e))
        return false;
    look();
    if (permitted != UINT64_C(1) << PRIVILEGE || in_effect || privilege_hand_over(&e) < 0)
        return false;
    look();
    if (permitted || threads_check_no_capabilities(&e) == 0 || !strstr(e.message, "has a capability left"))
        return false;
    if (privilege_use(use, &answer, &result, &why, &e) < 0 || result != 0 || in_effect != UINT64_C(1) << PRIVILEGE)
        return false;
    look();
    return !permitted && threads_check_no_capabilities(&e) == 0 && getuid() != 0;
}

/* What privilege_use() of that says, once it is kept and handed over; 1: it could not be. */
static int use_kept(int (*call)(void *context, struct error *e), int answer, int *ret_result, struct error *e)
{
    struct error why;

    sem_init(&stays, 0, 0);
    return keep(e) && privilege_hand_over(e) == 0 ? privilege_use(call, &answer, ret_result, &why, e) : 1;
}

static bool a_failure_is_told(void)
{
    struct error e;
    int result = 0;

    return use_kept(use, -1, &result, &e) == 0 && result == -1 && threads_check_no_capabilities(&e) == 0;
}

static bool threads_lose_it(void)
{
    struct error e;
    int result;

    return use_kept(use_with_threads, 0, &result, &e) == 0 && result == 0 && threads_check_no_capabilities(&e) == 0;
}

static bool a_deaf_thread_is_found(void)
{
    struct error e;
    int result;

    return use_kept(use_with_deaf_thread, 0, &result, &e) < 0 &&
           strstr(e.message, "has a capability left; it blocks signal");
}

static bool unused_it_goes(void)
{
    struct error e;

    return keep(&e) && privilege_hand_over(&e) == 0 && threads_check_no_capabilities(&e) < 0 &&
           privilege_drop(&e) == 0 && threads_check_no_capabilities(&e) == 0;
}

static bool without_it_nothing_is_called(void)
{
    struct error why, e;
    int answer = 0, result = 0;

    permitted = 7;
    return privilege_use(use, &answer, &result, &why, &e) == 0 && result == -1 && permitted == 7;
}

/* In a process of its own. */
static void check(bool (*probe)(void))
{
    const pid_t pid = fork();
    int status;

    if (pid == 0)
        _exit(geteuid() != 0 || !process_may_keep(PRIVILEGE) ? NOT_HERE : probe() ? 0 : 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NOT_HERE)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define PROBE(name)                                                                                                    \
    TEST(test_##name)                                                                                                  \
    {                                                                                                                  \
        check(name);                                                                                                   \
    }

PROBE(one_thread_has_it)
PROBE(a_failure_is_told)
PROBE(threads_lose_it)
PROBE(a_deaf_thread_is_found)
PROBE(unused_it_goes)

TEST(test_without_it_nothing_is_called)
{
    assert_true(without_it_nothing_is_called());
}
