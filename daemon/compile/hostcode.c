#include "compile/hostcode.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/generated/kernels.h"

/* ---- tokens: a source cut just well enough to find where declarations begin and end ---- */

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

static bool token_is_directive(const struct token *t)
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
        if (peek(c, 0) == '"' || peek(c, 0) == '\'')
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

static int tokens_cut(struct tokens *ret, const char *text, size_t length)
{
    struct cursor c = {.text = text, .end = length, .line_start = true};
    struct tokens t = {.text = text};

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

static bool token_is(const struct tokens *t, size_t i, const char *word)
{
    size_t length = strlen(word);

    return i < t->n && t->list[i].length == length && memcmp(t->text + t->list[i].start, word, length) == 0;
}

static bool token_is_mark(const struct tokens *t, size_t i, char mark)
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

static size_t tokens_skip_group(const struct tokens *t, size_t i)
{
    char open = t->text[t->list[i].start], close = open == '(' ? ')' : open == '[' ? ']' : '}';
    unsigned depth = 0, saved[KERNELS_HOSTCODE_CONDITIONS_MAX], n = 0;

    for (; i < t->n; i++) {
        if (t->list[i].kind == TOKEN_IF && n < KERNELS_HOSTCODE_CONDITIONS_MAX)
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
            return i + 1;
    }
    return t->n;
}

enum {
    SCOPES_MAX = KERNELS_HOSTCODE_SCOPES_MAX,
    CONDITIONS_MAX = KERNELS_HOSTCODE_CONDITIONS_MAX,
    WORDS_MAX = KERNELS_HOSTCODE_WORDS_MAX,
};

#define X(word) word,
static const char *const device_marks[] = {KERNELS_DEVICE_MARKS(X) NULL};
static const char *const attributes[] = {KERNELS_ATTRIBUTES(X) NULL}; /* with an argument in parentheses */
static const char *const types[] = {KERNELS_TYPES(X) NULL};
static const char *const kept[] = {KERNELS_KEPT(X) NULL};
static const char *const expressions[] = {KERNELS_CONSTANT_EXPRESSIONS(X) NULL};
static const char *const access[] = {KERNELS_ACCESS(X) NULL};
#undef X

/* ---- declarations ---- */

struct words {
    struct {
        const char *text;
        size_t length;
    } list[WORDS_MAX];
    unsigned n; /* words beyond WORDS_MAX are forgotten */
};

struct program {
    struct words marks;    /* macros that mark device code */
    struct words declared; /* functions that an earlier declaration marked for the device */
};

enum scope {
    SCOPE_NAMESPACE,
    SCOPE_CLASS,
};

struct opened {
    enum scope scope;
    size_t start; /* a class: the token that its declaration begins with */
    bool faulty;
};

struct scan {
    struct program *program;
    const struct tokens *t;
    char *out; /* NULL: only look for declared functions */
    const unsigned char *faults;
    bool changed;
    size_t start;                            /* the token that the statement begins with */
    bool tail;                               /* behind a class or enum, before its semicolon */
    struct opened scopes[SCOPES_MAX], ended; /* the class before the tail */
    unsigned n_scopes, conditions[CONDITIONS_MAX], n_conditions;
};

struct head {
    size_t name; /* the function's */
    bool parentheses, assigned, colon;
    bool is_namespace, is_type, is_enum, is_kept;
    bool device, host, constant, constant_expression;
};

static bool words_have(const struct words *w, const char *text, size_t length)
{
    for (unsigned i = 0; i < w->n; i++)
        if (w->list[i].length == length && memcmp(w->list[i].text, text, length) == 0)
            return true;
    return false;
}

static void words_add(struct words *w, const char *text, size_t length)
{
    if (w->n < WORDS_MAX && !words_have(w, text, length)) {
        w->list[w->n].text = text;
        w->list[w->n++].length = length;
    }
}

static bool is_one_of(const struct tokens *t, size_t i, const char *const *words)
{
    for (; *words; words++)
        if (token_is(t, i, *words))
            return true;
    return false;
}

/* A macro of a header that is not at hand: C10_HOST_DEVICE, CUTLASS_DEVICE, … */
static bool looks_like_mark(const char *text, size_t length)
{
    bool found = false;

    for (size_t i = 0; i < length; i++) {
        if (islower((unsigned char)text[i]))
            return false;
        found = found || (length - i >= 6 && memcmp(text + i, "DEVICE", 6) == 0);
    }
    return found;
}

static bool marks_device(const struct program *p, const struct tokens *t, size_t i)
{
    const char *text = t->text + t->list[i].start;
    size_t length = t->list[i].length;

    if (t->list[i].kind != TOKEN_NAME)
        return false;
    return is_one_of(t, i, device_marks) || words_have(&p->marks, text, length) || looks_like_mark(text, length);
}

static bool is_pair(const struct tokens *t, size_t i, char first, char second)
{
    return token_is_mark(t, i, first) && token_is_mark(t, i + 1, second) &&
           t->list[i].start + 1 == t->list[i + 1].start;
}

/* i is at '<'; returns the index behind its '>'. */
static size_t skip_angles(const struct tokens *t, size_t i, size_t end)
{
    unsigned depth = 0;

    while (i < end) {
        if (token_is_mark(t, i, '<'))
            depth++;
        else if (token_is_mark(t, i, '>') && !is_pair(t, i - 1, '-', '>') && --depth == 0)
            return i + 1;
        i = token_is_mark(t, i, '(') || token_is_mark(t, i, '{') ? tokens_skip_group(t, i) : i + 1;
    }
    return end;
}

static size_t skip_operator(const struct tokens *t, size_t i, size_t end)
{
    if (token_is_mark(t, i + 1, '(') && token_is_mark(t, i + 2, ')'))
        return i + 3;
    for (i++; i < end && !token_is_mark(t, i, '(');)
        i++;
    return i;
}

static size_t read_word(struct scan *s, size_t i, size_t end, struct head *h)
{
    const struct tokens *t = s->t;

    if (marks_device(s->program, t, i))
        h->device = true;
    if (token_is(t, i, "template") && token_is_mark(t, i + 1, '<'))
        return skip_angles(t, i + 1, end);
    if (is_one_of(t, i, attributes) && token_is_mark(t, i + 1, '('))
        return tokens_skip_group(t, i + 1);
    if (token_is(t, i, "operator") && !h->parentheses) {
        h->name = i;
        return skip_operator(t, i, end);
    }
    h->host = h->host || token_is(t, i, "__host__");
    h->constant = h->constant || token_is(t, i, "const");
    h->constant_expression = h->constant_expression || is_one_of(t, i, expressions);
    if (h->parentheses || h->assigned)
        return i + 1;
    h->is_namespace = h->is_namespace || token_is(t, i, "namespace");
    h->is_type = h->is_type || is_one_of(t, i, types);
    h->is_enum = h->is_enum || token_is(t, i, "enum");
    h->is_kept = h->is_kept || is_one_of(t, i, kept);
    h->name = i;
    return i + 1;
}

static struct head read_head(struct scan *s, size_t start, size_t end)
{
    struct head h = {.name = SIZE_MAX};
    const struct tokens *t = s->t;

    for (size_t i = start; i < end;) {
        if (t->list[i].kind == TOKEN_NAME) {
            i = read_word(s, i, end, &h);
        } else if (token_is_mark(t, i, '(') || token_is_mark(t, i, '[') || token_is_mark(t, i, '{')) {
            h.parentheses = h.parentheses || (token_is_mark(t, i, '(') && !h.assigned);
            i = tokens_skip_group(t, i);
        } else if (token_is_mark(t, i, '<') && !h.parentheses && !h.assigned) {
            i = skip_angles(t, i, end);
        } else if (is_pair(t, i, ':', ':')) {
            i += 2;
        } else {
            h.colon = h.colon || (h.parentheses && token_is_mark(t, i, ':'));
            h.assigned = h.assigned || token_is_mark(t, i, '=');
            i++;
        }
    }
    return h;
}

/* The text of the tokens [start, end) becomes blank. Directives stay: later text may depend on them. */
static void blank(struct scan *s, size_t start, size_t end)
{
    const struct token *list = s->t->list;
    size_t from, to;

    if (!s->out || start >= end)
        return;
    from = list[start].start;
    to = list[end - 1].start + list[end - 1].length;
    for (size_t i = start, at = from; at < to; at++) {
        while (i < end && list[i].start + list[i].length <= at)
            i++;
        if (i < end && at >= list[i].start && token_is_directive(&list[i]) && list[i].kind != TOKEN_PRAGMA)
            continue;
        if (s->out[at] != '\n' && s->out[at] != '\r')
            s->out[at] = ' ';
    }
    s->changed = true;
}

static bool is_faulty(const struct scan *s, size_t start, size_t end)
{
    const struct token *last = &s->t->list[end - 1];
    size_t from = s->t->list[start].start;

    return s->out && s->faults && memchr(s->faults + from, 1, last->start + last->length - from);
}

static bool has_device_code(const struct scan *s, size_t start, size_t end)
{
    while (start < end && !marks_device(s->program, s->t, start))
        start++;
    return start < end;
}

static bool is_for_host(const struct scan *s, const struct head *h)
{
    const struct token *name = h->name == SIZE_MAX ? NULL : &s->t->list[h->name];
    const bool declared = name && words_have(&s->program->declared, s->t->text + name->start, name->length);

    return !h->device && (h->host || (!h->constant_expression && !declared));
}

static enum scope scope_of(const struct scan *s)
{
    return s->n_scopes ? s->scopes[s->n_scopes - 1].scope : SCOPE_NAMESPACE;
}

static size_t enter(struct scan *s, size_t i, enum scope scope)
{
    if (s->n_scopes == SCOPES_MAX)
        return tokens_skip_group(s->t, i);
    s->scopes[s->n_scopes].scope = scope;
    s->scopes[s->n_scopes].start = s->start;
    s->scopes[s->n_scopes++].faulty = scope == SCOPE_CLASS && is_faulty(s, s->start, i + 1);
    s->start = i + 1;
    return i + 1;
}

static size_t open_brace(struct scan *s, size_t i)
{
    const struct tokens *t = s->t;
    struct head h = read_head(s, s->start, i);
    bool after_name = i > s->start && (t->list[i - 1].kind == TOKEN_NAME || token_is_mark(t, i - 1, '>'));
    bool after_parameters = i > s->start && token_is_mark(t, i - 1, ')');

    if (s->tail || h.assigned)
        return tokens_skip_group(t, i);
    if (h.is_namespace || (token_is(t, s->start, "extern") && i == s->start + 2 && t->list[i - 1].kind == TOKEN_STRING))
        return enter(s, i, SCOPE_NAMESPACE);
    if (h.is_type && !(h.parentheses && after_parameters)) {
        if (!h.is_enum)
            return enter(s, i, SCOPE_CLASS);
        s->tail = true;
        s->ended.faulty = false;
        return tokens_skip_group(t, i);
    }
    if (!h.parentheses || (h.colon && after_name)) /* an initial value, of a variable or of a member */
        return tokens_skip_group(t, i);
    i = tokens_skip_group(t, i);
    if (is_for_host(s, &h) || (!h.device && is_faulty(s, s->start, i)))
        blank(s, s->start, i);
    s->start = i;
    return i;
}

/* A declaration with a fault, in a namespace or a class; i is at its ';'. */
static void drop_faulty(struct scan *s, size_t i, const struct head *h)
{
    if (scope_of(s) == SCOPE_NAMESPACE || h->parentheses || h->is_kept || token_is(s->t, s->start, "static"))
        blank(s, s->start, i + 1);
    else
        s->scopes[s->n_scopes - 1].faulty = true;
}

static void end_statement(struct scan *s, size_t i)
{
    bool tail = s->tail;
    struct head h;

    s->tail = false;
    if (tail && s->ended.faulty && !has_device_code(s, s->ended.start, i))
        blank(s, s->ended.start, i + 1);
    if (tail || i == s->start)
        return;
    h = read_head(s, s->start, i);
    if (!h.device && is_faulty(s, s->start, i + 1)) {
        drop_faulty(s, i, &h);
        return;
    }
    if (scope_of(s) == SCOPE_CLASS)
        return;
    if (h.device && h.parentheses && !h.assigned && h.name != SIZE_MAX)
        words_add(&s->program->declared, s->t->text + s->t->list[h.name].start, s->t->list[h.name].length);
    if (h.is_kept || h.is_namespace || (h.is_type && !h.parentheses))
        return;
    if (s->t->list[s->start].kind == TOKEN_NAME && token_is_mark(s->t, s->start + 1, '(')) /* a macro */
        return;
    if (!h.parentheses && (h.constant || h.constant_expression))
        return;
    if (is_for_host(s, &h))
        blank(s, s->start, i + 1);
}

static void close_brace(struct scan *s, size_t i)
{
    s->tail = scope_of(s) == SCOPE_CLASS;
    if (s->n_scopes)
        s->ended = s->scopes[--s->n_scopes];
    s->start = i + 1;
}

static void read_directive(struct scan *s, size_t i)
{
    enum token_kind kind = s->t->list[i].kind;

    if (kind == TOKEN_IF && s->n_conditions < CONDITIONS_MAX)
        s->conditions[s->n_conditions++] = s->n_scopes;
    else if (kind == TOKEN_ELSE && s->n_conditions && s->conditions[s->n_conditions - 1] <= s->n_scopes)
        s->n_scopes = s->conditions[s->n_conditions - 1];
    else if (kind == TOKEN_ENDIF && s->n_conditions)
        s->n_conditions--;
    if (s->start == i)
        s->start = i + 1;
}

static void scan(struct scan *s)
{
    const struct tokens *t = s->t;

    for (size_t i = 0; i < t->n;) {
        if (token_is_directive(&t->list[i])) {
            read_directive(s, i++);
        } else if (token_is_mark(t, i, '(') || token_is_mark(t, i, '[')) {
            i = tokens_skip_group(t, i);
        } else if (token_is_mark(t, i, '{')) {
            i = open_brace(s, i);
        } else if (token_is_mark(t, i, '}')) {
            close_brace(s, i++);
        } else if (token_is_mark(t, i, ';')) {
            end_statement(s, i);
            s->start = ++i;
        } else if (is_pair(t, i, ':', ':')) {
            i += 2;
        } else if (token_is_mark(t, i, ':') && i == s->start + 1 && is_one_of(t, i - 1, access)) {
            s->start = ++i;
        } else {
            i++;
        }
    }
}

/* A lambda of device code needs no mark, and only nvcc knows marks of lambdas: [=] __device__ (int i) { … } */
static void blank_marks_of_lambdas(struct scan *s)
{
    const struct tokens *t = s->t;

    for (size_t i = 0; i < t->n; i++) {
        size_t end = i + 1;

        while (token_is_mark(t, i, ']') && (token_is(t, end, "__device__") || token_is(t, end, "__host__")))
            end++;
        if (token_is_mark(t, end, '(') || token_is_mark(t, end, '{'))
            blank(s, i + 1, end);
    }
}

/* Remembers the macro of a #define whose text marks device code. Returns -1 without memory. */
static int read_define(struct program *p, const char *text, size_t length)
{
    struct tokens t;

    if (tokens_cut(&t, text + 1, length - 1) < 0) /* behind the '#': define, the macro's name, its text */
        return -1;
    for (size_t i = 2; i < t.n; i++)
        if (marks_device(p, &t, i)) {
            words_add(&p->marks, t.text + t.list[1].start, t.list[1].length);
            break;
        }
    free(t.list);
    return 0;
}

static int read_text(struct program *p, struct hostcode_text *text, struct tokens *ret)
{
    struct scan s = {.program = p, .t = ret};

    if (tokens_cut(ret, text->text, text->length) < 0)
        return -1;
    for (size_t i = 0; i < ret->n; i++)
        if (ret->list[i].kind == TOKEN_DEFINE &&
            read_define(p, text->text + ret->list[i].start, ret->list[i].length) < 0)
            return -1;
    scan(&s);
    return 0;
}

static int write_text(struct program *p, struct hostcode_text *text, const struct tokens *t)
{
    struct scan s = {.program = p, .t = t, .faults = text->faults};

    s.out = malloc(text->length + 1);
    if (!s.out)
        return -1;
    memcpy(s.out, text->text, text->length);
    s.out[text->length] = '\0';
    scan(&s);
    blank_marks_of_lambdas(&s);
    text->blanked = s.out;
    text->changed = s.changed;
    return 0;
}

int hostcode_blank(struct hostcode_text *texts, unsigned n)
{
    struct program *p = calloc(1, sizeof(*p));
    struct tokens *tokens = calloc(n ? n : 1, sizeof(*tokens));
    int r = p && tokens ? 0 : -1;

    for (unsigned i = 0; i < n; i++)
        texts[i].blanked = NULL;
    for (unsigned i = n;
         i-- > 0 && r == 0;) /* from the last: an included file comes behind the text that includes it */
        r = read_text(p, &texts[i], &tokens[i]);
    for (unsigned i = 0; i < n && r == 0; i++)
        r = write_text(p, &texts[i], &tokens[i]);
    for (unsigned i = 0; i < n; i++) {
        if (tokens)
            free(tokens[i].list);
        if (r < 0) {
            free(texts[i].blanked);
            texts[i].blanked = NULL;
        }
    }
    free(tokens);
    free(p);
    return r;
}
