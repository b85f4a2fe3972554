/* What the daemon sends: messages, errors and undecoded replies taken apart, and results as plain structs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "proto/generated/results.h"
#include "read.h"
#include "wire.h"

/* ---- messages ---- */

static const char *parse_response(const unsigned char *at, const unsigned char *end, struct wire_message *ret)
{
    struct codec_item item;
    int nfds;

    codec_read(at, &item);
    if (item.type != CODEC_UINT || item.u > UINT32_MAX)
        return "a response's msgid is no uint32";
    ret->kind = WIRE_RESPONSE;
    ret->msgid = (uint32_t)item.u;
    at = item.next;
    if (codec_type_of(at) != CODEC_NIL) {
        ret->error = at;
        ret->length = (size_t)(codec_skip(at) - at);
        return codec_type_of(at) == CODEC_MAP ? NULL : "a response's error is no map";
    }
    ret->result = at + 1;
    ret->length = (size_t)(end - ret->result);
    if (codec_type_of(ret->result) != CODEC_MAP)
        return "a response has neither an error nor a result map";
    nfds = codec_nfds(ret->result, end, WIRE_MAX_FDS);
    if (nfds < 0)
        return "a result's `nfds` is no number up to 16";
    ret->nfds = (unsigned)nfds;
    return NULL;
}

static const char *parse_notification(const unsigned char *at, struct wire_message *ret)
{
    const unsigned char *params = codec_skip(at);
    struct codec_item item;

    if (codec_type_of(at) != CODEC_STR || codec_type_of(params) != CODEC_ARRAY)
        return "a notification is not [2, method, [params]]";
    ret->kind = WIRE_OTHER_NOTIFICATION;
    codec_read(params, &item);
    if (wire_text_is(at, "error") && item.count == 1) {
        ret->kind = WIRE_ERROR_NOTIFICATION;
        ret->error = item.next;
    }
    return NULL;
}

const char *wire_parse(const void *data, size_t length, struct wire_message *ret_message)
{
    const unsigned char *bytes = data;
    struct codec_item item, type;

    memset(ret_message, 0, sizeof(*ret_message));
    codec_read(bytes, &item);
    if (item.type == CODEC_ARRAY && item.count) {
        codec_read(item.next, &type);
        if (type.type == CODEC_UINT && type.u == 1 && item.count == 4)
            return parse_response(type.next, bytes + length, ret_message);
        if (type.type == CODEC_UINT && type.u == 2 && item.count == 3)
            return parse_notification(type.next, ret_message);
    }
    return "the message is neither [1, msgid, error, result] nor [2, method, [params]]";
}

/* ---- errors ---- */

/* Returns the length of a text for "%.*s", at most `max`. */
static int cut(const struct codec_item *text, size_t max)
{
    return (int)(text->count < max ? text->count : max);
}

static void take_detail(const struct codec_item *name, const struct codec_item *value, struct kops_error *e)
{
    char key[32];

    snprintf(key, sizeof(key), "%.*s", cut(name, sizeof(key)), name->text);
    switch (value->type) {
    case CODEC_UINT:
        fail_number(e, e->code, key, value->u > INT64_MAX ? INT64_MAX : (int64_t)value->u);
        break;
    case CODEC_NEGATIVE:
        fail_number(e, e->code, key, value->i);
        break;
    case CODEC_BOOL:
        fail_number(e, e->code, key, value->b);
        break;
    case CODEC_STR:
        fail_text(e, e->code, key, value->text, value->count);
        break;
    default:
        break;
    }
}

static void take_details(const unsigned char *detail, struct kops_error *e)
{
    for (uint32_t pairs = wire_pairs(detail, &detail); pairs; pairs--) {
        struct codec_item key, value;

        codec_read(detail, &key);
        detail = codec_skip(detail);
        codec_read(detail, &value);
        detail = codec_skip(detail);
        if (key.type == CODEC_STR)
            take_detail(&key, &value, e);
    }
}

