#include "main/autostart.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "main/notify.h"
#include "server/control/server.h"
#include "util/clock.h"
#include "util/places.h"

/* ---- the places: the socket, its lock and the log ---- */

struct place {
    int directory_fd;
    char socket[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

enum { PLACE_TRIED_BYTES = 1024 };

/* THREATS: everybody may make files in /tmp, under any name, at any moment. So a directory counts only once it is open,
 * by what is open: it is no link, belongs to this user, and nobody else may write to it. One that is not so is an
 * error, never used. /tmp is sticky, so that nobody else can move what was found good. */

static const char log_name[] = "kopsd.log";

/* ---- directories ---- */

static bool never(const char *folder)
{
    (void)folder;
    return false;
}

static bool is_safe_parent(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && (st.st_uid == 0 || st.st_uid == geteuid()) &&
           (!(st.st_mode & (S_IWGRP | S_IWOTH)) || st.st_mode & S_ISVTX);
}

/* NULL: the socket's folder is taken; otherwise why not. A folder in /tmp is made. */
static const char *take(struct place *p, const char *socket)
{
    const char *slash = strrchr(socket, '/'), *why;
    char folder[PLACE_BYTES];

    if (snprintf(p->socket, sizeof(p->socket), "%s", socket) >= (int)sizeof(p->socket))
        return "the path of a socket in it would be too long";
    snprintf(folder, sizeof(folder), "%.*s", (int)(slash - socket), socket);
    if (!strncmp(folder, "/tmp/.kopsd-", strlen("/tmp/.kopsd-"))) {
        if (!is_safe_parent("/tmp"))
            return "everybody may move what is in /tmp";
        if (mkdir(folder, 0700) < 0 && errno != EEXIST)
            return strerror(errno);
    }
    p->directory_fd = places_open_private(folder, &why);
    return p->directory_fd < 0 ? why : NULL;
}

/* Finds the user's private directory, or makes one. After an error `tried` has a line for each directory, with the
 * reason. */
static int place_find(struct place *ret, char tried[PLACE_TRIED_BYTES], struct error *e)
{
    char sockets[PLACES_MAX][PLACE_BYTES];
    const unsigned n = places_list(getenv("XDG_RUNTIME_DIR"), geteuid(), never, sockets) - 1; /* not the system's */
    size_t used = 0;

    for (unsigned i = 0; i < n; i++) {
        const char *why = take(ret, sockets[i]);

        if (!why) {
            *tried = '\0';
            return 0;
        }
        used += (size_t)snprintf(tried + used, PLACE_TRIED_BYTES - used, "\n  %.*s: %s",
                                 (int)(strrchr(sockets[i], '/') - sockets[i]), sockets[i], why);
    }
    return error_set(e, ERROR_PERMISSION_DENIED,
                     "no directory for the socket of a daemon of your own; set XDG_RUNTIME_DIR to a directory that "
                     "only you may write to:");
}

static void place_close(struct place *p)
{
    close(p->directory_fd);
    p->directory_fd = -1;
}

/* ---- files ---- */

static int open_file(int at, const char *name, int flags)
{
    const int fd = openat(at, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags, 0600);
    struct stat st;

    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_nlink == 1)
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

/* Opens a regular file of the user's in the directory, and makes it where it is missing. Returns the descriptor, or -1
 * with errno. */
static int place_open(const struct place *p, const char *name, int flags)
{
    return open_file(p->directory_fd, name, flags);
}

/* ---- the log ---- */

/* Every directory of the path; errors show when the last one is opened. */
static void make_directories(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    mkdir(path, 0700);
}

/* False: there is none, or it cannot be written. */
static bool open_state_log(char path[PATH_MAX], int *ret_fd)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME"), *why;
    const bool named = state && *state == '/';
    int directory, n;

    if (!named && (!home || *home != '/'))
        return false;
    n = snprintf(path, PATH_MAX, "%s%s/kopsd", named ? state : home, named ? "" : "/.local/state");
    if (n < 0 || n + (int)sizeof(log_name) >= PATH_MAX)
        return false;
    make_directories(path);
    directory = places_open_private(path, &why);
    if (directory < 0)
        return false;
    *ret_fd = open_file(directory, log_name, O_APPEND);
    close(directory);
    snprintf(path + n, (size_t)(PATH_MAX - n), "/%s", log_name);
    return *ret_fd >= 0;
}

/* Opens the log: in the user's directory for state, or beside the socket where that cannot be written. */
static int place_open_log(const struct place *p, char path[PATH_MAX], int *ret_fd, struct error *e)
{
    if (open_state_log(path, ret_fd))
        return 0;
    snprintf(path, PATH_MAX, "%.*s/%s", (int)(strrchr(p->socket, '/') - p->socket), p->socket, log_name);
    *ret_fd = place_open(p, log_name, O_APPEND);
    if (*ret_fd < 0)
        return error_set(e, ERROR_PERMISSION_DENIED, "the log %s: %s", path, strerror(errno));
    return 0;
}

enum {
    READY_LIMIT_S = 120, /* a driver with many GPUs takes its time */
    ENDING_LIMIT_S = 30, /* longest wait for a daemon that no longer listens */
    LOG_LINES = 8,       /* lines of the log in an error */
    LOG_BYTES = 2048,    /* bytes to search for these lines */
    NOTIFY_FD = 3        /* descriptor of the daemon for notifications */
};

struct starter {
    const struct flags *flags;
    const struct config *config;
    struct place place;
    char log[LOG_BYTES + 4 * LOG_LINES]; /* last lines of a daemon that failed */
};

/* ---- whether one answers ---- */

/* 1: a daemon that clients trust takes connections there; 0: nothing does; -1: the error says what is in the way. */
static int answers(const char *path, struct error *e)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char why[200] = "";
    bool trusted;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), r;

    if (fd < 0)
        return error_set(e, ERROR_INTERNAL, "socket: %s", strerror(errno));
    memcpy(address.sun_path, path, strlen(path) + 1);
    r = connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ? errno : 0;
    trusted = r == 0 && places_check(path, fd, why, sizeof(why));
    close(fd);
    if (r == EAGAIN) /* the backlog is full at the moment */
        return 1;
    if (r == ENOENT || r == ECONNREFUSED || r == ENOTDIR)
        return 0;
    if (r)
        places_explain(path, r, why, sizeof(why));
    if (!trusted)
        return error_set(e, ERROR_PERMISSION_DENIED, "%s is there, but: %s; or name another socket in KOPS_SOCKET",
                         path, why);
    return 1;
}

