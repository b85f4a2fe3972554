#include "executor/confine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/call.h"
#include "executor/executor.h"
#include "sandbox/filter.h"
#include "sandbox/process.h"
#include "util/log.h"
#include "util/packages.h"

/* ---- the privilege to read counters ---- */

bool privilege_is_needed(const char *parameters)
{
    static const char name[] = "\nRmProfilingAdminOnly:";
    char text[8192] = "\n", *at;
    const int fd = open(parameters, O_RDONLY | O_CLOEXEC);
    size_t length = 1;
    ssize_t n = 0;

    if (fd < 0)
        return false;
    while (length < sizeof(text) - 1 && (n = read(fd, text + length, sizeof(text) - 1 - length)) > 0)
        length += (size_t)n;
    close(fd);
    text[length] = '\0';
    at = strstr(text, name);
    return n >= 0 && at && strtol(at + strlen(name), NULL, 10) != 0;
}

/* ---- the thread that has it ---- */

static struct {
    bool started;
    pthread_t thread;
    sem_t wanted;
    int (*use)(void *context, struct error *e);
    void *context;
    int result;
    struct error why;
} user;

static void *use_it(void *argument)
{
    struct error ignored;

    (void)argument;
    while (sem_wait(&user.wanted) < 0)
        ;
    if (user.use)
        user.result = process_use_one(PRIVILEGE, &user.why);
    if (user.use && user.result == 0)
        user.result = user.use(user.context, &user.why);
    process_drop_capabilities(&ignored); /* a look at all threads follows */
    return NULL;
}

int privilege_hand_over(struct error *e)
{
    sem_init(&user.wanted, 0, 0);
    if (pthread_create(&user.thread, NULL, use_it, NULL) == 0)
        user.started = true;
    if (process_drop_capabilities(e) < 0)
        return -1;
    return user.started ? 0 : error_set(e, ERROR_OUT_OF_MEMORY, "a thread for reading counters cannot be made");
}

/* Lets the thread work and end. Libraries may have started threads on the way. */
static int finish(struct error *e)
{
    sem_post(&user.wanted);
    pthread_join(user.thread, NULL);
    user.started = false;
    return threads_drop_capabilities(e);
}

int privilege_use(int (*use)(void *context, struct error *e), void *context, int *ret, struct error *why,
                  struct error *e)
{
    int r;

    *ret = -1;
    if (!user.started)
        return error_set(why, ERROR_PERMISSION_DENIED, "the process has no CAP_PRIVILEGE, or no whole sandbox"), 0;
    user.use = use;
    user.context = context;
    r = finish(e);
    *ret = user.result;
    *why = user.why;
    return r;
}

