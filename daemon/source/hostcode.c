#include "source/hostcode.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/generated/kernels.h"
#include "source/tokens.h"

enum {
    SCOPES_MAX = 256,
    CONDITIONS_MAX = TOKENS_CONDITIONS_MAX,
    WORDS_MAX = 4096,
    BRACES_MAX = 256, /* in one statement, each of which may begin a body */
};

#define X(word) word,
static const char *const attributes[] = {KERNELS_ATTRIBUTES(X) NULL}; /* with an argument in parentheses */
static const char *const device_marks[] = {KERNELS_KERNEL_MARKS(X) "__device__", "__constant__", "__shared__",
                                           "__managed__", NULL};
#undef X
static const char *const types[] = {"class", "struct", "union", "enum", NULL};
static const char *const kept[] = {"using", "typedef", "static_assert", "asm", "concept", "friend", NULL};
static const char *const expressions[] = {"constexpr", "consteval", "constinit", NULL};
static const char *const trailing[] = {"const", "volatile", "noexcept", "override", "mutable", NULL};
static const char *const access[] = {"public", "private", "protected", NULL};

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
    struct words whole;    /* macros that stand alone: whole functions, or the begin or end of a scope */
    struct words hosts;    /* macros that make a whole function: of the host, unless they are among the marks */
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
    char *out;                         /* NULL: only look for declared functions */
    const struct hostcode_text *given; /* set with `out` */
    bool changed;
    size_t start;                            /* the token that the statement begins with */
    bool tail;                               /* behind a class or enum, before its semicolon */
    struct opened scopes[SCOPES_MAX], ended; /* the class before the tail */
    unsigned n_scopes, conditions[CONDITIONS_MAX], n_conditions;
    size_t
        interrupted[CONDITIONS_MAX]; /* for each condition where the statement that it is within begins, or SIZE_MAX */
    size_t braced;                   /* the statement whose braces are counted */
    unsigned n_braces;
};

struct head {
    size_t name; /* the function's */
    bool parentheses, assigned, colon;
    bool arrow; /* a deduction guide, or a function that is only declared */
    bool is_namespace, is_type, is_enum, is_kept;
    bool device, sure, host, constant, constant_expression;
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
    return token_is_one_of(t, i, device_marks) || words_have(&p->marks, text, length) || looks_like_mark(text, length);
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

    if (marks_device(s->program, t, i)) {
        h->device = true;
        h->sure = h->sure || token_is_one_of(t, i, device_marks) ||
                  words_have(&s->program->marks, t->text + t->list[i].start, t->list[i].length);
    }
    if (token_is(t, i, "template") && token_is_mark(t, i + 1, '<'))
        return tokens_skip_angles(t, i + 1, end);
    if ((token_is_one_of(t, i, attributes) || token_is(t, i, "requires")) && token_is_mark(t, i + 1, '('))
        return tokens_skip_group(t, i + 1);
    if (token_is(t, i, "operator") && !h->parentheses) {
        h->name = i;
        return skip_operator(t, i, end);
    }
    h->host = h->host || token_is(t, i, "__host__");
    h->constant = h->constant || token_is(t, i, "const");
    h->constant_expression = h->constant_expression || token_is_one_of(t, i, expressions);
    if (h->parentheses || h->assigned)
        return i + 1;
    h->is_namespace = h->is_namespace || token_is(t, i, "namespace");
    h->is_type = h->is_type || token_is_one_of(t, i, types);
    h->is_enum = h->is_enum || token_is(t, i, "enum");
    h->is_kept = h->is_kept || token_is_one_of(t, i, kept);
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
            i = tokens_skip_angles(t, i, end);
        } else if (tokens_are_pair(t, i, ':', ':')) {
            i += 2;
        } else {
            h.arrow = h.arrow || (h.parentheses && tokens_are_pair(t, i, '-', '>'));
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

    return s->out && s->given->faults && memchr(s->given->faults + from, 1, last->start + last->length - from);
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
    struct head h;
    bool after_name = i > s->start && (t->list[i - 1].kind == TOKEN_NAME || token_is_mark(t, i - 1, '>'));
    bool after_parameters = i > s->start && (token_is_mark(t, i - 1, ')') || token_is_mark(t, i - 1, '&') ||
                                             token_is_one_of(t, i - 1, trailing));

    if (s->braced != s->start)
        s->n_braces = 0;
    s->braced = s->start;
    if (s->tail || ++s->n_braces > BRACES_MAX)
        return tokens_skip_group(t, i);
    h = read_head(s, s->start, i);
    if (h.assigned)
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
    if (is_for_host(s, &h) || (!h.sure && is_faulty(s, s->start, i)))
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
    if (h.device && h.parentheses && !h.assigned && h.name != SIZE_MAX &&
        (scope_of(s) != SCOPE_CLASS || !token_is(s->t, h.name, "operator")))
        words_add(&s->program->declared, s->t->text + s->t->list[h.name].start, s->t->list[h.name].length);
    if (scope_of(s) == SCOPE_CLASS)
        return;
    if (h.is_kept || h.is_namespace || (h.arrow && !h.assigned) || (h.is_type && !h.parentheses))
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

    if (kind == TOKEN_IF && s->n_conditions < CONDITIONS_MAX) {
        s->interrupted[s->n_conditions] = s->start < i ? s->start : SIZE_MAX;
        s->conditions[s->n_conditions++] = s->n_scopes;
    } else if (kind == TOKEN_ELSE && s->n_conditions && s->conditions[s->n_conditions - 1] <= s->n_scopes) {
        s->n_scopes = s->conditions[s->n_conditions - 1];
        if (s->interrupted[s->n_conditions - 1] != SIZE_MAX) /* another body of that function */
            s->start = s->interrupted[s->n_conditions - 1];
    } else if (kind == TOKEN_ENDIF && s->n_conditions) {
        s->n_conditions--;
    }
    if (s->start == i)
        s->start = i + 1;
}

