#include "compile/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "remote/wire.h"
#include "sandbox/filter.h"
#include "sandbox/process.h"
#include "util/process.h"

/* ---- the sandbox ---- */

bool sandbox_available(struct error *e)
{
    if (!files_version()) {
        error_set(
            e, ERROR_UNSUPPORTED,
            "compiling is switched off: this kernel has no Landlock (%s), which keeps sources from reading files; "
            "enable it (lsm=landlock,…), or set server.sandbox to best_effort",
            strerror(errno));
        return false;
    }
    if (!calls_available()) {
        error_set(e, ERROR_UNSUPPORTED,
                  "compiling is switched off: this kernel has no seccomp filters; set server.sandbox to best_effort");
        return false;
    }
    return true;
}

static int failed(struct error *e)
{
    return error_prefix(e, "no sandbox for the compiler (server.sandbox): ");
}

int sandbox_drop_privileges(const char *user, int parent, struct error *e)
{
    if (user && geteuid() == 0 && process_become(user, false, e) < 0)
        return error_prefix(e, "the compiler cannot change its user: ");
    if ((user && process_drop_capabilities(e) < 0) || process_refuse_privileges(e) < 0)
        return failed(e);
    if (process_bind_to_parent(parent) < 0)
        return error_set(e, ERROR_UNSUPPORTED, "the daemon has gone");
    return 0;
}

