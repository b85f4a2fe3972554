/* The privilege to read counters: where it is needed, and which thread has it. What becomes of threads that the library
 * starts by it, and of a privilege that is not used, is for functional_counters_privileged. */
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/confine.h"
#include "sandbox/process.h"
#include "tests/support/folder.h"
#include "tests/support/unit.h"

enum { NOT_HERE = 77 };

OPENING_TEST(test_parameters)
{
    static const struct {
        const char *text;
        bool needed;
    } cases[] = {
        {"RmProfilingAdminOnly: 1\n", true},
        {"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\nPreserveVideoMemoryAllocations: 0\n", true},
        {"ResmanDebugLevel: 1\nRmProfilingAdminOnly: 0\nPreserveVideoMemoryAllocations: 1\n", false},
        {"ResmanDebugLevel: 1\n", false},
        {"NotRmProfilingAdminOnly: 1\n", false},
        {"", false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (privilege_is_needed(folder_put(folder_new(), "params", cases[i].text)) != cases[i].needed)
            fail_msg("%s", cases[i].text);
    assert_false(privilege_is_needed("/nowhere/params"));
}

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

/* In a process of its own: it is kept, handed over, and used by a call that answers so. */
static bool one_thread_has_it(int answer)
{
    struct error why, e;
    int result;

    if (process_keep_over_users(&e) < 0 || process_become("nobody", true, &e) < 0 ||
        process_keep_one(PRIVILEGE, &e) < 0 || process_refuse_privileges(&e) < 0)
        return false;
    look();
    if (permitted != UINT64_C(1) << PRIVILEGE || in_effect || privilege_hand_over(&e) < 0)
        return false;
    look();
    if (permitted || threads_check_no_capabilities(&e) == 0 || !strstr(e.message, "has a capability left"))
        return false;
    if (privilege_use(use, &answer, &result, &why, &e) < 0 || result != answer || in_effect != UINT64_C(1) << PRIVILEGE)
        return false;
    look();
    return !permitted && threads_check_no_capabilities(&e) == 0 && getuid() != 0;
}

TEST(test_one_thread_has_it)
{
#ifdef __SANITIZE_THREAD__
    skip(); /* ThreadSanitizer's own thread keeps the capability */
#endif
    for (int answer = 0; answer >= -1; answer--) {
        const pid_t pid = fork();
        int status;

        if (pid == 0)
            _exit(geteuid() != 0 || !process_may_keep(PRIVILEGE) ? NOT_HERE : one_thread_has_it(answer) ? 0 : 1);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == NOT_HERE)
            skip();
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

TEST(test_without_it_nothing_is_called)
{
    struct error why, e;
    int answer = 0, result = 0;

    permitted = 7;
    assert_int_equal(privilege_use(use, &answer, &result, &why, &e), 0);
    assert_true(result == -1 && permitted == 7);
}
