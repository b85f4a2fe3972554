/* What a process can do once it is confined by one part of the executors' sandbox, for the others may be missing. Each
 * probe runs in a process of its own, whose parent is the victim. All parts together: functional_executor_sandbox. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/confine.h"
#include "executor/executor.h"
#include "sandbox/filter.h"
#include "sandbox/process.h"
#include "tests/support/unit.h"

enum { WORKS, FAILS, NOT_HERE = 77 };

/* ≥ 0 from a call that must be refused. */
#define REFUSED(call) ((call) < 0 && (errno == EPERM || errno == EACCES))

static char secret[] = "/tmp/confine-XXXXXX";
static struct backend_config config;
static uid_t uid_before;

/* ---- folders that fail, by the linker's --wrap ---- */

DIR *__real_opendir(const char *path);
DIR *__wrap_opendir(const char *path);
struct dirent *__real_readdir(DIR *folder);
struct dirent *__wrap_readdir(DIR *folder);

static int open_fails, read_fails; /* errno; 0: no */

DIR *__wrap_opendir(const char *path)
{
    if (!open_fails)
        return __real_opendir(path);
    errno = open_fails;
    return NULL;
}

struct dirent *__wrap_readdir(DIR *folder)
{
    if (!read_fails)
        return __real_readdir(folder);
    errno = read_fails;
    return NULL;
}

/* ---- probes ---- */

static bool tracing(void)
{
    const pid_t victim = getppid();
    char byte, path[64];
    struct iovec here = {&byte, 1}, there = {&byte, 1};

    snprintf(path, sizeof(path), "/proc/%d/mem", (int)victim);
    return REFUSED(process_vm_readv(victim, &here, 1, &there, 1, 0)) && REFUSED(open(path, O_RDONLY));
}

static bool files(void)
{
    return REFUSED(open(secret, O_RDONLY)) && REFUSED(open("/etc/passwd", O_RDONLY)) &&
           REFUSED(open("/tmp", O_TMPFILE | O_RDWR, 0600)) &&
           REFUSED(open("/dev/shm/confine", O_CREAT | O_RDWR, 0600)) && open("/proc/self/maps", O_RDONLY) >= 0 &&
           open("/usr/lib", O_RDONLY) >= 0 && open("/dev/null", O_RDWR) >= 0;
}

static bool signals(void)
{
    return REFUSED(kill(getppid(), SIGCONT)) && REFUSED(syscall(SYS_tgkill, getppid(), getppid(), SIGCONT)) &&
           raise(0) == 0;
}

/* Calls that no driver makes. A filter that looks at half of an argument takes a wide one for another. */
static bool other_calls(void)
{
    const long victim = getppid(), wide = 1L << 32, path = (long)secret;
    siginfo_t info = {.si_signo = SIGCONT, .si_code = SI_QUEUE};
    struct sched_param parameters = {0};
    struct rlimit limit;
    cpu_set_t set = {0};
    const struct {
        const char *name;
        long call, a, b, c, d;
    } calls[] = {
        {"kill, wide", SYS_kill, wide | victim, wide | SIGCONT, 0, 0},
        {"tkill", SYS_tkill, victim, SIGCONT, 0, 0},
        {"sigqueue", SYS_rt_sigqueueinfo, victim, SIGCONT, (long)&info, 0},
        {"tgsigqueue", SYS_rt_tgsigqueueinfo, victim, victim, SIGCONT, (long)&info},
        {"owner of a file", SYS_fcntl, 0, F_SETOWN, victim, 0},
        {"owner of a file, wide", SYS_fcntl, 0, wide | F_SETOWN, victim, 0},
        {"no death signal", SYS_prctl, PR_SET_PDEATHSIG, 0, 0, 0},
        {"no death signal, wide", SYS_prctl, wide | PR_SET_PDEATHSIG, 0, 0, 0},
        {"pidfd_open", SYS_pidfd_open, victim, 0, 0, 0},
        {"pidfd_getfd", SYS_pidfd_getfd, 0, 0, 0, 0},
        {"pidfd_send_signal", SYS_pidfd_send_signal, 0, SIGCONT, 0, 0},
        {"kcmp", SYS_kcmp, victim, getpid(), 1, 0},
        {"ptrace", SYS_ptrace, PTRACE_SEIZE, victim, 0, 0},
        {"prlimit", SYS_prlimit64, victim, RLIMIT_CORE, 0, (long)&limit},
        {"scheduler", SYS_sched_setscheduler, victim, SCHED_OTHER, (long)&parameters, 0},
        {"affinity", SYS_sched_setaffinity, victim, sizeof(set), (long)&set, 0},
        {"priority", SYS_setpriority, PRIO_PROCESS, victim, 0, 0},
        {"chmod", SYS_fchmodat, AT_FDCWD, path, 0600, 0},
        {"fchmodat2", 452, AT_FDCWD, path, 0600, 0},
        {"chown", SYS_fchownat, AT_FDCWD, path, -1, -1},
        {"utimensat", SYS_utimensat, AT_FDCWD, path, 0, 0},
        {"inotify", SYS_inotify_add_watch, -1, path, 1, 0},
        {"setns", SYS_setns, -1, 0, 0, 0},
        {"mount", SYS_mount, 0, 0, 0, 0},
        {"perf_event_open", SYS_perf_event_open, 0, 0, -1, -1},
        {"bpf", SYS_bpf, 0, 0, 0, 0},
        {"io_uring", SYS_io_uring_setup, 1, 0, 0, 0},
        {"userfaultfd", SYS_userfaultfd, -1, 0, 0, 0},
        {"keyctl", SYS_keyctl, 0, -3, 0, 0},
        {"shmget", SYS_shmget, 0x6b6f7073, 0, 0, 0},
        {"terminal", SYS_ioctl, -1, wide | 0x5412 /* TIOCSTI */, 0, 0},
    };

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (!REFUSED(syscall(calls[i].call, calls[i].a, calls[i].b, calls[i].c, calls[i].d))) {
            fprintf(stderr, "%s: %s\n", calls[i].name, strerror(errno));
            return false;
        }
    return syscall(SYS_clone3, NULL, 0) < 0 && errno == ENOSYS;
}

