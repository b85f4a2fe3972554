/* The stats method. */
#include <stdio.h>
#include <stdlib.h>

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

/* ---- who refers to mappings, by buffers or inline ---- */

struct holders {
    const struct mapping *mapping; /* NULL: a free slot */
    unsigned references, n_pids;
    pid_t pids[MAX_PIDS];
};

/* A slot for each mapping by its address, found out in one pass: there may be some ten thousand of them, and as many
 * buffers. */
struct holders_table {
    struct holders *slots;
    size_t mask;
};

static struct holders *holders_of(const struct holders_table *t, const struct mapping *m)
{
    size_t i = (size_t)(((uint64_t)(uintptr_t)m * UINT64_C(0x9e3779b97f4a7c15)) >> 32);

    while (t->slots[i & t->mask].mapping && t->slots[i & t->mask].mapping != m)
        i++;
    return &t->slots[i & t->mask];
}

static void add_holder(const struct holders_table *t, const struct mapping *m, const struct connection *c)
{
    struct holders *h = holders_of(t, m);

    h->mapping = m;
    h->references++;
    if (h->n_pids < MAX_PIDS && (!h->n_pids || h->pids[h->n_pids - 1] != c->pid))
        h->pids[h->n_pids++] = c->pid;
}

/* Whoever refers to one keeps it in the registry, so that there is always a free slot. */
static int find_holders(const struct server *s, struct holders_table *t)
{
    size_t size = 64;

    while (size < 2 * (size_t)s->mappings.count)
        size *= 2;
    t->mask = size - 1;
    t->slots = calloc(size, sizeof(*t->slots));
    if (!t->slots)
        return -1;
    list_for_each_safe (node, after, &s->connections) {
        const struct connection *c = list_entry(node, struct connection, link);

        for (uint32_t i = 0; i < c->buffers.capacity; i++) {
            const struct buffer_ref *buffer = idtable_at(&c->buffers, i);

            if (buffer)
                add_holder(t, buffer->mapping, c);
        }
        list_for_each_safe (ref, ref_after, &c->inline_lru)
            add_holder(t, list_entry(ref, struct inline_ref, lru)->mapping, c);
    }
    return 0;
}

static void write_mapping(struct rpc_output *out, const struct mapping *m, const struct holders *h)
{
    static const char *const kinds[] = {
        [MEMORY_MEMFD] = "memfd",
        [MEMORY_CUDA_IPC] = "cuda_ipc",
        [MEMORY_CUDA_VMM] = "cuda_vmm",
        [MEMORY_CUDA_POOL] = "cuda_pool",
    };

    rpc_write_map(out, m->device ? 7 : 6);
    rpc_write_entry_text(out, "kind", kinds[m->kind]);
    if (m->device)
        rpc_write_entry_text(out, "device", m->device->info.uuid);
    /* While it is OPENING or CLOSING its memory belongs to the pool. */
    rpc_write_entry_uint(out, "size", m->state == MAPPING_OPEN ? m->memory->size : m->import.size);
    rpc_write_entry_bool(out, "open", m->state == MAPPING_OPEN);
    rpc_write_entry_uint(out, "users", h->references);
    rpc_write_text(out, "pids");
    rpc_write_array(out, h->n_pids);
    for (unsigned i = 0; i < h->n_pids; i++)
        rpc_write_uint(out, (uint64_t)h->pids[i]);
    rpc_write_entry_double(out, "idle_s", m->uses ? 0 : clock_us_between(m->unused_since_ns, clock_now_ns()) * 1e-6);
}

static void write_mappings(struct rpc_output *out, const struct server *s, const struct holders_table *t)
{
    rpc_write_text(out, "mappings");
    rpc_write_array(out, s->mappings.count);
    for (unsigned i = 0; i < MAPPING_BUCKETS; i++)
        list_for_each_safe (node, after, &s->mappings.buckets[i]) {
            const struct mapping *m = list_entry(node, struct mapping, link);

            write_mapping(out, m, holders_of(t, m));
        }
}

void stats_now(struct request *r)
{
    struct server *s = r->connection->server;
    struct holders_table holders;
    struct rpc_output *out;
    struct error e;

    if (find_holders(s, &holders) < 0) {
        error_set(&e, ERROR_OUT_OF_MEMORY, "no memory to look who refers to what");
        request_end_error(r, &e);
        return;
    }
    out = request_result(r);
    programs_profile(s);
    if (out) {
        rpc_write_map(out, 5);
        rpc_write_entry_double(out, "uptime_s", clock_us_between(s->started_ns, clock_now_ns()) * 1e-6);
        write_counters(out, s);
        rpc_write_text(out, "ops");
        profile_write(s->profile, &r->barrier.filter, out);
        write_mappings(out, s, &holders);
        user_code_write_stats(out, s);
    }
    free(holders.slots);
    if (r->barrier.reset) {
        profile_reset(s->profile);
        s->counters_then = s->counters;
    }
    request_end(r);
}
