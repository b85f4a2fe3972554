#include "server/observe/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/observe/latency.h"
#include "server/peer/access.h"

/* ---- keys ---- */

void op_key_make(struct op_key *key, uid_t uid, const struct op_call *call, const struct backend_device *device,
                 const char *variant)
{
    struct op_key_head *head = &key->head;

    memset(head, 0, sizeof(*head));
    head->code = call->op->code;
    head->uid = uid;
    head->device = device;
    step_copy_variant(head->variant, variant);
    head->op = call->op->id;
    head->operands = call->op->n_inputs + call->op->n_outputs;
    head->dtype = head->operands ? call->tensors[0]->dtype : 0;
    head->out_dtype = call->op->n_outputs ? call->tensors[call->op->n_inputs]->dtype : 0;
    key->name = call->op->name;
    for (unsigned t = 0; t < head->operands; t++) {
        const struct tensor *tensor = call->tensors[t];

        key->words[head->words++] = tensor->rank;
        memcpy(&key->words[head->words], tensor->shape, tensor->rank * sizeof(int64_t));
        head->words += tensor->rank;
    }
}

static uint64_t mix(uint64_t h, const void *data, size_t size)
{
    for (size_t i = 0; i + sizeof(uint64_t) <= size; i += sizeof(uint64_t)) {
        uint64_t word;

        memcpy(&word, (const char *)data + i, sizeof(word));
        h = (h ^ word) * 1099511628211U; /* FNV-1a, over words */
    }
    return h;
}

uint64_t op_key_hash(const struct op_key *key)
{
    uint64_t h = mix(14695981039346656037U, &key->head, sizeof(key->head));

    h = mix(h, key->words, key->head.words * sizeof(key->words[0]));
    return h ^ h >> 32;
}

bool op_key_is(const struct op_key *key, const struct op_key_head *head, const int64_t *words)
{
    return !memcmp(head, &key->head, sizeof(key->head)) &&
           !memcmp(words, key->words, key->head.words * sizeof(key->words[0]));
}

void op_key_each_shape(struct rpc_output *out, const void *of, uint32_t i)
{
    const int64_t *words = of;

    while (i--)
        words += 1 + *words;
    rpc_write_array(out, (uint32_t)*words);
    for (int64_t d = 1; d <= *words; d++)
        rpc_write_uint(out, (uint64_t)words[d]);
}

/* ---- the profile ---- */

enum { BUCKETS = 1024, ROWS_OF_ONE = PROFILE_MAX_ROWS / 2 /* above which a user's new row replaces one of its own */ };

/* A user with rows. */
struct owner {
    struct list link; /* in the profile's owners */
    uid_t uid;
    unsigned n_rows;
    struct list recent; /* rows, the least recently used first */
};

struct row {
    struct list bucket, recent, own; /* `own`: in its owner's */
    struct owner *owner;
    struct op_key_head head;
    uint64_t number; /* the last digits are its slot */
    uint64_t count, errors;
    int64_t bytes, operations; /* figures of one execution; -1: not known. The key decides them. */
    struct histogram queue, execution, total;
    char name[PROFILE_NAME_MAX];
    int64_t words[];
};

struct profile {
    struct list buckets[BUCKETS];
    struct list recent; /* the least recently used first */
    struct list owners;
    unsigned n_rows;
    uint64_t dropped, made;
    struct row *slots[PROFILE_MAX_ROWS];
};

struct profile *profile_new(void)
{
    struct profile *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    for (unsigned i = 0; i < BUCKETS; i++)
        list_init(&p->buckets[i]);
    list_init(&p->recent);
    list_init(&p->owners);
    return p;
}

/* ---- owners ---- */

static struct owner *owner_find(struct profile *p, uid_t uid)
{
    list_for_each_safe (node, after, &p->owners) {
        struct owner *owner = list_entry(node, struct owner, link);

        if (owner->uid == uid)
            return owner;
    }
    return NULL;
}

static struct owner *owner_new(struct profile *p, uid_t uid)
{
    struct owner *owner = calloc(1, sizeof(*owner));