static void *nothing(void *argument)
{
    return argument;
}

static bool processes(void)
{
    pthread_t thread;

    return REFUSED(fork()) && REFUSED(vfork()) && REFUSED(execl("/bin/true", "true", (char *)NULL)) &&
           pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0;
}

static bool sockets(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/nonexistent"};
    int pair[2];

    return REFUSED(socket(AF_UNIX, SOCK_STREAM, 0)) && REFUSED(socket(AF_INET, SOCK_STREAM, 0)) &&
           REFUSED(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair)) && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0 &&
           REFUSED(connect(pair[0], (struct sockaddr *)&address, sizeof(address))) &&
           REFUSED(sendto(pair[0], "", 1, 0, (struct sockaddr *)&address, sizeof(address))) &&
           send(pair[0], "x", 1, 0) == 1;
}

/* The driver may look for MPS while it starts. */
static bool sockets_at_first(void)
{
    return REFUSED(socket(AF_INET, SOCK_STREAM, 0)) && socket(AF_UNIX, SOCK_STREAM, 0) >= 0;
}

static bool rights(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct own[2];
    struct rlimit core;

    return syscall(SYS_capget, &header, own) == 0 && !own[0].effective && !own[1].effective && !own[0].permitted &&
           !own[1].permitted && getrlimit(RLIMIT_CORE, &core) == 0 && core.rlim_max == 0 &&
           prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0 && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1;
}

/* ---- parts ---- */

static bool failed(const struct error *e)
{
    fprintf(stderr, "%s\n", e->message);
    return false;
}

static bool enter_namespace(void)
{
    struct error e;

    if (process_enter_user_namespace(&e) < 0) {
        failed(&e);
        _exit(NOT_HERE);
    }
    return (process_drop_capabilities(&e) == 0 && process_refuse_privileges(&e) == 0) || failed(&e);
}

static bool enter_files(void)
{
    struct error e;

    if (!files_version())
        _exit(NOT_HERE);
    return (process_refuse_privileges(&e) == 0 && confine_files(&config, false, &e) == 0) || failed(&e);
}

static bool enter_calls(void)
{
    struct error e;

    if (!calls_available())
        _exit(NOT_HERE);
    return confine_calls(false, &e) == 0 || failed(&e);
}

static bool enter_calls_and_sockets(void)
{
    struct error e;

    return enter_calls() && (confine_sockets(&e) == 0 || failed(&e));
}

static bool enter_with(const char *variable)
{
    struct error e;

    setenv(CONFINE_VARIABLE, variable, 1);
    return (confine_begin(&config, (struct confine_what){.common = true}, &e) == 0 && confine_finish(&e) == 0) ||
           failed(&e);
}

static bool enter_all(void)
{
    if (!files_version() || !calls_available())
        _exit(NOT_HERE);
    return enter_with("1"); /* required */
}

