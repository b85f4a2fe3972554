/* The helper that forks. */
#include "compile/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compile/helper_pages.h"
#include "compile/sandbox.h"
#include "sandbox/process.h"
#include "sandbox/reach.h"
#include "util/signals.h"

enum { MAX_PROCESSES = 640 /* compiles, as many that are paused, and spares */, ENDING_MS = 2000 };

struct helper {
    struct helper_settings settings;
    int statm, stat, maps; /* of /proc/self: no file can be opened later */
    unsigned n;            /* of processes */
    struct process {
        uint64_t id;
        pid_t pid;
        int pidfd;
    } processes[MAX_PROCESSES];
    char lacking[ERROR_MESSAGE_MAX];
    struct reach nvrtc, includes[HELPER_MAX_INCLUDES];
};

/* The descriptor `fd` goes along unless it is negative. */
static int tell(const struct helper_event *event, int fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {(void *)(uintptr_t)event, sizeof(*event)};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};

    if (fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof(control.space);
        control.header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
    }
    return sendmsg(HELPER_CONTROL_FD, &message, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

static void tell_failure(const struct error *e)
{
    struct helper_event event = {.kind = HELPER_FAILED, .code = e->code};

    snprintf(event.text, sizeof(event.text), "%s", e->message);
    tell(&event, -1);
}

static void tell_exit(uint64_t id, int status, uint64_t peak_kib)
{
    const struct helper_event event = {.kind = HELPER_EXITED, .id = id, .status = status, .peak_kib = peak_kib};

    tell(&event, -1);
}

static int close_behind_control(void)
{
    return reach_close_others(HELPER_CONTROL_FD + 1);
}

/* Nothing but the control socket comes along from the daemon. */
static int close_others(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (null < 0)
        return -1;
    for (int fd = 0; fd < 3; fd++)
        if (dup2(null, fd) < 0)
            return -1;
    reach_prepare();
    return close_behind_control();
}

/* A heap that grows in large steps and never shrinks: a compile in a fork then finds its pages in place. */
static void tune_heap(void)
{
    mallopt(M_TOP_PAD, 8 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 64 << 20);
}

static int enter_sandbox(struct helper *h, struct error *e)
{
    const struct helper_settings *s = &h->settings;

    if (s->sandbox == COMPILER_SANDBOX_OFF)
        return 0;
    if (sandbox_enter_landlock(s->toolkit.includes, s->toolkit.n_includes, e) < 0) {
        if (s->sandbox == COMPILER_SANDBOX_REQUIRED)
            return -1;
        snprintf(h->lacking, sizeof(h->lacking), "%s", e->message);
    }
    if (sandbox_enter_seccomp(true, e) < 0) {
        if (s->sandbox == COMPILER_SANDBOX_REQUIRED)
            return -1;
        snprintf(h->lacking, sizeof(h->lacking), "%s", e->message);
    }
    return 0;
}

/* The compiler's user may not enter a folder above the toolkit, such as root's home. */
static int change_user(struct helper *h, struct error *e)
{
    const char *user = h->settings.sandbox == COMPILER_SANDBOX_OFF ? NULL : h->settings.user;
    struct helper_toolkit *toolkit = &h->settings.toolkit;

    reach_open(&h->nvrtc, h->settings.nvrtc);
    for (unsigned i = 0; i < toolkit->n_includes; i++)
        reach_open(&h->includes[i], toolkit->includes[i]);
    if (sandbox_drop_privileges(user, h->settings.parent, e) < 0)
        return -1;
    h->settings.nvrtc = reach_path(&h->nvrtc);
    for (unsigned i = 0; i < toolkit->n_includes; i++) {
        toolkit->includes[i] = reach_path(&h->includes[i]);
        toolkit->shown[i] = h->includes[i].path;
    }
    return 0;
}

static int prepare(struct helper *h, struct error *e)
{
    if (change_user(h, e) < 0)
        return -1;
    close_behind_control(); /* looking up a user may have left a connection to a name service */
    if (chdir("/") < 0)
        return error_set(e, ERROR_UNSUPPORTED, "the compiler cannot enter /: %s", strerror(errno));
    h->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    h->stat = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    h->maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (h->statm < 0 || h->stat < 0 || h->maps < 0)
        return error_set(e, ERROR_UNSUPPORTED, "the compiler cannot read /proc: %s", strerror(errno));
    tune_heap();
    if (nvrtc_open(&h->settings.toolkit.nvrtc, h->settings.nvrtc, e) < 0 || enter_sandbox(h, e) < 0)
        return -1;
    if (helper_warm(&h->settings.toolkit, e) < 0)
        return -1;
    if (pages_watch(h->maps) && helper_warm(&h->settings.toolkit, e) < 0)
        return -1;
    pages_learn(h->maps);
    pages_release();
    close(h->maps);
    return 0;
}

static int receive(struct helper_command *command, int *ret_fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec data = {command, sizeof(*command)};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.space)};
    ssize_t n;

    do
        n = recvmsg(HELPER_CONTROL_FD, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n != sizeof(*command) || message.msg_controllen < CMSG_LEN(sizeof(int)) ||
        control.header.cmsg_type != SCM_RIGHTS)
        return -1;
    memcpy(ret_fd, CMSG_DATA(&control.header), sizeof(int));
    return 0;
}

