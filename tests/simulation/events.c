/* Events of a plan:
 *
 *     kill-WHO         SIGKILL; WHO is a daemon (which is started anew), executor, client or helper (of the daemon)
 *     pause-WHO        no thread of it runs for a while, as after SIGSTOP or on a machine that swaps
 *     restart-daemon   SIGTERM, and it is started anew when it has ended, as for an upgrade
 *     few-descriptors  the daemon may open a few more descriptors, for a while
 *     hang             kernels on the stand-in GPU do not end, for a while
 *     hang-domain      kernels in an executor of a domain do not end, for seconds
 *     fault            a call of the driver fails, or a kernel
 *     crash            an executor ends in a call of the driver, or beside one, by a signal
 *
 * The seed says which process of several, which call, and how long. */
#include <dirent.h>
#include <err.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../soak/happened.h"
#include "../standin_cuda/control.h"
#include "simulator.h"

enum { PASSING = 32, LONGEST_SCALE = 14 }; /* 0.5 ms << 14: 8 s */

/* Events that last for a while, and how each is undone then. */
struct passing {
    void (*undo)(pid_t pid);
    pid_t pid;
    uint64_t until_ns;
    enum happened_what what;
};

static struct passing passing[PASSING];
static struct standin_control *control;
static struct happened *happened;

/* ---- what clients learn ---- */

static void *open_page(const char *path, size_t size)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    void *page;

    if (fd < 0 || ftruncate(fd, (off_t)size) < 0 || fchmod(fd, 0666) < 0)
        err(2, "%s", path);
    page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        err(2, "%s", path);
    close(fd);
    return page;
}

void happened_open(const char *path)
{
    happened = open_page(path, sizeof(*happened));
}

static void begins(enum happened_what what)
{
    if (!happened)
        return;
    happened->of[what].begun++;
    happened->of[what].last_ns = w->now_ns;
}

static void is_over(enum happened_what what)
{
    if (!happened || happened->of[what].over == happened->of[what].begun)
        return;
    happened->of[what].over++;
    happened->of[what].last_ns = w->now_ns;
}

/* Called when the process's descriptors are closed, before any other thread has a turn. */
void events_ended(pid_t pid)
{
    const bool daemon = pid == programs[DAEMON].pid;
    bool other = false;

    for (unsigned i = 1; i < w->n_parties && !daemon; i++)
        other |= w->parties[i].process == pid && w->parties[i].group == DAEMON;
    if (other) {
        begins(HAPPENED_PROCESS_ENDS);
        is_over(HAPPENED_PROCESS_ENDS);
    }
    if (!daemon || !happened)
        return;
    if (happened->of[HAPPENED_DAEMON_ENDS].over == happened->of[HAPPENED_DAEMON_ENDS].begun)
        begins(HAPPENED_DAEMON_ENDS);
    is_over(HAPPENED_DAEMON_ENDS);
}

/* ---- events that end after a time ---- */

static void pass_for(void (*undo)(pid_t), pid_t pid, enum happened_what what, uint64_t ns)
{
    for (unsigned i = 0; i < PASSING; i++) {
        if (passing[i].undo)
            continue;
        passing[i] = (struct passing){undo, pid, w->now_ns + ns, what};
        begins(what);
        return;
    }
    undo(pid);
}

static void pass(void (*undo)(pid_t), pid_t pid, enum happened_what what)
{
    const uint64_t scale = 500000ULL << world_random(w) % LONGEST_SCALE;

    pass_for(undo, pid, what, scale + world_random(w) % scale);
}

uint64_t events_expire(void)
{
    uint64_t first_ns = NEVER;

    for (unsigned i = 0; i < PASSING; i++) {
        struct passing *p = &passing[i];

        if (p->undo && p->until_ns <= w->now_ns) {
            p->undo(p->pid);
            p->undo = NULL;
            is_over(p->what);
        }
        if (p->undo && p->until_ns < first_ns)
            first_ns = p->until_ns;
    }
    return first_ns;
}

void events_forget(pid_t pid)
{
    for (unsigned i = 0; i < PASSING; i++)
        if (passing[i].undo && passing[i].pid == pid) {
            passing[i].undo = NULL;
            is_over(passing[i].what);
        }
}

/* ---- processes ---- */

static bool has_in_command(pid_t pid, const char *words, size_t size)
{
    char path[40], text[256] = "";
    ssize_t n = 0;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, text, sizeof(text) - 1);
        close(fd);
    }
    return n > 0 && memmem(text, (size_t)n, words, size);
}

