/* kopsctl trace: a trace as a timeline, JSON in the Trace Event Format, which Perfetto and chrome://tracing show.
 *
 * A row of the timeline has no two events at a time. Calls of one connection and stream that overlap go to different
 * rows, each to the first row that is free when the call was received. A process has rows of its own for its
 * compilations, and a device for its work. The events are kept in memory, 130 bytes for each, and written at the end,
 * since the names of rows come first. */
#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kops/kops.h>

#include "base/output.h"
#include "commands.h"

struct timeline_sums {
    size_t events, clients;
    uint64_t dropped;
};

enum { MAX_EVENTS = 4000000, NO_ROW = UINT32_MAX, NAME_MAX_LENGTH = 160 };
enum { DEVICE_PID = INT32_MAX, UNKNOWN_PID = 1 << 30 }; /* no process has a pid that large */
enum { SHORTEST_OPEN_NS = 1000 };                       /* opening memory that is open takes less */

/* Entries of the trees, which have their numbers first. */
struct process {
    uint64_t id;    /* the pid that the timeline shows */
    uint32_t place; /* among the processes, or among the devices, which are behind them */
    uint32_t n_clients;
    char uuid[64];              /* UUID of a device; "": a process */
    char name[NAME_MAX_LENGTH]; /* cut to fit */
};

struct client {
    uint64_t number;
    struct process *process;
};

struct kind {
    uint64_t number;
    const struct kops_trace_kind *told;
    struct process *device; /* NULL: none */
    bool compiles;
};

struct event {
    const struct kops_trace_event *e;
    const struct kind *kind;
    const struct client *client;
    uint32_t row, device_row; /* device_row NO_ROW: no device had the work */
};

/* A call, or a device's work for it. */
struct slice {
    uint32_t event;
    bool work;
};

struct row {
    const struct process *process;
    bool compiles;
    uint64_t client, stream;
    uint32_t lane; /* from 0 on among the rows of one process, client and stream */
    uint32_t tid;  /* from 1 on in its process */
};

struct timeline {
    struct kops_trace **parts; /* the daemon's replies: kinds and events point into them */
    struct event *events;
    struct row *rows; /* rows of one process are neighbours; devices are last */
    struct process **devices;
    size_t n_parts, n_events, n_rows, n_devices, n_clients, n_processes;
    void *clients, *kinds, *processes; /* trees */
    uint64_t origin_ns, dropped;
};

/* ---- lists and trees ---- */

/* Makes room for one more in a list, which has room for a power of two. `at` is where its pointer is. */
static bool grow(void *at, size_t n, size_t size)
{
    void *list;

    if (n & (n - 1))
        return true;
    memcpy(&list, at, sizeof(list));
    list = realloc(list, (n ? 2 * n : 1) * size);
    if (!list)
        return false;
    memcpy(at, &list, sizeof(list));
    return true;
}
#define GROW(list, n) grow(&(list), (n), sizeof(*(list)))

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int compare_numbers(const void *a, const void *b)
{
    return compare(*(const uint64_t *)a, *(const uint64_t *)b);
}

static void *find(void *const *tree, uint64_t number)
{
    void *const *node = tfind(&number, tree, compare_numbers);

    return node ? *node : NULL;
}

/* Enters a copy of an entry whose number is new. Returns it; NULL: there is no memory. */
static void *enter(void **tree, const void *entry, size_t size)
{
    void *copy = malloc(size);

    if (copy && tsearch(memcpy(copy, entry, size), tree, compare_numbers))
        return copy;
    free(copy);
    return NULL;
}

/* ---- gathering ---- */

/* NULL: there is no memory. */
static struct process *add_device(struct timeline *t, const char *uuid, const char *name, uint64_t index)
{
    struct process *p = calloc(1, sizeof(*p));

    if (!p || !GROW(t->devices, t->n_devices)) {
        free(p);
        return NULL;
    }
    *p = (struct process){.id = DEVICE_PID - index, .place = (uint32_t)t->n_devices};
    snprintf(p->uuid, sizeof(p->uuid), "%s", uuid);
    if (name)
        snprintf(p->name, sizeof(p->name), "%s (%s)", name, uuid);
    else
        snprintf(p->name, sizeof(p->name), "%s", uuid);
    return t->devices[t->n_devices++] = p;
}

