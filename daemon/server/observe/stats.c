/* The stats method. */
#include <stdio.h>
#include <stdlib.h>

#include "server/code/module.h"
#include "server/exec/program.h"
#include "server/observe/clients.h"
#include "server/observe/report.h"
#include "server/peer/access.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/clock.h"

void handle_stats(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct profile_filter filter = {
        .everybody = access_allows(r->connection, ACCESS_ADMINISTER),
        .uid = r->connection->uid,
    };
    struct error e;

    (void)fds;
    if (args[STATS_reset].b && !access_allows(r->connection, ACCESS_TUNE)) {
        access_refuse(r->connection, "stats", ACCESS_TUNE, &e);
        request_end_error(r, &e);
        return;
    }
    if (args[STATS_op].present) {
        snprintf(filter.op, sizeof(filter.op), "%.*s", (int)args[STATS_op].length, args[STATS_op].text);
        if (!op_find(args[STATS_op].text, args[STATS_op].length) &&
            !profile_knows(r->connection->server->profile, &filter)) {
            error_set(&e, ERROR_UNKNOWN_OP,
                      "op: no such op, and no user kernel of that name has run; hello lists the ops");
            error_detail_text(&e, "key", "op");
            request_end_error(r, &e);
            return;
        }
    }
    if (args[STATS_dtype].present) {
#define X(NAME, name, value, size)                                                                                     \
    if (rpc_text_is(&args[STATS_dtype], name))                                                                         \
        filter.dtype = DTYPE_##NAME;
        KOPS_DTYPES(X)
#undef X
        if (!filter.dtype) {
            error_set(&e, ERROR_UNKNOWN_DTYPE, "dtype: no such dtype");
            error_detail_text(&e, "key", "dtype");
            request_end_error(r, &e);
            return;
        }
    }
    if (args[STATS_device].present) {
        filter.device = request_device(r->connection->server, &args[STATS_device], &e);
        if (!filter.device) {
            request_end_error(r, &e);
            return;
        }
    }
    r->barrier.filter = filter;
    r->barrier.reset = args[STATS_reset].b;
    barrier_enqueue(r);
}

static void write_counters(struct rpc_output *out, const struct server *s)
{
    const struct server_counters *n = &s->counters, *then = &s->counters_then;

    rpc_write_text(out, "counters");
    rpc_write_map(out, 11);
    rpc_write_entry_uint(out, "connections", s->n_connections);
    rpc_write_entry_uint(out, "connections_total", n->connections_total - then->connections_total);
    rpc_write_entry_uint(out, "requests", n->requests - then->requests);
    rpc_write_entry_uint(out, "replies", n->replies - then->replies);
    rpc_write_entry_uint(out, "errors", n->errors - then->errors);
    rpc_write_entry_uint(out, "jobs", n->jobs - then->jobs);
    rpc_write_entry_uint(out, "jobs_cancelled", n->jobs_cancelled - then->jobs_cancelled);
    rpc_write_entry_uint(out, "bytes_in", n->bytes_in - then->bytes_in);
    rpc_write_entry_uint(out, "bytes_out", n->bytes_out - then->bytes_out);
    rpc_write_entry_uint(out, "protocol_errors", n->protocol_errors - then->protocol_errors);
    rpc_write_entry_uint(out, "rows_dropped", profile_rows_dropped(s->profile));
}

/* ---- mappings, and who refers to them by buffers or inline ---- */

/* Where the row of each mapping is, by its address. There may be some ten thousand of them, and as many buffers. */
struct index {
    uint32_t *slots; /* a row's number plus one; 0: free */
    size_t mask;
};

