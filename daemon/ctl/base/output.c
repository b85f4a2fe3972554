#include "output.h"

#include <err.h>
#include <inttypes.h>
#include <math.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON ---- */

/* A stream, and the lists and maps that are open on it. */
struct json {
    FILE *file; /* NULL: stdout */
    bool comma, line;
    unsigned depth;
};

static struct json json, diverted;

static FILE *out(void)
{
    return json.file ? json.file : stdout;
}

void json_divert(FILE *to)
{
    if (to) {
        diverted = json;
        json = (struct json){.file = to};
    } else {
        json = diverted;
    }
}

/* Bytes of the UTF-8 character there; 0: there is none. */
static unsigned utf8_length(const unsigned char *c)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned n = *c < 0x80 ? 1 : *c >> 5 == 6 ? 2 : *c >> 4 == 14 ? 3 : *c >> 3 == 30 ? 4 : 0;
    uint32_t code = n > 1 ? *c & (0x7fU >> n) : *c;

    for (unsigned i = 1; i < n; i++) {
        if ((c[i] & 0xc0) != 0x80) /* also at the end */
            return 0;
        code = code << 6 | (c[i] & 0x3f);
    }
    return n && (n == 1 || code >= smallest[n]) && code < 0x110000 && code >> 11 != 0x1b ? n : 0;
}

/* How many characters from there on stand for themselves. */
static size_t plain_length(const unsigned char *c)
{
    size_t n = 0;

    while (c[n] >= 0x20 && c[n] < 0x7f && c[n] != '"' && c[n] != '\\')
        n++;
    return n;
}

/* Bytes that are no UTF-8 become the replacement character: clients choose some of the texts. Characters that have a
 * letter are not written as numbers: Perfetto shows the numbers. */
static void put_text(const char *text)
{
    static const char letters[0x20] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    const unsigned char *c = (const unsigned char *)text;

    putc('"', out());
    while (*c) {
        size_t n = plain_length(c);

        n = n ? n : utf8_length(c);
        if (*c == '"' || *c == '\\')
            fprintf(out(), "\\%c", *c);
        else if (*c < 0x20 && letters[*c])
            fprintf(out(), "\\%c", letters[*c]);
        else if (*c < 0x20 || *c == 0x7f)
            fprintf(out(), "\\u%04x", *c);
        else if (n)
            fwrite(c, 1, n, out());
        else
            fputs("\xef\xbf\xbd", out());
        c += n ? n : 1;
    }
    putc('"', out());
}

static void begin_value(const char *key)
{
    if (json.comma)
        fputs(json.line ? ",\n" : ", ", out());
    else if (json.line)
        putc('\n', out());
    json.comma = true;
    json.line = false;
    if (key) {
        put_text(key);
        fputs(": ", out());
    }
}

void json_begin(const char *key, char bracket)
{
    begin_value(key);
    putc(bracket, out());
    json.comma = false;
    json.depth++;
}

void json_end(char bracket)
{
    putc(bracket, out());
    json.comma = true;
    if (--json.depth == 0) {
        putc('\n', out());
        json.comma = false;
    }
}

void json_line(void)
{
    json.line = true;
}

void json_text(const char *key, const char *value)
{
    begin_value(key);
    put_text(value);
}

void json_uint(const char *key, uint64_t value)
{
    begin_value(key);
    fprintf(out(), "%" PRIu64, value);
}

void json_int(const char *key, int64_t value)
{
    begin_value(key);
    fprintf(out(), "%" PRId64, value);
}

void json_number(const char *key, double value)
{
    if (key && !isfinite(value))
        return;
    begin_value(key);
    if (isfinite(value))
        fprintf(out(), "%.15g", value);
    else
        fputs("null", out());
}

void json_micros(const char *key, uint64_t ns)
{
    begin_value(key);
    fprintf(out(), "%" PRIu64 ".%03u", ns / 1000, (unsigned)(ns % 1000));
}

void json_bool(const char *key, bool value)
{
    begin_value(key);
    fputs(value ? "true" : "false", out());
}

void json_ints(const char *key, const int64_t *values, size_t n)
{
    json_begin(key, '[');
    for (size_t i = 0; i < n; i++)
        json_int(NULL, values[i]);
    json_end(']');
}

void json_texts(const char *key, const char *const *values)
{
    json_begin(key, '[');
    for (; *values; values++)
        json_text(NULL, *values);
    json_end(']');
}

static void field(const struct json_field *f, const void *object)
{
    const void *at = (const char *)object + f->at;
    const char *const *text = at, *const *const *texts = at;
    const unsigned *small = at;
    const uint64_t *number = at;
    const int64_t *integer = at;
    const double *real = at;
    const bool *boolean = at, always = f->when == JSON_ALWAYS, known = f->when == JSON_KNOWN;

    if (f->kind == JSON_TEXT && (always || (*text && **text)))
        json_text(f->key, *text);
    else if (f->kind == JSON_TEXTS && (always || *texts))
        json_texts(f->key, *texts);
    else if (f->kind == JSON_UNSIGNED)
        json_uint(f->key, *small);
    else if (f->kind == JSON_UINT && (always || *number != (known ? UINT64_MAX : 0)))
        json_uint(f->key, *number);
    else if (f->kind == JSON_INT && (always || (known ? *integer >= 0 : *integer != 0)))
        json_int(f->key, *integer);
    else if (f->kind == JSON_NUMBER)
        json_number(f->key, *real);
    else if (f->kind == JSON_BOOL)
        json_bool(f->key, *boolean);
    else if (f->kind == JSON_STRUCT)
        json_object(f->key, f->fields, at);
}

void json_fields(const struct json_field *fields, const void *object)
{
    for (; fields->key; fields++)
        field(fields, object);
}

void json_object(const char *key, const struct json_field *fields, const void *object)
{
    json_begin(key, '{');
    json_fields(fields, object);
    json_end('}');
}

void json_list(const char *key, const struct json_field *fields, const void *list)
{
    json_begin(key, '[');
    for (const void *const *object = list; *object; object++)
        json_object(NULL, fields, *object);
    json_end(']');
}

void json_each(const char *key, const void *list, void (*write)(const void *object))
{
    json_begin(key, '[');
    for (const void *const *object = list; *object; object++)
        JSON_MAP(NULL, write(*object));
    json_end(']');
}

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
