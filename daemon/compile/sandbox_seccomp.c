/* The list of system calls that compiling needs. */
#include "compile/sandbox.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>

#include "sandbox/calls.h"

static const int for_all[] = {
    /* Files: which ones, Landlock says. */
    SCMP_SYS(read), SCMP_SYS(readv), SCMP_SYS(pread64), SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(lseek),
    SCMP_SYS(close), SCMP_SYS(open), SCMP_SYS(openat), SCMP_SYS(stat), SCMP_SYS(lstat), SCMP_SYS(fstat),
    SCMP_SYS(newfstatat), SCMP_SYS(statx), SCMP_SYS(access), SCMP_SYS(faccessat), SCMP_SYS(faccessat2),
    SCMP_SYS(readlink), SCMP_SYS(readlinkat), SCMP_SYS(getdents64), SCMP_SYS(getcwd), SCMP_SYS(poll), SCMP_SYS(ppoll),
    /* Memory; mapping and protecting without execution, see below. */
    SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise),
    /* The process itself. */
    SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(futex), SCMP_SYS(getpid), SCMP_SYS(getppid), SCMP_SYS(gettid),
    SCMP_SYS(getuid), SCMP_SYS(geteuid), SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sigaltstack), SCMP_SYS(set_robust_list),
    SCMP_SYS(set_tid_address), SCMP_SYS(rseq), SCMP_SYS(restart_syscall), SCMP_SYS(sched_yield),
    SCMP_SYS(sched_getaffinity), SCMP_SYS(sched_get_priority_max), SCMP_SYS(sched_get_priority_min),
    SCMP_SYS(getrlimit), SCMP_SYS(setrlimit), SCMP_SYS(getrusage), SCMP_SYS(times), SCMP_SYS(sysinfo), SCMP_SYS(uname),
    SCMP_SYS(getrandom),
    /* Time. */
    SCMP_SYS(time), SCMP_SYS(gettimeofday), SCMP_SYS(clock_gettime), SCMP_SYS(clock_getres), SCMP_SYS(nanosleep),
    SCMP_SYS(clock_nanosleep)};

static const int for_forking[] = {SCMP_SYS(fork),    SCMP_SYS(wait4),      SCMP_SYS(pidfd_open), SCMP_SYS(sendmsg),
                                  SCMP_SYS(recvmsg), SCMP_SYS(dup2),       SCMP_SYS(dup3),       SCMP_SYS(prctl),
                                  SCMP_SYS(seccomp), SCMP_SYS(close_range)};

static int allow(scmp_filter_ctx filter, const int *calls, size_t n)
{
    return calls_add(filter, SCMP_ACT_ALLOW, calls, n);
}

static int allow_checked(scmp_filter_ctx filter)
{
    int r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));

    if (!r)
        r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    if (!r) /* limits of the process itself only */
        r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 1, SCMP_A0(SCMP_CMP_EQ, 0));
    return r;
}

/* A fork; no threads, no namespaces. */
static int allow_forking(scmp_filter_ctx filter)
{
    const uint64_t others = CLONE_VM | CLONE_THREAD | CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                            CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
    int r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1, SCMP_A0(SCMP_CMP_MASKED_EQ, others, 0));

    return r ? r : allow(filter, for_forking, sizeof(for_forking) / sizeof(for_forking[0]));
}

static int fill(scmp_filter_ctx filter, bool forks)
{
    int r = allow(filter, for_all, sizeof(for_all) / sizeof(for_all[0]));

    if (!r)
        r = allow_checked(filter);
    if (!r && forks)
        r = allow_forking(filter);
    return r;
}

int sandbox_enter_seccomp(bool forks, struct error *e)
{
    scmp_filter_ctx filter = calls_new(SCMP_ACT_ERRNO(EPERM));

    if (calls_enter(filter, filter ? fill(filter, forks) : 0, false, e) < 0)
        return error_prefix(e, "no sandbox for the compiler (kernels.sandbox): ");
    return 0;
}