/* A macro with arguments that stands alone in front of a declaration: WARNINGS_OFF(177) struct S { … }; or is a whole
 * function, KERNEL(scale, float) */
static bool stands_alone(const struct scan *s, size_t name, size_t behind)
{
    static const char *const begins[] = {"template", "namespace", "using", "typedef", "extern", NULL};
    const struct token *n = &s->t->list[name];

    if (n->kind != TOKEN_NAME || token_is_one_of(s->t, name, attributes))
        return false;
    return words_have(&s->program->whole, s->t->text + n->start, n->length) || token_is_one_of(s->t, behind, types) ||
           token_is_one_of(s->t, behind, begins);
}

/* BIND(f) in place of a whole function. */
static bool is_host_function(const struct scan *s, size_t name, size_t behind)
{
    const struct token *n = &s->t->list[name];

    return !token_is_mark(s->t, behind, ';') && !token_is_mark(s->t, behind, '{') &&
           words_have(&s->program->hosts, s->t->text + n->start, n->length) && !marks_device(s->program, s->t, name);
}

static void scan(struct scan *s)
{
    const struct tokens *t = s->t;

    for (size_t i = 0; i < t->n;) {
        if (token_is_directive(&t->list[i])) {
            read_directive(s, i++);
        } else if (token_is_mark(t, i, '(') || token_is_mark(t, i, '[')) {
            const size_t name = i - 1;

            i = tokens_skip_group(t, i);
            if (name != s->start)
                continue;
            if (is_host_function(s, name, i))
                blank(s, name, i);
            else if (!stands_alone(s, name, i))
                continue;
            s->start = i;
        } else if (token_is_mark(t, i, '{')) {
            i = open_brace(s, i);
        } else if (token_is_mark(t, i, '}')) {
            close_brace(s, i++);
        } else if (token_is_mark(t, i, ';')) {
            end_statement(s, i);
            s->start = ++i;
        } else if (tokens_are_pair(t, i, ':', ':')) {
            i += 2;
        } else if (token_is_mark(t, i, ':') && i == s->start + 1 && token_is_one_of(t, i - 1, access)) {
            s->start = ++i;
        } else if (i++ == s->start && t->list[i - 1].kind == TOKEN_NAME && !token_is_mark(t, i, '(') &&
                   words_have(&s->program->whole, t->text + t->list[i - 1].start, t->list[i - 1].length)) {
            s->start = i;
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
    long braces = 0;

    if (tokens_cut(&t, text + 1, length - 1) < 0) /* behind the '#': define, the macro's name, its text */
        return -1;
    for (size_t i = 2; i < t.n; i++)
        braces += token_is_mark(&t, i, '{') - token_is_mark(&t, i, '}');
    if (braces) /* NAMESPACE_BEGIN */
        words_add(&p->whole, t.text + t.list[1].start, t.list[1].length);
    else if (token_is_mark(&t, 2, '(') && token_is_mark(&t, t.n - 1, '}'))
        words_add(&p->hosts, t.text + t.list[1].start, t.list[1].length);
    for (size_t i = 2; i < t.n; i++)
        if (marks_device(p, &t, i)) {
            words_add(&p->marks, t.text + t.list[1].start, t.list[1].length);
            if (token_is_mark(&t, 2, '(') && token_is_mark(&t, t.n - 1, '}'))
                words_add(&p->whole, t.text + t.list[1].start, t.list[1].length);
            break;
        }
    free(t.list);
    return 0;
}

static int read_text(struct program *p, struct hostcode_text *text, struct tokens *ret)
{
    struct scan s = {.program = p, .t = ret};
    unsigned known, rounds = 0;

    if (tokens_cut(ret, text->text, text->length) < 0)
        return -1;
    do { /* a macro may be made of later ones */
        known = p->marks.n;
        for (size_t i = 0; i < ret->n; i++)
            if (ret->list[i].kind == TOKEN_DEFINE &&
                read_define(p, text->text + ret->list[i].start, ret->list[i].length) < 0)
                return -1;
    } while (known < p->marks.n && rounds++ < 4);
    scan(&s);
    return 0;
}

static int write_text(struct program *p, struct hostcode_text *text, const struct tokens *t)
{
    struct scan s = {.program = p, .t = t, .given = text};

    s.out = malloc(text->length + 1);
    if (!s.out)
        return -1;
    memcpy(s.out, text->text, text->length);
    s.out[text->length] = '\0';
    if (tokens_mark_length(text->text, text->length)) {
        memset(s.out, ' ', tokens_mark_length(text->text, text->length));
        s.changed = true;
    }
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