/* A device that the daemon did not tell of before gets the next number. NULL: there is no memory. */
static struct process *device_of(struct timeline *t, const char *uuid)
{
    for (size_t i = 0; i < t->n_devices; i++)
        if (!strncmp(t->devices[i]->uuid, uuid, sizeof(t->devices[i]->uuid) - 1))
            return t->devices[i];
    return add_device(t, uuid, NULL, t->n_devices);
}

/* The process of a new connection. NULL: there is no memory. */
static struct process *process_of(struct timeline *t, const struct kops_trace_client *client)
{
    const char *name = *client->name ? client->name : client->comm;
    const uint64_t id = client->pid ? (uint64_t)client->pid : UNKNOWN_PID + client->client % (UNKNOWN_PID / 2);
    struct process new = {.id = id, .place = (uint32_t)t->n_processes}, *p = find(&t->processes, id);

    if (!p) {
        snprintf(new.name, sizeof(new.name), "%.128s (pid %s)",
                 *name ? name : text_format("client %llu", (unsigned long long)client->client),
                 client->pid ? text_format("%lld", (long long)client->pid) : "unknown");
        p = enter(&t->processes, &new, sizeof(new));
        t->n_processes++;
    }
    if (p)
        p->n_clients++;
    return p;
}

/* The connection, which is added where it is new. NULL: there is no memory. */
static struct client *client_of(struct timeline *t, const struct kops_trace_client *told)
{
    struct client new = {.number = told->client}, *client = find(&t->clients, told->client);

    if (client || !(new.process = process_of(t, told)))
        return client;
    t->n_clients++;
    return enter(&t->clients, &new, sizeof(new));
}

static int add_kind(struct timeline *t, const struct kops_trace_kind *told)
{
    struct kind new = {.number = told->kind, .told = told, .compiles = !strcmp(told->what, "compile")};

    if (find(&t->kinds, told->kind))
        return 0;
    if (*told->device && !(new.device = device_of(t, told->device)))
        return -ENOMEM;
    return enter(&t->kinds, &new, sizeof(new)) ? 0 : -ENOMEM;
}

static int add_event(struct timeline *t, const struct kops_trace_event *e)
{
    const struct kops_trace_client stranger = {.client = e->client, .name = "", .comm = ""};
    struct event new = {.e = e, .kind = find(&t->kinds, e->kind), .row = NO_ROW, .device_row = NO_ROW};

    if (!new.kind)
        return -EBADMSG;
    if (t->n_events == MAX_EVENTS)
        return -E2BIG;
    new.client = client_of(t, &stranger);
    if (!new.client || !GROW(t->events, t->n_events))
        return -ENOMEM;
    t->events[t->n_events++] = new;
    return 0;
}

/* Adds a reply of the daemon, and takes it over. Returns 0, -ENOMEM, -EBADMSG (an event has a kind that the daemon did
 * not describe) or -E2BIG: the rest of the reply was left out, and all later replies would be, too. */
static int timeline_add(struct timeline *t, struct kops_trace *part)
{
    const bool empty = !*part->kinds && !*part->clients && !part->n_events;
    int r = 0;

    t->origin_ns = part->origin_ns;
    t->dropped = part->dropped;
    if (empty || !GROW(t->parts, t->n_parts)) {
        kops_trace_free(part);
        return empty ? 0 : -ENOMEM;
    }
    t->parts[t->n_parts++] = part;
    for (const struct kops_trace_kind *const *kind = part->kinds; !r && *kind; kind++)
        r = add_kind(t, *kind);
    for (const struct kops_trace_client *const *client = part->clients; !r && *client; client++)
        r = client_of(t, *client) ? 0 : -ENOMEM;
    for (size_t i = 0; !r && i < part->n_events; i++)
        r = add_event(t, &part->events[i]);
    return r;
}

/* The device told when it had the work. */
static bool device_knows(const struct kops_trace_event *e)
{
    return e->began && e->finished >= e->began;
}

/* When the device began, as far as the trace tells. */
static uint64_t device_begin(const struct kops_trace_event *e)
{
    const uint64_t begin = e->ended > e->busy ? e->ended - e->busy : 0;

    if (device_knows(e))
        return e->began;
    return e->busy && begin > e->started ? begin : e->started;
}

static uint64_t device_end(const struct kops_trace_event *e)
{
    return device_knows(e) ? e->finished : e->ended;
}