void wire_decode_error(const unsigned char *error, struct kops_error *e)
{
    struct codec_item code, message = {.count = 0};

    if (!wire_get_text(wire_find(error, "code"), &code)) {
        fail(e, KOPS_ERR_BAD_REPLY, "the daemon's error has no code");
        return;
    }
    wire_get_text(wire_find(error, "message"), &message);
    if (message.count)
        fail(e, code_parse(code.text, code.count), "%.*s", cut(&message, sizeof(e->message)), message.text);
    else
        fail(e, code_parse(code.text, code.count), "the daemon gave no message (%.*s)", cut(&code, 64), code.text);
    take_details(wire_find(error, "detail"), e);
}

/* The compiler's log of an error (malloc'd); NULL: it has none. */
static char *wire_error_log(const unsigned char *error)
{
    struct codec_item log;

    return wire_get_text(wire_find(wire_find(error, "detail"), "log"), &log) ? strndup(log.text, log.count) : NULL;
}

/* ---- replies as they came ---- */

void wire_reply_error(const struct native_reply *reply, struct kops_error *ret_error)
{
    wire_decode_error((const unsigned char *)reply->data, ret_error);
}

void native_reply_free(struct native_reply *r)
{
    if (!r)
        return;
    for (unsigned i = 0; i < r->n_fds; i++)
        if (r->fds[i] >= 0)
            close(r->fds[i]);
    free(r->data);
    *r = (struct native_reply){.data = NULL};
}

/* ---- the results of methods: the tables of proto/generated/results.h, each bound to its struct ---- */

/* ---- rows of tables. A row compiles only where the member has the type of its kind. ---- */

#define MEMBER(record, member) (((record *)0)->member)
#define PLACE(record, key_, member, needed_, unset_)                                                                   \
    .key = (key_), .key_length = sizeof(key_) - 1, .needed = (needed_), .unset = (unset_),                             \
    .offset = offsetof(record, member)
#define PLAIN(record, key, member, needed, unset, ...)                                                                 \
    {                                                                                                                  \
        PLACE(record, key, member, needed, unset), .size = sizeof(MEMBER(record, member)),                             \
                                                   .type = _Generic(MEMBER(record, member), __VA_ARGS__)               \
    }