/* The daemon's own user stays: it may be root. */
static bool enter_as_root(void)
{
    if (!files_version() || !calls_available())
        _exit(NOT_HERE);
    return enter_with("1:none") && getuid() == geteuid() && getuid() == uid_before;
}

static bool enter_nothing(void)
{
    return enter_with("2"); /* off */
}

/* The status with which the process ends. */
static int run(bool (*enter)(void), bool (*probe)(void))
{
    pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(!enter() ? 2 : probe() ? WORKS : FAILS);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Without confinement a probe fails, so the test can. As another user's process what is tried here is refused anyhow.
 */
TEST(test_each_part_by_itself)
{
    static const struct {
        const char *what;
        bool (*enter)(void), (*probe)(void);
        int status;
    } cases[] = {
        {"files, off", enter_nothing, files, FAILS},
        {"signals, off", enter_nothing, signals, FAILS},
        {"calls, off", enter_nothing, other_calls, FAILS},
        {"processes, off", enter_nothing, processes, FAILS},
        {"sockets, off", enter_nothing, sockets, FAILS},
        {"rights, off", enter_nothing, rights, FAILS},
        {"tracing, in a namespace", enter_namespace, tracing, WORKS},
        {"tracing, by files", enter_files, tracing, WORKS},
        {"files", enter_files, files, WORKS},
        {"signals, by files", enter_files, signals, WORKS},
        {"signals, by calls", enter_calls, signals, WORKS},
        {"calls", enter_calls, other_calls, WORKS},
        {"processes", enter_calls, processes, WORKS},
        {"sockets at first", enter_calls, sockets_at_first, WORKS},
        {"sockets", enter_calls_and_sockets, sockets, WORKS},
        {"rights, by all together", enter_all, rights, WORKS},
        {"calls, by all together", enter_all, other_calls, WORKS},
        {"rights, as root", enter_as_root, rights, WORKS},
        {"tracing, as root", enter_as_root, tracing, WORKS},
        {"files, as root", enter_as_root, files, WORKS},
        {"signals, as root", enter_as_root, signals, WORKS},
        {"calls, as root", enter_as_root, other_calls, WORKS},
        {"processes, as root", enter_as_root, processes, WORKS},
        {"sockets, as root", enter_as_root, sockets, WORKS},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const bool is_here = cases[i].enter != enter_files || cases[i].probe != signals || files_version() >= 6;
        const int status = is_here ? run(cases[i].enter, cases[i].probe) : NOT_HERE;

        if (status != cases[i].status && status != NOT_HERE)
            fail_msg("%s: %d", cases[i].what, status);
    }
}

static bool refuse_privileges(void)
{
    struct error e;

    return process_refuse_privileges(&e) == 0;
}

static void *wait_for_ever(void *argument)
{
    pause();
    return argument;
}

static bool refuses_threads(void)
{
    pthread_t thread;
    struct error e;

    setenv(CONFINE_VARIABLE, "1", 1);
    return pthread_create(&thread, NULL, wait_for_ever, NULL) == 0 &&
           confine_begin(&config, (struct confine_what){.common = true}, &e) < 0 && strstr(e.message, "threads");
}

TEST(test_threads_are_refused)
{
#ifdef __SANITIZE_THREAD__
    const bool has_one_thread = false; /* the sanitizer has one of its own */
#else
    const bool has_one_thread = true;
#endif

    if (has_one_thread && files_version() && calls_available())
        assert_int_equal(run(refuse_privileges, refuses_threads), WORKS);
}

/* Half of the devices is not all of them: a driver that finds some only would blame something else. */
static const char *expected; /* what the refusal says; NULL: there is none */

static bool says_why(void)
{
    struct error e;

    if (confine_files(&config, false, &e) == 0)
        return !expected;
    return expected && strstr(e.message, expected);
}

TEST(test_devices_that_cannot_be_listed)
{
    static const struct {
        int open_fails, read_fails;
        const char *why;
    } cases[] = {{EMFILE, 0, "opening /dev: Too many open files"},
                 {0, EIO, "reading /dev: Input/output error"},
                 {ENOENT, 0, NULL}, /* a container may have none */
                 {0, 0, NULL}};

    if (!files_version())
        skip();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        open_fails = cases[i].open_fails;
        read_fails = cases[i].read_fails;
        expected = cases[i].why;
        assert_int_equal(run(refuse_privileges, says_why), WORKS);
    }
    open_fails = read_fails = 0;
}

static int set_up(void **state)
{
    uid_before = getuid();
    return close(mkstemp(secret));
}

static int tear_down(void **state)
{
    return unlink(secret);
}

ALL_TESTS_WITH(set_up, tear_down)
