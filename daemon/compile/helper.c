#include "compile/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
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

#include "compile/helper_compile.h"
#include "compile/sandbox.h"
#include "remote/wire.h"
#include "sandbox/process.h"
#include "sandbox/reach.h"
#include "util/signals.h"

/* Larger mappings are reserved, not used: a sanitizer's shadow memory, say. */
#define MAX_RANGE_BYTES (256UL << 20)

enum {
    MAX_RANGES = 256,
    MAX_RUNS = 4096,
    MAX_GAP = 4 /* pages */,
    POPULATE_WRITE = 23 /* madvise()'s; since Linux 5.14 */
};

/* A sanitizer's own memory would be most of what is looked at, and takes longer than it saves. */
#ifdef __SANITIZE_ADDRESS__
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

struct range {
    unsigned char *begin;
    size_t pages;
    uint64_t *sums; /* one a page; NULL: not known */
};

/* What was mapped at first, and what is mapped after the compile. */
static struct ranges {
    struct range all[MAX_RANGES];
    unsigned n;
} watched, now;

static struct run {
    void *begin;
    size_t size;
} runs[MAX_RUNS];
static unsigned n_runs;

static size_t page_size;

/* "55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0    [heap]" */
static void add_line(struct ranges *into, const char *line)
{
    unsigned long begin, end;
    char access[5];

    if (into->n == MAX_RANGES || sscanf(line, "%lx-%lx %4s", &begin, &end, access) != 3 || strcmp(access, "rw-p") ||
        end - begin > MAX_RANGE_BYTES || strstr(line, "[stack]") || strstr(line, "[v"))
        return;
    into->all[into->n++] = (struct range){(void *)(uintptr_t)begin, (end - begin) / page_size, NULL};
}

/* Words of memory that others have written, as whatever type. */
typedef uint64_t __attribute__((may_alias)) word;

/* A sanitizer would find that the heap's unused memory is read. */
__attribute__((no_sanitize("address"))) static uint64_t sum_of(const unsigned char *page)
{
    const word *words = (const void *)page;
    uint64_t sum = 0xcbf29ce484222325U;

    for (size_t i = 0; i < page_size / sizeof(*words); i++) {
        sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15U;
        sum ^= sum >> 29;
    }
    return sum;
}

/* Not by malloc(), whose memory is what is watched. */
static void *map(size_t size)
{
    void *made = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return made == MAP_FAILED ? NULL : made;
}

static void watch_content(struct range *r)
{
    r->sums = map(r->pages * sizeof(*r->sums));
    for (size_t i = 0; r->sums && i < r->pages; i++)
        r->sums[i] = sum_of(r->begin + i * page_size);
}

static void read_ranges(int maps, struct ranges *into)
{
    static char text[256 << 10];
    size_t length = 0;
    ssize_t n;

    into->n = 0;
    if (lseek(maps, 0, SEEK_SET) < 0)
        return;
    while (length < sizeof(text) - 1 && (n = read(maps, text + length, sizeof(text) - 1 - length)) > 0)
        length += (size_t)n;
    text[length] = '\0';
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        add_line(into, line);
    }
}

static bool pages_watch(int maps)
{
    if (sanitized)
        return false;
    page_size = (size_t)sysconf(_SC_PAGESIZE);
    read_ranges(maps, &watched);
    for (unsigned i = 0; i < watched.n; i++)
        watch_content(&watched.all[i]);
    return watched.n > 0;
}

static void add_page(const struct range *r, size_t page)
{
    unsigned char *at = r->begin + page * page_size;
    struct run *last = n_runs ? &runs[n_runs - 1] : NULL;
    size_t gap = last ? (size_t)(at - ((unsigned char *)last->begin + last->size)) : 0;

    if (last && (unsigned char *)last->begin >= r->begin && gap <= MAX_GAP * page_size)
        last->size += gap + page_size;
    else if (n_runs < MAX_RUNS)
        runs[n_runs++] = (struct run){at, page_size};
}

