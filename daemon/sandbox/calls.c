#include "sandbox/calls.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>

const int calls_common[] = {
    /* Files: Landlock says which ones. */
    SCMP_SYS(read), SCMP_SYS(readv), SCMP_SYS(pread64), SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(lseek),
    SCMP_SYS(close), SCMP_SYS(open), SCMP_SYS(openat), SCMP_SYS(stat), SCMP_SYS(lstat), SCMP_SYS(fstat),
    SCMP_SYS(newfstatat), SCMP_SYS(statx), SCMP_SYS(access), SCMP_SYS(faccessat), SCMP_SYS(faccessat2),
    SCMP_SYS(readlink), SCMP_SYS(readlinkat), SCMP_SYS(getdents64), SCMP_SYS(getcwd), SCMP_SYS(poll), SCMP_SYS(ppoll),
    /* Memory, the process itself, time. */
    SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(exit), SCMP_SYS(exit_group),
    SCMP_SYS(futex), SCMP_SYS(getpid), SCMP_SYS(getppid), SCMP_SYS(gettid), SCMP_SYS(getuid), SCMP_SYS(geteuid),
    SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn),
    SCMP_SYS(sigaltstack), SCMP_SYS(set_robust_list), SCMP_SYS(set_tid_address), SCMP_SYS(rseq),
    SCMP_SYS(restart_syscall), SCMP_SYS(sched_yield), SCMP_SYS(sched_getaffinity), SCMP_SYS(getrlimit),
    SCMP_SYS(getrusage), SCMP_SYS(sysinfo), SCMP_SYS(uname), SCMP_SYS(getrandom), SCMP_SYS(time),
    SCMP_SYS(gettimeofday), SCMP_SYS(clock_gettime), SCMP_SYS(clock_getres), SCMP_SYS(nanosleep),
    SCMP_SYS(clock_nanosleep)};
const size_t calls_common_n = sizeof(calls_common) / sizeof(calls_common[0]);

bool calls_available(void)
{
    return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0;
}

scmp_filter_ctx calls_new(uint32_t otherwise)
{
    return seccomp_init(otherwise);
}

int calls_add(scmp_filter_ctx filter, uint32_t action, const int *calls, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int r = seccomp_rule_add(filter, action, calls[i], 0);

        if (r < 0 && r != -EDOM && r != -EINVAL)
            return r;
    }
    return 0;
}

int calls_enter(scmp_filter_ctx filter, int r, bool all, struct error *e)
{
    if (!filter)
        r = -ENOMEM;
    if (r >= 0)
        r = seccomp_attr_set(filter, SCMP_FLTATR_CTL_NNP, 1);
    if (r >= 0 && all)
        r = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    if (r >= 0) {
        /* Without these the filter would work the same, only slower. */
        seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1);
        seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
        r = seccomp_load(filter);
    }
    if (filter)
        seccomp_release(filter);
    return r < 0 ? error_set(e, ERROR_UNSUPPORTED, "seccomp: %s", strerror(-r)) : 0;
}
