#include "source/tokens.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool token_is_directive(const struct token *t)
{
    return t->kind >= TOKEN_DEFINE;
}

struct cursor {
    const char *text;
    size_t at, end;
    bool line_start; /* nothing but blanks since the line began */
};

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || (unsigned char)c >= 0x80;
}

static char peek(const struct cursor *c, size_t ahead)
{
    return c->at + ahead < c->end ? c->text[c->at + ahead] : '\0';
}

static bool is_continuation(const struct cursor *c)
{
    return peek(c, 0) == '\\' && (peek(c, 1) == '\n' || (peek(c, 1) == '\r' && peek(c, 2) == '\n'));
}

static void skip_continuation(struct cursor *c)
{
    c->at += peek(c, 1) == '\n' ? 2 : 3;
}

static void skip_block_comment(struct cursor *c)
{
    for (c->at += 2; c->at < c->end; c->at++)
        if (peek(c, 0) == '*' && peek(c, 1) == '/') {
            c->at += 2;
            return;
        }
}

/* Moves behind a comment, or a continuation of the line, if there is one. c is before the end. */
static bool skip_no_text(struct cursor *c, bool line_comments)
{
    if (is_continuation(c)) {
        skip_continuation(c);
    } else if (peek(c, 0) == '/' && peek(c, 1) == '*') {
        skip_block_comment(c);
    } else if (line_comments && peek(c, 0) == '/' && peek(c, 1) == '/') {
        while (c->at < c->end && peek(c, 0) != '\n')
            if (is_continuation(c))
                skip_continuation(c);
            else
                c->at++;
    } else {
        return false;
    }
    return true;
}

/* Moves over blanks and comments: of the line, or of any number of lines. */
static void skip_blanks(struct cursor *c, bool one_line)
{
    while (c->at < c->end) {
        char ch = peek(c, 0);

        if (skip_no_text(c, !one_line))
            continue;
        if (!isspace((unsigned char)ch) || (one_line && ch == '\n'))
            return;
        c->line_start = c->line_start || ch == '\n';
        c->at++;
    }
}

/* A quote that is never closed ends with its line: it is prose in a part that is compiled out. */
static void skip_quoted(struct cursor *c, char quote)
{
    for (c->at++; c->at < c->end && peek(c, 0) != '\n'; c->at++) {
        if (is_continuation(c)) {
            c->at += peek(c, 1) == '\n' ? 1 : 2;
        } else if (peek(c, 0) == '\\') {
            c->at++;
        } else if (peek(c, 0) == quote) {
            c->at++;
            return;
        }
    }
}

/* R"mark( … )mark"; c is at the quote. */
static void skip_raw_string(struct cursor *c)
{
    size_t start = c->at + 1, length = 0;

    while (start + length < c->end && length <= 16 && c->text[start + length] != '(')
        length++;
    if (start + length >= c->end || length > 16) {
        skip_quoted(c, '"');
        return;
    }
    for (c->at = start + length; c->at < c->end; c->at++)
        if (peek(c, 0) == ')' && c->end - c->at > length + 1 &&
            memcmp(c->text + c->at + 1, c->text + start, length) == 0 && c->text[c->at + 1 + length] == '"') {
            c->at += length + 2;
            return;
        }
}

static void skip_name(struct cursor *c)
{
    while (c->at < c->end && is_name(peek(c, 0)))
        c->at++;
}

static enum token_kind cut_number(struct cursor *c)
{
    while (c->at < c->end) {
        char ch = peek(c, 0), last = (char)tolower((unsigned char)peek(c, 0));

        if ((last == 'e' || last == 'p') && (peek(c, 1) == '+' || peek(c, 1) == '-'))
            c->at += 2;
        else if (is_name(ch) || ch == '.' || (ch == '\'' && is_name(peek(c, 1))))
            c->at++;
        else
            break;
    }
    return TOKEN_LITERAL;
}

