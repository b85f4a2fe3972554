#include "server/metrics_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *type, *help;
} table[METRIC_COUNT] = {
#define X(id, name, type, help) [METRIC_##id] = {name, type, help},
    KOPS_METRICS(X)
#undef X
};

static void put(struct metrics_text *t, const char *text)
{
    buffer_append(&t->bytes, text, strlen(text));
}

void metrics_head(struct metrics_text *t, enum metric metric)
{
    put(t, "# HELP ");
    put(t, table[metric].name);
    put(t, " ");
    put(t, table[metric].help);
    put(t, "\n# TYPE ");
    put(t, table[metric].name);
    put(t, " ");
    put(t, table[metric].type);
    put(t, "\n");
}

void metrics_sample(struct metrics_text *t, enum metric metric, const char *suffix)
{
    t->labelled = false;
    put(t, table[metric].name);
    put(t, suffix);
}

void metrics_label(struct metrics_text *t, const char *name, const char *value)
{
    put(t, t->labelled ? "," : "{");
    t->labelled = true;
    put(t, name);
    put(t, "=\"");
    for (; *value; value++) {
        const char one[2] = {*value, '\0'};
        const unsigned char c = (unsigned char)*value;

        put(t, c == '\\' ? "\\\\" : c == '"' ? "\\\"" : c == '\n' ? "\\n" : c < 0x20 || c == 0x7f ? "?" : one);
    }
    put(t, "\"");
}

void metrics_label_uint(struct metrics_text *t, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    metrics_label(t, name, text);
}

static void end(struct metrics_text *t, const char *value)
{
    put(t, t->labelled ? "} " : " ");
    put(t, value);
    put(t, "\n");
}

void metrics_uint(struct metrics_text *t, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    end(t, text);
}

void metrics_double(struct metrics_text *t, double value)
{
    char text[32];

    /* The shortest that is read back as the same number. */
    snprintf(text, sizeof(text), "%.15g", value);
    if (strtod(text, NULL) != value)
        snprintf(text, sizeof(text), "%.17g", value);
    end(t, text);
}