int privilege_drop(struct error *e)
{
    return user.started ? finish(e) : 0;
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- files: those that a driver reads ----
 *
 * Not /dev/shm, but for MPS: all executors have one user, so what one makes there others could open; and each driver
 * that starts looks there for a library to load (cuda_injection_path_shm). Not the driver's cache of compiled code
 * either: one user's executor would write what another's runs. */

enum { OF_DEVICE = FILES_READ | FILES_WRITE | FILES_DEVICE };

static const struct {
    const char *path;
    unsigned what;
} places[] = {
    /* Libraries, and what finds them. */
    {"/usr", FILES_READ},
    {"/lib", FILES_READ},
    {"/lib32", FILES_READ},
    {"/lib64", FILES_READ},
    {"/opt/cuda", FILES_READ},
    {"/etc/ld.so.cache", FILES_READ},
    {"/etc/ld.so.conf", FILES_READ},
    {"/etc/ld.so.conf.d", FILES_READ},
    {"/etc/ld.so.preload", FILES_READ},
    {"/etc/nvidia", FILES_READ},
    {"/etc/localtime", FILES_READ},
    {"/sys", FILES_READ},
    {"/dev/null", FILES_READ | FILES_WRITE},
    {"/dev/zero", FILES_READ | FILES_WRITE},
    {"/dev/random", FILES_READ},
    {"/dev/urandom", FILES_READ},
};

/* Files of /proc that are about the machine, and the process itself. */
static const char *const of_proc[] = {"/proc/self",    "/proc/cpuinfo",    "/proc/devices", "/proc/driver",
                                      "/proc/meminfo", "/proc/modules",    "/proc/stat",    "/proc/sys",
                                      "/proc/version", "/proc/filesystems"};

/* Allows a path, unless there is no such file. */
static int allow(struct files *f, const char *path, unsigned what, int *ret_fd, struct error *e)
{
    if (files_allow(f, path, what, ret_fd) == 0 || errno == ENOENT || errno == ENOTDIR || errno == EACCES)
        return 0;
    return error_set(e, ERROR_UNSUPPORTED, "Landlock: %.100s: %s", path, strerror(errno));
}

static int allow_places(struct files *f, struct error *e)
{
    int kept = -1; /* never closed, see filter.h */

    for (size_t i = 0; i < COUNT(places); i++)
        if (allow(f, places[i].path, places[i].what, NULL, e) < 0)
            return -1;
    for (size_t i = 0; i < COUNT(of_proc); i++)
        if (allow(f, of_proc[i], FILES_READ, &kept, e) < 0)
            return -1;
    return allow(f, "/proc/self/task", FILES_READ | FILES_WRITE, &kept, e); /* a driver names its threads there */
}

static int allow_devices(struct files *f, struct error *e)
{
    DIR *folder = opendir("/dev");
    const struct dirent *entry;
    char path[PATH_MAX];
    int r = 0;

    if (!folder && (errno == ENOENT || errno == ENOTDIR || errno == EACCES))
        return 0;
    if (!folder)
        return error_set(e, ERROR_UNSUPPORTED, "opening /dev: %s", strerror(errno));
    for (errno = 0; r == 0 && (entry = readdir(folder)); errno = 0) {
        if (strncmp(entry->d_name, "nvidia", 6) != 0)
            continue;
        snprintf(path, sizeof(path), "/dev/%s", entry->d_name);
        r = allow(f, path, OF_DEVICE, NULL, e);
    }
    if (r == 0 && errno)
        r = error_set(e, ERROR_UNSUPPORTED, "reading /dev: %s", strerror(errno));
    closedir(folder);
    return r;
}

/* Allows the folder of a library that is named by its path: libraries that it needs may be beside it. */
static int allow_library(struct files *f, const char *path, struct error *e)
{
    char real[PATH_MAX], *slash;

    if (!path || !strchr(path, '/') || !realpath(path, real))
        return 0;
    slash = strrchr(real, '/');
    slash[slash == real] = '\0';
    return allow(f, real, FILES_READ, NULL, e);
}

static int allow_list(struct files *f, const char *list, struct error *e)
{
    char path[PATH_MAX];
    size_t length;

    for (; list && *list; list += length + (list[length] == ':')) {
        length = strcspn(list, ":");
        snprintf(path, sizeof(path), "%.*s", (int)length, list);
        if (*path == '/' && allow(f, path, FILES_READ, NULL, e) < 0)
            return -1;
    }
    return 0;
}

static int allow_mps(struct files *f, struct error *e)
{
    const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");

    if (allow(f, pipes ? pipes : "/tmp/nvidia-mps", FILES_READ | FILES_WRITE, NULL, e) < 0)
        return -1;
    return allow(f, "/dev/shm", FILES_READ | FILES_WRITE | FILES_MAKE, NULL, e);
}

int confine_files(const struct backend_config *config, bool mps, struct error *e)
{
    /* A stand-in driver for tests: its control page, and its GPU's memory. */
    const char *control = getenv("KOPS_STANDIN_CONTROL"), *memory = getenv("KOPS_STANDIN_MEMORY");
    char packages[PATH_MAX];
    struct files files;

    if (files_begin(&files, e) < 0)
        return -1;
    if (allow_places(&files, e) < 0 ||
        (packages_folder(packages) && allow(&files, packages, FILES_READ, NULL, e) < 0) ||
        allow_devices(&files, e) < 0 || allow_library(&files, config->cuda_driver, e) < 0 ||
        allow_library(&files, config->cuda_blaslt, e) < 0 || allow_library(&files, config->cuda_cupti, e) < 0 ||
        allow_list(&files, getenv("LD_LIBRARY_PATH"), e) < 0 || (mps && allow_mps(&files, e) < 0) ||
        (control && allow(&files, control, FILES_READ | FILES_WRITE, NULL, e) < 0) ||
        (memory && allow(&files, memory, FILES_READ | FILES_WRITE, NULL, e) < 0)) {
        files_abandon(&files);
        return -1;
    }
    return files_enter(&files, e);
}

/* ---- system calls ----
 *
 * The lists name what is refused, since what a driver calls differs from version to version. Where the calls of a
 * driver have been measured, lists of those take their place: then OTHERWISE is SCMP_ACT_ERRNO(EPERM) and LISTED is
 * SCMP_ACT_ALLOW.
 *
 * Rules look at 64 bits of an argument, the kernel often at 32. So a rule refuses all that is not exactly the value
 * allowed, or masks. */

#define OTHERWISE SCMP_ACT_ALLOW
#define LISTED    SCMP_ACT_ERRNO(EPERM)

/* Newer calls, which libseccomp's headers may not have. Their numbers are the same on all architectures. */
enum {
    NUMBER_PROCESS_MADVISE = 440,
    NUMBER_MOUNT_SETATTR = 442,
    NUMBER_QUOTACTL_FD = 443,
    NUMBER_PROCESS_MRELEASE = 448,
    NUMBER_FCHMODAT2 = 452,
    NUMBER_SETXATTRAT = 463,
    NUMBER_REMOVEXATTRAT = 466,
    NUMBER_OPEN_TREE_ATTR = 467,
    NUMBER_FILE_SETATTR = 469,
};

static const int always[] = {
    /* Other processes. */
    SCMP_SYS(ptrace), SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev), SCMP_SYS(pidfd_open),
    SCMP_SYS(pidfd_getfd), SCMP_SYS(pidfd_send_signal), SCMP_SYS(tkill), SCMP_SYS(migrate_pages),
    NUMBER_PROCESS_MADVISE, NUMBER_PROCESS_MRELEASE,
    /* New processes and namespaces; clone() is below. */
    SCMP_SYS(fork), SCMP_SYS(vfork), SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(unshare), SCMP_SYS(setns),
    SCMP_SYS(mount), SCMP_SYS(umount2), SCMP_SYS(pivot_root), SCMP_SYS(chroot), SCMP_SYS(move_mount),
    SCMP_SYS(open_tree), SCMP_SYS(fsopen), SCMP_SYS(fsconfig), SCMP_SYS(fsmount), SCMP_SYS(fspick),
    NUMBER_MOUNT_SETATTR, NUMBER_OPEN_TREE_ATTR,
    /* Changes to files by name, which Landlock does not know. */
    SCMP_SYS(chmod), SCMP_SYS(fchmodat), SCMP_SYS(chown), SCMP_SYS(lchown), SCMP_SYS(fchownat), SCMP_SYS(truncate),
    SCMP_SYS(utime), SCMP_SYS(utimes), SCMP_SYS(futimesat), SCMP_SYS(utimensat), SCMP_SYS(setxattr),
    SCMP_SYS(lsetxattr), SCMP_SYS(removexattr), SCMP_SYS(lremovexattr), NUMBER_FCHMODAT2, NUMBER_SETXATTRAT,
    NUMBER_REMOVEXATTRAT, NUMBER_FILE_SETATTR,
    /* Queues by name; watching files by name. */
    SCMP_SYS(mq_open), SCMP_SYS(mq_unlink), SCMP_SYS(inotify_add_watch), SCMP_SYS(fanotify_init),
    SCMP_SYS(fanotify_mark),
    /* Parts of the kernel that drivers do not need. io_uring makes calls that no filter sees. */
    SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_enter), SCMP_SYS(io_uring_register), SCMP_SYS(perf_event_open),
    SCMP_SYS(bpf), SCMP_SYS(userfaultfd), SCMP_SYS(keyctl), SCMP_SYS(add_key), SCMP_SYS(request_key),
    SCMP_SYS(name_to_handle_at), SCMP_SYS(open_by_handle_at), SCMP_SYS(lookup_dcookie), SCMP_SYS(syslog),
    SCMP_SYS(vhangup), SCMP_SYS(acct), SCMP_SYS(quotactl), NUMBER_QUOTACTL_FD, SCMP_SYS(init_module),
    SCMP_SYS(finit_module), SCMP_SYS(delete_module), SCMP_SYS(kexec_load), SCMP_SYS(kexec_file_load), SCMP_SYS(reboot),
    SCMP_SYS(swapon), SCMP_SYS(swapoff), SCMP_SYS(settimeofday), SCMP_SYS(clock_settime), SCMP_SYS(clock_adjtime),
    SCMP_SYS(adjtimex), SCMP_SYS(sethostname), SCMP_SYS(setdomainname), SCMP_SYS(iopl), SCMP_SYS(ioperm)};