/* In the new process: keeps its socket only. */
static void begin_process(const struct helper *h, int socket, pid_t parent, uint64_t space, bool hurry)
{
    if (parent && sandbox_bind_to_parent(parent) < 0)
        _exit(1);
    if (dup2(socket, HELPER_CONTROL_FD) < 0 || dup2(HELPER_CONTROL_FD, HELPER_SOCKET_FD) < 0)
        _exit(1);
    close(HELPER_CONTROL_FD);
    reach_close_others(HELPER_SOCKET_FD + 1);
    helper_serve_one(&h->settings, space, hurry);
}

static void fork_process(struct helper *h, const struct helper_command *command, int socket)
{
    struct helper_event event = {.kind = HELPER_FORKED, .id = command->id};
    uint64_t space = sandbox_address_space(h->statm);
    pid_t self = getpid(), pid;
    int pidfd;

    pid = h->n < MAX_PROCESSES ? fork() : -1;
    if (pid == 0)
        begin_process(h, socket, self, space, command->hurry);
    close(socket);
    if (pid < 0) {
        tell_exit(command->id, -1, 0);
        return;
    }
    pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0)
        _exit(1); /* takes the process with it */
    h->processes[h->n++] = (struct process){command->id, pid, pidfd};
    tell(&event, pidfd);
}

static void reap(struct helper *h, unsigned i)
{
    struct process p = h->processes[i];
    struct rusage used;
    int status;

    if (wait4(p.pid, &status, 0, &used) != p.pid)
        return;
    close(p.pidfd);
    h->processes[i] = h->processes[--h->n];
    tell_exit(p.id, status, (uint64_t)used.ru_maxrss);
}

/* Returns false when the daemon has gone, or there was nothing for `timeout_ms`. */
static bool turn(struct helper *h, bool listen, int timeout_ms)
{
    struct pollfd fds[MAX_PROCESSES + 1] = {{.fd = listen ? HELPER_CONTROL_FD : -1, .events = POLLIN}};
    struct helper_command command;
    unsigned n = h->n;
    int socket;

    for (unsigned i = 0; i < n; i++)
        fds[i + 1] = (struct pollfd){.fd = h->processes[i].pidfd, .events = POLLIN};
    if (poll(fds, n + 1, timeout_ms) <= 0)
        return errno == EINTR && timeout_ms < 0;
    for (unsigned i = n; i > 0; i--) /* from the end: the last takes a reaped one's place */
        if (fds[i].revents)
            reap(h, i - 1);
    if (!fds[0].revents)
        return true;
    if (receive(&command, &socket) < 0)
        return false;
    fork_process(h, &command, socket);
    return true;
}

/* A process that cannot fork compiles one source itself. */
static void serve_alone(struct helper *h)
{
    struct helper_event event = {.kind = HELPER_FORKED};
    struct helper_command command;
    int socket, pidfd;

    if (receive(&command, &socket) < 0)
        return;
    pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    event.id = command.id;
    if (pidfd >= 0 && tell(&event, pidfd) == 0)
        begin_process(h, socket, 0, sandbox_address_space(h->statm), true); /* it is warm from its start */
}

static void serve(struct helper *h)
{
    struct helper_event ready = {.kind = HELPER_READY};

    ready.major = (uint32_t)h->settings.toolkit.nvrtc.major;
    ready.minor = (uint32_t)h->settings.toolkit.nvrtc.minor;
    ready.alone = h->settings.alone || !process_is_single_threaded(h->stat);
    memcpy(ready.text, h->lacking, sizeof(ready.text));
    if (tell(&ready, -1) < 0)
        return;
    if (ready.alone) {
        serve_alone(h);
        return;
    }
    while (turn(h, true, -1))
        ;
    /* The daemon has gone or does not need this helper. Its children are killed at its end. */
    while (h->n && turn(h, false, ENDING_MS))
        ;
}

int compile_helper_main(int argc, char **argv)
{
    static struct helper h;
    struct error e;

    signals_prepare_helper();
    if (helper_settings_parse(argc, argv, &h.settings) < 0 || close_others() < 0)
        return 2;
    process_go_first();
    if (prepare(&h, &e) < 0) {
        tell_failure(&e);
        return 1;
    }
    serve(&h);
    return 0;
}
