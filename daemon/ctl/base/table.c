#include "table.h"

#include <err.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

/* Columns that a terminal shows: UTF-8 continuation bytes take none. */
static size_t width(const char *text)
{
    size_t n = 0;

    for (; *text; text++)
        n += (*text & 0xc0) != 0x80;
    return n;
}

static char *next_cell(struct table *t)
{
    if (t->rows == t->room) {
        t->room = t->room ? t->room * 2 : 64;
        t->cells = realloc(t->cells, t->room * sizeof(*t->cells));
        if (!t->cells)
            err(1, "kopsctl");
    }
    return t->cells[t->rows++];
}

void table_init(struct table *t, const char *align, const char *const *titles)
{
    memset(t, 0, sizeof(*t));
    t->align = align;
    t->columns = (unsigned)strlen(align);
    for (unsigned i = 0; i < t->columns; i++)
        snprintf(next_cell(t), TABLE_CELL, "%s", titles[i]);
}

void table_cell(struct table *t, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(next_cell(t), TABLE_CELL, format, args);
    va_end(args);
}

void table_us(struct table *t, double us)
{
    text_us(us, next_cell(t), TABLE_CELL);
}

void table_write(struct table *t, FILE *to, size_t max_rows)
{
    const size_t cells = max_rows < t->rows / t->columns ? (max_rows + 1) * t->columns : t->rows;
    size_t widest[TABLE_MAX_COLUMNS] = {0};

    for (size_t i = 0; i < cells; i++)
        if (width(t->cells[i]) > widest[i % t->columns])
            widest[i % t->columns] = width(t->cells[i]);
    for (size_t i = 0; i < cells; i++) {
        size_t column = i % t->columns;
        int pad = (int)(widest[column] - width(t->cells[i]));
        bool last = column + 1 == t->columns;

        if (t->align[column] == 'r')
            fprintf(to, "%*s%s", pad, "", t->cells[i]);
        else
            fprintf(to, "%s%*s", t->cells[i], last ? 0 : pad, "");
        fputs(last ? "\n" : "  ", to);
    }
    free(t->cells);
}

void table_print(struct table *t)
{
    table_write(t, stdout, t->rows);
}
