#include "chrome.h"

#include <errno.h>
#include <stdlib.h>

#include "base/json.h"
#include "tracks.h"

enum { SHORTEST_OPEN_NS = 1000 }; /* opening memory that is open takes less, and is not worth a box */

struct chrome {
    struct tracks tracks;
    uint64_t origin_ns, dropped;
};

/* ---- gathering ---- */

struct chrome *chrome_new(const struct kops_device *const *devices)
{
    struct chrome *c = calloc(1, sizeof(*c));

    if (c && tracks_init(&c->tracks, devices))
        c = chrome_free(c);
    return c;
}

int chrome_add(struct chrome *c, const struct kops_trace *part)
{
    c->origin_ns = part->origin_ns;
    c->dropped = part->dropped;
    return tracks_add(&c->tracks, part);
}

size_t chrome_events(const struct chrome *c)
{
    return c->tracks.n_events;
}

size_t chrome_clients(const struct chrome *c)
{
    return c->tracks.n_clients;
}

uint64_t chrome_dropped(const struct chrome *c)
{
    return c->dropped;
}

struct chrome *chrome_free(struct chrome *c)
{
    if (!c)
        return NULL;
    tracks_free(&c->tracks);
    free(c);
    return NULL;
}

/* ---- names of rows ---- */

static void begin_metadata(const char *what, uint64_t pid, uint32_t tid)
{
    json_line();
    json_begin(NULL, '{');
    json_text("ph", "M");
    json_uint("pid", pid);
    if (tid)
        json_uint("tid", tid);
    json_text("name", what);
    json_begin("args", '{');
}

static void write_name(const char *what, uint64_t pid, uint32_t tid, const char *name)
{
    begin_metadata(what, pid, tid);
    json_text("name", name);
    json_end('}');
    json_end('}');
}

static void write_index(const char *what, uint64_t pid, uint32_t tid, uint64_t index)
{
    begin_metadata(what, pid, tid);
    json_uint("sort_index", index);
    json_end('}');
    json_end('}');
}

static const struct tracks_process *process_of(const struct tracks *t, const struct tracks_row *row)
{
    return row->of_device ? &t->devices[row->process] : &t->processes[row->process];
}

static void write_row_name(const struct tracks *t, const struct tracks_row *row)
{
    const struct tracks_process *p = process_of(t, row);
    const unsigned long long client = row->client, stream = row->stream;
    char name[96], lane[24] = "";

    if (row->lane)
        snprintf(lane, sizeof(lane), " (%u)", row->lane + 1);
    if (row->of_device || row->of_compiler)
        snprintf(name, sizeof(name), "%s%s", row->of_device ? "kernels" : "compiler", lane);
    else if (p->n_clients > 1)
        snprintf(name, sizeof(name), "connection %llu, stream %llu%s", client, stream, lane);
    else
        snprintf(name, sizeof(name), "stream %llu%s", stream, lane);
    write_name("thread_name", p->id, row->tid, name);
}

static void write_rows(const struct tracks *t)
{
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct tracks_row *row = &t->rows[i];
        const struct tracks_process *p = process_of(t, row);

        if (row->tid == 1) {
            write_name("process_name", p->id, 0, p->name);
            write_index("process_sort_index", p->id, 0, p->id); /* devices are last */
        }
        write_row_name(t, row);
        write_index("thread_sort_index", p->id, row->tid, row->tid);
    }
}

/* ---- events ---- */

static void begin_event(const struct tracks *t, uint32_t row, const char *phase, uint64_t ts)
{
    json_line();
    json_begin(NULL, '{');
    json_text("ph", phase);
    json_uint("pid", process_of(t, &t->rows[row])->id);
    json_uint("tid", t->rows[row].tid);
    json_micros("ts", ts);
}

static void begin_slice(const struct tracks *t, uint32_t row, uint64_t begin, uint64_t end, const char *category,
                        const char *name)
{
    begin_event(t, row, "X", begin);
    json_micros("dur", end > begin ? end - begin : 0);
    json_text("cat", category);
    json_text("name", name);
}

static void part_arg(const char *key, uint64_t from, uint64_t to)
{
    if (from && to >= from)
        json_micros(key, to - from);
}

