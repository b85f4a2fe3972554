/* Columns that are as wide as their widest cell. */
#ifndef KOPS_CTL_TABLE_H
#define KOPS_CTL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { TABLE_MAX_COLUMNS = 20, TABLE_CELL = 96 };

struct table {
    unsigned columns;
    const char *align; /* one character a column: 'l' or 'r' */
    size_t rows, room;
    char (*cells)[TABLE_CELL];
};

/* `titles` has one text a column of `align`. */
void table_init(struct table *t, const char *align, const char *const *titles);

/* The next cell, row by row; cut to fit. */
void table_cell(struct table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A number of microseconds, "-" for NAN. */
void table_us(struct table *t, double us);

/* Prints at most so many rows, besides the titles, and frees. */
void table_write(struct table *t, FILE *to, size_t max_rows);

/* All of it to stdout. */
void table_print(struct table *t);

#endif
