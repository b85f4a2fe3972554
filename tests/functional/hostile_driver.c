/* A driver that is hostile: the stand-in's, but for functions behind which it tries what an executor must not be able
 * to do. The client that owns the host memory it is called with gives the orders there, and reads what came of them:
 * see test_executor_sandbox.py, which has the same structs.
 *
 * Each attempt either has no lasting effect where it succeeds, or is one that the test itself can undo. */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { MOST = 96, ROUNDS = 2, NUMBER_FCHMODAT2 = 452 };

struct outcome {
    char name[40];
    int32_t error, done; /* errno, or 0; done: this row is there */
};

struct orders {
    char magic[8];
    int32_t daemon, other; /* processes: the daemon, another executor */
    char secret[256];      /* a file of the daemon's user */
    char socket[256];      /* the daemon's */
    char folder[256];      /* one that everybody can write to */
    struct outcome outcomes[ROUNDS][MOST];
};

static struct orders *orders;
static unsigned rounds;

/* ---- attempts ---- */

struct notes {
    struct outcome *next, *end;
    const char *about; /* the beginning of names */
};

static void note(struct notes *notes, const char *name, long result)
{
    const int error = result < 0 ? errno : 0;

    if (notes->next == notes->end)
        abort();
    snprintf(notes->next->name, sizeof(notes->next->name), "%s%s", notes->about, name);
    notes->next->error = error;
    notes->next->done = 1;
    notes->next++;
}

static void note_open(struct notes *notes, const char *name, int flags, const char *format, ...)
{
    char path[512];
    va_list args;
    int fd;

    va_start(args, format);
    vsnprintf(path, sizeof(path), format, args);
    va_end(args);
    fd = open(path, flags | O_CLOEXEC, 0600);
    note(notes, name, fd);
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && flags & O_CREAT)
        unlink(path);
}

static void try_signals(struct notes *n, int victim)
{
    siginfo_t info = {.si_signo = SIGCONT, .si_code = SI_QUEUE};
    int pair[2];

    note(n, "kill", kill(victim, SIGCONT));
    note(n, "kill, wide", syscall(SYS_kill, 1L << 32 | victim, 1L << 32 | SIGCONT));
    note(n, "kill, group", kill(-getpgid(victim), SIGCONT));
    note(n, "tgkill", syscall(SYS_tgkill, victim, victim, SIGCONT));
    note(n, "tkill", syscall(SYS_tkill, victim, SIGCONT));
    note(n, "sigqueue", syscall(SYS_rt_sigqueueinfo, victim, SIGCONT, &info));
    note(n, "tgsigqueue", syscall(SYS_rt_tgsigqueueinfo, victim, victim, SIGCONT, &info));
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
        return;
    note(n, "owner of a file", fcntl(pair[0], F_SETOWN, victim));
    note(n, "owner of a file, wide", syscall(SYS_fcntl, pair[0], 1L << 32 | F_SETOWN, victim));
    close(pair[0]);
    close(pair[1]);
}

static void try_process(struct notes *n, int victim)
{
    note(n, "no death signal", prctl(PR_SET_PDEATHSIG, 0));
    note(n, "no death signal, wide", syscall(SYS_prctl, 1L << 32 | PR_SET_PDEATHSIG, 0));
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)4096, 1};
    struct sched_param parameters = {0};
    struct rlimit limit;
    cpu_set_t set;
    int pidfd = (int)syscall(SYS_pidfd_open, victim, 0);

    note(n, "pidfd_open", pidfd);
    note(n, "pidfd_getfd", syscall(SYS_pidfd_getfd, pidfd < 0 ? 0 : pidfd, 0, 0));
    note(n, "pidfd_send_signal", syscall(SYS_pidfd_send_signal, pidfd < 0 ? 0 : pidfd, SIGCONT, NULL, 0));
    if (pidfd >= 0)
        close(pidfd);
    note(n, "process_vm_readv", process_vm_readv(victim, &here, 1, &there, 1, 0));
    note(n, "process_vm_writev", process_vm_writev(victim, &here, 1, &there, 1, 0));
    note(n, "kcmp", syscall(SYS_kcmp, victim, getpid(), KCMP_VM, 0, 0));
    note(n, "prlimit", prlimit(victim, RLIMIT_CORE, NULL, &limit));
    note(n, "scheduler", sched_setscheduler(victim, SCHED_OTHER, &parameters));
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    note(n, "affinity", sched_setaffinity(victim, sizeof(set), &set));
    note(n, "priority", setpriority(PRIO_PROCESS, (id_t)victim, getpriority(PRIO_PROCESS, (id_t)victim)));
    note_open(n, "memory", O_RDWR, "/proc/%d/mem", victim);
    note_open(n, "maps", O_RDONLY, "/proc/%d/maps", victim);
    note_open(n, "environment", O_RDONLY, "/proc/%d/environ", victim);
    note_open(n, "descriptor", O_RDONLY, "/proc/%d/fd/2", victim);
    note_open(n, "command line", O_RDONLY, "/proc/%d/cmdline", victim);
}

