/* Tables whose columns are as wide as their widest cell, and the texts of numbers and other values in them. */
#ifndef KOPS_CTL_TABLE_H
#define KOPS_CTL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { TABLE_MAX_COLUMNS = 20, TABLE_CELL = 96, TEXT_SIZE = 256 };

struct table {
    unsigned columns;
    bool right[TABLE_MAX_COLUMNS];
    size_t cells, room;
    char (*at)[TABLE_CELL];
};

/* Begins a table with these titles, separated by tabs; a column whose title begins with '>' is aligned to the right. */
void table_init(struct table *t, const char *titles);

/* Adds a row of cells, separated by tabs; each is cut to fit. */
void table_row(struct table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds a single cell, row by row. */
void table_cell(struct table *t, const char *text);

/* Prints at most `max_rows` rows after the titles, and frees the table. */
void table_write(struct table *t, FILE *to, size_t max_rows);

/* Prints all rows to stdout, and frees the table. */
void table_print(struct table *t);

/* ---- texts: each is valid until some dozens more were made, and cut to fit TEXT_SIZE ---- */

const char *text_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A text that a client chose, cut to fit: bytes that a terminal could take for a command become `?`. */
const char *text_clean(const char *text);

/* A NULL-terminated list, with spaces between its texts. */
const char *text_list(const char *const *texts);

/* A number of bytes with three digits and a unit: "1.50 GiB". */
const char *text_bytes(uint64_t bytes);

/* "950", "1.2k", "3.4M", for rates; "-" for NAN. */
const char *text_rate(double per_s);

/* Microseconds, with three digits or all before the point; "-" for NAN. */
const char *text_us(double us);

/* "1.21x", how many times faster `us` is than `usual_us`; "-" where one is NAN. */
const char *text_gain(double usual_us, double us);

/* "25 %", "2.5 %" of a share of 1; "-" for NAN. */
const char *text_percent(double share);

/* "42 s", "3 min 10 s", "2 h 5 min", "3 d 4 h". */
const char *text_duration(double seconds);

/* "640x640"; "scalar" for no dimensions. */
const char *text_shape(const int64_t *shape, unsigned rank);

/* "[NAME]" of an identity; where that is "", the user's name, or the number where there is none. */
const char *text_owner(int64_t uid, const char *identity);

#endif
