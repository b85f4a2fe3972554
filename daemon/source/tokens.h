/* A CUDA source cut into tokens, just well enough to find where declarations begin and end: comments, literals, joined
 * lines and directives are understood, macros are not expanded. Pure functions; any thread. */
#ifndef KOPS_SOURCE_TOKENS_H
#define KOPS_SOURCE_TOKENS_H

#include <stdbool.h>
#include <stddef.h>

enum { TOKENS_CONDITIONS_MAX = 64 /* conditionals in each other that are followed */ };

enum token_kind {
    TOKEN_NAME,    /* identifiers and keywords */
    TOKEN_LITERAL, /* numbers, characters */
    TOKEN_STRING,
    TOKEN_MARK, /* a character of punctuation */
    TOKEN_DEFINE,
    TOKEN_IF,   /* #if, #ifdef, #ifndef */
    TOKEN_ELSE, /* #else, #elif, … */
    TOKEN_ENDIF,
    TOKEN_PRAGMA,
    TOKEN_DIRECTIVE, /* another one */
};

struct token {
    size_t start, length;
    enum token_kind kind;
};

struct tokens {
    const char *text; /* borrowed */
    struct token *list;
    size_t n, capacity;
};

/* Cuts a text, which stays the caller's. Returns 0, or -1 without memory; the caller frees ret->list. */
int tokens_cut(struct tokens *ret, const char *text, size_t length);

/* Bytes of the byte order mark that a text begins with: 3, or 0 without one. */
size_t tokens_mark_length(const char *text, size_t length);

bool token_is_directive(const struct token *t);

/* Tell whether token i is that word, one of a list that ends with NULL, or that character. False behind the end. */
bool token_is(const struct tokens *t, size_t i, const char *word);
bool token_is_one_of(const struct tokens *t, size_t i, const char *const *words);
bool token_is_mark(const struct tokens *t, size_t i, char mark);

/* Returns the index behind the bracket that closes the one at i. Of a conditional's branches the last counts. */
size_t tokens_skip_group(const struct tokens *t, size_t i);

/* Tells whether the characters at i and i + 1 are these two, side by side. */
bool tokens_are_pair(const struct tokens *t, size_t i, char first, char second);

/* Returns the index behind the '>' that closes the '<' at i; `end` without one. */
size_t tokens_skip_angles(const struct tokens *t, size_t i, size_t end);

#endif
