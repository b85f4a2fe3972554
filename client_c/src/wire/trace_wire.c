#include "trace_wire.h"

#include "wire_begin.h"
#include "wire_read.h"

/* ---- requests ---- */

void wire_pack_trace_begin(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct kops_trace_options *o = request;

    WIRE_BEGIN(out, msgid, "trace");
    mp_map(out, 1 + (size_t)o->everybody + (o->events > 0));
    mp_pair_bool(out, "begin", true);
    if (o->everybody)
        mp_pair_bool(out, "everybody", true);
    if (o->events)
        mp_pair_uint(out, "events", o->events);
}

void wire_pack_trace_read(struct bytes *out, uint32_t msgid, const void *request)
{
    const bool *end = request;

    WIRE_BEGIN(out, msgid, "trace");
    mp_map(out, *end);
    if (*end)
        mp_pair_bool(out, "end", true);
}

/* ---- the reply ---- */

#define FIELD(kind, member) WIRE_FIELD(RECORD, kind, #member, member)

static bool read_shapes(struct arena *a, const unsigned char *value, void *into)
{
    struct kops_trace_kind *kind = into;

    kind->shapes = wire_get_shapes(a, value, &kind->n_shapes);
    return kind->shapes != NULL;
}

#define RECORD struct kops_trace_kind
static const struct wire_field kind_fields[] = {
    WIRE_NEEDED(RECORD, U64, "kind", kind),
    FIELD(TEXT, what),
    FIELD(TEXT, op),
    FIELD(U64, ops),
    FIELD(TEXT, device),
    FIELD(TEXT, variant),
    FIELD(TEXT, dtype),
    {WIRE_KEY("shapes"), .type = WIRE_OTHER, .read = read_shapes}, /* two members of the kind */
};
static const struct wire_record kind_record = WIRE_RECORD(RECORD, kind_fields);
#undef RECORD

#define RECORD struct kops_trace_client
static const struct wire_field client_fields[] = {
    WIRE_NEEDED(RECORD, U64, "client", client),
    FIELD(I64, pid),
    FIELD(I64, uid),
    FIELD(TEXT, identity),
    FIELD(TEXT, name),
    FIELD(TEXT, comm),
};
static const struct wire_record client_record = WIRE_RECORD(RECORD, client_fields);
#undef RECORD

enum { COLUMNS_LEAST = 11, COLUMNS = 13 };

/* An older daemon has fewer columns, a newer one may append some. */
static bool read_event(const unsigned char *value, struct kops_trace_event *event)
{
    uint64_t failed;
    uint64_t *const columns[COLUMNS] = {&event->kind,     &event->client,     &event->call,    &event->stream,
                                        &event->received, &event->ready,      &event->started, &event->ended,
                                        &event->busy,     &event->executions, &failed,         &event->began,
                                        &event->finished};
    const uint32_t n = wire_elements(value, &value);

    if (n < COLUMNS_LEAST)
        return false;
    event->began = event->finished = 0;
    for (unsigned i = 0; i < COLUMNS && i < n; i++, value = codec_skip(value))
        if (!wire_get_uint(value, columns[i]))
            return false;
    event->failed = failed != 0;
    return true;
}

static bool read_events(struct arena *a, const unsigned char *value, void *into)
{
    const bool is_list = codec_type_of(value) == CODEC_ARRAY;
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

#define RECORD struct kops_trace
static const struct wire_field trace_fields[] = {
    WIRE_NEEDED(RECORD, BOOL, "recording", recording),
    WIRE_NEEDED(RECORD, U64, "origin_ns", origin_ns),
    WIRE_NEEDED(RECORD, U64, "now_ns", now_ns),
    WIRE_NEEDED(RECORD, U64, "dropped", dropped),
    FIELD(U64, pending),
    WIRE_NESTED(RECORD, LIST, "kinds", kinds, kind_record),
    WIRE_NESTED(RECORD, LIST, "clients", clients, client_record),
    {WIRE_KEY("events"), .type = WIRE_OTHER, .required = true, .read = read_events}, /* two members of the trace */
};
static const struct wire_record trace_record = WIRE_RECORD(RECORD, trace_fields);
#undef RECORD

bool wire_decode_trace(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    struct wire_trace *w = into;

    (void)fds;
    (void)nfds;
    return wire_read(&w->arena, result, &trace_record, &w->trace);
}