static void write_args(const struct tracks_kind *kind, const struct kops_trace_event *e)
{
    json_begin("args", '{');
    if (*kind->uuid)
        json_text("device", kind->uuid);
    if (*kind->variant)
        json_text("variant", kind->variant);
    if (*kind->dtype)
        json_text("dtype", kind->dtype);
    if (*kind->shapes)
        json_text("shapes", kind->shapes);
    json_uint("executions", e->executions);
    if (e->failed)
        json_bool("failed", true);
    if (!kind->compiles) {
        part_arg("open_us", e->received, e->ready);
        part_arg("queue_us", e->ready, e->started);
        if (tracks_device_knows(e)) {
            part_arg("wait_us", e->started, e->began);
            part_arg("device_us", e->began, e->finished);
            part_arg("end_us", e->finished, e->ended);
        } else {
            part_arg("device_us", e->started, e->ended);
        }
        if (e->busy)
            json_micros("busy_us", e->busy);
    }
    json_end('}');
}

/* One without a length is left out: Perfetto has the next one inside it. */
static void write_part(const struct tracks *t, uint32_t row, const char *name, uint64_t from, uint64_t to)
{
    if (!from || to <= from)
        return;
    begin_slice(t, row, from, to, "part", name);
    json_end('}');
}

static void write_parts(const struct tracks *t, const struct tracks_event *event)
{
    const struct kops_trace_event *e = &event->e;

    if (e->ready > e->received + SHORTEST_OPEN_NS)
        write_part(t, event->row, "open", e->received, e->ready);
    write_part(t, event->row, "queue", e->ready, e->started);
    if (tracks_device_knows(e)) {
        write_part(t, event->row, "wait", e->started, e->began);
        write_part(t, event->row, "device", e->began, e->finished);
        write_part(t, event->row, "end", e->finished, e->ended);
    } else {
        write_part(t, event->row, "device", e->started, e->ended);
    }
}

/* When the arrow leaves the call: at its end the call's slice is over. */
static uint64_t arrow_begin(const struct kops_trace_event *e)
{
    if (e->started < e->ended)
        return e->started;
    return e->ended > e->received ? e->ended - 1 : e->received;
}

/* The device's work, and the arrow to it from the call. */
static void write_work(const struct tracks *t, const struct tracks_event *event, uint64_t flow)
{
    const struct kops_trace_event *e = &event->e;
    const uint64_t begin = tracks_device_begin(e);

    begin_slice(t, event->device_row, begin, tracks_device_end(e), "device", t->kinds[e->kind].label);
    json_begin("args", '{');
    json_uint("client", process_of(t, &t->rows[event->row])->id);
    json_uint("stream", e->stream);
    json_end('}');
    json_end('}');
    begin_event(t, event->row, "s", arrow_begin(e));
    json_uint("id", flow);
    json_text("cat", "call");
    json_text("name", "work");
    json_end('}');
    begin_event(t, event->device_row, "f", begin);
    json_text("bp", "e");
    json_uint("id", flow);
    json_text("cat", "call");
    json_text("name", "work");
    json_end('}');
}

static void write_event(const struct tracks *t, const struct tracks_event *event, uint64_t *flows)
{
    const struct kops_trace_event *e = &event->e;
    const struct tracks_kind *kind = &t->kinds[e->kind];

    begin_slice(t, event->row, e->received, e->ended, kind->compiles ? "compile" : "call", kind->label);
    if (e->failed)
        json_text("cname", "terrible");
    write_args(kind, e);
    json_end('}');
    if (!kind->compiles)
        write_parts(t, event);
    if (event->device_row != TRACKS_NONE)
        write_work(t, event, ++*flows);
}

int chrome_write(struct chrome *c, FILE *to)
{
    struct tracks *t = &c->tracks;
    uint64_t flows = 0;
    uint32_t *order;
    const int r = tracks_arrange(t, &order);

    if (r)
        return r;
    json_divert(to);
    json_begin(NULL, '{');
    json_begin("traceEvents", '[');
    write_rows(t);
    for (size_t i = 0; i < t->n_events; i++)
        write_event(t, &t->events[order[i]], &flows);
    json_end(']');
    json_line();
    json_text("displayTimeUnit", "ns");
    json_begin("otherData", '{');
    json_begin("kops", '{');
    json_uint("origin_ns", c->origin_ns);
    json_uint("dropped", c->dropped);
    json_uint("events", t->n_events);
    json_end('}');
    json_end('}');
    json_end('}');
    json_divert(NULL);
    free(order);
    return 0;
}
