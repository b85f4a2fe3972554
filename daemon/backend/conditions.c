#include "backend/conditions.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

const char *const condition_reason_names[CONDITION_REASON_COUNT] = {
#define X(NAME, word) [CONDITION_##NAME] = (word),
    CONDITION_REASONS(X)
#undef X
};

void conditions_clear(struct backend_conditions *c)
{
    *c = (struct backend_conditions){.clock_mhz = NAN,
                                     .clock_max_mhz = NAN,
                                     .memory_clock_mhz = NAN,
                                     .memory_clock_max_mhz = NAN,
                                     .temperature_c = NAN,
                                     .power_w = NAN,
                                     .power_limit_w = NAN,
                                     .power_slowed_us = NAN,
                                     .thermal_slowed_us = NAN};
}

void conditions_miss(struct backend_conditions *c, const char *why, ...)
{
    va_list arguments;

    conditions_clear(c);
    va_start(arguments, why);
    vsnprintf(c->missing, sizeof(c->missing), why, arguments);
    va_end(arguments);
}