static void on_alarm(int number)
{
    (void)number; /* the signal has done its work: flock() ended */
}

/* Waits for a lock, for `limit_s` seconds (0: for ever). */
static int lock(int fd, unsigned limit_s)
{
    const struct sigaction action = {.sa_handler = on_alarm};
    int r;

    sigaction(SIGALRM, &action, NULL);
    alarm(limit_s);
    r = flock(fd, LOCK_EX);
    alarm(0);
    return r;
}

/* A daemon that ends has closed its socket before it lets its lock go. */
static int await_predecessor(const struct place *p, struct error *e)
{
    const int fd = place_open(p, "kopsd.sock.lock", 0);
    int r = 0;

    if (fd < 0)
        return error_set(e, ERROR_PERMISSION_DENIED, "%s.lock: %s", p->socket, strerror(errno));
    if (lock(fd, ENDING_LIMIT_S) < 0)
        r = error_set(e, ERROR_PERMISSION_DENIED,
                      "a kopsd that no longer listens on %s has not ended for %d s; end it (fuser %s.lock names it)",
                      p->socket, ENDING_LIMIT_S, p->socket);
    close(fd);
    return r;
}

/* ---- starting ---- */

/* The given arguments come last, so that they win. */
static char **daemon_arguments(struct starter *s)
{
    static char supervise[] = "--supervise", option[] = "--socket", set[] = "--set", mode[] = "server.socket_mode=0600",
                size[] = "server.log_kib=1024", sockets[] = "sockets.max=0", idle[] = "server.idle_exit_s=300";
    const struct flags *f = s->flags;
    char *own[] = {f->argv[0], supervise, option, s->place.socket, set, mode, set, size, set, sockets, set, idle};
    char **argv = calloc((size_t)f->argc + sizeof(own) / sizeof(own[0]), sizeof(*argv));
    /* The user's own setting wins, also where it says never. */
    const bool says_when = s->config->idle_exit_s || getenv("KOPSD_SERVER_IDLE_EXIT_S");
    unsigned n = (unsigned)(sizeof(own) / sizeof(own[0])) - (says_when ? 2 : 0);

    if (!argv)
        return NULL;
    memcpy(argv, own, n * sizeof(*argv));
    for (int i = 1; i < f->argc; i++)
        if (f->argv[i] != f->autostart_argument && f->argv[i] != f->supervise_argument)
            argv[n++] = f->argv[i];
    return argv;
}

