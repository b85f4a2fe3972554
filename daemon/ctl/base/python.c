/* Becoming Python. A first Python looks whether the package is there, so that a missing one is an error of kopsctl's
 * own. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "complain.h"
#include "python.h"

/* Python looks for modules in the working directory first, which may be anybody's. */
#define NOT_FROM_HERE "import sys\nif not sys.path[0]: del sys.path[0]\n"

enum { WHY_MAX = 256 };

void python_begin(struct python *python, const char *module, const char *what)
{
    python->module = module;
    python->what = what;
    snprintf(python->probe, sizeof(python->probe),
             NOT_FROM_HERE "try: import %s.__main__\n"
                           "except ImportError as error: sys.exit(str(error))\n",
             module);
    snprintf(python->program, sizeof(python->program),
             NOT_FROM_HERE "from %s.__main__ import main\n"
                           "sys.exit(main())\n",
             module);
    python->list[0] = "python3";
    python->list[1] = "-c";
    python->list[2] = python->program;
    python->list[3] = NULL;
    python->n = 3;
}

bool python_argument(struct python *python, const char *argument)
{
    if (python->n + 1 >= PYTHON_ARGUMENTS)
        return false;
    python->list[python->n++] = argument;
    python->list[python->n] = NULL;
    return true;
}

void python_add(struct python *python, const char *option, const char *value)
{
    if (!value)
        return;
    python_argument(python, option);
    python_argument(python, value);
}

/* What the process says on stderr, and its end. Returns its status as waitpid() has it, or -errno. */
static int listen_to(pid_t process, int from, char *ret_why, size_t size)
{
    size_t n = 0;
    int status;
    ssize_t got;

    while ((got = read(from, ret_why + n, size - 1 - n)) > 0 || (got < 0 && errno == EINTR))
        n += got > 0 ? (size_t)got : 0;
    close(from);
    ret_why[n] = '\0';
    ret_why[strcspn(ret_why, "\n")] = '\0';
    while (waitpid(process, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return status;
}

/* Runs the probe. Returns 0: Python has the package; otherwise -errno, or what listen_to() returned. */
static int probe(char *text, char *ret_why, size_t size)
{
    char *const arguments[] = {"python3", "-c", text, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2], r;
    pid_t process;

    *ret_why = '\0';
    if (pipe(ends))
        return -errno;
    posix_spawn_file_actions_init(&actions);
    r = posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    r = r ? r : posix_spawn_file_actions_addclose(&actions, ends[0]);
    r = r ? r : posix_spawn_file_actions_addclose(&actions, ends[1]);
    r = r ? r : posix_spawnp(&process, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (!r)
        return listen_to(process, ends[0], ret_why, size);
    close(ends[0]);
    return -r;
}

void python_common(struct python *python, const struct ctl *ctl)
{
    snprintf(python->seconds, sizeof(python->seconds), "%.3f", (double)ctl->timeout_ms / 1000);
    python_add(python, "--socket", ctl->socket);
    python_add(python, "--timeout", ctl->timeout_ms ? python->seconds : NULL);
    if (ctl->json)
        python_argument(python, "--json");
}

/* Becomes Python. Returns where that is not possible. */
enum ctl_exit python_become(struct python *python)
{
    char why[WHY_MAX];
    const int r = probe(python->probe, why, sizeof(why));

    if (r < 0)
        return ctl_complain("os_error", "%s needs python3 with kopsd's Python package; running python3: %s",
                            python->what, strerror(-r));
    if (r)
        return ctl_complain("unsupported",
                            "%s needs kopsd's Python package, which python3 does not have%s%s%s; in kopsd's sources: "
                            "pip install ./client_py numpy",
                            python->what, *why ? " (" : "", why, *why ? ")" : "");
    execvp(python->list[0], (char *const *)python->list);
    return ctl_complain("os_error", "running python3: %s", strerror(errno));
}
