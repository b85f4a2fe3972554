/* simulator: runs a daemon and clients in virtual time, as a seed says, and tells how it went.
 *
 *     simulator --seed N --world FILE --preload LIBRARY [--control FILE] [--happened FILE] [--steps N]
 *               [--event WHAT@STEP]… [--age S] [--rest S] [--slow-starts S] [--last yes] [--trace yes|blocks]
 *               -- DAEMON… [-- CLIENT…]…
 *
 * events.c lists what can happen (WHAT). --control: the stand-in driver's page. --happened: the page that tells the
 * clients what happens (soak/happened.h). --last: the last client begins when the others have ended, and --rest more.
 * --age: of the machine. --slow-starts: that an executor's process takes at most to begin. The daemon gets SIGTERM when
 * all clients have ended. Prints a line of JSON. Exit status 1: something went
 * wrong that `wrong` names; the same arguments do the same once more. */
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "simulator.h"

static uint64_t rest_ns = 20000000000; /* from the end of the clients to the last one's begin */

enum { STALL_S = 60, DEATH_MS = 10000, HANDLER_LOOKS = 1000000 };

struct event {
    char *what;
    uint64_t step;
};

struct world *w;
struct program programs[PROGRAMS];
unsigned n_programs;

static struct event events[PLANNED];
static unsigned n_events, next_event, events_before; /* before the daemon was started last */
static uint64_t last_ns = NEVER;                     /* the last client begins */
static char wrong[256];
static bool asked; /* the daemon to end */
bool last_waits;

#define WRONG(...) (wrong[0] ? 0 : snprintf(wrong, sizeof(wrong), __VA_ARGS__))

/* ---- processes ---- */

char state_of(pid_t pid)
{
    char path[40], text[512], *name_end;
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return 'Z';
    text[n] = 0;
    name_end = strrchr(text, ')');
    return name_end && name_end[1] ? name_end[2] : 'Z';
}

static void start(unsigned number)
{
    struct program *p = &programs[number];
    const unsigned party = world_add(w, 0, number, p->arguments[0]);
    const pid_t pid = fork();

    if (pid < 0)
        err(2, "fork");
    if (!pid) {
        personality(ADDR_NO_RANDOMIZE);
        setsid();
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing is left of a simulator that is killed */
        execvp(p->arguments[0], p->arguments);
        warn("%s", p->arguments[0]);
        _exit(127);
    }
    p->pid = pid;
    w->parties[party].process = pid;
    while (w->parties[party].state == PARTY_BORN && state_of(pid) != 'Z')
        sched_yield();
}

static unsigned clients_left(void)
{
    unsigned n = 0;

    for (unsigned i = 1; i < n_programs; i++)
        n += programs[i].pid != 0;
    return n;
}

/* The process exits or was killed: the others see that it is gone. */
void wait_for_end(pid_t pid)
{
    struct pollfd ended = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};

    if (ended.fd >= 0 && poll(&ended, 1, DEATH_MS) == 0) /* all of its threads have, and its descriptors are closed */
        errx(2, "process %d does not end", (int)pid);
    if (ended.fd >= 0)
        close(ended.fd);
    world_process_ended(w, pid);
    events_ended(pid);
    world_tell(w, "%llu %.9f process %d has ended\n", (unsigned long long)w->steps, (double)w->now_ns / 1e9, (int)pid);
    for (unsigned i = 0; i < n_programs; i++) {
        struct program *p = &programs[i];

        if (p->pid != pid || waitpid(pid, &p->status, 0) != pid)
            continue;
        p->pid = 0;
        if (i == DAEMON && (asked || p->restarts) && WIFSIGNALED(p->status) && WTERMSIG(p->status) == SIGTERM)
            p->status = 0; /* it had only begun */
        /* A service manager starts a daemon anew that could not make an executor. */
        if (i == DAEMON && WIFEXITED(p->status) && p->status && next_event != events_before)
            p->killed = true;
        events_forget(pid);
        if (!p->killed && p->status)
            WRONG("%s %u ended with status %d%s", i == DAEMON ? "the daemon" : "client", i,
                  WIFEXITED(p->status) ? WEXITSTATUS(p->status) : WTERMSIG(p->status),
                  WIFEXITED(p->status) ? "" : " (a signal)");
        if (i == DAEMON && (p->killed || p->restarts)) {
            p->killed = p->restarts = asked = false;
            events_before = next_event;
            start(DAEMON);
        } else if (i == DAEMON && clients_left()) {
            WRONG("the daemon ended, and clients are there");
        }
    }
}

