#include "server/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "util/histogram.h"

enum { BUCKETS = 1024 };

struct key {
    const struct op *op;
    const struct backend_device *device;
    const char *variant; /* a string that lives as long as the device; NULL when none was chosen */
    enum dtype dtype;
    unsigned ranks[PLAN_MAX_OPERANDS];
    int64_t shapes[PLAN_MAX_OPERANDS][TENSOR_MAX_RANK]; /* unused places are 0 */
};

struct row {
    struct list bucket, recent;
    struct key key;
    uint64_t count, errors;
    struct histogram execution, total;
};

struct profile {
    struct list buckets[BUCKETS];
    struct list recent; /* least recently used first */
    unsigned n_rows;
    uint64_t dropped;
};

struct profile *profile_new(void)
{
    struct profile *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    for (unsigned i = 0; i < BUCKETS; i++)
        list_init(&p->buckets[i]);
    list_init(&p->recent);
    return p;
}

static void row_free(struct profile *p, struct row *row)
{
    list_remove(&row->bucket);
    list_remove(&row->recent);
    p->n_rows--;
    free(row);
}

void profile_reset(struct profile *p)
{
    while (!list_empty(&p->recent))
        row_free(p, list_entry(list_first(&p->recent), struct row, recent));
    p->dropped = 0;
}

struct profile *profile_free(struct profile *p)
{
    if (p) {
        profile_reset(p);
        free(p);
    }
    return NULL;
}

static void make_key(struct key *key, const struct op_call *call, const struct backend_device *device,
                     const char *variant)
{
    memset(key, 0, sizeof(*key)); /* padding too: keys are compared as bytes */
    key->op = call->op;
    key->device = device;
    key->variant = variant;
    key->dtype = call->tensors[0].dtype;
    for (unsigned t = 0; t < call->op->n_inputs + call->op->n_outputs; t++) {
        key->ranks[t] = call->tensors[t].rank;
        memcpy(key->shapes[t], call->tensors[t].shape, call->tensors[t].rank * sizeof(int64_t));
    }
}

static unsigned hash(const struct key *key)
{
    uint64_t h = 14695981039346656037U; /* FNV-1a, over words */

    for (size_t i = 0; i + sizeof(uint64_t) <= sizeof(*key); i += sizeof(uint64_t)) {
        uint64_t word;

        memcpy(&word, (const char *)key + i, sizeof(word));
        h = (h ^ word) * 1099511628211U;
    }
    return (unsigned)((h ^ h >> 32) % BUCKETS);
}

static struct row *find_or_add(struct profile *p, const struct key *key)
{
    struct list *bucket = &p->buckets[hash(key)];
    struct row *row;

    list_for_each_safe (node, after, bucket) {
        row = list_entry(node, struct row, bucket);
        if (!memcmp(&row->key, key, sizeof(*key))) {
            list_remove(&row->recent);
            list_append(&p->recent, &row->recent);
            return row;
        }
    }
    if (p->n_rows == PROFILE_MAX_ROWS) {
        row_free(p, list_entry(list_first(&p->recent), struct row, recent));
        p->dropped++;
    }
    row = calloc(1, sizeof(*row));
    if (!row)
        return NULL; /* a lost statistic is no reason to fail the job */
    row->key = *key;
    list_append(bucket, &row->bucket);
    list_append(&p->recent, &row->recent);
    p->n_rows++;
    return row;
}

void profile_add(struct profile *p, const struct op_call *call, const struct backend_device *device,
                 const char *variant, const double *samples, uint32_t n_samples, double total_us)
{
    struct row *row;
    struct key key;

    make_key(&key, call, device, variant);
    row = find_or_add(p, &key);
    if (!row)
        return;
    row->count += n_samples ? n_samples : 1;
    for (uint32_t i = 0; i < n_samples; i++)
        histogram_add(&row->execution, samples[i]);
    histogram_add(&row->total, total_us);
}

void profile_count(struct profile *p, const struct op_call *call, const struct backend_device *device,
                   const char *variant, uint64_t count)
{
    struct row *row;
    struct key key;

    make_key(&key, call, device, variant);
    row = find_or_add(p, &key);
    if (row)
        row->count += count;
}

void profile_add_error(struct profile *p, const struct op_call *call, const struct backend_device *device,
                       const char *variant)
{
    struct row *row;
    struct key key;

    make_key(&key, call, device, variant);
    row = find_or_add(p, &key);
    if (row)
        row->errors++;
}

static void write_histogram(struct rpc_output *out, const char *key, const struct histogram *h)
{
    rpc_write_text(out, key);
    rpc_write_map(out, 6);
    rpc_write_entry_double(out, "min", h->min_us);
    rpc_write_entry_double(out, "mean", h->sum_us / (double)h->count);
    rpc_write_entry_double(out, "p50", histogram_percentile(h, 0.50));
    rpc_write_entry_double(out, "p90", histogram_percentile(h, 0.90));
    rpc_write_entry_double(out, "p99", histogram_percentile(h, 0.99));
    rpc_write_entry_double(out, "max", h->max_us);
}

static void write_row(struct rpc_output *out, const struct row *row)
{
    const unsigned operands = row->key.op->n_inputs + row->key.op->n_outputs;

    rpc_write_map(out, 7 + (row->execution.count > 0) + (row->total.count > 0));
    rpc_write_entry_text(out, "op", row->key.op->name);
    rpc_write_entry_text(out, "device", row->key.device->info.uuid);
    rpc_write_entry_text(out, "variant", row->key.variant ? row->key.variant : "");
    rpc_write_entry_text(out, "dtype", dtype_name(row->key.dtype));
    rpc_write_text(out, "shapes");
    rpc_write_array(out, operands);
    for (unsigned t = 0; t < operands; t++) {
        rpc_write_array(out, row->key.ranks[t]);
        for (unsigned i = 0; i < row->key.ranks[t]; i++)
            rpc_write_uint(out, (uint64_t)row->key.shapes[t][i]);
    }
    rpc_write_entry_uint(out, "count", row->count);
    rpc_write_entry_uint(out, "errors", row->errors);
    /* Not measured means absent. */
    if (row->execution.count)
        write_histogram(out, "exec_us", &row->execution);
    if (row->total.count)
        write_histogram(out, "total_us", &row->total);
}

static bool matches(const struct row *row, const struct profile_filter *f)
{
    return (!f->op || row->key.op == f->op) && (!f->dtype || row->key.dtype == f->dtype) &&
           (!f->device || row->key.device == f->device);
}

void profile_write(const struct profile *p, const struct profile_filter *filter, struct rpc_output *out)
{
    uint32_t n = 0;

    for (const struct list *node = p->recent.prev; node != &p->recent; node = node->prev)
        n += matches(list_entry(node, struct row, recent), filter);
    rpc_write_array(out, n);
    for (const struct list *node = p->recent.prev; node != &p->recent; node = node->prev)
        if (matches(list_entry(node, struct row, recent), filter))
            write_row(out, list_entry(node, struct row, recent));
}

uint64_t profile_rows_dropped(const struct profile *p)
{
    return p->dropped;
}
