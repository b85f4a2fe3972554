/* How an executor starts, and where its lines go. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "executor/call.h"
#include "executor/confine.h"
#include "executor/executor.h"
#include "sandbox/files.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/spawn.h"

enum { LINE_MAX_BYTES = 900 /* of the log's */, LINES_A_SECOND = 20, VARIABLE_BYTES = 128 };

static char program[] = "/proc/self/exe";

/* ---- its lines ---- */

struct says {
    int fd;
    pid_t pid;
    struct log_limit limit;
};

static void say(struct says *s, const char *text, size_t length)
{
    char quoted[LINE_MAX_BYTES];
    unsigned held_back = 0;

    if (length && log_limit_pass(&s->limit, clock_now_ns(), LINES_A_SECOND, &held_back))
        log_info("executor_says", "pid=%d unsaid=%u text=%s", (int)s->pid, held_back,
                 log_quote(quoted, sizeof(quoted), text, length));
}

/* A line that finds no room is said in pieces. */
static void *listen_to(void *argument)
{
    struct says says = *(struct says *)argument;
    char text[LINE_MAX_BYTES / 2], *end;
    size_t length = 0;
    ssize_t n;

    free(argument);
    while ((n = read(says.fd, text + length, sizeof(text) - length)) > 0 || (n < 0 && errno == EINTR)) {
        length += n > 0 ? (size_t)n : 0;
        while ((end = memchr(text, '\n', length)) || length == sizeof(text)) {
            const size_t line = end ? (size_t)(end - text) : length, used = line + (end != NULL);

            say(&says, text, line);
            length -= used;
            memmove(text, text + used, length);
        }
    }
    say(&says, text, length);
    close(says.fd);
    return NULL;
}

/* Takes `fd`. Where it fails, the lines are lost. */
static void start_listening(int fd, pid_t pid)
{
    struct says *says = malloc(sizeof(*says));
    pthread_attr_t attributes;
    pthread_t thread;
    int r = ENOMEM;

    if (says) {
        *says = (struct says){.fd = fd, .pid = pid};
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        r = pthread_create(&thread, &attributes, listen_to, says);
        pthread_attr_destroy(&attributes);
    }
    if (r == 0)
        return;
    log_warning("executor_says", "pid=%d why=\"%s\"", (int)pid, strerror(r));
    free(says);
    close(fd);
}

/* ---- its environment ---- */

/* Beginnings of the variables that drivers, the C library and sanitizers read. The daemon's own may be told to the
 * service manager, or be secrets of its user. */
static const char *const wanted[] = {"CUDA_", "CUBLAS", "NVIDIA_",       "LD_",   "LANG=",  "LC_",   "TZ=",
                                     "PATH=", "GLIBC_", "KOPS_STANDIN_", "ASAN_", "UBSAN_", "TSAN_", "LSAN_"};

static bool is_wanted(const char *variable)
{
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (!strncmp(variable, wanted[i], strlen(wanted[i])))
            return true;
    return false;
}

static char **environment_of(char *const *environment, bool all, char *own)
{
    size_t n = 0, kept = 0;
    char **list;

    while (environment[n])
        n++;
    list = calloc(n + 2, sizeof(*list));
    if (!list)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (all || is_wanted(environment[i]))
            list[kept++] = environment[i];
    list[kept] = own;
    return list;
}

int confine_spawn(const struct backend_config *config, char *const *arguments, char *const *environment, int control,
                  pid_t *ret_pid)
{
    const bool off = config->executors_sandbox == EXECUTOR_SANDBOX_OFF;
    const char *user = config->executors_user ? config->executors_user : "";
    struct spawn_fd fds[] = {{control, CALL_CONTROL_FD}, {-1, STDERR_FILENO}};
    char own[VARIABLE_BYTES], **list;
    int ends[2] = {-1, -1}, r;

    snprintf(own, sizeof(own), CONFINE_VARIABLE "=%u:%.64s", config->executors_sandbox, user);
    list = environment_of(environment, off, own);
    if (!list)
        return ENOMEM;
    if (!off && pipe2(ends, O_CLOEXEC) < 0) {
        r = errno;
        goto free_list;
    }
    /* Landlock keeps an executor of the daemon's user from the daemon's memory. So does this, at the price that nobody
     * can debug the daemon. */
    if (!off && !files_version())
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    fds[1].fd = ends[1];
    r = spawn_process(program, arguments, list, fds, off ? 1 : 2, ret_pid);
    if (!off)
        close(ends[1]);
    if (!off && r == 0)
        start_listening(ends[0], *ret_pid);
    else if (!off)
        close(ends[0]);
free_list:
    free(list);
    return r;
}
