/* Ends clients of MPS, CUDA's Multi-Process Service, through its control program. A client that is killed while its
 * kernels run breaks the context of the other clients, too; a client that MPS ends does not. Thread: keeper. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/front.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/process.h"

enum {
    LIMIT_MS = 2000, /* for both uses of the program, which take 11 ms where MPS answers */
    OUTPUT_BYTES = 1024,
    SERVERS_MAX = 16,
    COMMAND_BYTES = 48 /* "terminate_client SERVER CLIENT" */
};

extern char **environ;

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

/* Waits for the program's end. False: it has not ended in time. */
static bool wait_for_end(pid_t pid, uint64_t end_ns)
{
    struct pollfd ended = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    int r = 0;

    for (uint64_t now_ns; r == 0 && (now_ns = clock_now_ns()) < end_ns;) {
        r = poll(&ended, 1, (int)((end_ns - now_ns) / 1000000) + 1);
        if (r < 0 && errno == EINTR)
            r = 0;
    }
    if (ended.fd >= 0)
        close(ended.fd);
    return r > 0;
}

/* Files in memory: the program's input with the commands, and one for its output, which cannot grow. Returns an errno.
 */
static int make_files(const char *commands, int *in, int *out)
{
    *in = memfd_create("kopsd-mps", MFD_CLOEXEC);
    *out = memfd_create("kopsd-mps", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*in < 0 || *out < 0 || write(*in, commands, strlen(commands)) < 0 || lseek(*in, 0, SEEK_SET) < 0 ||
        ftruncate(*out, OUTPUT_BYTES) < 0 || fcntl(*out, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) < 0)
        return errno;
    return 0;
}

/* Runs the program with the commands. `text` is what it has said. */
static int tell(const char *commands, uint64_t end_ns, char text[OUTPUT_BYTES], struct error *e)
{
    static char program[] = "nvidia-cuda-mps-control";
    char *const arguments[] = {program, NULL};
    int in, out, status = 0, r = make_files(commands, &in, &out);
    const struct spawn_fd fds[] = {{in, STDIN_FILENO}, {out, STDOUT_FILENO}, {out, STDERR_FILENO}};
    bool ended;
    pid_t pid;

    memset(text, 0, OUTPUT_BYTES);
    if (r == 0)
        r = spawn_process(program, arguments, environ, fds, 3, &pid);
    if (r) {
        r = error_set(e, ERROR_INTERNAL, "%s: %s", program, strerror(r));
        goto close_files;
    }
    ended = wait_for_end(pid, end_ns);
    if (!ended)
        kill(-pid, SIGKILL); /* the process has a session of its own */
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (pread(out, text, OUTPUT_BYTES - 1, 0) < 0)
        *text = '\0';
    if (!ended)
        r = error_set(e, ERROR_INTERNAL, "MPS did not answer in %d ms", LIMIT_MS);
    else if (status)
        r = error_set(e, ERROR_INTERNAL, "MPS was not reached, status %d", status);

close_files:
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    return r;
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

/* Writes the commands that end the client, for a list of servers, a line each. Returns their number. */
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
    char text[OUTPUT_BYTES];
    unsigned n = 0;
    struct error e;
    int r = tell("get_server_list\n", end_ns, text, &e);

    if (r == 0) {
        n = write_commands(text, client, commands, sizeof(commands));
        r = n ? tell(commands, end_ns, text, &e) : error_set(&e, ERROR_INTERNAL, "MPS names no server that is here");
    }
    log_quote(quoted, sizeof(quoted), text, strlen(text));
    if (r < 0)
        log_warning("mps_terminate_client", "pid=%d why=\"%s\" said=%s", (int)client, e.message, quoted);
    else
        log_info("mps_terminate_client", "pid=%d servers=%u us=%.0f said=%s", (int)client, n,
                 clock_us_between(start_ns, clock_now_ns()), quoted);
}