#define COUNTED(record, key, member, needed, unset, ...)                                                               \
    {                                                                                                                  \
        PLACE(record, key, member, needed, unset), .size = sizeof(*MEMBER(record, member)),                            \
                                                   .count = offsetof(record, n_##member),                              \
                                                   .type = _Generic(MEMBER(record, member), __VA_ARGS__)               \
    }

#define ROW_UINT(r, k, m, n, u, of)                                                                                    \
    PLAIN(r, k, m, n, u, uint64_t : WIRE_NUMBER, int64_t : WIRE_NUMBER, unsigned : WIRE_NUMBER),
#define ROW_FLOAT(r, k, m, n, u, of)    PLAIN(r, k, m, n, u, double : WIRE_REAL),
#define ROW_BOOL(r, k, m, n, u, of)     PLAIN(r, k, m, n, u, bool : WIRE_BOOL),
#define ROW_STR(r, k, m, n, u, of)      PLAIN(r, k, m, n, u, const char * : WIRE_TEXT, char * : WIRE_CHARS),
#define ROW_FD(r, k, m, n, u, of)       PLAIN(r, k, m, n, u, int : WIRE_FD),
#define ROW_TEXTS(r, k, m, n, u, of)    PLAIN(r, k, m, n, u, const char *const * : WIRE_TEXTS),
#define ROW_FIXED(r, k, m, n, u, of)    PLAIN(r, k, m, n, u, uint64_t * : WIRE_FIXED),
#define ROW_COUNTERS(r, k, m, n, u, of) PLAIN(r, k, m, n, u, const struct kops_counter *const * : WIRE_COUNTERS),
#define ROW_UINTS(r, k, m, n, u, of)                                                                                   \
    COUNTED(r, k, m, n, u, const int64_t * : WIRE_NUMBERS, const uint32_t * : WIRE_NUMBERS),
#define ROW_SHAPES(r, k, m, n, u, of)      COUNTED(r, k, m, n, u, const struct kops_shape * : WIRE_SHAPES),
#define ROW_NUMBERS(r, k, m, n, u, of)     COUNTED(r, k, m, n, u, const struct kops_figure * : WIRE_FIGURES),
#define ROW_FLOATS(r, k, m, n, u, of)      {PLACE(r, k, m, n, u), .type = WIRE_OTHER, .read = read_##m},
#define ROW_NAMED_TEXTS(r, k, m, n, u, of) {PLACE(r, k, m, n, u), .type = WIRE_NAMED_TEXTS},
#define ROW_LIST(r, k, m, n, u, of)                                                                                    \
    {PLACE(r, k, m, n, u), .record = &of##_record, .type = _Generic(MEMBER(r, m), const of *const * : WIRE_LIST)},
#define ROW_MAP(r, k, m, n, u, of)                                                                                     \
    {PLACE(r, k, m, n, u), .record = &of##_record,                                                                     \
     .type = _Generic(MEMBER(r, m), of: WIRE_STRUCT, const of *: WIRE_POINTER)},

#define ROW(record, key, member, TYPE, needed, unset, of) ROW_##TYPE(record, key, member, needed, unset, of)
#define NO_ROW(record, key, member, TYPE, needed, unset, of)

/* The table `rows` for the struct `owner`. */
#define TABLE(record, owner, rows, finish)                                                                             \
    typedef owner record;                                                                                              \
    static const struct wire_field record##_fields[] = {rows(ROW, NO_ROW)};                                            \
    static const struct wire_record record##_record = {sizeof(record), record##_fields,                                \
                                                       sizeof(record##_fields) / sizeof(record##_fields[0]), finish};

static bool decode(struct arena *a, const unsigned char *result, const struct wire_record *record, void *into, int *fds,
                   unsigned nfds)
{
    if (wire_read(a, result, record, into))
        return wire_take_fds(record, into, fds, nfds);
    for (unsigned i = 0; i < record->n_fields; i++)
        if (record->fields[i].type == WIRE_FD)
            *(int *)(void *)((char *)into + record->fields[i].offset) = -1;
    return false;
}

#define DECODER(name) bool wire_decode_##name(const unsigned char *result, int *fds, unsigned nfds, void *into)

/* A decoder of a table: into its struct, or into a struct with an arena before that. */
#define DECODES(name, record)                                                                                          \
    DECODER(name)                                                                                                      \
    {                                                                                                                  \
        return decode(NULL, result, &record##_record, into, fds, nfds);                                                \
    }
#define DECODES_WITH_ARENA(name, record)                                                                               \
    DECODER(name)                                                                                                      \
    {                                                                                                                  \
        struct arena *arena = into;                                                                                    \
                                                                                                                       \
        return decode(arena, result, &record##_record, arena + 1, fds, nfds);                                          \
    }

void *wire_result_free(void *public_struct)
{
    struct arena *arena = public_struct ? (struct arena *)public_struct - 1 : NULL;

    if (arena)
        arena_free(arena);
    free(arena);
    return NULL;
}

/* ---- one number ---- */

#define DECODES_NUMBER(name, key)                                                                                      \
    DECODER(name)                                                                                                      \
    {                                                                                                                  \
        (void)fds;                                                                                                     \
        (void)nfds;                                                                                                    \
        return wire_get_uint(wire_find(result, key), into);                                                            \
    }

DECODES_NUMBER(trim, "unpinned")
DECODES_NUMBER(program, "program")
DECODES_NUMBER(module, "module")
DECODES_NUMBER(kernel, "kernel")

DECODER(nothing)
{
    (void)result;
    (void)fds;
    (void)nfds;
    (void)into;
    return true;
}

/* ---- memory ---- */

static bool finish_register(struct arena *a, const unsigned char *map, void *into)
{
    struct wire_buffer *b = into;

    (void)a;
    (void)map;
    b->fd = -1;
    b->vmm = false;
    return true;
}

static bool finish_alloc(struct arena *a, const unsigned char *map, void *into)
{
    struct wire_buffer *b = into;
    const unsigned char *kind = wire_find(map, "kind");

    (void)a;
    b->vmm = wire_text_is(kind, "cuda_vmm");
    return b->vmm || wire_text_is(kind, "memfd");
}

TABLE(register_reply, struct wire_buffer, KOPS_RESULT_REGISTER, finish_register)
TABLE(alloc_reply, struct wire_buffer, KOPS_RESULT_ALLOC, finish_alloc)
TABLE(timelines_reply, struct wire_timelines, KOPS_RESULT_TIMELINES, NULL)
TABLE(code_reply, struct wire_image_info, KOPS_RESULT_CODE, NULL)
TABLE(shm_map, struct wire_shm, KOPS_MAP_SHM, NULL)

DECODES(register, register_reply)
DECODES(alloc, alloc_reply)
DECODES(timelines, timelines_reply)
DECODES(image, code_reply)

DECODER(shm)
{
    return decode(NULL, wire_find(result, "shm"), &shm_map_record, into, fds, nfds);
}

/* ---- run ---- */

/* `into` is the first member of a struct wire_timings, which has the samples. */
static void read_n_samples(const unsigned char *value, void *into)
{
    struct wire_timings *t = into;
    const uint32_t n = wire_elements(value, &value);

    t->result.n_samples = n;
    for (uint32_t i = 0; i < n && t->samples && i < t->samples_room; i++, value = codec_skip(value)) {
        t->samples[i] = (double)NAN;
        wire_get_number(value, &t->samples[i]);
    }
}

TABLE(timings_map, struct kops_result, KOPS_MAP_TIMINGS, NULL)
TABLE(run_reply, struct wire_timings, KOPS_RESULT_RUN, NULL)

DECODER(run)
{
    memset(into, 0, sizeof(struct kops_result));
    return decode(NULL, result, &run_reply_record, into, fds, nfds);
}

void wire_no_timings(struct kops_result *ret)
{
    memset(ret, 0, sizeof(*ret));
    wire_read(NULL, NULL, &timings_map_record, ret); /* cannot fail: every time is optional */
    ret->send_us = ret->reply_us = (double)NAN;
}

/* ---- counters ---- */

TABLE(counter_launch_map, struct kops_counter_launch, KOPS_MAP_COUNTER_LAUNCH, NULL)

static bool finish_counters(struct arena *a, const unsigned char *map, void *into)
{
    struct kops_counters *c = into;

    (void)a;
    c->has_launch = wire_find(map, "launch") != NULL;
    return true;
}

TABLE(counters_reply, struct kops_counters, KOPS_RESULT_COUNTERS, finish_counters)
DECODES_WITH_ARENA(counters, counters_reply)

/* ---- hello ---- */

/* Reads the default of an attribute by its type. */
static bool finish_attr(struct arena *a, const unsigned char *map, void *into)
{
    struct kops_op_attr *attr = into;
    const unsigned char *type = wire_find(map, "type"), *value = wire_find(map, "default");
    struct kops_attr *f = &attr->fallback;
    struct codec_item item = {.type = CODEC_NIL};

    f->name = attr->name;
    if (value)
        codec_read(value, &item);
    if (!type || codec_type_of(type) != CODEC_STR)
        return true;
    if (wire_text_is(type, "bool")) {
        f->type = KOPS_ATTR_BOOL;
        f->value.boolean = item.type == CODEC_BOOL && item.b;
    } else if (wire_text_is(type, "float")) {
        f->type = KOPS_ATTR_FLOAT;
        wire_get_number(value, &f->value.real);
    } else if (wire_text_is(type, "int")) {
        f->type = KOPS_ATTR_INT;
        f->value.integer = item.type == CODEC_UINT || item.type == CODEC_NEGATIVE ? item.i : 0;
    } else {
        f->type = KOPS_ATTR_TEXT;
        f->value.text = wire_copy_text(a, value);
    }
    return f->type != KOPS_ATTR_TEXT || f->value.text;
}

static bool finish_kernels(struct arena *a, const unsigned char *map, void *into)
{
    struct kops_kernels_info *k = into;

    (void)a;
    (void)map;
    if (k->compiler && !*k->compiler)
        k->compiler = NULL;
    return true;
}

TABLE(device_info_map, struct kops_device, KOPS_MAP_DEVICE_INFO, NULL)
TABLE(attr_map, struct kops_op_attr, KOPS_MAP_ATTR, finish_attr)
TABLE(op_map, struct kops_op, KOPS_MAP_OP, NULL)
TABLE(limits_map, struct kops_limits, KOPS_MAP_LIMITS, NULL)
TABLE(kernels_map, struct kops_kernels_info, KOPS_MAP_KERNELS, finish_kernels)
TABLE(hello_reply, struct kops_info, KOPS_RESULT_HELLO, NULL)
DECODES_WITH_ARENA(info, hello_reply)

DECODER(greeting)
{
    const struct wire_greeting *g = into;

    g->kept->length = 0;
    if (!bytes_append(g->kept, result, (size_t)(codec_skip(result) - result)))
        return false;
    return g->limits ? decode(NULL, wire_find(result, "limits"), &limits_map_record, g->limits, fds, nfds)
                     : wire_decode_info(result, fds, nfds, g->info);
}

/* ---- compile, cache ---- */

/* Reads the offsets, which are NULL unless there are as many as parameters. */
static bool finish_entry(struct arena *a, const unsigned char *map, void *into)
{
    struct kops_entry *entry = into;
    const unsigned char *offsets = wire_find(map, "offsets");
    size_t n = 0;

    entry->offsets = offsets ? wire_copy_numbers(a, offsets, sizeof(*entry->offsets), &n) : NULL;
    if (n != entry->n_params)
        entry->offsets = NULL;
    return true;
}

TABLE(entry_map, struct kops_entry, KOPS_MAP_ENTRY, finish_entry)
TABLE(compile_reply, struct kops_module_info, KOPS_RESULT_COMPILE, NULL)

enum kops_code wire_read_module(const struct native_reply *reply, struct wire_module *ret, char **log,
                                struct kops_error *e)
{
    const unsigned char *data = (const unsigned char *)reply->data;

    *ret = (struct wire_module){.id = 0};
    if (reply->is_error) {
        wire_decode_error(data, e);
        *log = wire_error_log(data);
        return e->code;
    }
    if (wire_get_uint(wire_find(data, "module"), &ret->id) &&
        wire_read(&ret->arena, data, &compile_reply_record, &ret->info))
        return KOPS_OK;
    arena_free(&ret->arena);
    return fail(e, KOPS_ERR_BAD_REPLY, "the result of `compile` lacks a key, or there is no memory to read it");
}

TABLE(binary_map, struct kops_cache_entry, KOPS_MAP_BINARY, NULL)
TABLE(cache_reply, struct kops_cache, KOPS_RESULT_CACHE, NULL)
DECODES_WITH_ARENA(cache_list, cache_reply)

DECODER(cache_file)
{
    struct wire_cache_file *w = into;
    uint64_t index;

    if (!wire_get_uint(wire_find(result, "fd"), &index) || !wire_get_uint(wire_find(result, "bytes"), &w->bytes) ||
        index >= nfds || fds[index] < 0)
        return false;
    w->fd = fds[index];
    fds[index] = -1;
    return true;
}

DECODER(cache_counts)
{
    struct wire_cache_counts *w = into;

    (void)fds;
    (void)nfds;
    *w = (struct wire_cache_counts){0};
    wire_get_uint(wire_find(result, "removed"), &w->removed);
    wire_get_uint(wire_find(result, "imported"), &w->imported);
    wire_get_uint(wire_find(result, "skipped"), &w->skipped);
    return true;
}

/* ---- stats ---- */

TABLE(spread_map, struct kops_spread, KOPS_MAP_SPREAD, NULL)
TABLE(row_map, struct kops_stats_row, KOPS_MAP_ROW, NULL)
TABLE(mapping_map, struct kops_mapping, KOPS_MAP_MAPPING, NULL)
TABLE(executor_map, struct kops_executor, KOPS_MAP_EXECUTOR, NULL)
TABLE(stats_reply, struct kops_stats, KOPS_RESULT_STATS, NULL)
DECODES_WITH_ARENA(stats, stats_reply)

/* ---- administration ---- */

TABLE(quantiles_map, struct kops_quantiles, KOPS_MAP_QUANTILES, NULL)
TABLE(latency_map, struct kops_latency, KOPS_MAP_LATENCY, NULL)
TABLE(client_map, struct kops_client_info, KOPS_MAP_CLIENT, NULL)
TABLE(quotas_map, struct kops_user_limits, KOPS_MAP_QUOTAS, NULL)
TABLE(user_map, struct kops_user_info, KOPS_MAP_USER, NULL)
TABLE(conditions_map, struct kops_conditions, KOPS_MAP_CONDITIONS, NULL)
TABLE(load_map, struct kops_device_load, KOPS_MAP_LOAD, NULL)
TABLE(clients_reply, struct kops_clients, KOPS_RESULT_CLIENTS, NULL)
TABLE(drain_reply, struct kops_drain_result, KOPS_RESULT_DRAIN, NULL)

DECODES_WITH_ARENA(clients, clients_reply)

DECODER(conditions)
{
    struct wire_conditions *w = into;

    return decode(&w->arena, wire_find(result, "conditions"), &conditions_map_record, &w->conditions, fds, nfds);
}

DECODES(drain, drain_reply)

DECODER(metrics)
{
    struct codec_item text;
    char *copy;

    (void)fds;
    (void)nfds;
    if (!wire_get_text(wire_find(result, "text"), &text))
        return false;
    copy = malloc((size_t)text.count + 1);
    if (!copy)
        return false;
    memcpy(copy, text.text, text.count);
    copy[text.count] = 0;
    *(char **)into = copy;
    return true;
}

/* ---- tune ---- */

/* Refuses a reply with the number of a candidate that does not exist: callers use it as an index. */
static bool finish_tune(struct arena *a, const unsigned char *map, void *into)
{
    struct kops_tune *t = into;

    (void)a;
    (void)map;
    t->n_candidates = 0;
    while (t->candidates[t->n_candidates])
        t->n_candidates++;
    return t->best < t->n_candidates && t->before < t->n_candidates && t->usual < t->n_candidates;
}

TABLE(candidate_map, struct kops_candidate, KOPS_MAP_CANDIDATE, NULL)
TABLE(tune_reply, struct kops_tune, KOPS_RESULT_TUNE, finish_tune)
TABLE(choice_map, struct kops_choice, KOPS_MAP_CHOICE, NULL)
TABLE(tuning_reply, struct kops_tuning, KOPS_RESULT_TUNING, NULL)
DECODES_WITH_ARENA(tune, tune_reply)
DECODES_WITH_ARENA(tuning, tuning_reply)

/* ---- trace ---- */

enum { COLUMNS_LEAST = 11 };

/* Reads an event. An older daemon sends fewer columns, a newer one may append some. */
static bool read_event(const unsigned char *value, struct kops_trace_event *event)
{
#define X(column) 0,
    uint64_t numbers[] = {KOPS_COLUMNS_TRACE_EVENT(X)}, *next = numbers;
#undef X
    const uint32_t n = wire_elements(value, &value);

    for (uint32_t i = 0; i < n && i < sizeof(numbers) / sizeof(numbers[0]); i++, value = codec_skip(value))
        if (!wire_get_uint(value, &numbers[i]))
            return false;
#define X(column) event->column = *next++;
    KOPS_COLUMNS_TRACE_EVENT(X)
#undef X
    return n >= COLUMNS_LEAST;
}

static bool finish_trace(struct arena *a, const unsigned char *map, void *into)
{
    const unsigned char *value = wire_find(map, "events");
    const bool is_list = value && codec_type_of(value) == CODEC_ARRAY;
    const uint32_t n = wire_elements(value, &value);
    struct kops_trace_event *events = arena_new(a, ((size_t)n + 1) * sizeof(*events));
    struct kops_trace *trace = into;

    for (uint32_t i = 0; events && i < n; i++, value = codec_skip(value))
        if (!read_event(value, &events[i]))
            return false;
    trace->events = events;
    trace->n_events = n;
    return is_list && events;
}

TABLE(trace_kind_map, struct kops_trace_kind, KOPS_MAP_TRACE_KIND, NULL)
TABLE(trace_client_map, struct kops_trace_client, KOPS_MAP_TRACE_CLIENT, NULL)
TABLE(trace_reply, struct kops_trace, KOPS_RESULT_TRACE, finish_trace)
DECODES_WITH_ARENA(trace, trace_reply)
