#include "server/observe/metrics_text.h"

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

/* Whether a label's value needs `c` replaced or escaped. True for the terminating zero, too. */
static bool has_to_go(char c)
{
    return c == '\\' || c == '"' || (unsigned char)c < 0x20 || c == 0x7f;
}

void metrics_label(struct metrics_text *t, const char *name, const char *value)
{
    put(t, t->labelled ? "," : "{");
    t->labelled = true;
    put(t, name);
    put(t, "=\"");
    while (*value) {
        size_t n = 0;

        while (!has_to_go(value[n]))
            n++;
        buffer_append(&t->bytes, value, n);
        value += n;
        if (*value)
            put(t, *value == '\\' ? "\\\\" : *value == '"' ? "\\\"" : *value == '\n' ? "\\n" : "?");
        value += *value != '\0';
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

    /* the shortest text that reads back as the same number */
    snprintf(text, sizeof(text), "%.15g", value);
    if (strtod(text, NULL) != value)
        snprintf(text, sizeof(text), "%.17g", value);
    end(t, text);
}