static enum token_kind cut_directive(struct cursor *c)
{
    static const struct {
        const char *word;
        enum token_kind kind;
    } kinds[] = {
        {"define", TOKEN_DEFINE}, {"if", TOKEN_IF},         {"ifdef", TOKEN_IF},     {"ifndef", TOKEN_IF},
        {"else", TOKEN_ELSE},     {"elif", TOKEN_ELSE},     {"elifdef", TOKEN_ELSE}, {"elifndef", TOKEN_ELSE},
        {"endif", TOKEN_ENDIF},   {"pragma", TOKEN_PRAGMA},
    };
    enum token_kind kind = TOKEN_DIRECTIVE;
    size_t word, length = 0;

    c->at++;
    skip_blanks(c, true);
    word = c->at;
    while (is_name(peek(c, length)))
        length++;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strlen(kinds[i].word) == length && memcmp(kinds[i].word, c->text + word, length) == 0)
            kind = kinds[i].kind;
    while (c->at < c->end && peek(c, 0) != '\n') {
        if (skip_no_text(c, true))
            continue;
        if (isdigit((unsigned char)peek(c, 0)))
            cut_number(c);
        else if (is_name(peek(c, 0)))
            skip_name(c);
        else if (peek(c, 0) == '"' || peek(c, 0) == '\'')
            skip_quoted(c, peek(c, 0));
        else
            c->at++;
    }
    return kind;
}

/* A string's or character's prefix, or a name; c is at its first character. */
static enum token_kind cut_name(struct cursor *c)
{
    static const char prefixes[] = " L u8 u U R LR u8R uR UR ";
    const size_t start = c->at;
    char quote, word[8];
    bool raw;

    while (is_name(peek(c, 0)) && c->at < c->end)
        c->at++;
    quote = peek(c, 0);
    snprintf(word, sizeof(word), " %.*s ", c->at - start < 4 ? (int)(c->at - start) : 0, c->text + start);
    raw = c->text[c->at - 1] == 'R';
    if (!strstr(prefixes, word) || (quote != '"' && (raw || quote != '\'')))
        return TOKEN_NAME;
    if (raw)
        skip_raw_string(c);
    else
        skip_quoted(c, quote);
    return quote == '"' ? TOKEN_STRING : TOKEN_LITERAL;
}

/* Tells whether the directive there, up to the cursor, is #if 0. */
static bool is_never(const struct cursor *behind, size_t start)
{
    struct cursor c = {.text = behind->text, .at = start + 1, .end = behind->at};

    skip_blanks(&c, true);
    c.at += 2;
    if (is_name(peek(&c, 0))) /* #ifdef */
        return false;
    skip_blanks(&c, true);
    if (peek(&c, 0) != '0' || is_name(peek(&c, 1)))
        return false;
    c.at++;
    skip_blanks(&c, false);
    return c.at == c.end;
}

static enum token_kind cut_one(struct cursor *c)
{
    char ch = peek(c, 0);

    if (ch == '#' && c->line_start)
        return cut_directive(c);
    c->line_start = false;
    if (isdigit((unsigned char)ch) || (ch == '.' && isdigit((unsigned char)peek(c, 1))))
        return cut_number(c);
    if (is_name(ch))
        return cut_name(c);
    if (ch == '"' || ch == '\'') {
        skip_quoted(c, ch);
        return ch == '"' ? TOKEN_STRING : TOKEN_LITERAL;
    }
    c->at++;
    return TOKEN_MARK;
}

