#include "real_daemon.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of the stand-in GPU's memory, for this process, the daemon and its executors, which are other users. */
static void make_memory(struct real_daemon *d)
{
    snprintf(d->memory, sizeof(d->memory), "%s/memory", d->folder);
    must(!mkdir(d->memory, 0777) && !chmod(d->memory, 0777) && !chmod(d->folder, 0755));
    setenv("KOPS_STANDIN_MEMORY", d->memory, 1);
}

/* A process that was killed has left files there. */
static void remove_memory(const struct real_daemon *d)
{
    DIR *folder = opendir(d->memory);
    const struct dirent *entry;

    must(folder);
    while ((entry = readdir(folder)))
        unlinkat(dirfd(folder), entry->d_name, 0);
    closedir(folder);
    rmdir(d->memory);
}

static void real_daemon_init(struct real_daemon *d)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memset(d, 0, sizeof(*d));
    snprintf(d->folder, sizeof(d->folder), "/tmp/test-kops-recover-XXXXXX");
    must(mkdtemp(d->folder));
    make_memory(d);
    snprintf(d->socket, sizeof(d->socket), "%s/kopsd.sock", d->folder);
    snprintf(d->notify, sizeof(d->notify), "%s/notify", d->folder);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", d->notify);
    d->notifications = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    must(!bind(d->notifications, (struct sockaddr *)&address, sizeof(address)));
}

static void become_kopsd(const struct real_daemon *d)
{
    const char *kopsd = getenv("KOPSD");
    char driver[512];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("NOTIFY_SOCKET", d->notify, 1);
    must(kopsd);
    snprintf(driver, sizeof(driver), "cuda.driver=%s", d->driver);
    /* One that is told to end lets its work end, however slow the machine and the build are. */
    execl(kopsd, kopsd, "--socket", d->socket, "--backend", "cuda", "--set", "cache.directory=none", "--log-level",
          "error", "--set", "cuda.blaslt=none", "--set", "server.shutdown_grace_ms=600000", "--set", driver,
          (char *)NULL);
    perror(kopsd);
    _exit(127);
}

/* Fails where the daemon ends before it is ready. */
static void wait_ready(const struct real_daemon *d)
{
    struct pollfd watched[] = {{.fd = d->notifications, .events = POLLIN},
                               {.fd = (int)syscall(SYS_pidfd_open, d->pid, 0), .events = POLLIN}};
    char text[512];

    must(watched[1].fd >= 0);
    for (;;) {
        ssize_t n;

        must(poll(watched, 2, -1) > 0 && watched[0].revents);
        n = recv(d->notifications, text, sizeof(text) - 1, 0);
        must(n >= 0);
        text[n] = 0;
        if (strstr(text, "READY=1"))
            break;
    }
    close(watched[1].fd);
}

void real_daemon_start(struct real_daemon *d)
{
    must(!d->pid);
    d->pid = fork();
    must(d->pid >= 0);
    if (!d->pid)
        become_kopsd(d);
    wait_ready(d);
}

int real_daemon_end(struct real_daemon *d, int signal)
{
    int status = 0;

    must(d->pid && !kill(d->pid, signal) && waitpid(d->pid, &status, 0) == d->pid);
    d->pid = 0;
    return status;
}

static void real_daemon_free(struct real_daemon *d)
{
    if (d->pid)
        real_daemon_end(d, SIGKILL);
    close(d->notifications);
    unlink(d->notify);
    unlink(d->socket);
    /* The daemon's lock beside the socket. */
    snprintf(d->notify, sizeof(d->notify), "%.80s.lock", d->socket);
    unlink(d->notify);
    remove_memory(d);
    rmdir(d->folder);
}

/* ---- a client ---- */

void scene_init(struct scene *s, const char *driver)
{
    struct kops_connect_options options = {.socket = s->daemon.socket};

    real_daemon_init(&s->daemon);
    s->daemon.driver = driver;
    real_daemon_start(&s->daemon);
    succeed(s, kops_connect(&options, &s->client, &s->error));
}

void scene_free(struct scene *s)
{
    kops_close(s->client);
    real_daemon_free(&s->daemon);
}

void replace(struct scene *s)
{
    real_daemon_end(&s->daemon, SIGKILL);
    real_daemon_start(&s->daemon);
}

void succeed(struct scene *s, enum kops_code code)
{
    if (code)
        fail_msg("%s: %s", kops_code_name(code), s->error.message);
}