/* Whether it has ended, or will as soon as it is given a processor: a parent's end, a thread's too, kills some
 * children. */
static bool is_dying(pid_t pid)
{
    char path[40], line[256];
    unsigned long long pending = 0, shared = 0;
    FILE *f;

    if (state_of(pid) == 'Z')
        return true;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "SigPnd: %llx", &pending) != 1)
            sscanf(line, "ShdPnd: %llx", &shared);
    if (f)
        fclose(f);
    return (pending | shared) & 1U << (SIGKILL - 1);
}

/* Those that died by another's end have ended, too. */
static void settle(void)
{
    for (unsigned i = 1; i < w->n_parties; i++) {
        const struct party *p = &w->parties[i];

        if (p->process <= 0 || p->state == PARTY_NONE || p->state == PARTY_ENDED || !is_dying(p->process))
            continue;
        wait_for_end(p->process);
        i = 0;
    }
}

static void wait_for_thread(pid_t pid, pid_t thread)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/task/%d", (int)pid, (int)thread);
    for (unsigned i = 0; access(path, F_OK) == 0 && i < HANDLER_LOOKS; i++)
        sched_yield();
}

/* ---- the loop ---- */

static void wait_for_request(void)
{
    const struct timespec now_and_then = {.tv_nsec = 100000000}, soon = {.tv_nsec = 50000};
    uint64_t steps = w->steps, turns = w->turns;
    unsigned still = 0;

    while (!w->parties[0].turn) {
        const int32_t holder = w->holder;
        const pid_t pid = holder > 0 ? w->parties[holder].process : 0;

        syscall(SYS_futex, &w->parties[0].turn, FUTEX_WAIT, 0, w->ending ? &soon : &now_and_then, NULL, 0);
        if (w->parties[0].turn)
            break;
        if (pid && holder == w->holder && state_of(pid) == 'Z') { /* it has exited, or crashed */
            w->ending = 0;
            w->request_process = pid;
            w->request = REQUEST_ENDS;
            break;
        }
        still = steps == w->steps && turns == w->turns ? still + 1 : 0;
        steps = w->steps;
        turns = w->turns;
        if (!w->ending && still == STALL_S * 10) {
            WRONG("%s (process %d) keeps its turn", w->parties[holder].name, (int)pid);
            w->request = REQUEST_STEPS;
            break;
        }
    }
    w->parties[0].turn = 0;
    w->holder = 0; /* a process that has ended with the turn leaves it to nobody that is begun in its place */
}

/* Whether a thread of it does anything: it has no turn, so that this is a signal's handler. */
static bool is_busy(pid_t pid)
{
    const struct dirent *entry;
    bool busy = false;
    char path[40];
    DIR *threads;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    threads = opendir(path);
    while (threads && !busy && (entry = readdir(threads)))
        busy = entry->d_name[0] != '.' && !strchr("SZ", state_of((pid_t)strtol(entry->d_name, NULL, 10)));
    if (threads)
        closedir(threads);
    return busy;
}

void ask_to_end(pid_t pid)
{
    kill(pid, SIGTERM); /* which wakes the thread that takes it, unless all block it */
    for (unsigned i = 0; i < HANDLER_LOOKS && is_busy(pid); i++)
        sched_yield();
}

