#include "sandbox/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "util/clock.h"

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

/* ---- capabilities of all threads ---- */

/* The C library's own signal for setuid() and its like. Threads of libraries block all other signals, as ours do; the C
 * library never lets a thread block this one. */
enum { SIGNAL = 33, SIGNAL_SET_BYTES = 8 };

#define PATIENCE_NS UINT64_C(1000000000)
#define PAUSE_NS    10000000 /* a thread that ends does not answer */

/* ---- what a thread has ---- */

struct thread {
    pid_t id;
    char name[16];
    bool ended; /* then nothing else is known */
    bool has, blocks, awaits;
};

/* UINT64_MAX: it is not there. */
static uint64_t mask_of(const char *status, const char *name)
{
    const char *at = strstr(status, name);

    return at ? strtoull(at + strlen(name), NULL, 16) : UINT64_MAX;
}

static void read_status(const char *status, struct thread *ret)
{
    /* The sets that it has, or may get without a program's help. */
    static const char *const sets[] = {"\nCapInh:", "\nCapPrm:", "\nCapEff:", "\nCapAmb:"};
    const uint64_t bit = UINT64_C(1) << (SIGNAL - 1);

    sscanf(status, "Name: %15[^\n]", ret->name);
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
        ret->has = ret->has || mask_of(status, sets[i]);
    ret->blocks = mask_of(status, "\nSigBlk:") & bit;
    ret->awaits = mask_of(status, "\nSigPnd:") & bit;
}

/* Reads a thread's state. A thread that cannot be read counts as one with capabilities. */
static struct thread look_at(const char *id)
{
    struct thread t = {.id = (pid_t)strtol(id, NULL, 10)};
    char path[64], text[4096];
    ssize_t n = -1;
    int fd;

    snprintf(path, sizeof(path), "/proc/self/task/%.20s/status", id);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        n = read(fd, text, sizeof(text) - 1);
    t.ended = n < 0 && (errno == ENOENT || errno == ESRCH);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    if (!t.ended)
        read_status(text, &t);
    return t;
}

/* ---- all of them ---- */

enum found { NONE_HAS, SOME_ENDED, SOME_HAVE, CANNOT_LOOK };

/* *ret_last: the last thread that has some. `each`, unless NULL, is called for every such thread. */
static enum found look_at_all(void (*each)(const struct thread *t), struct thread *ret_last, struct error *e)
{
    DIR *folder = opendir("/proc/self/task");
    enum found found = NONE_HAS;
    const struct dirent *entry;
    unsigned threads = 0;

    if (!folder) {
        error_set(e, ERROR_INTERNAL, "/proc/self/task: %s", strerror(errno));
        return CANNOT_LOOK;
    }
    for (errno = 0; (entry = readdir(folder)); errno = 0) {
        struct thread t;

        if (*entry->d_name == '.')
            continue;
        threads++;
        t = look_at(entry->d_name);
        if (t.ended && found == NONE_HAS)
            found = SOME_ENDED;
        if (!t.has && !t.awaits)
            continue;
        found = SOME_HAVE;
        *ret_last = t;
        if (each)
            each(&t);
    }
    if (errno || !threads) {
        error_set(e, ERROR_INTERNAL, "/proc/self/task: %s", errno ? strerror(errno) : "it has no threads");
        found = CANNOT_LOOK;
    }
    closedir(folder);
    return found;
}

static int say(const struct thread *t, const char *why, struct error *e)
{
    return error_set(e, ERROR_INTERNAL, "thread %d (%s) has a capability left%s", (int)t->id, t->name, why);
}

int threads_check_no_capabilities(struct error *e)
{
    struct thread last;
    enum found found = look_at_all(NULL, &last, e);

    return found == SOME_HAVE ? say(&last, "", e) : found == CANNOT_LOOK ? -1 : 0;
}

/* ---- the signal ---- */

/* The kernel's struct. Behind its first member it differs between processors, and stays as the C library has set it. */
struct action {
    void (*handler)(int signal, siginfo_t *info, void *context);
    unsigned char rest[64];
};

static _Atomic uint32_t answers; /* a futex: semaphores with a steady clock are too new for some C libraries */

/* Only what a signal may interrupt anything with: the thread may be anywhere. */
static void answer(int signal, siginfo_t *info, void *context)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
    const int saved = errno;

    (void)signal;
    (void)info;
    (void)context;
    syscall(SYS_capset, &header, none); /* the ambient set keeps only what is permitted: nothing */
    atomic_fetch_add(&answers, 1);
    syscall(SYS_futex, &answers, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    errno = saved;
}

/* The C library refuses to change the action of its signals. It sets this one's when a process starts its first
 * thread. */
static int take_signal(struct action *ret_before, struct error *e)
{
    struct action ours;

    if (syscall(SYS_rt_sigaction, SIGNAL, NULL, ret_before, SIGNAL_SET_BYTES) < 0 || !ret_before->handler)
        return error_set(e, ERROR_UNSUPPORTED, "this C library has no action for signal %d", SIGNAL);
    ours = *ret_before;
    ours.handler = answer;
    if (syscall(SYS_rt_sigaction, SIGNAL, &ours, NULL, SIGNAL_SET_BYTES) < 0)
        return error_set(e, ERROR_UNSUPPORTED, "signal %d: %s", SIGNAL, strerror(errno));
    return 0;
}

static void tell(const struct thread *t)
{
    if (!t->awaits)
        syscall(SYS_tgkill, getpid(), t->id, SIGNAL);
}

/* Unless one came after the first `seen`. */
static void wait_for_answer(uint32_t seen)
{
    const struct timespec at_most = {.tv_nsec = PAUSE_NS};

    syscall(SYS_futex, &answers, FUTEX_WAIT_PRIVATE, seen, &at_most, NULL, 0);
}

static int give_up(enum found found, const struct thread *last, struct error *e)
{
    char why[96];

    if (found != SOME_HAVE)
        return error_set(e, ERROR_INTERNAL, "threads end and start too fast to tell whether one has a capability left");
    snprintf(why, sizeof(why), "; it %s signal %d, on which it would give it up",
             last->blocks ? "blocks" : "has not come to", SIGNAL);
    return say(last, why, e);
}

/* A thread that has some may start another while they are looked at, and end, or give its own up. So all have to have
 * none twice in a row: who had some during the second look was there when it began, and is found, or seen to have
 * ended. No signal is on its way then, and the C library's action can come back. */
int threads_drop_capabilities(struct error *e)
{
    const uint64_t end = clock_now_ns() + PATIENCE_NS;
    struct action before = {0};
    struct thread last = {0};

    if (take_signal(&before, e) < 0)
        return -1;
    for (unsigned clean = 0; clean < 2;) {
        const uint32_t seen = atomic_load(&answers);
        enum found found = look_at_all(tell, &last, e);

        if (found == CANNOT_LOOK)
            return -1;
        clean = found == NONE_HAS ? clean + 1 : 0;
        if (!clean && clock_now_ns() > end)
            return give_up(found, &last, e);
        if (found == SOME_HAVE)
            wait_for_answer(seen);
    }
    syscall(SYS_rt_sigaction, SIGNAL, &before, NULL, SIGNAL_SET_BYTES);
    return 0;
}
