#include "table.h"

#include <err.h>
#include <math.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ---- */

/* Columns of a terminal: UTF-8 continuation bytes take none. */
static size_t width(const char *text)
{
    size_t n = 0;

    for (; *text; text++)
        n += (*text & 0xc0) != 0x80;
    return n;
}

void table_cell(struct table *t, const char *text)
{
    if (t->cells == t->room) {
        t->room = t->room ? t->room * 2 : 64;
        t->at = realloc(t->at, t->room * sizeof(*t->at));
        if (!t->at)
            err(1, "kopsctl");
    }
    snprintf(t->at[t->cells++], TABLE_CELL, "%s", text);
}

/* Cuts the text at its tabs. */
static void add_cells(struct table *t, char *text, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        char *cell = i + 1 < n ? strsep(&text, "\t") : text;

        table_cell(t, cell ? cell : "");
    }
}

void table_init(struct table *t, const char *titles)
{
    *t = (struct table){.columns = 0};
    for (const char *title = titles; title; title = strchr(title, '\t')) {
        title += *title == '\t';
        t->right[t->columns] = *title == '>';
        title += *title == '>';
        table_cell(t, text_format("%.*s", (int)strcspn(title, "\t"), title));
        t->columns++;
    }
}

void table_row(struct table *t, const char *format, ...)
{
    va_list args;
    char *row;

    va_start(args, format);
    if (vasprintf(&row, format, args) < 0)
        err(1, "kopsctl");
    va_end(args);
    add_cells(t, row, t->columns);
    free(row);
}

void table_write(struct table *t, FILE *to, size_t max_rows)
{
    const size_t cells = max_rows < t->cells / t->columns ? (max_rows + 1) * t->columns : t->cells;
    size_t widest[TABLE_MAX_COLUMNS] = {0};

    for (size_t i = 0; i < cells; i++)
        if (width(t->at[i]) > widest[i % t->columns])
            widest[i % t->columns] = width(t->at[i]);
    for (size_t i = 0; i < cells; i++) {
        const size_t column = i % t->columns;
        const int pad = (int)(widest[column] - width(t->at[i]));
        const bool last = column + 1 == t->columns;

        if (t->right[column])
            fprintf(to, "%*s%s", pad, "", t->at[i]);
        else
            fprintf(to, "%s%*s", t->at[i], last ? 0 : pad, "");
        fputs(last ? "\n" : "  ", to);
    }
    free(t->at);
}

void table_print(struct table *t)
{
    table_write(t, stdout, t->cells);
}

/* ---- texts ---- */

enum { TEXTS = 64 };

/* The next of the texts that the functions below return. */
static char *next_text(void)
{
    static char texts[TEXTS][TEXT_SIZE];
    static unsigned next;

    return texts[next++ % TEXTS];
}

const char *text_format(const char *format, ...)
{
    char *into = next_text();
    va_list args;

    va_start(args, format);
    vsnprintf(into, TEXT_SIZE, format, args);
    va_end(args);
    return into;
}

const char *text_clean(const char *text)
{
    char *into = next_text();
    size_t n = 0;

    for (; *text && n + 1 < TEXT_SIZE; text++)
        into[n++] = *text >= 0x20 && *text < 0x7f ? *text : '?'; /* bytes from 0x80 on can be commands, too */
    into[n] = 0;
    return into;
}

const char *text_list(const char *const *texts)
{
    char *into = next_text();
    size_t n = 0;

    *into = 0;
    for (; *texts && n < TEXT_SIZE; texts++)
        n += (size_t)snprintf(into + n, TEXT_SIZE - n, "%s%s", n ? " " : "", *texts);
    return into;
}

const char *text_bytes(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    unsigned unit = 0;

    for (; value >= 1000 && unit < 6; unit++)
        value /= 1024;
    return text_format("%.*f %s", !unit || value >= 99.95 ? 0 : value < 9.995 ? 2 : 1, value, units[unit]);
}

const char *text_rate(double per_s)
{
    static const char units[] = {0, 'k', 'M', 'G'};
    unsigned unit = 0;

    if (isnan(per_s))
        return "-";
    for (; per_s >= 999.5 && unit < 3; unit++)
        per_s /= 1000;
    return text_format("%.*f%.1s", per_s < 9.95 && per_s > 0, per_s, &units[unit]);
}

const char *text_us(double us)
{
    return isnan(us) ? "-" : text_format("%.*f", us < 10 ? 2 : us < 1000, us);
}

const char *text_gain(double usual_us, double us)
{
    return isnan(usual_us) || isnan(us) || us <= 0 ? "-" : text_format("%.2fx", usual_us / us);
}

const char *text_percent(double share)
{
    return isnan(share) ? "-" : text_format("%.*f %%", share > 0 && share < 0.0995, share * 100);
}

const char *text_duration(double seconds)
{
    const unsigned long long s = seconds > 0 ? (unsigned long long)seconds : 0;

    if (s < 60)
        return text_format("%llu s", s);
    if (s < 3600)
        return text_format("%llu min %llu s", s / 60, s % 60);
    if (s < 86400)
        return text_format("%llu h %llu min", s / 3600, s / 60 % 60);
    return text_format("%llu d %llu h", s / 86400, s / 3600 % 24);
}

const char *text_shape(const int64_t *shape, unsigned rank)
{
    char *into = next_text();
    size_t n = 0;

    snprintf(into, TEXT_SIZE, "scalar");
    for (unsigned d = 0; d < rank && n < TEXT_SIZE; d++)
        n += (size_t)snprintf(into + n, TEXT_SIZE - n, "%s%lld", d ? "x" : "", (long long)shape[d]);
    return into;
}

const char *text_owner(int64_t uid, const char *identity)
{
    const struct passwd *user = uid >= 0 && !*identity ? getpwuid((uid_t)uid) : NULL;

    if (*identity)
        return text_format("[%.79s]", text_clean(identity));
    return user ? text_clean(user->pw_name) : text_format("%lld", (long long)uid);
}
