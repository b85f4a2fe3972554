#include "conditions.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"

/* tests/vectors/conditions.json holds the line to that of the Python client (kops/_base/conditions.py). */

#define SAME 0.02 /* clocks that differ by less are the same */

/* The line that is written; what has no room is cut. */
struct line {
    char *text;
    size_t n, size;
};

static void add(struct line *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct line *l, const char *format, ...)
{
    va_list list;
    int length;

    va_start(list, format);
    length = vsnprintf(l->text + l->n, l->size - l->n, format, list);
    va_end(list);
    if (length > 0)
        l->n = (size_t)length < l->size - l->n ? l->n + (size_t)length : l->size - 1;
}

/* Appends ", memory 1980 -> 1590 of 1980 MHz"; nothing where nothing is known. */
static void add_number(struct line *l, const char *name, double before, double after, double most, const char *unit)
{
    char from[32], to[32];

    if (isnan(before) && isnan(after))
        return;
    snprintf(from, sizeof(from), "%.0f", isnan(before) ? after : before);
    snprintf(to, sizeof(to), "%.0f", isnan(after) ? before : after);
    add(l, "%s%s", l->n ? ", " : "", name);
    if (strcmp(from, to) != 0)
        add(l, "%s -> ", from);
    add(l, "%s", to);
    if (!isnan(most))
        add(l, " of %.0f", most);
    add(l, " %s", unit);
}

static bool has_reason(const struct kops_conditions *c, const char *word)
{
    for (const char *const *reason = c->reasons; *reason; reason++)
        if (strcmp(*reason, word) == 0)
            return true;
    return false;
}

static bool differs(double before, double after)
{
    return !isnan(before) && !isnan(after) && fabs(after - before) > SAME * fmax(before, after);
}

static bool fell(double before, double after)
{
    return differs(before, after) && after < before;
}

/* How long the clocks were kept down between the readings; 0 where it is not known. */
static double slowed_us(double before, double after)
{
    return isnan(before) || isnan(after) || after < before ? 0 : after - before;
}

/* Times are longer than they need be for these reasons; the other words say something harmless. */
static bool add_reasons(struct line *l, const struct kops_conditions *before, const struct kops_conditions *after)
{
    static const char *const slowing[] = {"power_cap", "hw_slowdown", "thermal", "hw_thermal", "power_brake"};
    const double power = slowed_us(before->power_slowed_us, after->power_slowed_us);
    const double heat = slowed_us(before->thermal_slowed_us, after->thermal_slowed_us);
    const bool known_heat = has_reason(before, "hw_thermal") || has_reason(after, "hw_thermal");
    bool any = false;

    for (size_t i = 0; i < sizeof(slowing) / sizeof(slowing[0]); i++) {
        const bool between = (power > 0 && strcmp(slowing[i], "power_cap") == 0) ||
                             (heat > 0 && strcmp(slowing[i], "thermal") == 0 && !known_heat);

        if (!between && !has_reason(before, slowing[i]) && !has_reason(after, slowing[i]))
            continue;
        add(l, "%s%s", any ? ", " : "; WARNING: the clocks were kept down by ", slowing[i]);
        any = true;
    }
    if (any && power + heat > 0)
        add(l, " (for %.1f ms)", (power + heat) / 1e3);
    return any;
}

static void add_warning(struct line *l, const struct kops_conditions *before, const struct kops_conditions *after)
{
    if (add_reasons(l, before, after))
        return;
    if (fell(before->clock_mhz, after->clock_mhz) || fell(before->memory_clock_mhz, after->memory_clock_mhz))
        add(l, "; WARNING: the clocks fell while it was measured");
    else if (differs(before->clock_mhz, after->clock_mhz) || differs(before->memory_clock_mhz, after->memory_clock_mhz))
        add(l, "; WARNING: the clocks rose while it was measured: more warmup makes the times alike");
}

const char *conditions_text(const struct kops_conditions *before, const struct kops_conditions *after, char *into,
                            size_t size)
{
    struct line l = {.text = into, .size = size};
    char why[160];

    *into = 0;
    if (*after->missing) {
        add(&l, "clocks and temperature are not known: %s", text_clean(after->missing, why, sizeof(why)));
        return into;
    }
    add_number(&l, "", before->clock_mhz, after->clock_mhz, after->clock_max_mhz, "MHz");
    add_number(&l, "memory ", before->memory_clock_mhz, after->memory_clock_mhz, after->memory_clock_max_mhz, "MHz");
    add_number(&l, "", before->temperature_c, after->temperature_c, (double)NAN, "C");
    add_number(&l, "", before->power_w, after->power_w, after->power_limit_w, "W");
    add_warning(&l, before, after);
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
