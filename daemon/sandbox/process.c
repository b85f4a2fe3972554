#include "sandbox/process.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static int failed(struct error *e, const char *what)
{
    return error_set(e, ERROR_UNSUPPORTED, "%s: %s", what, strerror(errno));
}

/* The count is the 18th value behind the program's name. */
bool process_is_single_threaded(int stat)
{
    char text[1024], *at;
    ssize_t n = pread(stat, text, sizeof(text) - 1, 0);

    if (n <= 0)
        return false;
    text[n] = '\0';
    at = strrchr(text, ')');
    for (int i = 0; at && i < 18; i++)
        at = strchr(at + 1, ' ');
    return at && strtol(at, NULL, 10) == 1;
}

int process_become(const char *user, bool groups, struct error *e)
{
    const struct passwd *p;
    uid_t uid;
    gid_t gid;

    errno = 0;
    p = getpwnam(user);
    if (!p || !p->pw_uid)
        return error_set(e, ERROR_UNSUPPORTED, "there is nobody to run as: the user %.64s %s", user,
                         p ? "is root" : "is not known");
    uid = p->pw_uid;
    gid = p->pw_gid;
    if ((groups ? initgroups(user, gid) : setgroups(0, NULL)) < 0 || setresgid(gid, gid, gid) < 0 ||
        setresuid(uid, uid, uid) < 0)
        return failed(e, "changing the user");
    return 0;
}

static int write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC), saved;
    ssize_t n;

    if (fd < 0)
        return -1;
    n = write(fd, text, strlen(text));
    saved = errno;
    close(fd);
    errno = saved;
    return n < 0 ? -1 : 0;
}

static int map_self(const char *path, unsigned id)
{
    char text[48];

    snprintf(text, sizeof(text), "%u %u 1\n", id, id);
    return write_text(path, text);
}

int process_enter_user_namespace(struct error *e)
{
    const uid_t uid = geteuid();
    const gid_t gid = getegid();

    if (unshare(CLONE_NEWUSER) < 0)
        return failed(e, "a user namespace");
    /* The files below belong to root while the process is not dumpable, as it is after a change of user. */
    if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0 || write_text("/proc/self/setgroups", "deny") < 0 ||
        map_self("/proc/self/uid_map", uid) < 0 || map_self("/proc/self/gid_map", gid) < 0)
        return failed(e, "the user of a user namespace");
    return 0;
}

int process_drop_capabilities(struct error *e)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};

    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return syscall(SYS_capset, &header, none) < 0 ? failed(e, "giving up capabilities") : 0;
}

static int set_one(unsigned capability, bool in_effect, struct error *e)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct one[_LINUX_CAPABILITY_U32S_3] = {{0}};

    one[CAP_TO_INDEX(capability)].permitted = CAP_TO_MASK(capability);
    one[CAP_TO_INDEX(capability)].effective = in_effect ? CAP_TO_MASK(capability) : 0;
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return syscall(SYS_capset, &header, one) < 0 ? failed(e, "keeping one capability") : 0;
}

bool process_may_keep(unsigned capability)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct has[_LINUX_CAPABILITY_U32S_3] = {{0}};

    return syscall(SYS_capget, &header, has) == 0 && has[CAP_TO_INDEX(capability)].permitted & CAP_TO_MASK(capability);
}

int process_keep_over_users(struct error *e)
{
    for (unsigned long i = 0; prctl(PR_CAPBSET_DROP, i, 0, 0, 0) == 0; i++)
        ;
    return prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 ? failed(e, "keeping capabilities") : 0;
}

int process_keep_one(unsigned capability, struct error *e)
{
    if (prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0) < 0)
        return failed(e, "keeping capabilities");
    return set_one(capability, false, e);
}

int process_use_one(unsigned capability, struct error *e)
{
    return set_one(capability, true, e);
}

int process_refuse_privileges(struct error *e)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return failed(e, "giving up privileges");
    return 0;
}

int process_bind_to_parent(pid_t parent)
{
    /* The parent may have gone before the first call. */
    return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || getppid() != parent ? -1 : 0;
}

void process_go_first(void)
{
    write_text("/proc/self/oom_score_adj", "500");
}

int process_limit(int resource, uint64_t value)
{
    struct rlimit now, wanted = {value, value};

    if (getrlimit((__rlimit_resource_t)resource, &now) < 0)
        return -1;
    if (now.rlim_max != RLIM_INFINITY && now.rlim_max < value)
        wanted = (struct rlimit){now.rlim_max, now.rlim_max};
    return setrlimit((__rlimit_resource_t)resource, &wanted);
}
