#include "real_daemon.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/folder.h"

static void become_kopsd(const struct real *r)
{
    const char *kopsd = getenv("KOPSD");
    char driver[512];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    must(kopsd);
    snprintf(driver, sizeof(driver), "cuda.driver=%s", r->driver);
    execl(kopsd, kopsd, "--socket", r->socket, "--backend", "cuda", "--set", "cache.directory=none", "--log-level",
          "error", "--set", "cuda.blaslt=none", "--set", driver, (char *)NULL);
    perror(kopsd);
    _exit(127);
}

/* Waits until it answers; fails where it ends before. */
static void start(struct real *r)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s", r->socket);
    r->pid = fork();
    must(fd >= 0 && r->pid >= 0);
    if (!r->pid)
        become_kopsd(r);
    while (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
        must(waitpid(r->pid, NULL, WNOHANG) == 0);
        usleep(5000);
    }
    close(fd);
}

void real_kill(struct real *r)
{
    must(r->pid && !kill(r->pid, SIGKILL) && waitpid(r->pid, NULL, 0) == r->pid);
    r->pid = 0;
}

void replace(struct real *r)
{
    real_kill(r);
    start(r);
}

void real_init(struct real *r, const char *driver)
{
    struct kops_connect_options options = {.socket = r->socket};
    const char *memory;

    memset(r, 0, sizeof(*r));
    r->folder = folder_new();
    r->driver = driver;
    snprintf(r->socket, sizeof(r->socket), "%s", folder_path(r->folder, "kopsd.sock"));
    /* The stand-in GPU's memory, for this process, the daemon and its executors, which are other users. */
    memory = folder_path(r->folder, "memory");
    must(!mkdir(memory, 0777) && !chmod(memory, 0777) && !chmod(r->folder, 0755));
    setenv("KOPS_STANDIN_MEMORY", memory, 1);
    start(r);
    if (kops_connect(&options, &r->client, &r->error))
        fail_msg("connect: %s", r->error.message);
}

void real_free(struct real *r)
{
    kops_close(r->client);
    if (r->pid)
        real_kill(r);
    close_opened(NULL);
}