static bool is_within(const unsigned char *page, const struct range *r)
{
    return page >= r->begin && page < r->begin + r->pages * page_size;
}

/* What of a range is still mapped: the compile may have given some of it back. */
static void learn(struct range *r)
{
    for (unsigned k = 0; k < now.n; k++)
        for (size_t i = 0; r->sums && i < r->pages; i++)
            if (is_within(r->begin + i * page_size, &now.all[k]) && r->sums[i] != sum_of(r->begin + i * page_size))
                add_page(r, i);
    if (r->sums)
        munmap(r->sums, r->pages * sizeof(*r->sums));
    r->sums = NULL;
}

static void pages_learn(int maps)
{
    n_runs = 0;
    if (!watched.n)
        return;
    read_ranges(maps, &now);
    for (unsigned i = 0; i < watched.n; i++)
        learn(&watched.all[i]);
}

static void pages_release(void)
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

static bool pages_populate(void)
{
    bool any = false;

    for (unsigned i = 0; i < n_runs; i++)
        any = madvise(runs[i].begin, runs[i].size, POPULATE_WRITE) == 0 || any;
    return any;
}

enum {
    SOCKET_FD = HELPER_CONTROL_FD + 1, /* of a process that compiles */
    OPEN_FILES = 256,                  /* of nested includes */
    MAX_PROCESSES = 640,               /* that compile, as many that are paused, and spares */
    ENDING_MS = 2000,
};

struct helper {
    pid_t parent; /* the daemon */
    struct helper_setup setup;
    char folders[TOOLKIT_MAX_INCLUDES][PATH_MAX];
    struct helper_toolkit toolkit;
    int statm, stat, maps; /* of /proc/self: no file can be opened later */
    unsigned n;            /* of processes */
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

/* `space`: the process's address space now. `hurry`: a source waits already, so that warming up would only delay it. */
static void __attribute__((noreturn)) serve_one(const struct helper *h, uint64_t space, bool hurry)
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
    if (!hurry && !pages_populate() && helper_warm(&h->toolkit, &e) < 0)
        fail(&e);
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

    if (change_user(h, &nvrtc, e) < 0)
        return -1;
    reach_close_others(HELPER_CONTROL_FD + 1); /* looking up a user may have left a connection to a name service */
    if (chdir("/") < 0)
        return error_set(e, ERROR_UNSUPPORTED, "the compiler cannot enter /: %s", strerror(errno));
    h->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    h->stat = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    h->maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (h->statm < 0 || h->stat < 0 || h->maps < 0)
        return error_set(e, ERROR_UNSUPPORTED, "the compiler cannot read /proc: %s", strerror(errno));
    /* A heap that grows in large steps and never shrinks: a compile in a fork then finds its pages in place. */
    mallopt(M_TOP_PAD, 8 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 64 << 20);
    if (nvrtc_open(&h->toolkit.nvrtc, nvrtc, e) < 0 || enter_sandbox(h, e) < 0 || helper_warm(&h->toolkit, e) < 0)
        return -1;
    if (pages_watch(h->maps) && helper_warm(&h->toolkit, e) < 0)
        return -1;
    pages_learn(h->maps);
    pages_release();
    close(h->maps);
    return 0;
}

static int receive(struct helper_command *command, int *ret_fd)
{
    return remote_receive(HELPER_CONTROL_FD, command, sizeof(*command), 0, ret_fd) == sizeof(*command) && *ret_fd >= 0
               ? 0
               : -1;
}

/* In the new process: keeps its socket only. */
static void begin_process(const struct helper *h, int socket, pid_t parent, uint64_t space, bool hurry)
{
    if (parent && process_bind_to_parent(parent) < 0)
        _exit(1);
    if (dup2(socket, HELPER_CONTROL_FD) < 0 || dup2(HELPER_CONTROL_FD, SOCKET_FD) < 0)
        _exit(1);
    close(HELPER_CONTROL_FD);
    reach_close_others(SOCKET_FD + 1);
    serve_one(h, space, hurry);
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
