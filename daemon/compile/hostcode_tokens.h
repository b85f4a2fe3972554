/* Cuts a C++ source into tokens, just well enough to find where declarations begin and end. Any thread. */
#ifndef KOPS_COMPILE_HOSTCODE_TOKENS_H
#define KOPS_COMPILE_HOSTCODE_TOKENS_H

#include <stdbool.h>
#include <stddef.h>

enum token_kind {
    TOKEN_NAME,    /* identifiers and keywords */
    TOKEN_LITERAL, /* numbers, characters */
    TOKEN_STRING,
    TOKEN_MARK, /* one character of punctuation */
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

/* Returns 0, or -1 without memory. Comments and blanks are no tokens; a directive is one token with all its lines. */
int tokens_cut(struct tokens *ret, const char *text, size_t length);
void tokens_free(struct tokens *t);

bool token_is(const struct tokens *t, size_t i, const char *word);
bool token_is_mark(const struct tokens *t, size_t i, char mark);

/* i is at an opening bracket; returns the index behind its partner. Of a conditional's branches only one counts. */
size_t tokens_skip_group(const struct tokens *t, size_t i);

static inline bool token_is_directive(const struct token *t)
{
    return t->kind >= TOKEN_DEFINE;
}

#endif