/* Shared memory and semaphores of System V may be those of the user's other programs. */
static const int without_mps[] = {SCMP_SYS(shmget), SCMP_SYS(shmat),  SCMP_SYS(shmctl),    SCMP_SYS(semget),
                                  SCMP_SYS(semop),  SCMP_SYS(semctl), SCMP_SYS(msgget),    SCMP_SYS(msgsnd),
                                  SCMP_SYS(msgrcv), SCMP_SYS(msgctl), SCMP_SYS(semtimedop)};

static const int sockets[] = {SCMP_SYS(socket), SCMP_SYS(connect), SCMP_SYS(bind),
                              SCMP_SYS(listen), SCMP_SYS(accept),  SCMP_SYS(accept4)};

/* A call that is refused where its argument `at` compares. */
struct rule {
    int call;
    unsigned at;
    enum scmp_compare how;
    scmp_datum_t a, b;
};

#define NOT(call, at, x) ((struct rule){SCMP_SYS(call), at, SCMP_CMP_NE, x, 0})
/* The bits of the mask are as in x. The kernel looks at 32 bits of most arguments. */
#define MASKED(call, at, mask, x) ((struct rule){SCMP_SYS(call), at, SCMP_CMP_MASKED_EQ, mask, x})
#define IS(call, at, x)           MASKED(call, at, UINT32_MAX, x)