static struct mapping_row *row_of(struct report *report, const struct index *t, const struct mapping *m, uint64_t now)
{
    size_t i = (size_t)(((uint64_t)(uintptr_t)m * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & t->mask;
    struct mapping_row *row;

    for (; t->slots[i]; i = (i + 1) & t->mask)
        if (report->rows[t->slots[i] - 1].mapping == m)
            return &report->rows[t->slots[i] - 1];
    t->slots[i] = ++report->n_rows;
    row = &report->rows[report->n_rows - 1];
    row->mapping = m;
    row->device = m->device;
    row->kind = m->kind;
    row->open = m->state == MAPPING_OPEN;
    /* While it is OPENING or CLOSING its memory belongs to the pool. */
    row->size = row->open ? m->memory->size : m->import.size;
    row->idle_s = m->uses ? 0 : clock_us_between(m->unused_since_ns, now) * 1e-6;
    row->references = row->n_pids = 0;
    return row;
}

static void add_reference(struct mapping_row *row, const struct connection *c)
{
    row->references++;
    if (row->n_pids < MAPPING_ROW_PIDS && (!row->n_pids || row->pids[row->n_pids - 1] != c->pid))
        row->pids[row->n_pids++] = c->pid;
}

static void gather_connection(struct report *report, const struct index *t, const struct connection *c, uint64_t now)
{
    for (uint32_t i = 0; i < c->buffers.capacity; i++) {
        const struct buffer_ref *buffer = idtable_at(&c->buffers, i);

        if (buffer)
            add_reference(row_of(report, t, buffer->mapping, now), c);
    }
    list_for_each_safe (node, after, &c->inline_lru)
        add_reference(row_of(report, t, list_entry(node, struct inline_ref, lru)->mapping, now), c);
}

static void gather(struct report *report, const struct index *t, bool everything)
{
    const struct connection *viewer = report->request->connection;
    const struct server *s = viewer->server;
    const uint64_t now = clock_now_ns();

    list_for_each_safe (node, after, &s->connections) {
        const struct connection *c = list_entry(node, struct connection, link);

        if (may_see(viewer, c->uid))
            gather_connection(report, t, c, now);
    }
    for (unsigned i = 0; everything && i < MAPPING_BUCKETS; i++) /* also those that only jobs and programs keep */
        list_for_each_safe (node, after, &s->mappings.buckets[i])
            row_of(report, t, list_entry(node, struct mapping, link), now);
}

/* Rows of what the viewer may see: for who sees no others, the mappings that the own connections refer to. */
static int find_mappings(struct report *report)
{
    const struct connection *viewer = report->request->connection;
    const struct server *s = viewer->server;
    const bool everything = access_allows(viewer, ACCESS_ADMINISTER);
    struct index t = {.mask = 63};
    uint64_t most = 0;

    list_for_each_safe (node, after, &s->connections) {
        const struct connection *c = list_entry(node, struct connection, link);

        most += may_see(viewer, c->uid) ? c->buffers.used + (uint64_t)c->n_inline : 0;
    }
    most = everything || most > s->mappings.count ? s->mappings.count : most;
    while (t.mask < 2 * most)
        t.mask = 2 * t.mask + 1;
    t.slots = calloc(t.mask + 1, sizeof(*t.slots));
    report->rows = malloc((most + 1) * sizeof(*report->rows));
    if (t.slots && report->rows)
        gather(report, &t, everything);
    else
        report->failed = true;
    free(t.slots);
    return report->failed ? -1 : 0;
}

static void write_row(struct rpc_output *out, const struct mapping_row *row)
{
    static const char *const kinds[] = {
        [MEMORY_MEMFD] = "memfd",
        [MEMORY_CUDA_IPC] = "cuda_ipc",
        [MEMORY_CUDA_VMM] = "cuda_vmm",
        [MEMORY_CUDA_POOL] = "cuda_pool",
    };

    rpc_write_map(out, row->device ? 7 : 6);
    rpc_write_entry_text(out, "kind", kinds[row->kind]);
    if (row->device)
        rpc_write_entry_text(out, "device", row->device->info.uuid);
    rpc_write_entry_uint(out, "size", row->size);
    rpc_write_entry_bool(out, "open", row->open);
    rpc_write_entry_uint(out, "users", row->references);
    rpc_write_text(out, "pids");
    rpc_write_array(out, row->n_pids);
    for (unsigned i = 0; i < row->n_pids; i++)
        rpc_write_uint(out, (uint64_t)row->pids[i]);
    rpc_write_entry_double(out, "idle_s", row->idle_s);
}

/* ---- the answer ---- */

static void reset(struct server *s)
{
    profile_reset(s->profile);
    s->counters_then = s->counters;
}

static bool rows_next(struct report *report)
{
    enum { ROWS_A_PIECE = 128 };

    for (unsigned i = 0; i < ROWS_A_PIECE && report->next_row < report->n_rows; i++)
        write_row(&report->out, &report->rows[report->next_row++]);
    return report->next_row == report->n_rows;
}

static bool mappings_begin(struct report *report)
{
    struct server *s = report->request->connection->server;

    if (find_mappings(report) < 0)
        return true;
    rpc_write_entry_uint(&report->out, "mappings_all", s->mappings.count);
    user_code_write_stats(&report->out, s);
    rpc_write_text(&report->out, "mappings");
    rpc_write_array(&report->out, report->n_rows);
    report->step = rows_next;
    return report->n_rows == 0;
}

/* What a reset ends is read in the same piece. */
bool stats_begin(struct report *report)
{
    const struct request *r = report->request;
    struct server *s = r->connection->server;

    programs_profile(s);
    rpc_write_map(&report->out, 6);
    rpc_write_entry_double(&report->out, "uptime_s", clock_us_between(s->started_ns, clock_now_ns()) * 1e-6);
    write_counters(&report->out, s);
    rpc_write_text(&report->out, "ops");
    profile_write(s->profile, &r->barrier.filter, &report->out);
    if (r->barrier.reset)
        reset(s);
    report->step = mappings_begin;
    return false;
}

void stats_now(struct request *r)
{
    if (!r->notification) {
        report_enqueue(r);
        return;
    }
    if (r->barrier.reset) /* nobody is told what was */
        reset(r->connection->server);
    request_end(r);
}
