#include "stats.h"

#include <math.h>
#include <stdio.h>

#include "base/json.h"

static void spread_json(const char *key, const struct kops_spread *s)
{
    if (isnan(s->p50))
        return;
    json_begin(key, '{');
    json_number("min", s->min);
    json_number("mean", s->mean);
    json_number("p50", s->p50);
    json_number("p90", s->p90);
    json_number("p99", s->p99);
    json_number("p999", s->p999);
    json_number("max", s->max);
    json_end('}');
}

void stats_row_json(const struct kops_stats_row *row)
{
    json_text("op", row->op);
    json_text("device", row->device);
    json_text("variant", row->variant);
    json_text("dtype", row->dtype);
    json_begin("shapes", '[');
    for (size_t i = 0; i < row->n_shapes; i++)
        json_ints(NULL, row->shapes[i].dims, row->shapes[i].rank);
    json_end(']');
    json_uint("count", row->count);
    json_uint("errors", row->errors);
    if (row->uid >= 0)
        json_int("uid", row->uid);
    if (*row->identity)
        json_text("identity", row->identity);
    if (row->bytes >= 0)
        json_int("bytes", row->bytes);
    if (row->operations >= 0)
        json_int("operations", row->operations);
    spread_json("queue_us", &row->queue_us);
    spread_json("exec_us", &row->exec_us);
    spread_json("total_us", &row->total_us);
}

void stats_shapes(const struct kops_stats_row *row, char *into, size_t size)
{
    size_t n = 0;

    into[0] = 0;
    for (size_t i = 0; i < row->n_shapes; i++) {
        n += (size_t)snprintf(into + n, size - n, "%s%s", i ? "," : "", row->shapes[i].rank ? "" : "scalar");
        for (unsigned d = 0; n < size && d < row->shapes[i].rank; d++)
            n += (size_t)snprintf(into + n, size - n, "%s%lld", d ? "x" : "", (long long)row->shapes[i].dims[d]);
        if (n >= size)
            return;
    }
}