static bool is_executor(pid_t pid)
{
    return has_in_command(pid, "executor", 8);
}

static bool is_of_domain(pid_t pid)
{
    static const char common[] = "common\0"
                                 "1";

    return is_executor(pid) && !has_in_command(pid, common, sizeof(common));
}

static bool matches(const struct party *p, const char *who)
{
    if (p->state == PARTY_NONE || p->state == PARTY_ENDED || p->thread)
        return false;
    if (!strcmp(who, "client")) /* not the last program: it asks the daemon what is left */
        return p->group != DAEMON && (last_waits || p->group != n_programs - 1);
    if (p->group != DAEMON)
        return false;
    if (!strcmp(who, "daemon"))
        return p->process == programs[DAEMON].pid;
    if (!strcmp(who, "domain"))
        return p->process != programs[DAEMON].pid && is_of_domain(p->process);
    return p->process != programs[DAEMON].pid && is_executor(p->process) == !strcmp(who, "executor");
}

static pid_t pick(const char *who)
{
    unsigned n = 0, at;

    for (unsigned i = 1; i < w->n_parties; i++)
        n += matches(&w->parties[i], who);
    if (!n)
        return 0;
    at = (unsigned)(world_random(w) % n);
    for (unsigned i = 1; i < w->n_parties; i++)
        if (matches(&w->parties[i], who) && at-- == 0)
            return w->parties[i].process;
    return 0;
}

static bool is_client(pid_t pid)
{
    for (unsigned i = 1; i < w->n_parties; i++)
        if (w->parties[i].process == pid && w->parties[i].group == DAEMON)
            return false;
    return true;
}

static enum happened_what slow(pid_t pid)
{
    return pid == programs[DAEMON].pid ? HAPPENED_DAEMON_SLOW
           : is_client(pid)            ? HAPPENED_CLIENT_SLOW
                                       : HAPPENED_PROCESS_SLOW;
}

static void kill_process(pid_t pid)
{
    for (unsigned i = 0; i < n_programs; i++)
        programs[i].killed |= programs[i].pid == pid;
    kill(pid, SIGKILL);
    wait_for_end(pid);
}

static void go_on(pid_t pid)
{
    for (unsigned i = 1; i < w->n_parties; i++)
        if (w->parties[i].process == pid)
            w->parties[i].paused = 0;
}

static void pause_process(pid_t pid)
{
    for (unsigned i = 1; i < w->n_parties; i++)
        if (w->parties[i].process == pid)
            w->parties[i].paused = 1;
    pass(go_on, pid, slow(pid));
}

static void restart(pid_t pid)
{
    programs[DAEMON].restarts = true;
    begins(HAPPENED_DAEMON_ENDS);
    ask_to_end(pid);
}

/* To what a daemon sets at its start: as many as the hard limit allows. */
static void give_back(pid_t pid)
{
    struct rlimit limit;

    prlimit(pid, RLIMIT_NOFILE, NULL, &limit);
    limit.rlim_cur = limit.rlim_max;
    prlimit(pid, RLIMIT_NOFILE, &limit, NULL);
}

static void few_descriptors(pid_t pid)
{
    struct rlimit limit;
    struct dirent *entry;
    rlim_t first = 0;
    char path[40];
    DIR *folder;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    folder = opendir(path);
    while (folder && (entry = readdir(folder)))
        first = strtoul(entry->d_name, NULL, 10) >= first ? strtoul(entry->d_name, NULL, 10) + 1 : first;
    if (folder)
        closedir(folder);
    prlimit(pid, RLIMIT_NOFILE, NULL, &limit);
    limit.rlim_cur = first + world_random(w) % 6;
    prlimit(pid, RLIMIT_NOFILE, &limit, NULL);
    pass(give_back, pid, HAPPENED_DAEMON_SHORT);
}

/* ---- the GPU ---- */

void control_open(const char *path)
{
    control = open_page(path, sizeof(*control));
    control->version = STANDIN_VERSION;
    control->magic = STANDIN_MAGIC;
}

static void open_gate(pid_t pid)
{
    (void)pid;
    control->gates[STANDIN_GATE_kernel].closed = 0;
    control->gates[STANDIN_GATE_kernel].pid = 0;
}

static void hang(void)
{
    control->gates[STANDIN_GATE_kernel].closed = 1;
    pass(open_gate, 0, HAPPENED_GPU_HANGS);
}

