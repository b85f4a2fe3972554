/* What a process can still do once it is in the sandbox: next to nothing. Each probe runs in a process of its own and
 * ends with 0 when what it tried was refused. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compile/helper.h"
#include "tests/support/unit.h"

/* ≥ 0 from a call that must be refused. */
#define REFUSED(call) ((call) < 0 && (errno == EPERM || errno == EACCES))

static char directory[] = "/tmp/sandbox-XXXXXX";
static char inside[64];

static bool probe_open(void)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/../../etc/passwd", directory);
    return REFUSED(open("/etc/passwd", O_RDONLY)) && REFUSED(open("/proc/self/maps", O_RDONLY)) &&
           REFUSED(open("/", O_RDONLY | O_DIRECTORY)) && REFUSED(open("/dev/null", O_RDWR)) &&
           REFUSED(open(path, O_RDONLY));
}

/* What the sandbox is for must work. */
static bool probe_inside(void)
{
    char text[8];
    int fd = open(inside, O_RDONLY);

    return fd >= 0 && read(fd, text, sizeof(text)) == 5 && malloc(1 << 20);
}

static bool probe_write(void)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/new", directory);
    return REFUSED(open(inside, O_WRONLY)) && REFUSED(open(path, O_CREAT | O_WRONLY, 0600)) &&
           REFUSED(truncate(inside, 0)) && REFUSED(unlink(inside)) && REFUSED(mkdir(path, 0700)) &&
           REFUSED(rename(inside, path)) && REFUSED(symlink("x", path)) && REFUSED(chmod(inside, 0777));
}

static bool probe_sockets(void)
{
    int pair[2];

    return REFUSED(socket(AF_UNIX, SOCK_STREAM, 0)) && REFUSED(socket(AF_INET, SOCK_STREAM, 0)) &&
           REFUSED(socket(AF_NETLINK, SOCK_RAW, 0)) && REFUSED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
}

static bool probe_others(void)
{
    struct iovec none = {0};
    pid_t parent = getppid();

    return REFUSED(kill(getpid(), 0)) && REFUSED(kill(parent, 0)) && REFUSED(kill(parent, SIGTERM)) &&
           REFUSED(syscall(SYS_tgkill, parent, parent, 0)) &&
           REFUSED(syscall(SYS_pidfd_send_signal, 0, SIGTERM, NULL, 0)) &&
           REFUSED(ptrace(PTRACE_ATTACH, parent, NULL, NULL)) &&
           REFUSED(process_vm_readv(parent, &none, 1, &none, 1, 0));
}

static bool probe_execution(void)
{
    char *const arguments[] = {(char *)"true", NULL}, *const environment[] = {NULL};

    return REFUSED(execve("/bin/true", arguments, environment)) &&
           REFUSED(syscall(SYS_execveat, AT_FDCWD, "/bin/true", arguments, environment, 0)) &&
           mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
}

static bool probe_fork(void)
{
    return REFUSED(fork()) && REFUSED(vfork()) && REFUSED(syscall(SYS_clone3, NULL, 0));
}

static bool probe_kernel(void)
{
    return REFUSED(syscall(SYS_io_uring_setup, 1, NULL)) && REFUSED(syscall(SYS_bpf, 0, NULL, 0)) &&
           REFUSED(syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0)) && REFUSED(syscall(SYS_userfaultfd, 0)) &&
           REFUSED(unshare(CLONE_NEWUSER)) && REFUSED(syscall(SYS_keyctl, 0)) &&
           REFUSED(syscall(SYS_memfd_create, "x", 0)) && REFUSED(syscall(SYS_add_key, NULL, NULL, NULL, 0, 0)) &&
           REFUSED(syscall(SYS_mount, "", "", "", 0, NULL));
}

static bool probe_limits(void)
{
    const struct rlimit wide = {RLIM_INFINITY, RLIM_INFINITY};

    return setrlimit(RLIMIT_AS, &wide) < 0 && setrlimit(RLIMIT_CPU, &wide) < 0 && setrlimit(RLIMIT_FSIZE, &wide) < 0 &&
           mmap(NULL, (size_t)1 << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
}

static bool probe_user(void)
{
    return getuid() != 0 && geteuid() != 0 && setuid(0) < 0 && getgroups(0, NULL) <= 0;
}

static void enter(bool forks)
{
    const char *const directories[] = {directory};
    struct sandbox_limits limits = {.cpu_s = 100, .files = 16};
    int statm = open("/proc/self/statm", O_RDONLY);
    struct error e;

    limits.memory_bytes = sandbox_address_space(statm) + (64 << 20);
    if (sandbox_drop_privileges("nobody", getppid(), &e) < 0 || sandbox_enter_landlock(directories, 1, &e) < 0 ||
        sandbox_limit(&limits, &e) < 0 || sandbox_enter_seccomp(forks, &e) < 0) {
        fprintf(stderr, "%s\n", e.message);
        _exit(2);
    }
    close(statm);
}

static int run(bool (*probe)(void), bool forks)
{
    pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        enter(forks);
        _exit(probe() ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* The helper that forks has a little more, but no more than that. */
TEST(test_probes)
{
    static const struct {
        const char *what;
        bool (*probe)(void);
        bool of_forking, of_root; /* of the helper that forks, too; where root starts it */
    } probes[] = {{"inside", probe_inside, false, false},  {"open", probe_open, true, false},
                  {"write", probe_write, true, false},     {"others", probe_others, true, false},
                  {"sockets", probe_sockets, true, false}, {"execution", probe_execution, true, false},
                  {"fork", probe_fork, false, false},      {"kernel", probe_kernel, true, false},
                  {"limits", probe_limits, false, false},  {"user", probe_user, false, true}};

    for (size_t i = 0; i < sizeof(probes) / sizeof(probes[0]); i++)
        if ((getuid() == 0 || !probes[i].of_root) &&
            (run(probes[i].probe, false) != 0 || (probes[i].of_forking && run(probes[i].probe, true) != 0)))
            fail_msg("%s", probes[i].what);
    assert_int_not_equal(run(probe_fork, true), 0);
}

static int set_up(void **state)
{
    int fd;

    if (!mkdtemp(directory) || chmod(directory, 0777) < 0) /* for all users: what refuses is the sandbox */
        return -1;
    snprintf(inside, sizeof(inside), "%s/file", directory);
    fd = open(inside, O_CREAT | O_WRONLY, 0644);
    if (fd < 0 || fchmod(fd, 0666) < 0 || write(fd, "hello", 5) != 5)
        return -1;
    return close(fd);
}

static int tear_down(void **state)
{
    unlink(inside);
    rmdir(directory);
    return 0;
}

ALL_TESTS_WITH(set_up, tear_down)

static int where_possible(int argc, char **argv)
{
    struct error e;

    if (sandbox_available(&e))
        return -1;
    fprintf(stderr, "not possible here: %s\n", e.message);
    return 77; /* skipped */
}

FIRST(where_possible)