/* ---- rows ---- */

/* The row of a slice, without its lane. */
static struct row row_of(const struct timeline *t, const struct slice *s)
{
    const struct event *event = &t->events[s->event];

    if (s->work)
        return (struct row){.process = event->kind->device};
    if (event->kind->compiles)
        return (struct row){.process = event->client->process, .compiles = true};
    return (struct row){.process = event->client->process, .client = event->client->number, .stream = event->e->stream};
}

static uint64_t begin_of(const struct timeline *t, const struct slice *s)
{
    const struct kops_trace_event *e = t->events[s->event].e;

    return s->work ? device_begin(e) : e->received;
}

static int compare_rows(const struct row *a, const struct row *b)
{
    int r = compare(*a->process->uuid != 0, *b->process->uuid != 0);

    r = r ? r : compare(a->process->place, b->process->place);
    r = r ? r : compare(a->compiles, b->compiles);
    r = r ? r : compare(a->client, b->client);
    return r ? r : compare(a->stream, b->stream);
}

static int compare_slices(const void *left, const void *right, void *context)
{
    const struct slice *a = left, *b = right;
    const struct timeline *t = context;
    const struct row row_a = row_of(t, a), row_b = row_of(t, b);
    int r = compare_rows(&row_a, &row_b);

    r = r ? r : compare(begin_of(t, a), begin_of(t, b));
    return r ? r : compare(a->event, b->event);
}

/* The rows of the present process, client and stream, which are the list's last, and until when each one is taken. */
struct lanes {
    size_t first, n;
    uint64_t *taken;
};

/* Gives the slice the first row that is free when it begins, or a new one. False: there is no memory. */
static bool take_lane(struct timeline *t, struct lanes *l, const struct slice *s)
{
    const struct row row = row_of(t, s), *last = t->n_rows ? &t->rows[t->n_rows - 1] : NULL;
    struct event *event = &t->events[s->event];
    const uint64_t begin = begin_of(t, s), end = s->work ? device_end(event->e) : event->e->ended;
    uint32_t lane = 0;

    if (!last || compare_rows(last, &row))
        *l = (struct lanes){.first = t->n_rows, .taken = l->taken};
    while (lane < l->n && l->taken[lane] > begin)
        lane++;
    if (lane == l->n) {
        const uint32_t tid = last && last->process == row.process ? last->tid + 1 : 1;

        if (!GROW(t->rows, t->n_rows) || !GROW(l->taken, l->n))
            return false;
        t->rows[t->n_rows] = row;
        t->rows[t->n_rows].lane = lane;
        t->rows[t->n_rows++].tid = tid;
        l->n++;
    }
    l->taken[lane] = end > begin ? end : begin + 1; /* at least 1, so that empty slices do not nest */
    *(s->work ? &event->device_row : &event->row) = (uint32_t)(l->first + lane);
    return true;
}

/* Gives every event its rows. Returns the slices in the order of their rows, and within one of their begin; NULL: there
 * is no memory. */
static struct slice *arrange(struct timeline *t, size_t *ret_n)
{
    struct slice *slices = malloc((2 * t->n_events + 1) * sizeof(*slices));
    struct lanes lanes = {.taken = NULL};
    bool ok = slices != NULL;
    size_t n = 0;

    for (uint32_t i = 0; ok && i < t->n_events; i++) {
        slices[n++] = (struct slice){.event = i};
        if (t->events[i].e->started && t->events[i].kind->device)
            slices[n++] = (struct slice){.event = i, .work = true};
    }
    if (ok)
        qsort_r(slices, n, sizeof(*slices), compare_slices, t);
    for (size_t i = 0; ok && i < n; i++)
        ok = take_lane(t, &lanes, &slices[i]);
    free(lanes.taken);
    if (!ok) {
        free(slices);
        return NULL;
    }
    *ret_n = n;
    return slices;
}

/* ---- writing: names of rows ---- */

/* `name` or, where that is NULL, an index to sort by. */
static void write_metadata(const char *what, const struct process *p, uint32_t tid, const char *name, uint64_t index)
{
    json_line();
    JSON_MAP(NULL, json_text("ph", "M"), json_uint("pid", p->id), tid ? json_uint("tid", tid) : (void)0,
             json_text("name", what),
             JSON_MAP("args", name ? json_text("name", name) : json_uint("sort_index", index)));
}