static void hang_domain(pid_t pid)
{
    if (!control)
        return;
    control->gates[STANDIN_GATE_kernel].pid = pid;
    control->gates[STANDIN_GATE_kernel].closed = 1;
    pass_for(open_gate, 0, HAPPENED_GPU_HANGS, 1000000000 + world_random(w) % 7000000000);
}

struct planned_fault {
    const char *function;
    int32_t error;
    uint32_t sticky;
};

/* One of them, soon. */
static void arm(const struct planned_fault *all, size_t n, unsigned latest)
{
    const struct planned_fault *one = &all[world_random(w) % n];

    for (unsigned i = 0; i < STANDIN_FAULTS; i++) {
        struct standin_fault *f = &control->faults[i];

        if (f->armed)
            continue;
        f->countdown = (uint32_t)(1 + world_random(w) % latest);
        f->times = 1;
        f->error = one->error;
        f->sticky = one->sticky;
        snprintf(f->function, sizeof(f->function), "%s", one->function);
        f->armed = 1;
        begins(HAPPENED_GPU_FAULTS);
        return;
    }
}

static void fault(void)
{
    static const struct planned_fault faults[] = {{"cuMemAlloc", 2, 0},
                                                  {"cuMemCreate", 2, 0},
                                                  {"cuMemHostRegister", 2, 0},
                                                  {"cuStreamCreate", 2, 0},
                                                  {"cuEventCreate", 2, 0},
                                                  {"cuLaunchKernel", 2, 0},
                                                  {"cuLaunchKernel", 719, 1},
                                                  {"kernel", 700, 1},
                                                  {"kernel", 719, 1},
                                                  {"copy", 700, 1},
                                                  {"copy", 719, 1},
                                                  {"cuEventRecord", 719, 1},
                                                  {"cuStreamSynchronize", 700, 1},
                                                  {"cuMemcpyHtoDAsync", 719, 1},
                                                  {"cuModuleLoadData", 2, 0},
                                                  {"cuMemHostRegister", 719, 1},
                                                  {"cuMemAlloc", 719, 1}};

    arm(faults, sizeof(faults) / sizeof(faults[0]), 4);
}

/* Between what a job writes and the news of it there are few calls. */
static void crash(void)
{
    static const struct planned_fault calls[] = {
        {"cuLaunchKernel", STANDIN_CRASH, 0},     {"kernel", STANDIN_CRASH, 0},       {"copy", STANDIN_CRASH, 0},
        {"cuStreamBatchMemOp", STANDIN_CRASH, 0}, {"kernel_end", STANDIN_CRASH, 0},   {"copy_end", STANDIN_CRASH, 0},
        {"cuEventQuery", STANDIN_CRASH, 0},       {"cuGraphLaunch", STANDIN_CRASH, 0}};

    arm(calls, sizeof(calls) / sizeof(calls[0]), 8);
}

/* ---- all of them ---- */

static const struct {
    const char *name, *who;
    void (*happen)(pid_t);
    void (*to_gpu)(void);
} kinds[] = {
    {"kill-daemon", "daemon", kill_process, NULL},
    {"kill-executor", "executor", kill_process, NULL},
    {"kill-client", "client", kill_process, NULL},
    {"kill-helper", "helper", kill_process, NULL},
    {"pause-daemon", "daemon", pause_process, NULL},
    {"pause-executor", "executor", pause_process, NULL},
    {"pause-client", "client", pause_process, NULL},
    {"pause-helper", "helper", pause_process, NULL},
    {"restart-daemon", "daemon", restart, NULL},
    {"few-descriptors", "daemon", few_descriptors, NULL},
    {"hang", NULL, NULL, hang},
    {"hang-domain", "domain", hang_domain, NULL},
    {"fault", NULL, NULL, fault},
    {"crash", NULL, NULL, crash},
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

bool event_exists(const char *what)
{
    for (unsigned i = 0; i < KINDS; i++)
        if (!strcmp(kinds[i].name, what))
            return true;
    return false;
}

void event_happens(const char *what)
{
    for (unsigned i = 0; i < KINDS; i++) {
        pid_t pid;

        if (strcmp(kinds[i].name, what))
            continue;
        world_tell(w, "%s\n", what);
        if (kinds[i].to_gpu && control)
            kinds[i].to_gpu();
        else if (kinds[i].happen && (pid = pick(kinds[i].who)))
            kinds[i].happen(pid);
    }
}
