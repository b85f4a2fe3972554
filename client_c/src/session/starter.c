/* Starts a daemon of this user's: finds the program kopsd, and reads its answer. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "connect.h"

/* A program that runs with more rights than its caller starts no daemon, since variables of the caller name the program
 * and its settings. */
bool starter_is_allowed(void)
{
    const char *given = getenv("KOPS_AUTOSTART");

    /* A set-user-ID program does not run what its caller names. */
    return !getauxval(AT_SECURE) && (!given || strcmp(given, "0") != 0);
}

/* ---- the program ---- */

/* Finds the folder of the file that this function is in: libkops, a program or a Python extension. */
static bool own_folder(char path[PATH_MAX])
{
    Dl_info info = {.dli_fname = NULL};
    char *slash;

    /* The name of a program itself is as it was typed. */
    if (!dladdr((void *)(uintptr_t)&own_folder, &info) || !info.dli_fname || !strchr(info.dli_fname, '/') ||
        !realpath(info.dli_fname, path)) {
        const ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);

        if (n < 0)
            return false;
        path[n] = '\0';
    }
    slash = strrchr(path, '/');
    if (slash)
        *slash = '\0';
    return slash;
}

static bool is_program(char path[PATH_MAX], const char *folder, size_t length, const char *below)
{
    const int n = snprintf(path, PATH_MAX, "%.*s%s/kopsd", (int)length, folder, below);

    return n > 0 && n < PATH_MAX && access(path, X_OK) == 0;
}

static bool find_in_path(char path[PATH_MAX])
{
    const char *folders = getenv("PATH");

    for (size_t length; folders && *folders; folders += length + (folders[length] == ':')) {
        length = strcspn(folders, ":");
        if (length && is_program(path, folders, length, ""))
            return true;
    }
    return false;
}

/* Looks in sbin, too, where packages install kopsd and which users' PATH may lack. */
static bool find_program(char path[PATH_MAX])
{
    static const char *const beside[] = {"/bin", "", "/../bin", "/../sbin", "/../../bin", "/../../sbin"};
    static const char *const system[] = {"/usr/local/sbin", "/usr/sbin"};
    const char *given = getenv("KOPSD");
    char folder[PATH_MAX];

    if (given && *given)
        return snprintf(path, PATH_MAX, "%s", given) < PATH_MAX;
    if (own_folder(folder))
        for (unsigned i = 0; i < sizeof(beside) / sizeof(beside[0]); i++)
            if (is_program(path, folder, strlen(folder), beside[i]))
                return true;
    if (find_in_path(path))
        return true;
    for (unsigned i = 0; i < sizeof(system) / sizeof(system[0]); i++)
        if (is_program(path, system[i], strlen(system[i]), ""))
            return true;
    return false;
}

/* ---- running it ---- */

/* Starts the program with default signals, and with no descriptor of this process but the pipe. */
static int spawn(char *path, int output, pid_t *ret_pid)
{
    static char option[] = "--autostart";
    char *argv[] = {path, option, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, ignored;
    int r;

    sigemptyset(&none);
    sigemptyset(&ignored);
    sigaddset(&ignored, SIGPIPE);
    sigaddset(&ignored, SIGCHLD);
    sigaddset(&ignored, SIGALRM);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &ignored);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    r = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!r)
        r = posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    if (!r)
        r = posix_spawn_file_actions_adddup2(&files, output, STDERR_FILENO);
    if (!r)
        r = posix_spawn(ret_pid, path, &files, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return r;
}

/* Reads everything that is written, as far as there is room. False: the deadline came first. */
static bool read_all(int fd, uint64_t deadline, char *text, size_t size)
{
    size_t used = 0;

    for (;;) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        char rest[512];
        const bool full = used == size - 1;
        ssize_t n = poll(&readable, 1, deadline_poll_ms(deadline));

        if (n == 0 && deadline_passed(deadline))
            return false;
        if (n <= 0)
            continue;
        n = read(fd, full ? rest : text + used, full ? sizeof(rest) : size - 1 - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        if (!full)
            used += (size_t)n;
    }
    while (used && text[used - 1] == '\n')
        used--;
    text[used] = '\0';
    return true;
}

static bool run(char *path, uint64_t deadline, char *text, size_t size, bool *ret_timed_out)
{
    int ends[2], r;
    pid_t pid;

    if (pipe2(ends, O_CLOEXEC) < 0) {
        snprintf(text, size, "pipe: %s", strerror(errno));
        return false;
    }
    r = spawn(path, ends[1], &pid);
    close(ends[1]);
    if (r)
        snprintf(text, size, "%s: %s", path, strerror(r));
    else if (!read_all(ends[0], deadline, text, size))
        *ret_timed_out = true;
    close(ends[0]);
    if (r)
        return false;
    if (*ret_timed_out) {
        kill(pid, SIGKILL);
        snprintf(text, size, "%s --autostart has not ended in time", path);
    }
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) /* a program that ignores SIGCHLD has waited already */
        ;
    return !*ret_timed_out;
}

bool starter_run(uint64_t deadline, char *text, size_t size, bool *ret_timed_out)
{
    char program[PATH_MAX];
    const char *line;

    *ret_timed_out = false;
    if (!find_program(program)) {
        snprintf(text, size,
                 "no program kopsd is beside this library or in PATH; install it, or name it in the variable KOPSD");
        return false;
    }
    if (!run(program, deadline, text, size, ret_timed_out))
        return false;
    line = strrchr(text, '\n');
    line = line ? line + 1 : text;
    if (*line == '/') {
        memmove(text, line, strlen(line) + 1);
        return true;
    }
    if (!*text)
        snprintf(text, size, "%s --autostart has ended without a word", program);
    return false;
}
