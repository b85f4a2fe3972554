/* Writes JSON on one line unless json_line() breaks it, to stdout unless it is diverted. Keys are NULL inside lists.
 * Numbers that were not measured (NAN) are left out of maps. */
#ifndef KOPS_CTL_JSON_H
#define KOPS_CTL_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* `bracket` is '{' or '['; json_end() takes the closing one, and ends the line when nothing is open any more. */
void json_begin(const char *key, char bracket);
void json_end(char bracket);

/* A map of what calls of the functions below write. */
#define JSON_MAP(key, ...) (json_begin(key, '{'), __VA_ARGS__, json_end('}'))

/* The next value begins a line. */
void json_line(void);

void json_text(const char *key, const char *value);
void json_uint(const char *key, uint64_t value);
void json_int(const char *key, int64_t value);
void json_number(const char *key, double value);
void json_micros(const char *key, uint64_t ns); /* in microseconds, with three decimals */
void json_bool(const char *key, bool value);

/* What follows goes to that stream, also in the midst of something; NULL: no longer. Does not nest. */
void json_divert(FILE *to);

/* Lists; `values` of texts is NULL-terminated. */
void json_ints(const char *key, const int64_t *values, size_t n);
void json_texts(const char *key, const char *const *values);

/* ---- structs, by tables of their members ---- */

enum json_kind { JSON_TEXT, JSON_UINT, JSON_UNSIGNED, JSON_INT, JSON_NUMBER, JSON_BOOL, JSON_TEXTS, JSON_STRUCT };

struct json_field {
    const char *key;
    enum json_kind kind;
    /* When a field is left out: texts that are NULL or "", and numbers of 0; negative numbers and UINT64_MAX. */
    enum { JSON_ALWAYS, JSON_NOT_EMPTY, JSON_KNOWN } when;
    size_t at;
    const struct json_field *fields; /* of a struct inside */
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

/* Members of an open map. */
void json_fields(const struct json_field *fields, const void *object);

/* A map. */
void json_object(const char *key, const struct json_field *fields, const void *object);

/* A list of maps; `list` is a NULL-terminated list of pointers to structs. */
void json_list(const char *key, const struct json_field *fields, const void *list);

/* A list of maps, whose members `write` writes. */
void json_each(const char *key, const void *list, void (*write)(const void *object));

#endif