static int refuse(scmp_filter_ctx filter, const struct rule *rules, size_t n)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < n; i++) {
        const struct scmp_arg_cmp compare = {rules[i].at, rules[i].how, rules[i].a, rules[i].b};

        r = seccomp_rule_add_array(filter, LISTED, rules[i].call, 1, &compare);
    }
    return r;
}

int confine_calls(bool mps, struct error *e)
{
    enum { OF_PROCESS = 1 /* IOPRIO_WHO_PROCESS */ };
    const scmp_datum_t self = (scmp_datum_t)getpid();
    const struct rule rules[] = {
        /* The first argument is a process, or a thread: 0 is the one that calls. */
        NOT(prlimit64, 0, 0), NOT(sched_setaffinity, 0, 0), NOT(sched_setparam, 0, 0), NOT(sched_setscheduler, 0, 0),
        NOT(sched_setattr, 0, 0), NOT(move_pages, 0, 0),
        /* The first argument is a process. kcmp() tells whether two descriptors are one file. */
        NOT(tgkill, 0, self), NOT(rt_sigqueueinfo, 0, self), NOT(rt_tgsigqueueinfo, 0, self), NOT(kcmp, 0, self),
        NOT(kcmp, 1, self),
        /* Priorities of others. */
        NOT(setpriority, 0, PRIO_PROCESS), NOT(setpriority, 1, 0), NOT(ioprio_set, 0, OF_PROCESS),
        NOT(ioprio_set, 1, 0),
        /* New processes; threads are allowed. */
        MASKED(clone, 0, CLONE_THREAD, 0),
        /* Signals to others when a file is ready, bytes typed into a terminal. */
        IS(fcntl, 1, F_SETOWN), IS(fcntl, 1, F_SETOWN_EX), IS(ioctl, 1, FIOSETOWN), IS(ioctl, 1, SIOCSPGRP),
        IS(ioctl, 1, TIOCSTI), IS(ioctl, 1, TIOCLINUX),
        /* Sockets of the network; the daemon's end is to be the executor's. */
        NOT(socket, 0, AF_UNIX), IS(prctl, 0, PR_SET_PDEATHSIG)};
    scmp_filter_ctx filter = calls_new(OTHERWISE);
    int r = 0;

    if (filter) {
        r = calls_add(filter, LISTED, always, COUNT(always));
        if (r == 0 && !mps)
            r = calls_add(filter, LISTED, without_mps, COUNT(without_mps));
        if (r == 0)
            r = refuse(filter, rules, COUNT(rules));
        /* Signal 0 only asks whether a process is there, as a driver may about one that shares memory. */
        if (r == 0)
            r = seccomp_rule_add(filter, LISTED, SCMP_SYS(kill), 2, SCMP_A0(SCMP_CMP_NE, self),
                                 SCMP_A1(SCMP_CMP_NE, 0));
        /* A filter sees no flags of clone3(): the C library takes clone() where the kernel has no clone3(). */
        if (r == 0)
            r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    }
    return calls_enter(filter, r, true, e);
}

