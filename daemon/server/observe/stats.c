/* The method stats. */
#include <stdio.h>
#include <stdlib.h>

#include "server/code/code.h"
#include "server/exec/exec.h"
#include "server/memory/connection_resources.h"
#include "server/observe/executors.h"
#include "server/observe/observe.h"
#include "server/observe/room.h"
#include "server/peer/access.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/clock.h"

enum { MAPPING_ROW_PIDS = 16 };

/* A mapping in stats: a copy, since the mapping may go while the answer is built. */
struct mapping_row {
    const struct mapping *mapping; /* only to find the row again while rows are gathered */
    const struct backend_device *device;
    enum backend_memory_kind kind;
    bool open;
    uint64_t size;
    double idle_s;
    unsigned references, n_pids;
    pid_t pids[MAPPING_ROW_PIDS];
};

/* The rows of a reply while it is built. */
struct mapping_rows {
    struct mapping_row *at;
    uint32_t n, next;
};

/* The state of a stats request. */
struct stats {
    struct profile_filter filter;
    bool reset;
};
const size_t stats_state_bytes = sizeof(struct stats);

static struct stats *stats_of(const struct request *r)
{
    return request_state(r);
}

static struct counters_map counters_of(const struct server *s)
{
    const struct server_counters *n = &s->counters, *then = &s->observe->counters_then;

    return (struct counters_map){.connections = peers_open_connections(s),
                                 .rows_dropped = profile_rows_dropped(s->observe->profile),
#define X(name) .name = n->name - then->name,
                                 SERVER_COUNTERS(X)
#undef X
    };
}

/* ---- mappings, with the buffers and inline references to them ---- */

/* Finds the row of a mapping by its address. There may be some ten thousand mappings, and as many buffers. */
struct index {
    uint32_t *slots; /* a row's index plus one; 0: free */
    size_t mask;
};