static void run(void)
{
    while (!wrong[0] && programs[DAEMON].pid) {
        unsigned next;

        w->next_event = next_event < n_events ? events[next_event].step : NEVER;
        w->alarm_ns = events_expire();
        if (!asked && !clients_left() && last_waits) {
            if (last_ns == NEVER)
                last_ns = w->now_ns + rest_ns; /* a daemon sees the end of a client in its own time */
            if (w->now_ns >= last_ns) {
                last_waits = false;
                if (holdings_left(wrong, sizeof(wrong)))
                    break;
                start(n_programs - 1);
            } else if (last_ns < w->alarm_ns) {
                w->alarm_ns = last_ns;
            }
        } else if (!asked && !clients_left()) {
            ask_to_end(programs[DAEMON].pid);
            asked = true;
        }
        next = world_choose(w);
        if (!next && w->alarm_ns != NEVER)
            continue;
        if (!next) {
            WRONG(asked ? "the daemon waits for ever" : "everybody waits for ever");
            break;
        }
        world_give(w, next);
        wait_for_request();
        switch ((enum world_request)w->request) {
        case REQUEST_STEP:
            w->request = REQUEST_NONE;
            event_happens(events[next_event++].what);
            settle();
            break;
        case REQUEST_ENDS:
            w->request = REQUEST_NONE;
            wait_for_end(w->request_process);
            settle();
            break;
        case REQUEST_THREAD_ENDS:
            w->request = REQUEST_NONE;
            wait_for_thread(w->request_process, w->request_thread);
            settle();
            break;
        case REQUEST_IDLE:
            w->request = REQUEST_NONE;
            break;
        default:
            WRONG("not over after %llu steps", (unsigned long long)w->steps);
        }
    }
}

static void tell_of_parties(void)
{
    static const char *const states[] = {"none", "born", "ready", "waits", "ended"};

    for (unsigned i = 1; i < w->n_parties; i++) {
        const struct party *p = &w->parties[i];

        if (p->state != PARTY_NONE && p->state != PARTY_ENDED)
            fprintf(stderr, "%3u %-16s process %d %s%s until %.6f s, key %llx\n", i, p->name, (int)p->process,
                    states[p->state], i == (unsigned)w->holder ? ", has the turn," : "",
                    p->until_ns == NEVER ? -1.0 : (double)p->until_ns / 1e9, (unsigned long long)p->key);
    }
}

static void end_all(void)
{
    for (unsigned i = 1; i < w->n_parties; i++)
        if (w->parties[i].process > 0 && w->parties[i].state != PARTY_NONE && w->parties[i].state != PARTY_ENDED)
            kill(w->parties[i].process, SIGKILL);
    for (unsigned i = 0; i < n_programs; i++)
        if (programs[i].pid)
            waitpid(programs[i].pid, NULL, 0);
}

/* Rude clients connect to themselves. A network namespace of its own begins without a loopback. */
static void raise_loopback(void)
{
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    ioctl(fd, SIOCSIFFLAGS, &loopback); /* only root may: others have the machine's */
    close(fd);
}

static void make_world(const char *path, uint64_t seed, uint64_t age_ns)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0 || ftruncate(fd, sizeof(*w)) < 0 || fchmod(fd, 0666) < 0)
        err(2, "%s", path);
    w = mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (w == MAP_FAILED)
        err(2, "%s", path);
    close(fd);
    w->random[0] = seed * 0x9e3779b97f4a7c15U + 1;
    w->random[1] = ~seed;
    for (unsigned i = 0; i < 16; i++)
        world_random(w);
    w->now_ns = w->begin_ns = age_ns;
    w->quiet_since_ns = NEVER;
    w->scales = 7 + (unsigned)(world_random(w) % 3) * 4; /* 2^15 blocks: more than a thread has between two calls */
    w->processors = 2U << world_random(w) % 3;
    w->n_parties = 1;
    w->last_step = w->alarm_ns = NEVER;
    w->hash = 0xcbf29ce484222325U;
    snprintf(w->path, sizeof(w->path), "%s", path);
    setenv(WORLD_VARIABLE, path, 1);
}

