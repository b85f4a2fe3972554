#include "conditions.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"

/* Appends ", memory 1980 -> 1590 of 1980 MHz"; nothing where nothing is known. */
static void add_number(char *into, size_t size, const char *name, double before, double after, double most,
                       const char *unit)
{
    size_t n = strlen(into);

    if (isnan(after) || n >= size)
        return;
    n += (size_t)snprintf(into + n, size - n, "%s%s", n ? ", " : "", name);
    if (!isnan(before) && round(before) != round(after) && n < size)
        n += (size_t)snprintf(into + n, size - n, "%.0f -> ", before);
    if (n < size)
        n += (size_t)snprintf(into + n, size - n, "%.0f", after);
    if (!isnan(most) && n < size)
        n += (size_t)snprintf(into + n, size - n, " of %.0f", most);
    if (n < size)
        snprintf(into + n, size - n, " %s", unit);
}

static bool has_reason(const struct kops_conditions *c, const char *word)
{
    for (const char *const *reason = c->reasons; *reason; reason++)
        if (strcmp(*reason, word) == 0)
            return true;
    return false;
}

/* Times are longer than they need be for these; the rest of the words says something harmless. */
static void add_warning(char *into, size_t size, const struct kops_conditions *before,
                        const struct kops_conditions *after)
{
    static const char *const slowing[] = {"power_cap", "hw_slowdown", "thermal", "hw_thermal", "power_brake"};
    const bool power = after->power_slowed_us > before->power_slowed_us;
    const bool heat = after->thermal_slowed_us > before->thermal_slowed_us;
    bool any = false;

    for (size_t i = 0; i < sizeof(slowing) / sizeof(slowing[0]); i++) {
        const size_t n = strlen(into);
        const bool between = (power && strcmp(slowing[i], "power_cap") == 0) ||
                             (heat && strcmp(slowing[i], "thermal") == 0 && !has_reason(after, "hw_thermal"));

        if ((!between && !has_reason(before, slowing[i]) && !has_reason(after, slowing[i])) || n >= size)
            continue;
        snprintf(into + n, size - n, "%s%s", any ? ", " : "; WARNING: the clocks were kept down by ", slowing[i]);
        any = true;
    }
}

const char *conditions_text(const struct kops_conditions *before, const struct kops_conditions *after, char *into,
                            size_t size)
{
    char why[160];

    *into = 0;
    if (*after->missing) {
        snprintf(into, size, "clocks and temperature are not known: %s", text_clean(after->missing, why, sizeof(why)));
        return into;
    }
    add_number(into, size, "", before->clock_mhz, after->clock_mhz, after->clock_max_mhz, "MHz");
    add_number(into, size, "memory ", before->memory_clock_mhz, after->memory_clock_mhz, after->memory_clock_max_mhz,
               "MHz");
    add_number(into, size, "", before->temperature_c, after->temperature_c, (double)NAN, "C");
    add_number(into, size, "", before->power_w, after->power_w, after->power_limit_w, "W");
    add_warning(into, size, before, after);
    return into;
}

void conditions_json(const char *key, const struct kops_conditions *c)
{
    json_begin(key, '{');
    if (*c->missing) {
        json_text("missing", c->missing);
    } else {
        json_number("clock_mhz", c->clock_mhz);
        json_number("clock_max_mhz", c->clock_max_mhz);
        json_number("memory_clock_mhz", c->memory_clock_mhz);
        json_number("memory_clock_max_mhz", c->memory_clock_max_mhz);
        json_number("temperature_c", c->temperature_c);
        json_number("power_w", c->power_w);
        json_number("power_limit_w", c->power_limit_w);
        json_number("power_slowed_us", c->power_slowed_us);
        json_number("thermal_slowed_us", c->thermal_slowed_us);
        json_texts("reasons", c->reasons);
    }
    json_end('}');
}

/* ---- around a measurement ---- */

void conditions_read(kops_client *client, const char *device, struct kops_conditions **ret)
{
    struct kops_error ignored; /* what cannot be read costs no measurement */

    if (kops_conditions(client, device, ret, &ignored))
        *ret = NULL;
}

void conditions_pair_print(const struct conditions_pair *pair)
{
    char line[400];

    if (pair->before && pair->after)
        printf("%s\n", conditions_text(pair->before, pair->after, line, sizeof(line)));
}

void conditions_pair_json(const struct conditions_pair *pair)
{
    if (!pair->before || !pair->after)
        return;
    json_begin("conditions", '{');
    conditions_json("before", pair->before);
    conditions_json("after", pair->after);
    json_end('}');
}

void conditions_pair_free(struct conditions_pair *pair)
{
    pair->before = kops_conditions_free(pair->before);
    pair->after = kops_conditions_free(pair->after);
}
