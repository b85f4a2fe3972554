#include "expect.h"

#include <err.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* How long after it something may have an effect yet. */
static const uint64_t SECOND_NS = 1000000000, LONG_NS = 3000000000;

/* A job is begun anew so often, and one whose memory is being opened once less. After so many executors in a row that
 * did not get ready the daemon ends. */
enum { BEGUN_ANEW = 3, GIVEN_UP = 5 };

static const struct happened *happened;
static bool quotas_are_small, starts_are_slow;

void expect_open(bool small_quotas, bool slow_starts)
{
    const char *path = getenv(HAPPENED_VARIABLE);
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    quotas_are_small = small_quotas;
    starts_are_slow = slow_starts;
    if (!path)
        return;
    happened = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*happened), PROT_READ, MAP_SHARED, fd, 0);
    if (happened == MAP_FAILED)
        err(EXIT_FAILURE, "%s", path);
    close(fd);
}

struct expect expect_now(void)
{
    struct expect now = {.ns = 0};
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    now.ns = (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
    for (unsigned i = 0; happened && i < HAPPENED_KINDS; i++) {
        now.begun[i] = happened->of[i].begun;
        now.over[i] = happened->of[i].over;
        now.last_ns[i] = happened->of[i].last_ns;
    }
    return now;
}

unsigned expect_times(const struct expect *from, enum happened_what what, uint64_t before_ns)
{
    const struct expect now = expect_now();
    unsigned n = (unsigned)(now.begun[what] - from->begun[what]);

    if (from->over[what] != from->begun[what])
        n++;
    else if (before_ns && from->begun[what] && from->last_ns[what] + before_ns >= from->ns)
        n++;
    return n;
}

static bool is_in_doubt(const struct expect *from)
{
    return expect_times(from, HAPPENED_DAEMON_SLOW, LONG_NS) || expect_times(from, HAPPENED_DAEMON_SHORT, LONG_NS);
}

/* It may have taken long, for many reasons. */
static bool was_slow(const struct expect *from)
{
    return is_in_doubt(from) || expect_times(from, HAPPENED_PROCESS_SLOW, LONG_NS) ||
           expect_times(from, HAPPENED_CLIENT_SLOW, LONG_NS) || expect_times(from, HAPPENED_GPU_HANGS, LONG_NS);
}

bool expect_steady(const struct expect *from)
{
    return happened && !was_slow(from);
}

bool expect_only_ends(const struct expect *from)
{
    return expect_steady(from) && !expect_times(from, HAPPENED_GPU_FAULTS, LONG_NS);
}

bool expect_nothing(const struct expect *from)
{
    return expect_only_ends(from) && !expect_times(from, HAPPENED_PROCESS_ENDS, 0) &&
           !expect_times(from, HAPPENED_DAEMON_ENDS, 0);
}

bool expect_not_run(const struct kops_error *e)
{
    int64_t ran;

    return kops_error_number(e, "ran", &ran) && ran == 0;
}

static const char *lost_connection(const struct expect *from, unsigned kind, const struct kops_error *e)
{
    const unsigned ends = expect_times(from, HAPPENED_DAEMON_ENDS, 0);

    if (was_slow(from))
        return NULL; /* a stream that stalls ends the connection, too */
    if (kind & EXPECT_TICKET && (expect_not_run(e) || kind & EXPECT_LATER) && from->begun[HAPPENED_DAEMON_ENDS] + ends)
        return NULL;
    if (!ends)
        return "no daemon has ended since the call";
    if (kind & EXPECT_TICKET)
        return NULL;
    if (expect_not_run(e))
        return "no daemon has read the call, which is not made again";
    if (kind & EXPECT_AGAIN && ends < 2)
        return "one daemon has ended, and the call may be made again";
    return NULL;
}

static bool did_not_start(const struct kops_error *e)
{
    return strstr(e->message, "did not get ready");
}

/* After two starts in a row that ended, the next is not at once, and jobs that come meanwhile fail: the ends were
 * before the call. */
static bool starts_had_ended(const struct expect *from, const struct kops_error *e)
{
    return did_not_start(e) && from->begun[HAPPENED_PROCESS_ENDS] >= 2;
}

static const char *lost_device(const struct expect *from, unsigned kind, const struct kops_error *e)
{
    const unsigned ends = expect_times(from, HAPPENED_PROCESS_ENDS, SECOND_NS);
    const unsigned daemons = expect_times(from, HAPPENED_DAEMON_ENDS, 0);
    const char *daemon = kops_error_text(e, "daemon");

    if (is_in_doubt(from))
        return NULL;
    if (!daemon || strcmp(daemon, "goes_on") != 0) {
        if (did_not_start(e) && from->begun[HAPPENED_PROCESS_ENDS] + ends >= GIVEN_UP)
            return NULL;
        if (!daemons)
            return "it does not say that the daemon goes on";
        return kind & EXPECT_AGAIN && daemons < 2 ? "one daemon has ended, and the call may be made again" : NULL;
    }
    if (!ends)
        return "no process of the daemon's has ended";
    if (kind & EXPECT_BEGUN_ANEW && ends < BEGUN_ANEW && !starts_had_ended(from, e))
        return "its job may be begun anew";
    return NULL;
}

const char *expect_wrong(const struct expect *from, unsigned kind, const struct kops_error *e)
{
    if (!happened)
        return NULL;
    if (!e->message[0])
        return "it says nothing";
    switch (e->code) {
    case KOPS_ERR_CONNECTION_LOST:
        return lost_connection(from, kind, e);
    case KOPS_ERR_CONNECT_FAILED:
        if (kind & EXPECT_FIRST && from->begun[HAPPENED_DAEMON_ENDS] + expect_times(from, HAPPENED_DAEMON_ENDS, 0))
            return NULL;
        if (starts_are_slow && from->begun[HAPPENED_DAEMON_ENDS] + expect_times(from, HAPPENED_DAEMON_ENDS, 0))
            return NULL; /* the next daemon waits for its first executor */
        return was_slow(from) || expect_times(from, HAPPENED_GPU_FAULTS, LONG_NS)
                   ? NULL
                   : "nothing kept a daemon from its start";
    case KOPS_ERR_SHUTTING_DOWN:
        if (!expect_times(from, HAPPENED_DAEMON_ENDS, 0))
            return "nobody has asked the daemon to end";
        if (starts_are_slow)
            return NULL; /* the next daemon may not be there in time */
        return kind & EXPECT_TICKET || was_slow(from) ? NULL : "it is made again until a daemon takes it";
    case KOPS_ERR_DEVICE_LOST:
        return lost_device(from, kind, e);
    case KOPS_ERR_JOB_TIMEOUT:
    case KOPS_ERR_STALLED:
        return was_slow(from) ? NULL : "nothing was slow";
    case KOPS_ERR_DEVICE_FAULT:
    case KOPS_ERR_DEVICE_ERROR:
        return expect_times(from, HAPPENED_GPU_FAULTS, 0) ? NULL : "no call of the driver has failed, and no kernel";
    case KOPS_ERR_OUT_OF_MEMORY:
        return expect_times(from, HAPPENED_GPU_FAULTS, 0) || is_in_doubt(from) ? NULL
                                                                               : "the GPU and the daemon have enough";
    case KOPS_ERR_QUOTA_EXCEEDED:
        return quotas_are_small || is_in_doubt(from) ? NULL : "no quota is small";
    case KOPS_ERR_CANCELLED:
        return kind & EXPECT_TICKET ? NULL : "nobody has cancelled it";
    default:
        return NULL;
    }
}
