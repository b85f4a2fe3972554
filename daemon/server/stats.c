/* The stats method. */
#include <stdio.h>

#include "server/access.h"
#include "server/code.h"
#include "server/connection.h"
#include "server/program.h"
#include "server/request.h"
#include "util/clock.h"

enum { MAX_PIDS = 16 };

void handle_stats(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct profile_filter filter = {0};
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
            !profile_knows(r->connection->server->profile, filter.op)) {
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

/* The connections that refer to a mapping, by buffers or inline. */
static unsigned users_of(const struct server *s, const struct mapping *m, pid_t pids[MAX_PIDS], unsigned *ret_n_pids)
{
    unsigned users = 0, n = 0;

    list_for_each_safe (node, after, &s->connections) {
        const struct connection *c = list_entry(node, struct connection, link);
        unsigned here = 0;

        for (uint32_t i = 0; i < c->buffers.capacity; i++) {
            const struct buffer_ref *buffer = idtable_at(&c->buffers, i);

            here += buffer && buffer->mapping == m;
        }
        list_for_each_safe (ref, ref_after, &c->inline_lru)
            here += list_entry(ref, struct inline_ref, lru)->mapping == m;
        users += here;
        if (here && n < MAX_PIDS && (!n || pids[n - 1] != c->pid))
            pids[n++] = c->pid;
    }
    *ret_n_pids = n;
    return users;
}

static void write_mapping(struct rpc_output *out, const struct server *s, const struct mapping *m)
{
    static const char *const kinds[] = {
        [MEMORY_MEMFD] = "memfd",
        [MEMORY_CUDA_IPC] = "cuda_ipc",
        [MEMORY_CUDA_VMM] = "cuda_vmm",
        [MEMORY_CUDA_POOL] = "cuda_pool",
    };
    pid_t pids[MAX_PIDS];
    unsigned n_pids, users = users_of(s, m, pids, &n_pids);

    rpc_write_map(out, m->device ? 7 : 6);
    rpc_write_entry_text(out, "kind", kinds[m->kind]);
    if (m->device)
        rpc_write_entry_text(out, "device", m->device->info.uuid);
    /* While it is OPENING or CLOSING its memory belongs to the pool. */
    rpc_write_entry_uint(out, "size", m->state == MAPPING_OPEN ? m->memory->size : m->import.size);
    rpc_write_entry_bool(out, "open", m->state == MAPPING_OPEN);
    rpc_write_entry_uint(out, "users", users);
    rpc_write_text(out, "pids");
    rpc_write_array(out, n_pids);
    for (unsigned i = 0; i < n_pids; i++)
        rpc_write_uint(out, (uint64_t)pids[i]);
    rpc_write_entry_double(out, "idle_s", m->uses ? 0 : clock_us_between(m->unused_since_ns, clock_now_ns()) * 1e-6);
}

/* Every mapping is listed; the work grows with mappings times buffers, which an administrator's request may cost. */
static void write_mappings(struct rpc_output *out, const struct server *s)
{
    rpc_write_text(out, "mappings");
    rpc_write_array(out, s->mappings.count);
    for (unsigned i = 0; i < MAPPING_BUCKETS; i++)
        list_for_each_safe (node, after, &s->mappings.buckets[i])
            write_mapping(out, s, list_entry(node, struct mapping, link));
}

void stats_now(struct request *r)
{
    struct server *s = r->connection->server;
    struct rpc_output *out = request_result(r);

    programs_profile(s);
    if (out) {
        rpc_write_map(out, 5);
        rpc_write_entry_double(out, "uptime_s", clock_us_between(s->started_ns, clock_now_ns()) * 1e-6);
        write_counters(out, s);
        rpc_write_text(out, "ops");
        profile_write(s->profile, &r->barrier.filter, out);
        write_mappings(out, s);
        user_code_write_stats(out, s);
    }
    if (r->barrier.reset) {
        profile_reset(s->profile);
        s->counters_then = s->counters;
    }
    request_end(r);
}