static struct mapping_row *row_of(struct mapping_rows *rows, const struct index *t, const struct mapping *m,
                                  uint64_t now)
{
    size_t i = (size_t)(((uint64_t)(uintptr_t)m * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & t->mask;
    struct mapping_row *row;

    for (; t->slots[i]; i = (i + 1) & t->mask)
        if (rows->at[t->slots[i] - 1].mapping == m)
            return &rows->at[t->slots[i] - 1];
    t->slots[i] = ++rows->n;
    row = &rows->at[rows->n - 1];
    row->mapping = m;
    row->device = m->device;
    row->kind = m->kind;
    row->open = m->state == MAPPING_OPEN;
    /* An OPENING or CLOSING mapping's memory belongs to the pool. */
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

static void gather_connection(struct mapping_rows *rows, const struct index *t, const struct connection *c,
                              uint64_t now)
{
    for (uint32_t i = 0; i < c->memory->buffers.capacity; i++) {
        const struct buffer_ref *buffer = idtable_at(&c->memory->buffers, i);

        if (buffer)
            add_reference(row_of(rows, t, buffer->mapping, now), c);
    }
    list_for_each_safe (node, after, &c->memory->inline_lru)
        add_reference(row_of(rows, t, list_entry(node, struct inline_ref, lru)->mapping, now), c);
}

static void gather(struct mapping_rows *rows, const struct connection *viewer, const struct index *t, bool everything)
{
    const struct server *s = viewer->server;
    const uint64_t now = clock_now_ns();

    list_for_each_safe (node, after, peers_connections(s)) {
        const struct connection *c = list_entry(node, struct connection, link);

        if (may_see(viewer, c->uid))
            gather_connection(rows, t, c, now);
    }
    for (unsigned i = 0; everything && i < MAPPING_BUCKETS; i++) /* mappings of jobs and programs alone, too */
        list_for_each_safe (node, after, &s->mappings.buckets[i])
            row_of(rows, t, list_entry(node, struct mapping, link), now);
}

static void rows_free(void *state)
{
    struct mapping_rows *rows = state;

    free(rows->at);
    free(rows);
}

/* The rows that the viewer may see. A viewer who may not see all users gets the mappings of the own connections. NULL:
 * no memory. */
static struct mapping_rows *find_mappings(const struct connection *viewer)
{
    const struct server *s = viewer->server;
    const bool everything = access_allows(viewer, ACCESS_ADMINISTER);
    struct mapping_rows *rows = calloc(1, sizeof(*rows));
    struct index t = {.mask = 63};
    uint64_t most = 0;

    list_for_each_safe (node, after, peers_connections(s)) {
        const struct connection *c = list_entry(node, struct connection, link);

        most += may_see(viewer, c->uid) ? c->memory->buffers.used + (uint64_t)c->memory->n_inline : 0;
    }
    most = everything || most > s->mappings.count ? s->mappings.count : most;
    while (t.mask < 2 * most)
        t.mask = 2 * t.mask + 1;
    t.slots = calloc(t.mask + 1, sizeof(*t.slots));
    if (rows)
        rows->at = malloc((most + 1) * sizeof(*rows->at));
    if (!t.slots || !rows || !rows->at)
        goto free_rows;
    gather(rows, viewer, &t, everything);
    free(t.slots);
    return rows;

free_rows:
    free(t.slots);
    if (rows)
        rows_free(rows);
    return NULL;
}

static void write_pid(struct rpc_output *out, const void *of, uint32_t i)
{
    rpc_write_uint(out, (uint64_t)((const pid_t *)of)[i]);
}

static void write_row(struct rpc_output *out, const struct mapping_row *row)
{
    static const char *const kinds[] = {
        [MEMORY_MEMFD] = "memfd",
        [MEMORY_CUDA_IPC] = "cuda_ipc",
        [MEMORY_CUDA_VMM] = "cuda_vmm",
        [MEMORY_CUDA_POOL] = "cuda_pool",
    };

    rpc_write_record(out, RECORD(mapping_map, .kind = kinds[row->kind],
                                 .device = row->device ? row->device->info.uuid : NULL, .size = row->size,
                                 .open = row->open, .users = row->references,
                                 .pids = {row->n_pids, write_pid, row->pids}, .idle_s = row->idle_s));
}

/* ---- the answer ---- */

static void reset(struct server *s)
{
    profile_reset(s->observe->profile);
    s->observe->counters_then = s->counters;
}

static bool rows_next(struct long_reply *reply)
{
    enum { ROWS_A_PIECE = 128 };
    struct mapping_rows *rows = reply->state;

    for (unsigned i = 0; i < ROWS_A_PIECE && rows->next < rows->n; i++)
        write_row(&reply->out, &rows->at[rows->next++]);
    return rows->next == rows->n;
}

/* The counters are read and reset in one piece. */
static bool write_all(struct long_reply *reply)
{
    const struct stats *stats = stats_of(reply->request);
    const struct connection *viewer = reply->request->connection;
    struct server *s = viewer->server;
    const struct mapping_rows *rows = reply->state;
    const struct list *at = NULL;
    const struct profile_walk walk = {s, &stats->filter, &at};
    struct executor_rows executors;
    const struct executor_counters_map counts = executors_rows(viewer, &executors);

    exec_tell_programs(s);
    rpc_write_record(&reply->out,
                     RECORD(stats_reply, .uptime_s = clock_us_between(s->started_ns, clock_now_ns()) * 1e-6,
                            .counters = counters_of(s), .ops = profile_rows(s->observe->profile, &walk),
                            .mappings_all = s->mappings.count,
                            .kernels = user_code_stats(s, s->counters.launches - s->observe->counters_then.launches),
                            .executors = {executors.n, executors_each, &executors}, .executor_counts = counts,
                            .mappings = {.n = rows->n}));
    if (stats->reset)
        reset(s);
    reply->step = rows_next;
    return rows->n == 0;
}

static bool stats_begin(struct long_reply *reply)
{
    reply->state = find_mappings(reply->request->connection);
    if (!reply->state) {
        reply->failed = true;
        return true;
    }
    reply->free_state = rows_free;
    reply->step = write_all;
    return false;
}

static void stats_now(struct request *r)
{
    if (!r->notification) {
        long_reply_enqueue(r, stats_begin);
        return;
    }
    if (stats_of(r)->reset) /* a notification wants no numbers */
        reset(r->connection->server);
    request_end(r);
}

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
            !profile_knows(r->connection->server->observe->profile, &filter)) {
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
        filter.device = server_device(r->connection->server, &args[STATS_device], &e);
        if (!filter.device) {
            request_end_error(r, &e);
            return;
        }
    }
    stats_of(r)->filter = filter;
    stats_of(r)->reset = args[STATS_reset].b;
    barrier_enqueue(r, stats_now);
}