static void write_row(const struct row *row)
{
    const struct process *p = row->process;
    const unsigned long long client = row->client, stream = row->stream;
    const char *name = *p->uuid            ? "kernels"
                       : row->compiles     ? "compiler"
                       : p->n_clients == 1 ? text_format("stream %llu", stream)
                                           : text_format("connection %llu, stream %llu", client, stream);

    if (row->lane)
        name = text_format("%s (%u)", name, row->lane + 1);
    if (row->tid == 1) {
        write_metadata("process_name", p, 0, p->name, 0);
        write_metadata("process_sort_index", p, 0, NULL, p->id); /* devices are last */
    }
    write_metadata("thread_name", p, row->tid, name, 0);
    write_metadata("thread_sort_index", p, row->tid, NULL, row->tid);
}

/* ---- writing: events ---- */

/* "add f32 65536": the op, its dtype and the shape of its output. The text lives until the next call. */
static const char *label_of(const struct kind *kind)
{
    static char label[1024];
    const struct kops_trace_kind *k = kind->told;
    const struct kops_shape *out = k->n_shapes ? &k->shapes[k->n_shapes - 1] : NULL;
    const int n =
        snprintf(label, sizeof(label), "%s%s", kind->compiles && *k->op ? "compile " : "", *k->op ? k->op : k->what);
    const size_t end = (size_t)n < sizeof(label) ? (size_t)n : sizeof(label) - 1;

    if (k->ops > 1)
        snprintf(label + end, sizeof(label) - end, ", … (%llu ops)", (unsigned long long)k->ops);
    else
        snprintf(label + end, sizeof(label) - end, "%s%s%s%s", *k->dtype ? " " : "", k->dtype, out ? " " : "",
                 out ? text_shape(out->dims, out->rank) : "");
    return label;
}

/* "4x1024, scalar" */
static void write_shapes(const struct kops_trace_kind *k)
{
    char shapes[4096];
    size_t n = 0;

    for (size_t i = 0; i < k->n_shapes && n < sizeof(shapes); i++)
        n += (size_t)snprintf(shapes + n, sizeof(shapes) - n, "%s%s", i ? ", " : "",
                              text_shape(k->shapes[i].dims, k->shapes[i].rank));
    if (n)
        json_text("shapes", shapes);
}

/* Writes an event. The arguments after `ts` are calls that write further members. */
#define EVENT(row, phase, ts, ...)                                                                                     \
    (json_line(), JSON_MAP(NULL, json_text("ph", phase), json_uint("pid", (row)->process->id),                         \
                           json_uint("tid", (row)->tid), json_micros("ts", ts), __VA_ARGS__))
#define SLICE(row, begin, end, category, label, ...)                                                                   \
    EVENT(row, "X", begin, json_micros("dur", (end) > (begin) ? (end) - (begin) : 0), json_text("cat", category),      \
          json_text("name", label), __VA_ARGS__)

/* The parts of a call's time. */
struct part {
    const char *key, *name;
    uint64_t from, to;
};

static size_t parts_of(const struct kops_trace_event *e, struct part ret[5])
{
    const bool known = device_knows(e);

    ret[0] = (struct part){"open_us", "open", e->received, e->ready};
    ret[1] = (struct part){"queue_us", "queue", e->ready, e->started};
    ret[2] = (struct part){"wait_us", "wait", e->started, e->began};
    ret[known ? 3 : 2] =
        (struct part){"device_us", "device", known ? e->began : e->started, known ? e->finished : e->ended};
    ret[4] = (struct part){"end_us", "end", e->finished, e->ended};
    return known ? 5 : 3;
}

#define SOME(member) JSON_SOME(struct kops_trace_kind, member)
static const struct json_field kind_fields[] = {SOME(device), SOME(variant), SOME(dtype), JSON_END};
#undef SOME

static void write_args(const struct kind *kind, const struct kops_trace_event *e, const struct part *parts, size_t n)
{
    json_begin("args", '{');
    json_fields(kind_fields, kind->told);
    write_shapes(kind->told);
    json_uint("executions", e->executions);
    if (e->failed)
        json_bool("failed", true);
    for (size_t i = 0; i < n; i++)
        if (parts[i].from && parts[i].to >= parts[i].from)
            json_micros(parts[i].key, parts[i].to - parts[i].from);
    if (n && e->busy)
        json_micros("busy_us", e->busy);
    json_end('}');
}

