#include "compile/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

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
    ACCESS_READ_FILE = 1 << 2,
    ACCESS_READ_DIRECTORY = 1 << 3,
    ACCESS_FIRST = (1 << 13) - 1, /* all that version 1 knows */
    ACCESS_REFER = 1 << 13,       /* version 2 */
    ACCESS_TRUNCATE = 1 << 14,    /* version 3 */
    ACCESS_DEVICE = 1 << 15,      /* version 5 */
    NETWORK_ALL = 3,              /* version 4: bind and connect */
    SCOPE_ALL = 3,                /* version 6: abstract sockets, signals */
};

static long landlock_version(void)
{
    return syscall(SYS_landlock_create_ruleset, NULL, 0, RULESET_VERSION);
}

bool sandbox_available(struct error *e)
{
    if (landlock_version() < 1) {
        error_set(
            e, ERROR_UNSUPPORTED,
            "compiling is switched off: this kernel has no Landlock (%s), which keeps sources from reading files; "
            "enable it (lsm=landlock,…), or set kernels.sandbox to best_effort",
            strerror(errno));
        return false;
    }
    if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0) {
        error_set(e, ERROR_UNSUPPORTED,
                  "compiling is switched off: this kernel has no seccomp filters; set kernels.sandbox to best_effort");
        return false;
    }
    return true;
}

static int failed(struct error *e, const char *what)
{
    return error_set(e, ERROR_UNSUPPORTED, "no sandbox for the compiler: %s: %s; see kernels.sandbox", what,
                     strerror(errno));
}

static int become(const char *user, struct error *e)
{
    const struct passwd *p;

    errno = 0;
    p = getpwnam(user);
    if (!p || !p->pw_uid)
        return error_set(e, ERROR_UNSUPPORTED, "the compiler has nobody to run as: user \"%.64s\" (kernels.user) %s",
                         user, p ? "is root" : "is not known");
    if (setgroups(0, NULL) < 0 || setresgid(p->pw_gid, p->pw_gid, p->pw_gid) < 0 ||
        setresuid(p->pw_uid, p->pw_uid, p->pw_uid) < 0)
        return failed(e, "changing the user");
    return 0;
}

static int drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};

    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return (int)syscall(SYS_capset, &header, none);
}

int sandbox_bind_to_parent(int parent)
{
    /* The parent may have gone before the first call. */
    return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || getppid() != parent ? -1 : 0;
}

int sandbox_drop_privileges(const char *user, int parent, struct error *e)
{
    if (user && geteuid() == 0 && become(user, e) < 0)
        return -1;
    if (user && drop_capabilities() < 0)
        return failed(e, "giving up capabilities");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return failed(e, "giving up privileges");
    if (sandbox_bind_to_parent(parent) < 0)
        return failed(e, "the daemon has gone");
    return 0;
}

static int allow_reading(int ruleset, const char *directory)
{
    struct path_beneath rule = {.allowed = ACCESS_READ_FILE | ACCESS_READ_DIRECTORY};
    int fd = open(directory, O_PATH | O_CLOEXEC | O_DIRECTORY), r;

    if (fd < 0)
        return -1;
    rule.parent = fd;
    r = (int)syscall(SYS_landlock_add_rule, ruleset, RULE_PATH_BENEATH, &rule, 0);
    close(fd);
    return r;
}

int sandbox_enter_landlock(const char *const *directories, unsigned n, struct error *e)
{
    long version = landlock_version();
    struct ruleset_attributes a = {.files = ACCESS_FIRST};
    size_t size = version < 4 ? 8 : version < 6 ? 16 : 24; /* the struct's size in each version */
    int ruleset;

    if (version < 1)
        return failed(e, "Landlock");
    a.files |=
        (version >= 2 ? ACCESS_REFER : 0) | (version >= 3 ? ACCESS_TRUNCATE : 0) | (version >= 5 ? ACCESS_DEVICE : 0);
    a.network = version >= 4 ? NETWORK_ALL : 0;
    a.scoped = version >= 6 ? SCOPE_ALL : 0;
    ruleset = (int)syscall(SYS_landlock_create_ruleset, &a, size, 0);
    if (ruleset < 0)
        return failed(e, "Landlock");
    for (unsigned i = 0; i < n; i++) {
        if (allow_reading(ruleset, directories[i]) < 0) {
            error_set(e, ERROR_UNSUPPORTED, "the compiler cannot read %.100s: %s (kernels.include)", directories[i],
                      strerror(errno));
            close(ruleset);
            return -1;
        }
    }
    if (syscall(SYS_landlock_restrict_self, ruleset, 0) < 0) {
        failed(e, "Landlock");
        close(ruleset);
        return -1;
    }
    close(ruleset);
    return 0;
}

uint64_t sandbox_address_space(int statm)
{
    char text[64];
    ssize_t n = pread(statm, text, sizeof(text) - 1, 0);

    if (n <= 0)
        return 0;
    text[n] = '\0';
    return strtoull(text, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int limit(int what, uint64_t value)
{
    struct rlimit now, wanted = {value, value};

    if (getrlimit(what, &now) < 0)
        return -1;
    if (now.rlim_max != RLIM_INFINITY && now.rlim_max < value)
        wanted = (struct rlimit){now.rlim_max, now.rlim_max};
    return setrlimit(what, &wanted);
}

int sandbox_limit(const struct sandbox_limits *limits, struct error *e)
{
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    if (limit(RLIMIT_AS, limits->memory_bytes) < 0 || limit(RLIMIT_CORE, 0) < 0 || limit(RLIMIT_FSIZE, 0) < 0 ||
        limit(RLIMIT_NOFILE, limits->files) < 0 ||
        limit(RLIMIT_CPU, (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + 2 + limits->cpu_s) < 0)
        return failed(e, "limits");
    return 0;
}