int sandbox_enter_landlock(const char *const *directories, unsigned n, struct error *e)
{
    struct files files;

    if (files_begin(&files, e) < 0)
        return failed(e);
    for (unsigned i = 0; i < n; i++) {
        if (files_allow(&files, directories[i], FILES_READ, NULL) < 0) {
            error_set(e, ERROR_UNSUPPORTED, "the compiler cannot read %.100s: %s (kernels.include)", directories[i],
                      strerror(errno));
            files_abandon(&files);
            return -1;
        }
    }
    return files_enter(&files, e) < 0 ? failed(e) : 0;
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

int sandbox_limit(const struct sandbox_limits *limits, struct error *e)
{
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    if (process_limit(RLIMIT_AS, limits->memory_bytes) < 0 || process_limit(RLIMIT_CORE, 0) < 0 ||
        process_limit(RLIMIT_FSIZE, 0) < 0 || process_limit(RLIMIT_NOFILE, limits->files) < 0 ||
        process_limit(RLIMIT_CPU, (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + 2 + limits->cpu_s) < 0) {
        error_set(e, ERROR_UNSUPPORTED, "limits: %s", strerror(errno));
        return failed(e);
    }
    return 0;
}

static const int for_all[] = {SCMP_SYS(sched_get_priority_max), SCMP_SYS(sched_get_priority_min), SCMP_SYS(setrlimit),
                              SCMP_SYS(times)};

static const int for_forking[] = {SCMP_SYS(fork),    SCMP_SYS(wait4),      SCMP_SYS(pidfd_open), SCMP_SYS(sendmsg),
                                  SCMP_SYS(recvmsg), SCMP_SYS(dup2),       SCMP_SYS(dup3),       SCMP_SYS(prctl),
                                  SCMP_SYS(seccomp), SCMP_SYS(close_range)};

#define ALLOW(call, ...) seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(call), 1, __VA_ARGS__)

static int fill(scmp_filter_ctx filter, bool forks)
{
    const uint64_t others = CLONE_VM | CLONE_THREAD | CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                            CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
    int r = calls_add(filter, SCMP_ACT_ALLOW, calls_common, calls_common_n);

    if (!r)
        r = calls_add(filter, SCMP_ACT_ALLOW, for_all, sizeof(for_all) / sizeof(for_all[0]));
    r = r ? r : ALLOW(mmap, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    r = r ? r : ALLOW(mprotect, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    r = r ? r : ALLOW(prlimit64, SCMP_A0(SCMP_CMP_EQ, 0)); /* limits of the process itself only */
    if (!r && forks)
        r = ALLOW(clone, SCMP_A0(SCMP_CMP_MASKED_EQ, others, 0));
    if (!r && forks)
        r = calls_add(filter, SCMP_ACT_ALLOW, for_forking, sizeof(for_forking) / sizeof(for_forking[0]));
    return r;
}

int sandbox_enter_seccomp(bool forks, struct error *e)
{
    scmp_filter_ctx filter = calls_new(SCMP_ACT_ERRNO(EPERM));

    if (calls_enter(filter, filter ? fill(filter, forks) : 0, false, e) < 0)
        return failed(e);
    return 0;
}

/* ---- the pages that a fork writes to, copied before its source comes: else each costs a fault, which takes a small
 * compile half as long again ---- */

/* Larger mappings are reserved, not used: a sanitizer's shadow memory, say. */
#define MAX_RANGE_BYTES (256UL << 20)

enum { MAX_RANGES = 256, POPULATE_WRITE = 23 /* madvise()'s; since Linux 5.14 */ };

#ifdef __SANITIZE_ADDRESS__
static const bool sanitized = true; /* a sanitizer's own memory takes longer than it saves */
#else
static const bool sanitized = false;
#endif

static struct range {
    void *begin;
    size_t size;
} ranges[MAX_RANGES];
static unsigned n_ranges;

static void note_pages(FILE *maps)
{
    unsigned long begin, end;
    char line[PATH_MAX + 128], access[5];

    while (!sanitized && n_ranges < MAX_RANGES && fgets(line, sizeof(line), maps))
        if (sscanf(line, "%lx-%lx %4s", &begin, &end, access) == 3 && !strcmp(access, "rw-p") &&
            end - begin <= MAX_RANGE_BYTES && !strstr(line, "[stack]") && !strstr(line, "[v"))
            ranges[n_ranges++] = (struct range){(void *)(uintptr_t)begin, end - begin};
}

/* Gives the memory that nothing is in back to the kernel: in a fork a new page costs less than the copy of an old one.
 */
static void release_pages(void)
{
    const unsigned char *end = sbrk(0);
    void *volatile again;
    ptrdiff_t less;

    malloc_trim(0);
    less = end - (const unsigned char *)sbrk(0);
    if (less <= 0)
        return;
    again = malloc((size_t)less); /* the heap ends where it did, without pages behind it */
    free(again);
}

/* In a fork. */
static void populate_pages(void)
{
    for (unsigned i = 0; i < n_ranges; i++)
        madvise(ranges[i].begin, ranges[i].size, POPULATE_WRITE);
}

enum {
    SOCKET_FD = HELPER_CONTROL_FD + 1, /* a process that compiles has its socket there */
    OPEN_FILES = 256,                  /* nested includes */
    MAX_PROCESSES = 640,               /* compiling ones, as many paused ones, and spares */
    ENDING_MS = 2000,
};

struct helper {
    pid_t parent; /* the daemon */
    struct helper_setup setup;
    char folders[TOOLKIT_MAX_INCLUDES][PATH_MAX];
    struct helper_toolkit toolkit;
    int statm, stat; /* /proc/self's: no file can be opened later */
    unsigned n;      /* processes */
    struct process {
        uint64_t id;
        pid_t pid;
        int pidfd;
    } processes[MAX_PROCESSES];
    char lacking[ERROR_MESSAGE_MAX];
    struct reach nvrtc, includes[TOOLKIT_MAX_INCLUDES];
};

bool compile_helper_wanted(int argc, char **argv)
{
    return argc > 1 && !strcmp(argv[1], HELPER_ARGUMENT);
}

/* ---- a process that compiles one source ---- */

static void read_all(void *into, size_t size)
{
    unsigned char *at = into;

    while (size) {
        ssize_t n = read(SOCKET_FD, at, size);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            _exit(0); /* the daemon does not want the process any more */
        at += n;
        size -= (size_t)n;
    }
}

static void write_all(struct buffer *b)
{
    if (b->failed)
        _exit(1);
    while (buffer_length(b)) {
        ssize_t n = write(SOCKET_FD, b->data + b->start, buffer_length(b));

        if (n < 0 && errno != EINTR)
            _exit(0);
        if (n > 0)
            buffer_consume(b, (size_t)n);
    }
}

static void answer(const struct helper_outcome *o)
{
    struct buffer out;
    size_t begin;

    buffer_init(&out, FRAME_MAX_ANSWER);
    begin = frame_begin(&out, o->compiled ? FRAME_COMPILED : FRAME_FAILED);
    if (o->compiled) {
        compiled_serialize(o->compiled, &out);
    } else {
        buffer_append(&out, &o->failure, sizeof(o->failure));
        if (o->log)
            buffer_append(&out, o->log, o->log_length);
    }
    frame_end(&out, begin, FRAME_MAX_ANSWER);
    write_all(&out);
    buffer_free(&out);
}

static void fail(const struct error *e)
{
    struct helper_outcome o = {.failure = {.code = e->code, .reason = FAILURE_CRASH}};

    memcpy(o.failure.message, e->message, sizeof(o.failure.message));
    answer(&o);
    _exit(1);
}

/* The body of the one request; ends the process when there is none. */
static void *read_request(size_t *ret_size)
{
    struct frame_header header;
    void *body;

    read_all(&header, sizeof(header));
    if (header.kind != FRAME_REQUEST || header.length > FRAME_MAX_REQUEST)
        _exit(1);
    body = malloc((size_t)header.length + 1);
    if (!body)
        _exit(1);
    read_all(body, header.length);
    *ret_size = header.length;
    return body;
}

/* `space`: the process's address space now. */
static void __attribute__((noreturn)) serve_one(const struct helper *h, uint64_t space)
{
    const struct helper_setup *s = &h->setup;
    const struct sandbox_limits limits = {space + ((uint64_t)s->memory_mib << 20), s->time_s, OPEN_FILES};
    struct helper_outcome outcome;
    struct request request;
    struct buffer out;
    struct error e;
    size_t size;
    void *body;

    if (sandbox_limit(&limits, &e) < 0)
        fail(&e);
    if (s->sandbox != COMPILER_SANDBOX_OFF && sandbox_enter_seccomp(false, &e) < 0 &&
        s->sandbox == COMPILER_SANDBOX_REQUIRED)
        fail(&e);
    populate_pages();
    buffer_init(&out, FRAME_MAX_ANSWER);
    frame_end(&out, frame_begin(&out, FRAME_WARM), 0);
    write_all(&out);
    body = read_request(&size);
    if (request_decode(body, size, &request) < 0)
        _exit(1);
    helper_compile(&h->toolkit, &request.input, &outcome);
    answer(&outcome);
    _exit(0);
}

/* ---- the helper that forks ---- */

static int tell(const struct helper_event *event, int fd)
{
    return remote_send(HELPER_CONTROL_FD, event, sizeof(*event), 0, fd);
}

static void tell_exit(uint64_t id, int status, uint64_t peak_kib)
{
    const struct helper_event event = {.kind = HELPER_EXITED, .id = id, .status = status, .peak_kib = peak_kib};

    tell(&event, -1);
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
    return reach_close_others(HELPER_CONTROL_FD + 1);
}

static int receive_setup(struct helper *h)
{
    struct helper_setup *s = &h->setup;
    int fd;

    if (remote_receive(HELPER_CONTROL_FD, s, sizeof(*s), 0, &fd) != sizeof(*s) || s->n_includes > TOOLKIT_MAX_INCLUDES)
        return -1;
    h->toolkit = (struct helper_toolkit){.n_includes = s->n_includes, .n_trees = s->n_trees, .stamp = s->stamp};
    for (unsigned i = 0; i < s->n_includes; i++) {
        long n = remote_receive(HELPER_CONTROL_FD, h->folders[i], PATH_MAX, 0, &fd);

        if (n <= 0 || h->folders[i][n - 1])
            return -1;
        h->toolkit.includes[i] = h->folders[i];
    }
    return 0;
}

/* A part of the sandbox could not be entered. Returns whether the helper may go on without it. */
static bool may_lack(struct helper *h, const struct error *e)
{
    memcpy(h->lacking, e->message, sizeof(h->lacking));
    return h->setup.sandbox != COMPILER_SANDBOX_REQUIRED;
}

static int enter_sandbox(struct helper *h, struct error *e)
{
    if (h->setup.sandbox == COMPILER_SANDBOX_OFF)
        return 0;
    if (sandbox_enter_landlock(h->toolkit.includes, h->toolkit.n_includes, e) < 0 && !may_lack(h, e))
        return -1;
    return sandbox_enter_seccomp(true, e) < 0 && !may_lack(h, e) ? -1 : 0;
}

/* The compiler's user may not enter a folder above the toolkit, such as root's home. */
static int change_user(struct helper *h, const char **ret_nvrtc, struct error *e)
{
    struct helper_toolkit *toolkit = &h->toolkit;

    reach_open(&h->nvrtc, h->setup.nvrtc);
    for (unsigned i = 0; i < toolkit->n_includes; i++)
        reach_open(&h->includes[i], toolkit->includes[i]);
    if (sandbox_drop_privileges(h->setup.sandbox == COMPILER_SANDBOX_OFF ? NULL : h->setup.user, h->parent, e) < 0)
        return -1;
    *ret_nvrtc = reach_path(&h->nvrtc);
    for (unsigned i = 0; i < toolkit->n_includes; i++) {
        toolkit->includes[i] = reach_path(&h->includes[i]);
        toolkit->shown[i] = h->includes[i].path;
    }
    return 0;
}

static int prepare(struct helper *h, struct error *e)
{
    const char *nvrtc;
    FILE *maps;

    if (change_user(h, &nvrtc, e) < 0)
        return -1;
    reach_close_others(HELPER_CONTROL_FD + 1); /* looking up a user may have left a connection to a name service */
    if (chdir("/") < 0)
        return error_set(e, ERROR_UNSUPPORTED, "the compiler cannot enter /: %s", strerror(errno));
    h->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    h->stat = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    maps = fopen("/proc/self/maps", "re");
    if (h->statm < 0 || h->stat < 0 || !maps)
        return error_set(e, ERROR_UNSUPPORTED, "the compiler cannot read /proc: %s", strerror(errno));
    /* A heap that grows in large steps and never shrinks: a compile in a fork then finds its pages in place. */
    mallopt(M_TOP_PAD, 8 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 64 << 20);
    if (nvrtc_open(&h->toolkit.nvrtc, nvrtc, e) < 0 || enter_sandbox(h, e) < 0 || helper_warm(&h->toolkit, e) < 0)
        return -1;
    release_pages();
    note_pages(maps);
    fclose(maps);
    return 0;
}

static int receive(struct helper_command *command, int *ret_fd)
{
    return remote_receive(HELPER_CONTROL_FD, command, sizeof(*command), 0, ret_fd) == sizeof(*command) && *ret_fd >= 0
               ? 0
               : -1;
}

static void begin_process(const struct helper *h, int socket, pid_t parent, uint64_t space)
{
    if (parent && process_bind_to_parent(parent) < 0)
        _exit(1);
    if (dup2(socket, HELPER_CONTROL_FD) < 0 || dup2(HELPER_CONTROL_FD, SOCKET_FD) < 0)
        _exit(1);
    close(HELPER_CONTROL_FD);
    reach_close_others(SOCKET_FD + 1);
    serve_one(h, space);
}

static void fork_process(struct helper *h, const struct helper_command *command, int socket)
{
    struct helper_event event = {.kind = HELPER_FORKED, .id = command->id};
    uint64_t space = sandbox_address_space(h->statm);
    pid_t self = getpid(), pid;
    int pidfd;

    pid = h->n < MAX_PROCESSES ? fork() : -1;
    if (pid == 0)
        begin_process(h, socket, self, space);
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
        begin_process(h, socket, 0, sandbox_address_space(h->statm));
}

static void serve(struct helper *h)
{
    struct helper_event ready = {.kind = HELPER_READY,
                                 .major = (uint32_t)h->toolkit.nvrtc.major,
                                 .minor = (uint32_t)h->toolkit.nvrtc.minor,
                                 .alone = h->setup.alone || !process_is_single_threaded(h->stat)};

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
    struct helper_event failed = {.kind = HELPER_FAILED};
    static struct helper h;
    struct error e;

    signals_prepare_helper();
    if (argc < 3 || sscanf(argv[2], "parent=%d", &h.parent) != 1 || close_others() < 0 || receive_setup(&h) < 0)
        return 2;
    process_go_first();
    if (prepare(&h, &e) < 0) {
        failed.code = e.code;
        memcpy(failed.text, e.message, sizeof(failed.text));
        tell(&failed, -1);
        return 1;
    }
    serve(&h);
    return 0;
}
