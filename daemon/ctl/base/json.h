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

/* Lists; that of texts is NULL-terminated. */
void json_ints(const char *key, const int64_t *values, size_t n);
void json_texts(const char *key, const char *const *values);

#endif
