#include "sandbox/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- files ---- */

/* Landlock's numbers, for builds with headers older than the kernel that the daemon meets. */
struct ruleset_attributes {
    uint64_t files, network, scoped;
};
struct path_beneath {
    uint64_t allowed;
    int32_t parent;
} __attribute__((packed));
enum { RULESET_VERSION = 1, RULE_PATH_BENEATH = 1 };
enum {
    ACCESS_EXECUTE = 1 << 0,
    ACCESS_WRITE_FILE = 1 << 1,
    ACCESS_READ_FILE = 1 << 2,
    ACCESS_READ_DIRECTORY = 1 << 3,
    ACCESS_REMOVE_FILE = 1 << 5,
    ACCESS_MAKE_REGULAR = 1 << 8,
    ACCESS_FIRST = (1 << 13) - 1, /* all bits of version 1 */
    ACCESS_REFER = 1 << 13,       /* version 2 */
    ACCESS_TRUNCATE = 1 << 14,    /* version 3 */
    ACCESS_DEVICE = 1 << 15,      /* version 5 */
    ACCESS_OF_FILES = ACCESS_EXECUTE | ACCESS_WRITE_FILE | ACCESS_READ_FILE | ACCESS_TRUNCATE | ACCESS_DEVICE,
    NETWORK_ALL = 3, /* version 4: bind and connect */
    SCOPE_ALL = 3,   /* version 6: abstract sockets, signals */
};

unsigned files_version(void)
{
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, RULESET_VERSION);

    return version < 0 ? 0 : (unsigned)version;
}

static int failed(struct error *e)
{
    return error_set(e, ERROR_UNSUPPORTED, "Landlock: %s", strerror(errno));
}

static int begin(struct files *f, bool network, struct error *e)
{
    const unsigned version = files_version();
    struct ruleset_attributes a = {.files = ACCESS_FIRST};
    const size_t size = version < 4 ? 8 : version < 6 ? 16 : 24; /* the struct's size in each version */
    int ruleset;

    if (!version)
        return failed(e);
    a.files |=
        (version >= 2 ? ACCESS_REFER : 0) | (version >= 3 ? ACCESS_TRUNCATE : 0) | (version >= 5 ? ACCESS_DEVICE : 0);
    a.network = version >= 4 && !network ? NETWORK_ALL : 0;
    a.scoped = version >= 6 ? SCOPE_ALL : 0;
    ruleset = (int)syscall(SYS_landlock_create_ruleset, &a, size, 0);
    if (ruleset < 0)
        return failed(e);
    *f = (struct files){.ruleset = ruleset, .known = a.files};
    return 0;
}

int files_begin(struct files *f, struct error *e)
{
    return begin(f, false, e);
}

int files_begin_with_network(struct files *f, struct error *e)
{
    return begin(f, true, e);
}

static uint64_t rights(unsigned what)
{
    uint64_t r = 0;

    if (what & FILES_READ)
        r |= ACCESS_READ_FILE | ACCESS_READ_DIRECTORY;
    if (what & FILES_WRITE)
        r |= ACCESS_WRITE_FILE | ACCESS_TRUNCATE;
    if (what & FILES_MAKE)
        r |= ACCESS_MAKE_REGULAR | ACCESS_REMOVE_FILE;
    if (what & FILES_DEVICE)
        r |= ACCESS_DEVICE;
    return r;
}

int files_allow(struct files *f, const char *path, unsigned what, int *ret_fd)
{
    struct path_beneath rule = {.allowed = rights(what) & f->known};
    int fd = open(path, O_PATH | O_CLOEXEC), r, saved;
    struct stat st;

    if (fd < 0)
        return -1;
    r = fstat(fd, &st);
    if (r == 0) {
        rule.parent = fd;
        if (!S_ISDIR(st.st_mode))
            rule.allowed &= ACCESS_OF_FILES;
        r = (int)syscall(SYS_landlock_add_rule, f->ruleset, RULE_PATH_BENEATH, &rule, 0);
    }
    if (r == 0 && ret_fd) {
        *ret_fd = fd;
        return 0;
    }
    saved = errno;
    close(fd);
    errno = saved;
    return r;
}

int files_enter(struct files *f, struct error *e)
{
    int r = (int)syscall(SYS_landlock_restrict_self, f->ruleset, 0);

    if (r < 0)
        failed(e);
    close(f->ruleset);
    return r;
}

void files_abandon(struct files *f)
{
    close(f->ruleset);
}

/* ---- files below folders that only the present user can enter ---- */

/* Descriptors of folders have numbers of their own, above those of anything that these processes open beside. */
enum { FIRST = 100, BEYOND = 132 };

static int close_range_of(int first, unsigned last)
{
    return (int)syscall(SYS_close_range, (unsigned)first, last, 0);
}

void reach_prepare(void)
{
    close_range_of(FIRST, BEYOND - 1);
}

void reach_open(struct reach *r, const char *path)
{
    const char *slash = strrchr(path, '/');
    struct stat st;
    int fd;

    *r = (struct reach){.path = path, .name = "", .folder = -1};
    if (!slash || stat(path, &st) < 0)
        return;
    if (S_ISDIR(st.st_mode))
        snprintf(r->way, sizeof(r->way), "%s", path);
    else
        snprintf(r->way, sizeof(r->way), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    fd = open(r->way, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    r->folder = fcntl(fd, F_DUPFD_CLOEXEC, FIRST);
    close(fd);
    if (r->folder >= BEYOND) {
        close(r->folder);
        r->folder = -1;
    }
    r->name = S_ISDIR(st.st_mode) ? "" : slash;
}

const char *reach_path(struct reach *r)
{
    if (r->folder < 0)
        return r->path;
    if (access(r->path, R_OK) == 0 || errno != EACCES) {
        close(r->folder);
        r->folder = -1;
        return r->path;
    }
    snprintf(r->way, sizeof(r->way), "/proc/self/fd/%d%s", r->folder, r->name);
    return r->way;
}

int reach_close_others(int first)
{
    return first < FIRST && close_range_of(first, FIRST - 1) == 0 ? close_range_of(BEYOND, ~0U) : -1;
}

/* ---- system calls ---- */

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
