/* What commands print: JSON, tables, and the texts of numbers and other values. */
#ifndef KOPS_CTL_OUTPUT_H
#define KOPS_CTL_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- JSON, on one line unless json_line() breaks it, to stdout unless it is diverted. Keys are NULL inside lists.
 * Numbers that were not measured (NAN) are left out of maps. ---- */

/* Begins a map or list: `bracket` is '{' or '['. json_end() takes the closing one, and ends the line when nothing is
 * open any more. */
void json_begin(const char *key, char bracket);
void json_end(char bracket);

/* Writes a map with the members that the calls in the arguments write. */
#define JSON_MAP(key, ...) (json_begin(key, '{'), __VA_ARGS__, json_end('}'))

/* Begins a line before the next value. */
void json_line(void);

void json_text(const char *key, const char *value);
void json_uint(const char *key, uint64_t value);
void json_int(const char *key, int64_t value);
void json_number(const char *key, double value);
void json_micros(const char *key, uint64_t ns); /* in microseconds, with three decimals */
void json_bool(const char *key, bool value);

/* Sends the output from now on to that stream, also in the midst of a value; NULL: to the first one again. Does not
 * nest. */
void json_divert(FILE *to);

/* Write lists; `values` of texts is NULL-terminated. */
void json_ints(const char *key, const int64_t *values, size_t n);
void json_texts(const char *key, const char *const *values);

/* ---- structs, by tables of their members ---- */

enum json_kind { JSON_TEXT, JSON_UINT, JSON_UNSIGNED, JSON_INT, JSON_NUMBER, JSON_BOOL, JSON_TEXTS, JSON_STRUCT };

struct json_field {
    const char *key;
    enum json_kind kind;
    /* Condition under which a field is left out. JSON_NOT_EMPTY: NULL, "" and 0. JSON_KNOWN: negative numbers and
     * UINT64_MAX. */
    enum { JSON_ALWAYS, JSON_NOT_EMPTY, JSON_KNOWN } when;
    size_t at;
    const struct json_field *fields; /* members of a struct inside */
};

/* Rows of a table, which ends with JSON_END. The kind is the member's type. */
#define JSON_FIELD_AS(key, type, member, when)                                                                           \
    {                                                                                                                    \
        key,                                                                                                           \
        _Generic(((type *)0)->member,                                                                                  \
            const char *: JSON_TEXT,                                                                                   \
            uint64_t: JSON_UINT,                                                                                       \
            unsigned: JSON_UNSIGNED,                                                                                   \
            int64_t: JSON_INT,                                                                                         \
            double: JSON_NUMBER,                                                                                       \
            bool: JSON_BOOL,                                                                                           \
            const char *const *: JSON_TEXTS),                                                                          \
        when, offsetof(type, member), NULL \
    }
#define JSON_FIELD(type, member)    JSON_FIELD_AS(#member, type, member, JSON_ALWAYS)
#define JSON_SOME(type, member)     JSON_FIELD_AS(#member, type, member, JSON_NOT_EMPTY)
#define JSON_IF_KNOWN(type, member) JSON_FIELD_AS(#member, type, member, JSON_KNOWN)
#define JSON_INSIDE(type, member, fields)                                                                              \
    {                                                                                                                  \
#member, JSON_STRUCT, JSON_ALWAYS, offsetof(type, member), fields                                              \
    }

#define JSON_END                                                                                                       \
    {                                                                                                                  \
        NULL                                                                                                           \
    }

/* Writes members of an open map. */
void json_fields(const struct json_field *fields, const void *object);

void json_object(const char *key, const struct json_field *fields, const void *object);

/* Writes a list of maps; `list` is a NULL-terminated list of pointers to structs. */
void json_list(const char *key, const struct json_field *fields, const void *list);

/* Writes a list of maps, whose members `write` writes. */
void json_each(const char *key, const void *list, void (*write)(const void *object));

/* ---- tables, whose columns are as wide as their widest cell ---- */

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
