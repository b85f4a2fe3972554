#include "admin_wire.h"

#include <stdlib.h>
#include <string.h>

#include "wire_begin.h"
#include "wire_read.h"

/* ---- requests ---- */

void wire_pack_conditions(struct bytes *out, uint32_t msgid, const void *request)
{
    const char *device = request;

    WIRE_BEGIN(out, msgid, "conditions");
    mp_map(out, device ? 1 : 0);
    if (device) {
        mp_key(out, "device");
        wire_pack_device(out, device);
    }
}

void wire_pack_drain(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct kops_drain_options *o = request;

    WIRE_BEGIN(out, msgid, "drain");
    mp_map(out, (size_t)o->stop + o->resume + (o->timeout_ms > 0));
    if (o->stop)
        mp_pair_bool(out, "stop", true);
    if (o->resume)
        mp_pair_bool(out, "resume", true);
    if (o->timeout_ms > 0)
        mp_pair_uint(out, "timeout_ms", (uint64_t)o->timeout_ms);
}

/* ---- clients ---- */

#define FIELD(kind, member) WIRE_FIELD(RECORD, kind, #member, member)

#define RECORD struct kops_quantiles
static const struct wire_field quantile_fields[] = {FIELD(U64, count), FIELD(F64, p50),  FIELD(F64, p90),
                                                    FIELD(F64, p99),   FIELD(F64, p999), FIELD(F64, max)};
static const struct wire_record quantile_record = WIRE_RECORD(RECORD, quantile_fields);
#undef RECORD

static const struct wire_field latency_fields[] = {
    WIRE_NESTED(struct kops_client_info, MAP, "queue", latency.queue, quantile_record),
    WIRE_NESTED(struct kops_client_info, MAP, "device", latency.device, quantile_record),
    WIRE_NESTED(struct kops_client_info, MAP, "total", latency.total, quantile_record),
};
static const struct wire_record latency_record = WIRE_RECORD(struct kops_client_info, latency_fields);

#define RECORD struct kops_client_info
static const struct wire_field client_fields[] = {
    FIELD(I64, pid),
    FIELD(I64, uid),
    FIELD(I64, gid),
    FIELD(TEXT, client),
    FIELD(TEXT, comm),
    FIELD(F64, connected_s),
    FIELD(U64, requests),
    FIELD(U64, errors),
    FIELD(U64, inflight),
    FIELD(U64, queued),
    FIELD(U64, buffers),
    FIELD(U64, mapped_bytes),
    FIELD(U64, allocated_bytes),
    FIELD(U64, programs),
    FIELD(U64, kernels),
    FIELD(U64, bytes_in),
    FIELD(U64, bytes_out),
    FIELD(U64, output_bytes),
    FIELD(BOOL, paused),
    FIELD(BOOL, shm),
    FIELD(F64, device_us),
    FIELD(TEXT, isolation),
    FIELD(I64, executor),
    FIELD(U64, here),
    FIELD(TEXT, identity),
    {WIRE_KEY("latency"), .type = WIRE_MAP, .record = &latency_record}, /* its record is the whole client's */
};
static const struct wire_record client_record = WIRE_RECORD(RECORD, client_fields);
#undef RECORD

#define RECORD struct kops_user_limits
static const struct wire_field limit_fields[] = {
    FIELD(LIMIT, connections),     FIELD(LIMIT, buffers),    FIELD(LIMIT, mappings),      FIELD(LIMIT, mapped_bytes),
    FIELD(LIMIT, allocated_bytes), FIELD(LIMIT, host_bytes), FIELD(LIMIT, program_bytes), FIELD(LIMIT, waiting_bytes),
    FIELD(LIMIT, inflight),        FIELD(LIMIT, fds),        FIELD(LIMIT, kernel_bytes),  FIELD(LIMIT, messages_per_s),
    FIELD(LIMIT, device_share),
};
static const struct wire_record limit_record = WIRE_RECORD(RECORD, limit_fields);
#undef RECORD

