/* Ends clients of MPS, CUDA's Multi-Process Service, through its control program. A client that is killed while its
 * kernels run breaks the context of the other clients, too; one that MPS ends does not. Thread: keeper. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/front.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/spawn.h"

enum {
    LIMIT_MS = 2000, /* for both uses of the program, which take 11 ms where MPS answers */
    OUTPUT_BYTES = 1024,
    SERVERS_MAX = 16,
    COMMAND_BYTES = 48 /* "terminate_client SERVER CLIENT" */
};

extern char **environ;

/* The control program while it runs, and the beginning of its output. */
struct control {
    pid_t pid;
    int pidfd, out;
    char text[OUTPUT_BYTES];
    size_t length;
};

bool front_mps_is_client(const struct executor *x)
{
    const struct executor_region *region = x->region;
    bool shared = false;

    /* Domains and spares are not told where MPS is. */
    for (unsigned i = 0; x->common && region && i < BACKEND_MAX_DEVICES; i++)
        shared = shared || *(const volatile unsigned char *)&region->devices[i].info.shared;
    return shared;
}

/* ---- the program ---- */

/* Starts it with the commands as its input: they fit into a pipe. */
static int start(struct control *c, const char *commands, struct error *e)
{
    static char program[] = "nvidia-cuda-mps-control";
    char *const arguments[] = {program, NULL};
    int in[2] = {-1, -1}, out[2] = {-1, -1}, r = 0;

    if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0 || fcntl(out[0], F_SETFL, O_NONBLOCK) < 0 ||
        write(in[1], commands, strlen(commands)) < 0)
        r = errno;
    if (!r) {
        const struct spawn_fd fds[] = {{in[0], STDIN_FILENO}, {out[1], STDOUT_FILENO}, {out[1], STDERR_FILENO}};

        close(in[1]); /* the input ends there */
        in[1] = -1;
        r = spawn_process(program, arguments, environ, fds, 3, &c->pid);
    }
    for (unsigned i = 0; i < 2; i++)
        if (in[i] >= 0)
            close(in[i]);
    if (out[1] >= 0)
        close(out[1]);
    c->out = out[0];
    if (r) {
        if (c->out >= 0)
            close(c->out);
        return error_set(e, ERROR_INTERNAL, "%s: %s", program, strerror(r));
    }
    c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
    return 0;
}

/* What finds no room is dropped. Returns as read() does. */
static ssize_t take(struct control *c)
{
    char rest[256];
    const size_t room = sizeof(c->text) - 1 - c->length;
    const ssize_t n = room ? read(c->out, c->text + c->length, room) : read(c->out, rest, sizeof(rest));

    if (n > 0 && room)
        c->length += (size_t)n;
    return n;
}

/* Reads its output until it has ended. False: not in time. */
static bool wait_for_end(struct control *c, uint64_t end_ns)
{
    struct pollfd fds[] = {{.fd = c->out, .events = POLLIN}, {.fd = c->pidfd, .events = POLLIN}};

    for (uint64_t now_ns; (now_ns = clock_now_ns()) < end_ns;) {
        const int r = poll(fds, 2, (int)((end_ns - now_ns) / 1000000) + 1);

        if (r < 0 && errno != EINTR)
            return false;
        if (r <= 0)
            continue;
        if (fds[1].revents) {
            while (c->length < sizeof(c->text) - 1 && take(c) > 0)
                ;
            return true;
        }
        if (take(c) == 0)
            fds[0].fd = -1; /* it has closed its output */
    }
    return false;
}

/* Runs the program with the commands. Its output is in c->text. */
static int tell(struct control *c, const char *commands, uint64_t end_ns, struct error *e)
{
    bool ended;
    int status = 0;

    c->length = 0;
    if (start(c, commands, e) < 0)
        return -1;
    ended = wait_for_end(c, end_ns);
    if (!ended)
        kill(-c->pid, SIGKILL); /* it has a session of its own */
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (c->pidfd >= 0)
        close(c->pidfd);
    close(c->out);
    c->text[c->length] = '\0';
    if (!ended)
        return error_set(e, ERROR_INTERNAL, "MPS did not answer in %d ms", LIMIT_MS);
    return status ? error_set(e, ERROR_INTERNAL, "MPS was not reached, status %d", status) : 0;
}

/* ---- the commands ---- */

/* Whether a server of MPS has the pid here. In another pid namespace the numbers mean other processes, and MPS would
 * end another client. */
static bool is_server(pid_t pid)
{
    static const char name[] = "nvidia-cuda-mps-server";
    char path[64], line[PATH_MAX];
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = read(fd, line, sizeof(line));
    close(fd);
    return n > 0 && memmem(line, (size_t)n, name, strlen(name));
}

/* From a list of servers, a line each, the commands that end the client. Returns their number. */
static unsigned write_commands(char *list, pid_t client, char *commands, size_t size)
{
    unsigned n = 0;
    char *rest = NULL;

    for (char *line = strtok_r(list, "\n", &rest); line && n < SERVERS_MAX; line = strtok_r(NULL, "\n", &rest)) {
        char *end;
        const long pid = strtol(line, &end, 10);
        const size_t used = strlen(commands);

        if (end == line || end[strspn(end, " \t\r")] || pid <= 0 || pid > INT_MAX || !is_server((pid_t)pid))
            continue;
        snprintf(commands + used, size - used, "terminate_client %ld %d\n", pid, (int)client);
        n++;
    }
    return n;
}

void front_mps_terminate(pid_t client)
{
    const uint64_t start_ns = clock_now_ns(), end_ns = start_ns + (uint64_t)LIMIT_MS * 1000000;
    char commands[SERVERS_MAX * COMMAND_BYTES] = "", quoted[OUTPUT_BYTES / 2];
    struct control c = {.text = ""};
    unsigned n = 0;
    struct error e;
    int r = tell(&c, "get_server_list\n", end_ns, &e);

    if (r == 0) {
        n = write_commands(c.text, client, commands, sizeof(commands));
        r = n ? tell(&c, commands, end_ns, &e) : error_set(&e, ERROR_INTERNAL, "MPS names no server that is here");
    }
    log_quote(quoted, sizeof(quoted), c.text, strlen(c.text));
    if (r < 0)
        log_warning("mps_terminate_client", "pid=%d why=\"%s\" said=%s", (int)client, e.message, quoted);
    else
        log_info("mps_terminate_client", "pid=%d servers=%u us=%.0f said=%s", (int)client, n,
                 clock_us_between(start_ns, clock_now_ns()), quoted);
}