static void try_files(struct notes *n)
{
    note_open(n, "secret", O_RDONLY, "%s", orders->secret);
    note_open(n, "/etc/passwd", O_RDONLY, "/etc/passwd");
    note_open(n, "/", O_RDONLY | O_DIRECTORY, "/");
    note_open(n, "file in a folder for all", O_WRONLY | O_CREAT, "%s/made", orders->folder);
    note_open(n, "file in /dev/shm", O_RDWR | O_CREAT, "/dev/shm/kops-test-%d", (int)getpid());
    note(n, "chmod", chmod(orders->secret, 0600));
    note(n, "fchmodat2", syscall(NUMBER_FCHMODAT2, AT_FDCWD, orders->secret, 0600, 0));
    note(n, "chown", chown(orders->secret, (uid_t)-1, (gid_t)-1));
    note(n, "utimensat", utimensat(AT_FDCWD, orders->secret, NULL, 0));
    note(n, "truncate", truncate(orders->folder, 0)); /* a folder is refused otherwise where it may be tried */
    note(n, "inotify", inotify_add_watch(-1, orders->secret, IN_OPEN));
}

static void try_sockets(struct notes *n)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int pair[2], fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    note(n, "inet socket", fd);
    if (fd >= 0)
        close(fd);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%.100s", orders->socket);
    note(n, "unix socket", fd);
    note(n, "connect", connect(fd < 0 ? STDERR_FILENO : fd, (struct sockaddr *)&address, sizeof(address)));
    if (fd >= 0)
        close(fd);
    fd = socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair);
    note(n, "datagrams", fd);
    if (fd == 0) {
        close(pair[0]);
        close(pair[1]);
    }
}

static void try_processes(struct notes *n)
{
    char *none[] = {NULL};
    long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

    if (pid == 0)
        _exit(0);
    note(n, "fork", pid);
    note(n, "clone3", syscall(SYS_clone3, NULL, 0));
    note(n, "execve", execve("/nonexistent", none, none));
}

static void try_kernel(struct notes *n)
{
    note(n, "unshare", unshare(CLONE_NEWUSER)); /* never possible for a process with threads */
    note(n, "setns", setns(-1, 0));
    note(n, "mount", mount("", "", NULL, 0, NULL));
    note(n, "perf_event_open", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
    note(n, "bpf", syscall(SYS_bpf, 0, NULL, 0));
    note(n, "io_uring", syscall(SYS_io_uring_setup, 1, NULL));
    note(n, "userfaultfd", syscall(SYS_userfaultfd, -1));
    note(n, "keyctl", syscall(SYS_keyctl, 0, -3, 0));
    note(n, "shmget", shmget(0x6b6f7073, 0, 0));
    note(n, "terminal", syscall(SYS_ioctl, -1, 1L << 32 | 0x5412 /* TIOCSTI */, ""));
}

static void *no_work(void *argument)
{
    return argument;
}

/* What a driver needs must work. */
static void try_needs(struct notes *n)
{
    pthread_t thread;

    errno = EAGAIN;
    note(n, "+thread", pthread_create(&thread, NULL, no_work, NULL) == 0 ? 0 : -1);
    pthread_join(thread, NULL);
    note(n, "+signal to itself", syscall(SYS_tgkill, getpid(), getpid(), 0));
    note(n, "+own limits", prlimit(0, RLIMIT_NOFILE, NULL, &(struct rlimit){0}));
    note_open(n, "+own maps", O_RDONLY, "/proc/self/maps");
    note_open(n, "+processor", O_RDONLY, "/proc/cpuinfo");
    note_open(n, "+machine", O_RDONLY | O_DIRECTORY, "/sys/devices/system/cpu");
    note_open(n, "+libraries", O_RDONLY | O_DIRECTORY, "/usr/lib");
    note_open(n, "+null", O_RDWR, "/dev/null");
    note(n, "+memfd", memfd_create("test", MFD_CLOEXEC));
}

static void try_all(void)
{
    static const char forged[] = "level=error event=forged\n";
    struct notes notes;

    if (!orders || rounds == ROUNDS)
        return;
    notes = (struct notes){orders->outcomes[rounds], orders->outcomes[rounds] + MOST, "daemon: "};
    rounds++;
    try_signals(&notes, orders->daemon);
    try_process(&notes, orders->daemon);
    notes.about = "other: ";
    try_signals(&notes, orders->other);
    try_process(&notes, orders->other);
    notes.about = "";
    /* Only where its end does not matter. */
    note(&notes, "ptrace", ptrace(PTRACE_SEIZE, orders->other, NULL, NULL));
    try_files(&notes);
    try_sockets(&notes);
    try_processes(&notes);
    try_kernel(&notes);
    try_needs(&notes);
    errno = 0;
    note(&notes, "variable", getenv("HOSTILE_SECRET") ? 0 : (errno = ENOENT, -1));
    note(&notes, "+stderr", write(STDERR_FILENO, forged, sizeof(forged) - 1));
}

/* ---- the driver ---- */

#define REAL(name) ((__typeof__(name) *)dlsym(dlopen("libcuda_standin.so", RTLD_NOW | RTLD_NOLOAD), #name))

EXPORT CUresult cuMemHostRegister_v2(void *at, size_t size, unsigned flags);

/* A thread that prepares jobs calls it. */
EXPORT CUresult cuMemHostRegister_v2(void *at, size_t size, unsigned flags)
{
    CUresult r = REAL(cuMemHostRegister_v2)(at, size, flags);

    if (size >= sizeof(*orders) && !memcmp(at, "hostile", 8)) {
        orders = at;
        try_all();
    }
    return r;
}

/* The loop calls these. */
EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                               unsigned threads_y, unsigned threads_z, unsigned shared, CUstream stream,
                               void **parameters, void **extra)
{
    try_all();
    return REAL(cuLaunchKernel)(function, x, y, z, threads_x, threads_y, threads_z, shared, stream, parameters, extra);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    try_all();
    return REAL(cuLaunchKernelEx)(config, function, parameters, extra);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
    try_all();
    return REAL(cuGraphLaunch)(graph, stream);
}