/* Parts without a length are left out: Perfetto has the next part inside them. */
static void write_parts(const struct row *row, const struct part *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t shortest = i == 0 ? SHORTEST_OPEN_NS : 0;

        if (!parts[i].from || parts[i].to <= parts[i].from + shortest)
            continue;
        SLICE(row, parts[i].from, parts[i].to, "part", parts[i].name, (void)0);
    }
}

/* The device's work, and the arrow to it, which leaves the call before the call's slice is over. */
static void write_work(const struct timeline *t, const struct event *event, uint64_t flow)
{
    const struct row *row = &t->rows[event->row], *device_row = &t->rows[event->device_row];
    const struct kops_trace_event *e = event->e;
    const uint64_t begin = device_begin(e);
    const uint64_t leaves = e->started < e->ended ? e->started : e->ended > e->received ? e->ended - 1 : e->received;

    SLICE(device_row, begin, device_end(e), "device", label_of(event->kind),
          JSON_MAP("args", json_uint("client", row->process->id), json_uint("stream", e->stream)));
    EVENT(row, "s", leaves, json_uint("id", flow), json_text("cat", "call"), json_text("name", "work"));
    EVENT(device_row, "f", begin, json_text("bp", "e"), json_uint("id", flow), json_text("cat", "call"),
          json_text("name", "work"));
}

static void write_event(const struct timeline *t, const struct event *event, uint64_t *flows)
{
    const struct row *row = &t->rows[event->row];
    const struct kops_trace_event *e = event->e;
    const bool compiles = event->kind->compiles;
    struct part parts[5];
    const size_t n = compiles ? 0 : parts_of(e, parts);

    SLICE(row, e->received, e->ended, compiles ? "compile" : "call", label_of(event->kind),
          e->failed ? json_text("cname", "terrible") : (void)0, write_args(event->kind, e, parts, n));
    write_parts(row, parts, n);
    if (event->device_row != NO_ROW)
        write_work(t, event, ++*flows);
}

/* Writes the timeline, once; ferror(to) tells whether that failed. Returns 0 or -ENOMEM. */
static int timeline_write(struct timeline *t, FILE *to)
{
    uint64_t flows = 0;
    size_t n;
    struct slice *slices = arrange(t, &n);

    if (!slices)
        return -ENOMEM;
    json_divert(to);
    json_begin(NULL, '{');
    json_begin("traceEvents", '[');
    for (size_t i = 0; i < t->n_rows; i++)
        write_row(&t->rows[i]);
    for (size_t i = 0; i < n; i++)
        if (!slices[i].work)
            write_event(t, &t->events[slices[i].event], &flows);
    json_end(']');
    json_line();
    json_text("displayTimeUnit", "ns");
    JSON_MAP("otherData", JSON_MAP("kops", json_uint("origin_ns", t->origin_ns), json_uint("dropped", t->dropped),
                                   json_uint("events", t->n_events)));
    json_end('}');
    json_divert(NULL);
    free(slices);
    return 0;
}

/* NULL is allowed. Returns NULL. */
static struct timeline *timeline_free(struct timeline *t)
{
    if (!t)
        return NULL;
    for (size_t i = 0; i < t->n_devices; i++)
        free(t->devices[i]);
    for (size_t i = 0; i < t->n_parts; i++)
        kops_trace_free(t->parts[i]);
    tdestroy(t->clients, free);
    tdestroy(t->kinds, free);
    tdestroy(t->processes, free);
    free(t->parts);
    free(t->events);
    free(t->rows);
    free(t->devices);
    free(t);
    return NULL;
}

/* Makes a timeline. `devices`, NULL-terminated, have the names of the trace's devices. NULL: there is no memory. */
static struct timeline *timeline_new(const struct kops_device *const *devices)
{
    struct timeline *t = calloc(1, sizeof(*t));

    for (; t && *devices; devices++)
        if (!add_device(t, (*devices)->uuid, (*devices)->name, (*devices)->index))
            t = timeline_free(t);
    return t;
}

static struct timeline_sums timeline_sums(const struct timeline *t)
{
    return (struct timeline_sums){t->n_events, t->n_clients, t->dropped};
}

/* ---- the command ---- */

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
