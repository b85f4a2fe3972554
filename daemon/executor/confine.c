#include "executor/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/call.h"
#include "executor/executor.h"
#include "executor/privilege.h"
#include "sandbox/calls.h"
#include "sandbox/files.h"
#include "sandbox/process.h"
#include "sandbox/reach.h"
#include "util/log.h"
#include "util/packages.h"

/* The first of these that there is, where no user is configured. */
static const char *const usual_users[] = {"kops-executor", "nobody"};

struct confinement {
    enum executor_sandbox mode;
    const char *user;   /* "none": the daemon's own; NULL: one of the usual ones */
    bool namespace;     /* it has a user namespace of its own */
    bool keeps;         /* the privilege to read counters, for now */
    struct error lacks; /* the first part that is not to be had here */
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

/* Of a part that is not to be had: an error where all are required. */
static int lack(struct confinement *c, const struct error *why, struct error *e)
{
    if (c->mode == EXECUTOR_SANDBOX_REQUIRED) {
        *e = *why;
        return error_prefix(e, "no sandbox for an executor (executors.sandbox): ");
    }
    if (!c->lacks.code)
        c->lacks = *why;
    return 0;
}

/* ---- device files ---- */

/* The driver makes missing device files by a program that takes root's rights, which an executor cannot have. So the
 * program runs before they are given up. */
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
    for (size_t i = 0; r < 0 && i < sizeof(usual_users) / sizeof(usual_users[0]); i++)
        r = process_become(usual_users[i], true, e);
    return r;
}

/* The privilege of one that counts stays, and no other. */
static int drop_capabilities(struct confinement *c, struct error *e)
{
    struct error why;

    if (c->keeps && privilege_keep(&why) < 0) {
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

    if (c->keeps && privilege_keep_over_users(&why) < 0)
        c->keeps = false;
    if (geteuid() == 0 && (!c->user || strcmp(c->user, "none") != 0) && become_other(c, &why) < 0) {
        error_prefix(&why, "executors.user: ");
        if (c->user) { /* it was asked for */
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

/* As change_identity(). The new user may not enter a folder above NVIDIA's packages, such as root's home. */
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

/* Also the connection to a name service that looking up a user may have left. */
static void close_others(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
    }
    reach_close_others(CALL_CONTROL_FD + 1);
}

static int set_limits(struct error *e)
{
    static const int none[] = {RLIMIT_CORE, RLIMIT_MSGQUEUE, RLIMIT_NICE, RLIMIT_RTPRIO};

    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        if (process_limit(none[i], 0) < 0)
            return error_set(e, ERROR_INTERNAL, "the limits of an executor: %s", strerror(errno));
    return 0;
}

static bool mps_is_there(void)
{
    const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[PATH_MAX];
    struct stat st;

    snprintf(path, sizeof(path), "%s/control", pipes ? pipes : "/tmp/nvidia-mps");
    return stat(path, &st) == 0;
}

/* A thread that is there already would keep its files. Threads of sanitizers make no calls of ours. */
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

/* The common executor ends its jobs first. */
static void bind_to_daemon(bool common)
{
    if (!common)
        process_bind_to_parent(getppid());
}

/* Whether the privilege is there, and a sandbox that does without a user namespace. */
static bool can_keep(void)
{
    const char *why = !privilege_is_here()                     ? "the daemon has no CAP_PERFMON"
                      : !files_version() || !calls_available() ? "this system has no Landlock, or no seccomp"
                                                               : NULL;

    if (why)
        log_warning("counters_privilege", "state=missing why=\"%s\"", why);
    return !why;
}

/* With less than a whole sandbox there is no such process. */
static int begin_privilege(const struct confinement *c, struct error *e)
{
    if (!c->keeps || !c->lacks.code)
        return c->keeps ? privilege_hand_over(e) : 0;
    *e = c->lacks;
    return error_prefix(e, "no counters by a privilege without a whole sandbox: ");
}

static int enter(struct confinement *c, const struct backend_config *config, bool common, struct error *e)
{
    const bool mps = mps_is_there();
    struct error why;

    if (check_threads(&why) < 0 && lack(c, &why, e) < 0)
        return -1;
    make_devices(config);
    process_go_first();
    if (set_limits(e) < 0 || change_identity_and_reach(c, e) < 0)
        return -1;
    bind_to_daemon(common); /* the kernel forgets it when a process changes its user */
    close_others();
    if (confine_files(config, mps, &why) < 0 && lack(c, &why, e) < 0)
        return -1;
    if (confine_calls(mps, &why) < 0 && lack(c, &why, e) < 0)
        return -1;
    return begin_privilege(c, e);
}

int confine_begin(const struct backend_config *config, struct confine_what what, struct error *e)
{
    struct confinement c = read_variable();
    char first[8];

    if (c.mode == EXECUTOR_SANDBOX_OFF) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        bind_to_daemon(what.common);
        return 0;
    }
    c.keeps = what.counts && can_keep();
    if (enter(&c, config, what.common, e) < 0) {
        /* The daemon's first message. The end of a process that has not read it would reset the socket, and the daemon
         * would not read the error that this one is about to send. */
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