#define RECORD struct kops_user_info
static const struct wire_field user_fields[] = {
    FIELD(I64, uid),           FIELD(U64, connections),
    FIELD(U64, buffers),       FIELD(U64, mappings),
    FIELD(U64, mapped_bytes),  FIELD(U64, allocated_bytes),
    FIELD(U64, host_bytes),    FIELD(U64, program_bytes),
    FIELD(U64, waiting_bytes), FIELD(U64, inflight),
    FIELD(U64, fds),           FIELD(U64, kernel_bytes),
    FIELD(U64, requests),      FIELD(U64, refused),
    FIELD(F64, device_us),     WIRE_NESTED(RECORD, MAP, "limits", limits, limit_record),
    FIELD(TEXT, identity),
};
static const struct wire_record user_record = WIRE_RECORD(RECORD, user_fields);
#undef RECORD

#define RECORD struct kops_conditions
static const struct wire_field condition_fields[] = {
    FIELD(TEXT, missing),
    FIELD(F64, clock_mhz),
    FIELD(F64, clock_max_mhz),
    FIELD(F64, memory_clock_mhz),
    FIELD(F64, memory_clock_max_mhz),
    FIELD(F64, temperature_c),
    FIELD(F64, power_w),
    FIELD(F64, power_limit_w),
    FIELD(F64, power_slowed_us),
    FIELD(F64, thermal_slowed_us),
    FIELD(TEXTS, reasons),
};
static const struct wire_record condition_record = WIRE_RECORD(RECORD, condition_fields);
#undef RECORD

#define RECORD struct kops_device_load
static const struct wire_field load_fields[] = {
    FIELD(UINT, index),      FIELD(TEXT, name),
    FIELD(TEXT, uuid),       FIELD(F64, busy_us),
    FIELD(U64, running),     FIELD(U64, memory_total),
    FIELD(U64, memory_free), WIRE_NESTED(RECORD, MAP, "conditions", conditions, condition_record),
};
static const struct wire_record load_record = WIRE_RECORD(RECORD, load_fields);
#undef RECORD

bool wire_decode_clients(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    static const struct wire_field fields[] = {
        WIRE_NESTED(struct kops_clients, LIST, "clients", clients, client_record),
        WIRE_NESTED(struct kops_clients, LIST, "users", users, user_record),
        WIRE_NESTED(struct kops_clients, LIST, "devices", devices, load_record),
        WIRE_FIELD(struct kops_clients, TEXT, "state", state),
        WIRE_FIELD(struct kops_clients, F64, "uptime_s", uptime_s),
    };
    static const struct wire_record record = WIRE_RECORD(struct kops_clients, fields);
    struct wire_clients *w = into;

    (void)fds;
    (void)nfds;
    return wire_read(&w->arena, result, &record, &w->clients);
}

bool wire_decode_conditions(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    static const struct wire_field fields[] = {
        WIRE_NESTED(struct wire_conditions, MAP, "conditions", conditions, condition_record)};
    static const struct wire_record record = WIRE_RECORD(struct wire_conditions, fields);
    struct wire_conditions *w = into;
    struct wire_conditions read;

    (void)fds;
    (void)nfds;
    if (!wire_read(&w->arena, result, &record, &read))
        return false;
    w->conditions = read.conditions;
    return true;
}

/* ---- metrics, drain ---- */

bool wire_decode_metrics(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    struct raw {
        const unsigned char *text;
    } raw;
    static const struct wire_field fields[] = {WIRE_NEEDED(struct raw, VALUE, "text", text)};
    static const struct wire_record record = WIRE_RECORD(struct raw, fields);
    struct codec_item item;
    char *copy;

    (void)fds;
    (void)nfds;
    if (!wire_read(NULL, result, &record, &raw) || codec_type_of(raw.text) != CODEC_STR)
        return false;
    codec_read(raw.text, &item);
    copy = malloc((size_t)item.count + 1);
    if (!copy)
        return false;
    memcpy(copy, item.text, item.count);
    copy[item.count] = 0;
    *(char **)into = copy;
    return true;
}

bool wire_decode_drain(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    static const struct wire_field fields[] = {
        WIRE_NEEDED(struct kops_drain_result, BOOL, "drained", drained),
        WIRE_FIELD(struct kops_drain_result, U64, "jobs", jobs),
        WIRE_FIELD(struct kops_drain_result, U64, "connections", connections),
    };
    static const struct wire_record record = WIRE_RECORD(struct kops_drain_result, fields);

    (void)fds;
    (void)nfds;
    return wire_read(NULL, result, &record, into);
}
