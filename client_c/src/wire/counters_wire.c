#include "counters_wire.h"

#include <math.h>

#include "wire_read.h"

/* The reply's maps of figures. */
struct figures {
    const unsigned char *values, *stalls, *launch;
};

static bool read_sizes(struct arena *a, const unsigned char *value, void *into)
{
    const uint32_t n = wire_elements(value, &value);
    uint64_t *sizes = into;

    (void)a;
    for (uint32_t i = 0; i < n && i < 3; i++, value = codec_skip(value))
        if (!wire_get_uint(value, &sizes[i]))
            return false;
    return true;
}

#define RECORD struct kops_counter_launch
static const struct wire_field launch_fields[] = {
    WIRE_READ(RECORD, "grid", grid, read_sizes),
    WIRE_READ(RECORD, "block", block, read_sizes),
    WIRE_FIELD(RECORD, U64, "registers", registers),
    WIRE_FIELD(RECORD, U64, "static_shared", static_shared),
    WIRE_FIELD(RECORD, U64, "dynamic_shared", dynamic_shared),
    WIRE_FIELD(RECORD, U64, "local_bytes", local_bytes),
    WIRE_FIELD(RECORD, F64, "occupancy_pct", occupancy_pct),
    WIRE_FIELD(RECORD, TEXT, "limiter", limiter),
};
static const struct wire_record launch_record = WIRE_RECORD(RECORD, launch_fields);
#undef RECORD

#define RECORD struct kops_counters
static const struct wire_field counters_fields[] = {
    WIRE_NEEDED(RECORD, TEXT, "verdict", verdict), WIRE_FIELD(RECORD, TEXT, "why", why),
    WIRE_FIELD(RECORD, TEXT, "kernel", kernel),    WIRE_FIELD(RECORD, TEXT, "device", device),
    WIRE_FIELD(RECORD, TEXT, "variant", variant),  WIRE_FIELD(RECORD, U64, "kernels", kernels),
    WIRE_FIELD(RECORD, U64, "passes", passes),     WIRE_FIELD(RECORD, U64, "copied_bytes", copied_bytes),
    WIRE_FIELD(RECORD, ID, "others", others),
};
static const struct wire_record counters_record = WIRE_RECORD(RECORD, counters_fields);
#undef RECORD

#define RECORD struct figures
static const struct wire_field figures_fields[] = {
    WIRE_FIELD(RECORD, VALUE, "values", values),
    WIRE_FIELD(RECORD, VALUE, "stalls", stalls),
    WIRE_FIELD(RECORD, VALUE, "launch", launch),
};
static const struct wire_record figures_record = WIRE_RECORD(RECORD, figures_fields);
#undef RECORD

/* NULL: no memory. */
static struct kops_figure *read_figures(struct arena *a, const unsigned char *map, size_t *ret_n)
{
    const unsigned char *at;
    const uint32_t n = wire_pairs(map, &at);
    struct kops_figure *figures = arena_new(a, ((size_t)n + 1) * sizeof(*figures));

    for (uint32_t i = 0; figures && i < n; i++) {
        const unsigned char *value = codec_skip(at);

        figures[i].name = wire_get_text(a, at);
        figures[i].value = NAN;
        if (!figures[i].name)
            return NULL;
        wire_get_number(value, &figures[i].value);
        at = codec_skip(value);
    }
    *ret_n = n;
    return figures;
}

bool wire_decode_counters(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    struct wire_counters *w = into;
    struct kops_counters *c = &w->counters;
    struct figures figures;

    (void)fds;
    (void)nfds;
    if (!wire_read(&w->arena, result, &counters_record, c) || !wire_read(&w->arena, result, &figures_record, &figures))
        return false;
    c->values = read_figures(&w->arena, figures.values, &c->n_values);
    c->stalls = read_figures(&w->arena, figures.stalls, &c->n_stalls);
    c->has_launch = figures.launch != NULL;
    return c->values && c->stalls && wire_read(&w->arena, figures.launch, &launch_record, &c->launch);
}