size_t tokens_mark_length(const char *text, size_t length)
{
    return length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

int tokens_cut(struct tokens *ret, const char *text, size_t length)
{
    struct cursor c = {.text = text, .at = tokens_mark_length(text, length), .end = length, .line_start = true};
    struct tokens t = {.text = text};
    unsigned dead = 0; /* conditionals that are open within the branch of an #if 0, with it */

    for (;;) {
        struct token token;

        skip_blanks(&c, false);
        if (c.at >= c.end)
            break;
        token.start = c.at;
        token.kind = cut_one(&c);
        if (c.at > c.end)
            c.at = c.end;
        token.length = c.at - token.start;
        if (dead && token.kind == TOKEN_IF)
            dead++;
        else if ((dead == 1 && token.kind == TOKEN_ELSE) || (dead && token.kind == TOKEN_ENDIF))
            dead--;
        else if (dead)
            continue;
        else if (token.kind == TOKEN_IF && is_never(&c, token.start))
            dead = 1;
        if (t.n == t.capacity) {
            struct token *list = realloc(t.list, (t.capacity = t.capacity ? 2 * t.capacity : 1024) * sizeof(*list));

            if (!list) {
                free(t.list);
                return -1;
            }
            t.list = list;
        }
        t.list[t.n++] = token;
    }
    *ret = t;
    return 0;
}

bool token_is(const struct tokens *t, size_t i, const char *word)
{
    size_t length = strlen(word);

    return i < t->n && t->list[i].length == length && memcmp(t->text + t->list[i].start, word, length) == 0;
}

bool token_is_one_of(const struct tokens *t, size_t i, const char *const *words)
{
    for (; *words; words++)
        if (token_is(t, i, *words))
            return true;
    return false;
}

bool token_is_mark(const struct tokens *t, size_t i, char mark)
{
    return i < t->n && t->list[i].kind == TOKEN_MARK && t->text[t->list[i].start] == mark;
}

/* i is at the #else of a conditional that began before; returns the index of its #endif. */
static size_t skip_branch(const struct tokens *t, size_t i)
{
    unsigned depth = 0;

    for (; i < t->n; i++) {
        if (t->list[i].kind == TOKEN_IF)
            depth++;
        else if (t->list[i].kind == TOKEN_ENDIF && depth-- == 0)
            break;
    }
    return i;
}

/* From within n conditionals to behind them: their other branches close the group, too. */
static size_t skip_conditions(const struct tokens *t, size_t i, unsigned n)
{
    for (; n && i < t->n; i++)
        if (t->list[i].kind == TOKEN_IF)
            n++;
        else if (t->list[i].kind == TOKEN_ENDIF)
            n--;
    return i;
}

size_t tokens_skip_group(const struct tokens *t, size_t i)
{
    char open = t->text[t->list[i].start], close = open == '(' ? ')' : open == '[' ? ']' : '}';
    unsigned depth = 0, saved[TOKENS_CONDITIONS_MAX], n = 0;

    for (; i < t->n; i++) {
        if (t->list[i].kind == TOKEN_IF && n < TOKENS_CONDITIONS_MAX)
            saved[n++] = depth;
        else if (t->list[i].kind == TOKEN_ELSE && n)
            depth = saved[n - 1];
        else if (t->list[i].kind == TOKEN_ELSE)
            i = skip_branch(t, i);
        else if (t->list[i].kind == TOKEN_ENDIF && n)
            n--;
        else if (token_is_mark(t, i, open))
            depth++;
        else if (token_is_mark(t, i, close) && --depth == 0)
            return skip_conditions(t, i + 1, n);
    }
    return t->n;
}

bool tokens_are_pair(const struct tokens *t, size_t i, char first, char second)
{
    return token_is_mark(t, i, first) && token_is_mark(t, i + 1, second) &&
           t->list[i].start + 1 == t->list[i + 1].start;
}

/* `a < b` with blanks around it is a comparison more often than a template's arguments. */
static bool is_spaced(const struct tokens *t, size_t i)
{
    const struct token *list = t->list;

    return i && i + 1 < t->n && !token_is(t, i - 1, "template") &&
           list[i - 1].start + list[i - 1].length < list[i].start && list[i].start + 1 < list[i + 1].start;
}

static size_t skip_nested(const struct tokens *t, size_t i, size_t end, bool comparisons)
{
    unsigned depth = 0;

    while (i < end) {
        if (tokens_are_pair(t, i, '<', '<') || tokens_are_pair(t, i, '<', '=') || tokens_are_pair(t, i, '>', '=')) {
            i += 2; /* an operator */
            continue;
        }
        if (token_is_mark(t, i, '<') && !(comparisons && depth && is_spaced(t, i)))
            depth++;
        else if (token_is_mark(t, i, '>') && !tokens_are_pair(t, i - 1, '-', '>') && --depth == 0)
            return i + 1;
        i = token_is_mark(t, i, '(') || token_is_mark(t, i, '{') ? tokens_skip_group(t, i) : i + 1;
    }
    return SIZE_MAX;
}

size_t tokens_skip_angles(const struct tokens *t, size_t i, size_t end)
{
    size_t behind = skip_nested(t, i, end, false);

    if (behind == SIZE_MAX)
        behind = skip_nested(t, i, end, true);
    return behind == SIZE_MAX ? end : behind;
}