/* Clients leave descriptors open by accident. */
static void close_from(int fd)
{
    const long n = sysconf(_SC_OPEN_MAX);

#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)fd, ~0U, 0U) == 0)
        return;
#endif
    for (; fd < n; fd++)
        close(fd);
}

/* Nothing of the client is left but its user, limits and variables: no descriptor, session, directory, signal mask. */
static _Noreturn void become_daemon(char **argv, int log_fd, int notify_fd)
{
    static const char *const variables[] = {"NOTIFY_SOCKET",  "WATCHDOG_USEC",    "WATCHDOG_PID",
                                            "LISTEN_FDS",     "LISTEN_PID",       "LISTEN_FDNAMES",
                                            "JOURNAL_STREAM", "KOPS_SERVED_FILE", "KOPS_SOCKET"};
    const int null = open("/dev/null", O_RDONLY);
    char text[12];
    sigset_t none;

    if (setsid() < 0 || chdir("/") < 0 || null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(log_fd, STDOUT_FILENO) < 0 ||
        dup2(log_fd, STDERR_FILENO) < 0)
        _exit(EXIT_FAILURE);
    if (notify_fd == NOTIFY_FD ? fcntl(NOTIFY_FD, F_SETFD, 0) < 0 : dup2(notify_fd, NOTIFY_FD) < 0)
        _exit(EXIT_FAILURE);
    close_from(NOTIFY_FD + 1);
    for (unsigned i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        unsetenv(variables[i]);
    snprintf(text, sizeof(text), "%d", NOTIFY_FD);
    setenv(NOTIFIER_FD, text, 1);
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(077);
    execv("/proc/self/exe", argv);
    execvp(argv[0], argv);
    fprintf(stderr, "kopsd: starting the daemon: %s\n", strerror(errno));
    _exit(EXIT_FAILURE);
}

static bool has_line(const char *text, const char *wanted)
{
    const size_t length = strlen(wanted);

    for (; *text; text += *text == '\n') {
        const size_t n = strcspn(text, "\n");

        if (n == length && !memcmp(text, wanted, n))
            return true;
        text += n;
    }
    return false;
}

/* 1: the daemon is ready; 0: it has ended; -1: the time is over. */
static int await_ready(int fd)
{
    const uint64_t until = clock_now_ns() + READY_LIMIT_S * UINT64_C(1000000000);

    for (;;) {
        const uint64_t now = clock_now_ns();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        char text[1025];
        ssize_t n;

        if (now >= until || poll(&ready, 1, (int)((until - now) / 1000000 + 1)) == 0)
            return -1;
        n = recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return 0;
        text[n] = '\0';
        if (has_line(text, "READY=1"))
            return 1;
    }
}

/* The last lines that the log got since `from`, each behind blanks, so that none looks like a path. */
static void read_log(struct starter *s, int fd, off_t from)
{
    const off_t end = lseek(fd, 0, SEEK_END);
    char text[LOG_BYTES + 1];
    const ssize_t n = end > from ? pread(fd, text, LOG_BYTES, end - from > LOG_BYTES ? end - LOG_BYTES : from) : 0;
    const char *line = text + (n > 0 ? n : 0);
    size_t used = 0;

    text[n > 0 ? n : 0] = '\0';
    for (unsigned lines = 0; line > text; line--)
        if (line[-1] == '\n' && *line && ++lines == LOG_LINES)
            break;
    while (*line) {
        const size_t length = strcspn(line, "\n");

        used += (size_t)snprintf(s->log + used, sizeof(s->log) - used, "\n  %.*s", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

static int start(struct starter *s, struct error *e)
{
    char path[PATH_MAX], **argv = daemon_arguments(s);
    int ends[2] = {-1, -1}, log_fd = -1, ready, r = -1;
    pid_t pid;
    off_t from;

    if (!argv)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start a daemon");
    if (place_open_log(&s->place, path, &log_fd, e) < 0)
        goto free_arguments;
    from = lseek(log_fd, 0, SEEK_END);
    /* SOCK_SEQPACKET tells its reader that no writer is left. */
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
        error_set(e, ERROR_INTERNAL, "socketpair: %s", strerror(errno));
        goto close_log;
    }
    pid = fork();
    if (pid == 0)
        become_daemon(argv, log_fd, ends[1]);
    close(ends[1]);
    if (pid < 0) {
        error_set(e, ERROR_OUT_OF_MEMORY, "fork: %s", strerror(errno));
        goto close_pair;
    }
    ready = await_ready(ends[0]);
    if (ready > 0) {
        r = 0;
        goto close_pair;
    }
    if (ready < 0)
        kill(pid, SIGTERM);
    error_set(e, ERROR_INTERNAL, "the daemon that was started %s; its log is %s",
              ready < 0 ? "was not ready in time" : "has ended", path);
    read_log(s, log_fd, from);

close_pair:
    close(ends[0]);
close_log:
    close(log_fd);
free_arguments:
    free(argv);
    return r;
}

/* ---- the rule ---- */

static int find_or_start(struct starter *s, struct error *e)
{
    struct error why;
    int r = answers(s->place.socket, e);

    if (r)
        return r < 0 ? -1 : 0;
    if (await_predecessor(&s->place, e) < 0)
        return -1;
    if (start(s, e) == 0)
        return 0;
    /* Another daemon may have been first, begun by a starter that was killed. */
    return answers(s->place.socket, &why) > 0 ? 0 : -1;
}

/* The system's daemon comes first, as in the clients' own search; one starter at a time does the rest. */
static int find(struct starter *s, struct error *e)
{
    int r = answers(PLACES_SYSTEM, e), fd;

    if (r > 0)
        snprintf(s->place.socket, sizeof(s->place.socket), "%s", PLACES_SYSTEM);
    if (r)
        return r < 0 ? -1 : 0;
    if (place_find(&s->place, s->log, e) < 0)
        return -1;
    fd = place_open(&s->place, "kopsd.start.lock", 0);
    if (fd < 0 || lock(fd, 0) < 0)
        r = error_set(
            e, ERROR_PERMISSION_DENIED,
            "the lock kopsd.start.lock beside %s: %s; set XDG_RUNTIME_DIR to a directory that you may write to",
            s->place.socket, strerror(errno));
    else
        r = find_or_start(s, e);
    if (fd >= 0)
        close(fd);
    place_close(&s->place);
    return r;
}

int autostart(const struct flags *flags, const struct config *config)
{
    struct starter s = {.flags = flags, .config = config};
    struct error e;
    int fd;

    do /* fill the standard streams that the caller has closed, so that no file gets their numbers */
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd <= STDERR_FILENO);
    close(fd);
    if (find(&s, &e) < 0) {
        fprintf(stderr, "kopsd: %s%s\n", e.message, s.log);
        return SERVER_EXIT_FAILED;
    }
    return printf("%s\n", s.place.socket) < 0 || fflush(stdout) ? SERVER_EXIT_FAILED : SERVER_EXIT_OK;
}
