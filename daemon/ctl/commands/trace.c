/* kopsctl trace */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "commands.h"
#include "view/timeline.h"

static const char usage[] =
    "Usage: kopsctl trace [--seconds N] [--output FILE] [--everybody] [--events N] [--json]\n\n"
    "Records every call and every compilation that ends meanwhile, and writes a timeline: when each one was received,\n"
    "waited, and ran, and on which device. Open the file in https://ui.perfetto.dev or in chrome://tracing.\n\n"
    "  -s, --seconds N     how long to record (default 5); Ctrl-C ends it earlier, and what was recorded is written\n"
    "  -o, --output FILE   default kops-trace.json; - is standard output\n"
    "      --everybody     the work of all users, not of your own alone; for administrators, by default root and the\n"
    "                      daemon's own user\n"
    "      --events N      events that the daemon keeps between two looks, which are 50 ms apart (default 16384); it\n"
    "                      drops those for which there is no room\n"
    "      --json          print what was recorded as JSON: file, seconds, events, clients, dropped\n\n"
    "The recording is kept in memory, 130 bytes an event, and ends after 4 million events.\n";

static const uint64_t look_ns = 50000000;

enum { LATE_LOOKS = 40, LATE_LOOK_NS = 10000000 }; /* at events that are pending when the trace has ended */

struct recording {
    struct ctl *ctl;
    struct timeline *timeline;
    const char *path;
    FILE *to;
    double seconds;
    uint64_t pending; /* events that ended, and whose times the daemon still waits for */
};

/* Reads what the daemon has recorded. *ret_ended: it was all, or no more fits. */
static enum ctl_exit look(struct recording *r, bool last, bool *ret_ended)
{
    struct kops_trace *part = NULL;
    struct kops_error error;
    bool recording;
    int added;

    if (kops_trace_read(r->ctl->client, last, &part, &error))
        return ctl_failed("trace", &error);
    recording = part->recording;
    r->pending = part->pending;
    added = timeline_add(r->timeline, part);
    if (added == -ENOMEM)
        return ctl_complain("no_memory", "no memory for more than %zu events", timeline_sums(r->timeline).events);
    if (added == -EBADMSG)
        return ctl_complain("bad_reply", "the daemon's events name a kind of work that it did not tell");
    if (added) {
        ctl_note("the recording ends early, with %zu events: kopsctl keeps no more", timeline_sums(r->timeline).events);
        r->pending = 0;
    }
    *ret_ended = added || !recording;
    return CTL_OK;
}

/* Records until the time is over or a signal comes. After a failure the events before it are kept. */
static enum ctl_exit record(struct recording *r, const sigset_t *ending)
{
    const uint64_t begin = ctl_clock_ns(), until = begin + (uint64_t)(r->seconds * 1e9);
    enum ctl_exit status = CTL_OK;
    uint64_t next = begin;
    bool ended = false;

    while (!status && !ended) {
        next = next + look_ns < until ? next + look_ns : until;
        status = look(r, ctl_wait(ending, next) || next == until, &ended);
        if (ctl_clock_ns() > next + look_ns)
            next = ctl_clock_ns(); /* the last look took long: skip the ones that are missed */
    }
    r->seconds = (double)(ctl_clock_ns() - begin) * 1e-9;
    for (unsigned i = 0; !status && r->pending && i < LATE_LOOKS; i++) {
        ctl_wait(ending, ctl_clock_ns() + LATE_LOOK_NS);
        status = look(r, false, &ended);
    }
    return status;
}

static enum ctl_exit write_file(struct recording *r)
{
    int wrong = timeline_write(r->timeline, r->to);

    if (!wrong && (fflush(r->to) || ferror(r->to)))
        wrong = -errno;
    if (r->to != stdout && fclose(r->to) && !wrong)
        wrong = -errno;
    r->to = NULL;
    return wrong
               ? ctl_complain(wrong == -ENOMEM ? "no_memory" : "os_error", "writing %s: %s", r->path, strerror(-wrong))
               : CTL_OK;
}

/* `to` is stderr where the trace is on stdout. */
static void print_summary(const struct recording *r, FILE *to)
{
    const struct timeline_sums sums = timeline_sums(r->timeline);

    if (r->ctl->json) {
        json_divert(to);
        JSON_MAP(NULL, json_text("file", r->path), json_number("seconds", r->seconds), json_uint("events", sums.events),
                 json_uint("clients", sums.clients), json_uint("dropped", sums.dropped));
        json_divert(NULL);
        return;
    }
    fprintf(to, "%s: %zu events of %zu clients in %.1f s", r->path, sums.events, sums.clients, r->seconds);
    if (sums.dropped)
        fprintf(to, ", %llu more were dropped (a larger --events makes room)", (unsigned long long)sums.dropped);
    fprintf(to, "; open it in https://ui.perfetto.dev or chrome://tracing\n");
}

static enum ctl_exit trace(struct recording *r, const struct kops_trace_options *options)
{
    const bool to_stdout = !strcmp(r->path, "-");
    enum ctl_exit status, written;
    struct kops_error error;
    sigset_t ending;

    ctl_block_ending(&ending);
    if (kops_trace_begin(r->ctl->client, options, &error))
        return ctl_failed("trace", &error);
    r->to = to_stdout ? stdout : fopen(r->path, "we");
    if (!r->to)
        return ctl_complain("os_error", "writing %s: %s", r->path, strerror(errno));
    status = record(r, &ending);
    sigprocmask(SIG_UNBLOCK, &ending, NULL); /* another signal ends the writing, too */
    written = write_file(r);
    if (!written)
        print_summary(r, to_stdout ? stderr : stdout);
    return status ? status : written;
}

enum ctl_exit ctl_trace(struct ctl *ctl, int argc, char **argv)
{
    struct recording r = {.ctl = ctl, .path = "kops-trace.json", .seconds = 5};
    struct kops_trace_options request = {.everybody = false};
    const struct ctl_option options[] = {
        {"--seconds", 's', OPTION_SECONDS, &r.seconds, "takes seconds above 0, up to a day", 0.001, 86400},
        {"--output", 'o', OPTION_TEXT, &r.path},
        {"--everybody", 0, OPTION_FLAG, &request.everybody},
        {"--events", 0, OPTION_NUMBER, &request.events, "takes a number from 1 on", 1},
        {0}};
    enum ctl_exit status;

    if (!ctl_parse(ctl, argc, argv, usage, options, 0, &status))
        return status;
    if (!*r.path)
        return ctl_usage("--output takes a path");
    status = ctl_connect(ctl);
    if (status)
        return status;
    r.timeline = timeline_new(kops_info(ctl->client)->devices);
    status = r.timeline ? trace(&r, &request) : ctl_complain("no_memory", "no memory for a trace");
    timeline_free(r.timeline);
    return status;
}