static int by_step(const void *a, const void *b)
{
    const uint64_t x = ((const struct event *)a)->step, y = ((const struct event *)b)->step;

    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    const char *path = NULL, *preload = NULL;
    uint64_t seed = 0, steps = NEVER, age_ns = 1000000000, slow_start_ns = 0;
    struct timespec from, to;
    const char *trace = "no";
    int i = 1;

    for (; i + 1 < argc && strcmp(argv[i], "--"); i += 2) {
        char *at = strchr(argv[i + 1], '@');

        if (!strcmp(argv[i], "--seed"))
            seed = strtoull(argv[i + 1], NULL, 0);
        else if (!strcmp(argv[i], "--steps"))
            steps = strtoull(argv[i + 1], NULL, 0);
        else if (!strcmp(argv[i], "--age"))
            age_ns = (uint64_t)(strtod(argv[i + 1], NULL) * 1e9);
        else if (!strcmp(argv[i], "--rest"))
            rest_ns = (uint64_t)(strtod(argv[i + 1], NULL) * 1e9);
        else if (!strcmp(argv[i], "--slow-starts"))
            slow_start_ns = (uint64_t)(strtod(argv[i + 1], NULL) * 1e9);
        else if (!strcmp(argv[i], "--trace"))
            trace = argv[i + 1];
        else if (!strcmp(argv[i], "--last"))
            last_waits = strcmp(argv[i + 1], "no") != 0;
        else if (!strcmp(argv[i], "--world"))
            path = argv[i + 1];
        else if (!strcmp(argv[i], "--preload"))
            preload = argv[i + 1];
        else if (!strcmp(argv[i], "--control"))
            control_open(argv[i + 1]);
        else if (!strcmp(argv[i], "--happened"))
            happened_open(argv[i + 1]);
        else if (!strcmp(argv[i], "--event") && at && n_events < PLANNED) {
            *at = 0;
            if (!event_exists(argv[i + 1]))
                errx(2, "unknown event: %s", argv[i + 1]);
            events[n_events++] = (struct event){argv[i + 1], strtoull(at + 1, NULL, 0)};
        } else
            errx(2, "unknown: %s", argv[i]);
    }
    while (i < argc && !strcmp(argv[i], "--") && n_programs < PROGRAMS) {
        argv[i++] = NULL;
        programs[n_programs++].arguments = &argv[i];
        while (i < argc && strcmp(argv[i], "--"))
            i++;
    }
    if (!n_programs || !path || !preload)
        errx(2, "needs --world, --preload and a daemon: see the head of simulator.c");
    qsort(events, n_events, sizeof(events[0]), by_step);
    make_world(path, seed, age_ns);
    w->slow_start_ns = slow_start_ns;
    raise_loopback();
    setenv("LD_PRELOAD", preload, 1);
    w->last_step = steps;
    w->trace = strcmp(trace, "no") != 0;
    w->trace_blocks = !strcmp(trace, "blocks");
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (unsigned n = 0; n < n_programs - last_waits; n++)
        start(n);
    run();
    if (wrong[0])
        tell_of_parties();
    clock_gettime(CLOCK_MONOTONIC, &to);
    end_all();
    if (w->trace && fwrite(w->told, 1, w->n_told, stderr) != w->n_told)
        warn("the trace");
    printf("{\"seed\": %llu, \"steps\": %llu, \"turns\": %llu, \"events\": %u, \"simulated_s\": %.6f, \"skipped_s\": "
           "%.6f, \"quiet_s\": %.3f, \"wakes\": [%llu, %llu, %llu], \"real_s\": %.3f, "
           "\"hash\": \"%016llx\", \"wrong\": \"%s\"}\n",
           (unsigned long long)seed, (unsigned long long)w->steps, (unsigned long long)w->turns, next_event,
           (double)(w->now_ns - w->begin_ns) / 1e9, (double)w->skipped_ns / 1e9, (double)w->quiet_ns / 1e9,
           (unsigned long long)w->wakes[WAKES_DAEMON], (unsigned long long)w->wakes[WAKES_EXECUTORS],
           (unsigned long long)w->wakes[WAKES_CLIENTS],
           (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9, (unsigned long long)w->hash,
           wrong);
    return wrong[0] != 0;
}
