/* The start of a process that has GPUs: its command line, its environment, and the destination of its lines. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "executor/call.h"
#include "executor/confine.h"
#include "executor/executor.h"
#include "sandbox/filter.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/process.h"

enum {
    LINE_MAX_BYTES = 900 /* bytes of a line in the log */,
    LINES_A_SECOND = 20,
    VARIABLE_BYTES = 128,
    CONFIG_ARGUMENTS = 5,
    OWN_MAX = 3, /* see confine_spawn() */
    ARGUMENT_BYTES = PATH_MAX + 32
};

extern char **environ;

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

/* A line that finds no room is logged in pieces. */
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

/* ---- its arguments and environment ---- */

static void write_config(const struct backend_config *config, char texts[CONFIG_ARGUMENTS][ARGUMENT_BYTES])
{
    snprintf(texts[0], ARGUMENT_BYTES, "driver=%s", config->cuda_driver ? config->cuda_driver : "");
    snprintf(texts[1], ARGUMENT_BYTES, "blaslt=%s", config->cuda_blaslt ? config->cuda_blaslt : "");
    snprintf(texts[2], ARGUMENT_BYTES, "cupti=%s", config->cuda_cupti ? config->cuda_cupti : "");
    snprintf(texts[3], ARGUMENT_BYTES, "repack=%llu", (unsigned long long)config->cuda_repack_bytes);
    snprintf(texts[4], ARGUMENT_BYTES, "debug=%d", log_enabled(LOG_LEVEL_DEBUG));
}

const char *confine_argument(char *argument, struct backend_config *config)
{
    char *value = strchr(argument, '=');

    if (!value)
        return NULL;
    *value++ = '\0';
    if (!strcmp(argument, "driver"))
        config->cuda_driver = *value ? value : NULL;
    else if (!strcmp(argument, "blaslt"))
        config->cuda_blaslt = *value ? value : NULL;
    else if (!strcmp(argument, "cupti"))
        config->cuda_cupti = *value ? value : NULL;
    else if (!strcmp(argument, "repack"))
        config->cuda_repack_bytes = strtoull(value, NULL, 10);
    else if (!strcmp(argument, "debug"))
        log_set_level(*value == '1' ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
    else
        return value;
    return NULL;
}

/* Processes that have, or may have, users' kernels, and the tuner, are never clients of MPS, since their end would
 * break programs that share a context. Without a directory the driver would look into its own. They have few channels,
 * since there may be many of them. */
static char *const without_mps[] = {(char[]){"CUDA_MPS_PIPE_DIRECTORY=/nonexistent"},
                                    (char[]){"CUDA_DEVICE_MAX_CONNECTIONS=2"}};

/* Beginnings of the variables that drivers, the C library and sanitizers read. Other variables may be secrets of the
 * daemon's user. */
static const char *const wanted[] = {"CUDA_", "CUBLAS", "NVIDIA_",       "LD_",   "LANG=",  "LC_",   "TZ=",
                                     "PATH=", "GLIBC_", "KOPS_STANDIN_", "ASAN_", "UBSAN_", "TSAN_", "LSAN_"};

static bool is_wanted(const char *variable)
{
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (!strncmp(variable, wanted[i], strlen(wanted[i])))
            return true;
    return false;
}

static bool is_among(const char *variable, char *const *list, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (!strncmp(variable, list[i], (size_t)(strchr(list[i], '=') - list[i]) + 1))
            return true;
    return false;
}

/* The daemon's environment, or (without `all`) the part that drivers read, with `sandbox` and the variables that the
 * process has of its own. The caller frees the list, not its texts. NULL: no memory. */
static char **environment_of(bool mps, bool all, char *sandbox)
{
    const unsigned n_own = mps ? 0 : sizeof(without_mps) / sizeof(without_mps[0]);
    unsigned n = 0, kept = 0;
    char **list;

    while (environ[n])
        n++;
    list = calloc(n + n_own + 2, sizeof(*list));
    if (!list)
        return NULL;
    for (unsigned i = 0; i < n; i++)
        if ((all || is_wanted(environ[i])) && !is_among(environ[i], without_mps, n_own))
            list[kept++] = environ[i];
    for (unsigned i = 0; i < n_own; i++)
        list[kept++] = without_mps[i];
    list[kept] = sandbox;
    return list;
}

/* ---- the start ---- */

/* Starts the process and listens to its stderr; with the sandbox off it keeps the daemon's. */
static int start(const struct backend_config *config, char *const *arguments, char *const *environment, int control,
                 pid_t *ret_pid)
{
    const bool off = config->executors_sandbox == EXECUTOR_SANDBOX_OFF;
    struct spawn_fd fds[] = {{control, CALL_CONTROL_FD}, {-1, STDERR_FILENO}};
    int ends[2] = {-1, -1}, r;

    if (off)
        return spawn_process(program, arguments, environment, fds, 1, ret_pid);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return errno;
    /* Landlock keeps an executor of the daemon's user from the daemon's memory. Without it this call does, but nobody
     * can debug the daemon then. */
    if (!files_version())
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    fds[1].fd = ends[1];
    r = spawn_process(program, arguments, environment, fds, 2, ret_pid);
    close(ends[1]);
    if (r == 0)
        start_listening(ends[0], *ret_pid);
    else
        close(ends[0]);
    return r;
}

int confine_spawn(const struct backend_config *config, const char *kind, const char *const *own, bool mps, int control,
                  pid_t *ret_pid)
{
    const char *user = config->executors_user ? config->executors_user : "";
    char *arguments[2 + OWN_MAX + CONFIG_ARGUMENTS + 1] = {(char *)(uintptr_t) "kopsd", (char *)(uintptr_t)kind};
    char texts[CONFIG_ARGUMENTS][ARGUMENT_BYTES], sandbox[VARIABLE_BYTES], **environment;
    unsigned n = 2;
    int r;

    snprintf(sandbox, sizeof(sandbox), CONFINE_VARIABLE "=%u:%.64s", config->executors_sandbox, user);
    environment = environment_of(mps, config->executors_sandbox == EXECUTOR_SANDBOX_OFF, sandbox);
    if (!environment)
        return ENOMEM;
    while (own && own[n - 2]) {
        arguments[n] = (char *)(uintptr_t)own[n - 2];
        n++;
    }
    write_config(config, texts);
    for (unsigned i = 0; i < CONFIG_ARGUMENTS; i++)
        arguments[n++] = texts[i];
    r = start(config, arguments, environment, control, ret_pid);
    free(environment);
    return r;
}