    if (!owner)
        return NULL;
    owner->uid = uid;
    list_init(&owner->recent);
    list_append(&p->owners, &owner->link);
    return owner;
}

static void owner_free_unused(struct owner *owner)
{
    if (owner->n_rows)
        return;
    list_remove(&owner->link);
    free(owner);
}

/* ---- rows ---- */

static void row_free(struct profile *p, struct row *row)
{
    list_remove(&row->bucket);
    list_remove(&row->recent);
    list_remove(&row->own);
    row->owner->n_rows--;
    owner_free_unused(row->owner);
    p->slots[row->number % PROFILE_MAX_ROWS] = NULL;
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

/* A free slot is there: rows have as many slots as there can be rows. */
static void take_slot(struct profile *p, struct row *row)
{
    do
        row->number = ++p->made;
    while (p->slots[row->number % PROFILE_MAX_ROWS]);
    p->slots[row->number % PROFILE_MAX_ROWS] = row;
}

/* For a new row of that user: one that has its share of the rows loses its own. */
static void make_room(struct profile *p, uid_t uid)
{
    const struct owner *owner = owner_find(p, uid);

    row_free(p, owner && owner->n_rows >= ROWS_OF_ONE ? list_entry(list_first(&owner->recent), struct row, own)
                                                      : list_entry(list_first(&p->recent), struct row, recent));
    p->dropped++;
}

static struct row *find_or_add(struct profile *p, const struct op_key *key, const struct op_call *call)
{
    struct list *bucket = &p->buckets[op_key_hash(key) % BUCKETS];
    struct owner *owner;
    struct row *row;

    list_for_each_safe (node, after, bucket) {
        row = list_entry(node, struct row, bucket);
        if (op_key_is(key, &row->head, row->words)) {
            list_remove(&row->recent);
            list_append(&p->recent, &row->recent);
            list_remove(&row->own);
            list_append(&row->owner->recent, &row->own);
            return row;
        }
    }
    if (p->n_rows == PROFILE_MAX_ROWS)
        make_room(p, key->head.uid);
    owner = owner_find(p, key->head.uid);
    if (!owner && !(owner = owner_new(p, key->head.uid)))
        return NULL; /* a lost statistic is no reason to fail the job */
    row = calloc(1, sizeof(*row) + key->head.words * sizeof(row->words[0]));
    if (!row) {
        owner_free_unused(owner);
        return NULL;
    }
    row->owner = owner;
    owner->n_rows++;
    list_append(&owner->recent, &row->own);
    row->head = key->head;
    row->bytes = op_bytes(call);
    row->operations = op_operations(call);
    snprintf(row->name, sizeof(row->name), "%s", key->name);
    memcpy(row->words, key->words, key->head.words * sizeof(row->words[0]));
    list_append(bucket, &row->bucket);
    list_append(&p->recent, &row->recent);
    p->n_rows++;
    take_slot(p, row);
    return row;
}

uint64_t profile_add(struct profile *p, uid_t uid, const struct op_call *call, const struct backend_device *device,
                     const char *variant, const double *samples, uint32_t n_samples, const struct latency *latency)
{
    const double queue_us = latency->part[LATENCY_QUEUE];
    struct row *row;
    struct op_key key;

    op_key_make(&key, uid, call, device, variant);
    row = find_or_add(p, &key, call);
    if (!row)
        return 0;
    row->count += n_samples ? n_samples : 1;
    for (uint32_t i = 0; i < n_samples; i++)
        histogram_add(&row->execution, samples[i]);
    if (!isnan(queue_us))
        histogram_add_in(&row->queue, queue_us, latency->bucket[LATENCY_QUEUE]);
    histogram_add_in(&row->total, latency->part[LATENCY_TOTAL], latency->bucket[LATENCY_TOTAL]);
    return row->number;
}

void profile_time(struct profile *p, uint64_t row, double us)
{
    struct row *found = p->slots[row % PROFILE_MAX_ROWS];

    if (found && found->number == row)
        histogram_add(&found->execution, us);
}

void profile_tell(struct profile *p, uid_t uid, const struct op_call *call, const struct backend_device *device,
                  const char *variant, uint64_t count, const double *us, unsigned n)
{
    struct row *row;
    struct op_key key;

    op_key_make(&key, uid, call, device, variant);
    row = find_or_add(p, &key, call);
    if (!row)
        return;
    row->count += count;
    for (unsigned i = 0; i < n; i++)
        histogram_add(&row->execution, us[i]);
}

void profile_count(struct profile *p, uid_t uid, const struct op_call *call, const struct backend_device *device,
                   const char *variant, uint64_t count)
{
    profile_tell(p, uid, call, device, variant, count, NULL, 0);
}

void profile_add_error(struct profile *p, uid_t uid, const struct op_call *call, const struct backend_device *device,
                       const char *variant)
{
    struct row *row;
    struct op_key key;

    op_key_make(&key, uid, call, device, variant);
    row = find_or_add(p, &key, call);
    if (row)
        row->errors++;
}

/* NULL: not measured. */
static const struct spread_map *spread_of(const struct histogram *h, struct spread_map *ret)
{
    static const double ps[] = {0.50, 0.90, 0.99, 0.999};
    double us[sizeof(ps) / sizeof(ps[0])];

    if (!h->count)
        return NULL;
    histogram_percentiles(h, sizeof(ps) / sizeof(ps[0]), ps, us);
    *ret = (struct spread_map){.min = h->min_us,
                               .mean = h->sum_us / (double)h->count,
                               .p50 = us[0],
                               .p90 = us[1],
                               .p99 = us[2],
                               .p999 = us[3],
                               .max = h->max_us};
    return ret;
}

static bool may_see_row(const struct row *row, const struct profile_filter *f)
{
    return f->everybody || row->head.uid == f->uid;
}

static bool matches(const struct row *row, const struct profile_filter *f)
{
    return may_see_row(row, f) && (!*f->op || !strcmp(row->name, f->op)) &&
           (!f->dtype || row->head.dtype == f->dtype) && (!f->device || row->head.device == f->device);
}

bool profile_knows(const struct profile *p, const struct profile_filter *filter)
{
    for (const struct list *node = p->recent.prev; node != &p->recent; node = node->prev) {
        const struct row *row = list_entry(node, struct row, recent);

        if (may_see_row(row, filter) && !strcmp(row->name, filter->op))
            return true;
    }
    return false;
}

static void write_row(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct profile_walk *walk = of;
    struct spread_map queue, execution, total;
    const struct op_key_head *head;
    const struct row *row;

    (void)i;
    do {
        *walk->at = (*walk->at)->prev;
        row = list_entry(*walk->at, struct row, recent);
    } while (!matches(row, walk->filter));
    head = &row->head;
    rpc_write_record(out, RECORD(row_map, .op = row->name, .device = head->device->info.uuid, .variant = head->variant,
                                 .dtype = dtype_name(head->dtype), .uid = head->uid,
                                 .identity = identity_of(walk->server, head->uid),
                                 .shapes = {head->operands, op_key_each_shape, row->words}, .count = row->count,
                                 .errors = row->errors, .bytes = {row->bytes >= 0, (uint64_t)row->bytes},
                                 .operations = {row->operations >= 0, (uint64_t)row->operations},
                                 .queue_us = spread_of(&row->queue, &queue),
                                 .exec_us = spread_of(&row->execution, &execution),
                                 .total_us = spread_of(&row->total, &total)));
}

struct rpc_values profile_rows(const struct profile *p, const struct profile_walk *walk)
{
    uint32_t n = 0;

    *walk->at = &p->recent;
    for (const struct list *node = p->recent.prev; node != &p->recent; node = node->prev)
        n += matches(list_entry(node, struct row, recent), walk->filter);
    return (struct rpc_values){n, write_row, walk};
}

uint64_t profile_rows_dropped(const struct profile *p)
{
    return p->dropped;
}