/* A datagram socket of a pair could send to the name of any other socket. */
int confine_sockets(struct error *e)
{
    enum { TYPES = 0xf };
    const struct rule rules[] = {MASKED(socketpair, 1, TYPES, SOCK_DGRAM), NOT(sendto, 4, 0)};
    scmp_filter_ctx filter = calls_new(OTHERWISE);
    int r = 0;

    if (filter) {
        r = calls_add(filter, LISTED, sockets, COUNT(sockets));
        if (r == 0)
            r = refuse(filter, rules, COUNT(rules));
    }
    return calls_enter(filter, r, true, e);
}

/* ---- the process ---- */

/* Where no user is configured, the first of these users that exists. */
static const char *const usual_users[] = {"kops-executor", "nobody"};

struct confinement {
    enum executor_sandbox mode;
    const char *user;   /* "none": the daemon's own; NULL: one of the usual users */
    bool namespace;     /* the process has a user namespace of its own */
    bool keeps;         /* keep the privilege to read counters, for now */
    struct error lacks; /* the first part that this machine does not offer */
};

static struct confinement read_variable(void)
{
    const char *text = getenv(CONFINE_VARIABLE), *colon = text ? strchr(text, ':') : NULL;
    struct confinement c = {.mode = EXECUTOR_SANDBOX_AUTO};

    if (text)
        c.mode = (enum executor_sandbox)strtol(text, NULL, 10);
    if (colon && colon[1])
        c.user = colon + 1;
    return c;
}

/* Notes a part that is missing: an error where all are required. */
static int lack(struct confinement *c, const struct error *why, struct error *e)
{
    if (c->mode == EXECUTOR_SANDBOX_REQUIRED) {
        *e = *why;
        return error_prefix(e, "no sandbox for an executor (server.sandbox): ");
    }
    if (!c->lacks.code)
        c->lacks = *why;
    return 0;
}

/* ---- device files ---- */

/* The driver makes missing device files by a program that takes root's rights, which an executor cannot have. So the
 * program runs before this process gives them up. */
static void make_devices(const struct backend_config *config)
{
    static char program[] = "/usr/bin/nvidia-modprobe", uvm[] = "-u", all[] = "-c=0";
    char *const arguments[] = {program, uvm, all, NULL}, *const environment[] = {NULL};
    pid_t pid;

    if ((config->cuda_driver && strchr(config->cuda_driver, '/')) || access(program, X_OK) < 0 ||
        (access("/dev/nvidiactl", F_OK) == 0 && access("/dev/nvidia-uvm", F_OK) == 0))
        return;
    if (posix_spawn(&pid, program, NULL, NULL, arguments, environment) != 0)
        return;
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

/* ---- who it is ---- */

static int become_other(const struct confinement *c, struct error *e)
{
    const struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    int r = -1;

    setrlimit(RLIMIT_MEMLOCK, &unlimited); /* root may pin any memory, also memory that clients share */
    if (c->user)
        return process_become(c->user, true, e);
    for (size_t i = 0; r < 0 && i < COUNT(usual_users); i++)
        r = process_become(usual_users[i], true, e);
    return r;
}

/* Drops all capabilities, but for the privilege of a process that counts. */
static int drop_capabilities(struct confinement *c, struct error *e)
{
    struct error why;

    if (c->keeps && process_keep_one(PRIVILEGE, &why) < 0) {
        log_warning("counters_privilege", "state=missing why=\"%s\"", why.message);
        c->keeps = false;
    }
    if (c->keeps)
        return 0;
    c->namespace = process_enter_user_namespace(&why) == 0;
    return process_drop_capabilities(&why) < 0 ? lack(c, &why, e) : 0;
}

static int change_identity(struct confinement *c, struct error *e)
{
    struct error why;

    if (c->keeps && process_keep_over_users(&why) < 0)
        c->keeps = false;
    if (geteuid() == 0 && (!c->user || strcmp(c->user, "none") != 0) && become_other(c, &why) < 0) {
        error_prefix(&why, "executors.user: ");
        if (c->user) { /* a configured user is required */
            *e = why;
            return -1;
        }
        if (lack(c, &why, e) < 0)
            return -1;
    }
    if (drop_capabilities(c, e) < 0)
        return -1;
    return process_refuse_privileges(e);
}

/* The new user may not enter a folder above NVIDIA's packages, such as root's home. */
static int change_identity_and_reach(struct confinement *c, struct error *e)
{
    static char path[PATH_MAX];
    static struct reach packages;
    const bool packaged = packages_folder(path);

    reach_prepare();
    if (packaged)
        reach_open(&packages, path);
    if (change_identity(c, e) < 0)
        return -1;
    if (packaged)
        packages_lie_at(reach_path(&packages));
    return 0;
}

/* ---- what it has ---- */

/* Closes also the connection to a name service that looking up a user may have left. */
static void close_others(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
    }
    reach_close_others(CALL_CONTROL_FD + 1);
}

static bool mps_is_there(void)
{
    const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[PATH_MAX];
    struct stat st;

    snprintf(path, sizeof(path), "%s/control", pipes ? pipes : "/tmp/nvidia-mps");
    return stat(path, &st) == 0;
}

/* A thread that exists already would keep its files. Threads of sanitizers make no calls of ours. */
static int check_threads(struct error *e)
{
#if defined(__SANITIZE_THREAD__)
    (void)e;
    return 0;
#else
    int stat = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    const bool alone = stat >= 0 && process_is_single_threaded(stat);

    if (stat >= 0)
        close(stat);
    return alone ? 0 : error_set(e, ERROR_INTERNAL, "the process has threads already, or no /proc");
#endif
}

static void log_sandbox(const struct confinement *c)
{
    if (c->lacks.code)
        log_warning("executor_sandbox", "state=incomplete uid=%u namespace=%s landlock=%u why=\"%s\"",
                    (unsigned)geteuid(), c->namespace ? "yes" : "no", files_version(), c->lacks.message);
    else
        log_info("executor_sandbox", "state=complete uid=%u namespace=%s landlock=%u", (unsigned)geteuid(),
                 c->namespace ? "yes" : "no", files_version());
}

static bool can_keep(void)
{
    const char *why = !process_may_keep(PRIVILEGE)             ? "the daemon has no CAP_PERFMON"
                      : !files_version() || !calls_available() ? "this system has no Landlock, or no seccomp"
                                                               : NULL;

    if (why)
        log_warning("counters_privilege", "state=missing why=\"%s\"", why);
    return !why;
}

static int enter(struct confinement *c, const struct backend_config *config, bool common, struct error *e)
{
    static const int none[] = {RLIMIT_CORE, RLIMIT_MSGQUEUE, RLIMIT_NICE, RLIMIT_RTPRIO};
    const bool mps = mps_is_there();
    struct error why;

    if (check_threads(&why) < 0 && lack(c, &why, e) < 0)
        return -1;
    make_devices(config);
    process_go_first();
    for (size_t i = 0; i < COUNT(none); i++)
        if (process_limit(none[i], 0) < 0)
            return error_set(e, ERROR_INTERNAL, "the limits of an executor: %s", strerror(errno));
    if (change_identity_and_reach(c, e) < 0)
        return -1;
    if (!common)                           /* the common executor ends its jobs first */
        process_bind_to_parent(getppid()); /* the kernel forgets it when a process changes its user */
    close_others();
    if (confine_files(config, mps, &why) < 0 && lack(c, &why, e) < 0)
        return -1;
    if (confine_calls(mps, &why) < 0 && lack(c, &why, e) < 0)
        return -1;
    if (!c->keeps || !c->lacks.code)
        return c->keeps ? privilege_hand_over(e) : 0;
    *e = c->lacks;
    return error_prefix(e, "no counters by a privilege without a whole sandbox: ");
}

int confine_begin(const struct backend_config *config, struct confine_what what, struct error *e)
{
    struct confinement c = read_variable();
    char first[8];

    if (c.mode == EXECUTOR_SANDBOX_OFF) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (!what.common)
            process_bind_to_parent(getppid());
        return 0;
    }
    c.keeps = what.counts && can_keep();
    if (enter(&c, config, what.common, e) < 0) {
        /* Reads the daemon's first message: the end of a process that has not read it would reset the socket, and the
         * daemon would not read the error that follows. */
        while (recv(CALL_CONTROL_FD, first, sizeof(first), 0) < 0 && errno == EINTR)
            ;
        return -1;
    }
    log_sandbox(&c);
    return 0;
}

int confine_finish(struct error *e)
{
    struct confinement c = read_variable();
    struct error why;

    if (c.mode == EXECUTOR_SANDBOX_OFF || confine_sockets(&why) == 0)
        return 0;
    return lack(&c, &why, e);
}
