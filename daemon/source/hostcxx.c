#include "source/hostcxx.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/generated/kernels.h"
#include "source/tokens.h"

enum {
    MARKS_MAX = 64,     /* macros that stand for __global__ or __device__; others are not known */
    DEPTH_MAX = 8,      /* launches in the arguments of launches that are rewritten */
    NAME_BYTES_MAX = 16 /* of the name that an unnamed parameter gets */
};

#define X(word) word,
static const char *const attributes[] = {KERNELS_ATTRIBUTES(X) NULL}; /* with an argument in parentheses */
static const char *const kernel_marks[] = {KERNELS_KERNEL_MARKS(X) NULL};
#undef X
static const char *const device_marks[] = {"__device__", "C10_DEVICE", NULL};
static const char *const kept[] = {"__host__", "constexpr", "consteval", "using", "typedef", NULL};
static const char *const access[] = {"public", "private", "protected", NULL};
/* Words behind which a parameter has no name yet: `const float`, `struct S`. */
static const char *const no_types[] = {"const", "volatile", "struct", "class", "enum", "typename", "register", NULL};
static const char *const no_names[] = {"int",          "float",      "double",   "char",   "short", "long",
                                       "unsigned",     "signed",     "bool",     "const",  "void",  "auto",
                                       "__restrict__", "__restrict", "volatile", "size_t", NULL};

enum mark {
    MARK_NONE,
    MARK_KERNEL,
    MARK_DEVICE,
};

/* ---- what is written ---- */

struct output {
    char *text;
    size_t length, capacity;
    bool failed;
};

static void put(struct output *o, const char *text, size_t length)
{
    if (o->capacity - o->length <= length && !o->failed) {
        const size_t capacity = 2 * o->capacity + length + 4096;
        char *made = realloc(o->text, capacity);

        o->failed = !made;
        if (made) {
            o->text = made;
            o->capacity = capacity;
        }
    }
    if (o->failed)
        return;
    memcpy(o->text + o->length, text, length);
    o->length += length;
    o->text[o->length] = '\0';
}

static void say(struct output *o, const char *text)
{
    put(o, text, strlen(text));
}

/* Writes the decimal digits of an index behind a word. */
static void say_name(struct output *o, const char *word, unsigned index)
{
    char digits[NAME_BYTES_MAX];
    size_t n = sizeof(digits);

    do {
        digits[--n] = (char)('0' + index % 10);
        index /= 10;
    } while (index);
    say(o, word);
    put(o, digits + n, sizeof(digits) - n);
}

/* ---- the text that is read ---- */

struct word {
    const char *text;
    size_t length;
    enum mark mark;
};

struct program {
    struct word words[MARKS_MAX]; /* macros */
    unsigned n;
    struct output out;
};

/* A part of the program: its text, or the text of one of its macros. */
struct part {
    struct program *program;
    const struct tokens *t;
    size_t copied;      /* the text before is written, or left out */
    size_t no_launch;   /* launches that begin before this token have no end */
    size_t no_function; /* heads that begin before this token have none */
    unsigned depth;
};

static const char *text_of(const struct part *p, size_t i)
{
    return p->t->text + p->t->list[i].start;
}

static size_t end_of(const struct part *p, size_t i)
{
    return p->t->list[i].start + p->t->list[i].length;
}

static bool is_name(const struct part *p, size_t i)
{
    return i < p->t->n && p->t->list[i].kind == TOKEN_NAME;
}

static bool has_word(const struct part *p, size_t start, size_t end, const char *const *words)
{
    while (start < end && !token_is_one_of(p->t, start, words))
        start++;
    return start < end;
}

static enum mark mark_at(const struct part *p, size_t i)
{
    const struct program *all = p->program;

    if (!is_name(p, i))
        return MARK_NONE;
    if (token_is_one_of(p->t, i, kernel_marks))
        return MARK_KERNEL;
    if (token_is_one_of(p->t, i, device_marks))
        return MARK_DEVICE;
    for (unsigned k = 0; k < all->n; k++)
        if (all->words[k].length == p->t->list[i].length &&
            memcmp(all->words[k].text, text_of(p, i), all->words[k].length) == 0)
            return all->words[k].mark;
    return MARK_NONE;
}

/* Writes the text up to a place as it is. */
static void copy(struct part *p, size_t to)
{
    if (to > p->copied) {
        put(&p->program->out, p->t->text + p->copied, to - p->copied);
        p->copied = to;
    }
}

/* Leaves out the tokens [start, end), but for directives and the ends of lines. */
static void leave_out(struct part *p, size_t start, size_t end)
{
    const char *text = p->t->text;

    if (start >= end)
        return;
    copy(p, p->t->list[start].start);
    for (size_t i = start; i < end; i++) {
        const size_t to = end_of(p, i);

        if (token_is_directive(&p->t->list[i]) && p->t->list[i].kind != TOKEN_PRAGMA) {
            for (; p->copied < p->t->list[i].start; p->copied++)
                if (text[p->copied] == '\n')
                    put(&p->program->out, text + p->copied, 1);
            copy(p, to);
        }
        for (; p->copied < to; p->copied++)
            if (text[p->copied] == '\n') {
                const size_t back = p->copied && text[p->copied - 1] == '\r' ? 2 : 1;
                const bool joined = p->copied >= back && text[p->copied - back] == '\\';

                put(&p->program->out, joined ? "\\\n" : "\n", 1U + joined);
            }
    }
    say(&p->program->out, " ");
}

/* ---- functions with a mark ---- */

struct function {
    size_t open, close; /* of the parameters: the index of '(' and the one behind ')' */
    size_t end;         /* the token that ends the head: '{', ';' or '=' */
};

static size_t skip_operator(const struct tokens *t, size_t i)
{
    if (token_is_mark(t, i + 1, '(') && token_is_mark(t, i + 2, ')'))
        return i + 3;
    for (i++; i < t->n && !token_is_mark(t, i, '(');)
        i++;
    return i;
}

/* Reads the head of a function from behind its mark. Returns false where there is none. */
static bool read_function(struct part *p, size_t i, struct function *f)
{
    const struct tokens *t = p->t;
    bool colon = false;

    *f = (struct function){.end = t->n};
    if (i < p->no_function)
        return false;
    if (!token_is_one_of(t, i, kernel_marks) && !token_is_one_of(t, i, device_marks) && token_is_mark(t, i + 1, '('))
        i = tokens_skip_group(t, i + 1); /* a macro with arguments */
    else
        i++;
    while (i < t->n) {
        if (token_is_one_of(t, i, attributes) && token_is_mark(t, i + 1, '(')) {
            i = tokens_skip_group(t, i + 1);
        } else if (token_is(t, i, "operator") && !f->close) {
            i = skip_operator(t, i);
        } else if (token_is_mark(t, i, '(')) {
            const size_t behind = tokens_skip_group(t, i);

            if (!colon) {
                f->open = i;
                f->close = behind;
            }
            i = behind;
        } else if (token_is_mark(t, i, '[') ||
                   (token_is_mark(t, i, '{') && colon && (is_name(p, i - 1) || token_is_mark(t, i - 1, '>')))) {
            i = tokens_skip_group(t, i);
        } else if (tokens_are_pair(t, i, ':', ':')) {
            i += 2;
        } else if (token_is_mark(t, i, '{') || token_is_mark(t, i, ';') || token_is_mark(t, i, '=')) {
            f->end = i;
            break;
        } else if (token_is_mark(t, i, '}') || token_is_mark(t, i, ')')) {
            f->close = 0;
            break;
        } else {
            colon = colon || (f->close && token_is_mark(t, i, ':'));
            i++;
        }
    }
    if (f->close && f->end < t->n)
        return true;
    p->no_function = i;
    return false;
}

/* The index of the comma, or of the end, behind a list's item that begins at i. */
static size_t item_end(const struct tokens *t, size_t i, size_t end)
{
    while (i < end && !token_is_mark(t, i, ',')) {
        if (token_is_mark(t, i, '(') || token_is_mark(t, i, '[') || token_is_mark(t, i, '{'))
            i = tokens_skip_group(t, i);
        else if (token_is_mark(t, i, '<') && i && t->list[i - 1].kind == TOKEN_NAME)
            i = tokens_skip_angles(t, i, end);
        else
            i++;
    }
    return i < end ? i : end;
}

/* The end of a declaration in a list without its default value. */
static size_t declared_end(const struct tokens *t, size_t i, size_t end)
{
    size_t at = i;

    while (at < end && !token_is_mark(t, at, '=')) {
        if (token_is_mark(t, at, '(') || token_is_mark(t, at, '[') || token_is_mark(t, at, '{'))
            at = tokens_skip_group(t, at);
        else if (token_is_mark(t, at, '<') && at > i)
            at = tokens_skip_angles(t, at, end);
        else
            at++;
    }
    return at < end ? at : end;
}

static bool is_pack(const struct tokens *t, size_t start, size_t end)
{
    for (size_t i = start; i + 2 < end; i++)
        if (tokens_are_pair(t, i, '.', '.') && token_is_mark(t, i + 2, '.'))
            return true;
    return false;
}

/* The token that names a parameter of [start, end); `end` for a parameter without a name. */
static size_t parameter_name(const struct part *p, size_t start, size_t end)
{
    const struct tokens *t = p->t;
    size_t last = end;

    for (size_t i = start; i + 3 < end; i++) /* float (*f)(float), int (&a)[3] */
        if (token_is_mark(t, i, '(') && (token_is_mark(t, i + 1, '*') || token_is_mark(t, i + 1, '&')) &&
            is_name(p, i + 2) && token_is_mark(t, i + 3, ')'))
            return i + 2;
    while (last > start && (token_is_mark(t, last - 1, ']') || token_is_mark(t, last - 1, '['))) { /* a[3] */
        while (last > start && !token_is_mark(t, last - 1, '['))
            last--;
        if (last > start)
            last--;
    }
    if (last == start || !is_name(p, last - 1) || token_is_one_of(t, last - 1, no_names))
        return end;
    if (last - 1 > start && token_is_mark(t, last - 2, ':'))
        return end;
    for (size_t i = start; i < last - 1; i++)
        if (!token_is_one_of(t, i, no_types))
            return last - 1;
    return end;
}

/* Writes the parameters, each with a name. */
static void write_parameters(struct part *p, const struct function *f)
{
    const size_t end = f->close - 1;
    unsigned index = 0;

    if (f->open + 2 == end && token_is(p->t, f->open + 1, "void"))
        return;
    for (size_t i = f->open + 1; i < end; index++) {
        const size_t next = item_end(p->t, i, end), stop = declared_end(p->t, i, next);

        if (stop > i && parameter_name(p, i, stop) == stop) {
            copy(p, end_of(p, stop - 1));
            say_name(&p->program->out, " kops_argument_", index);
        }
        i = next + 1;
    }
}

static void write_arguments(struct part *p, const struct function *f)
{
    const size_t end = f->close - 1;
    struct output *out = &p->program->out;
    unsigned index = 0;

    if (f->open + 2 == end && token_is(p->t, f->open + 1, "void"))
        return;
    for (size_t i = f->open + 1; i < end; index++) {
        const size_t next = item_end(p->t, i, end), stop = declared_end(p->t, i, next);
        const size_t named = parameter_name(p, i, stop);

        say(out, ", ");
        if (named == stop)
            say_name(out, "kops_argument_", index);
        else
            put(out, text_of(p, named), p->t->list[named].length);
        if (is_pack(p->t, i, stop))
            say(out, "...");
        i = next + 1;
    }
}

/* Writes a template's parameter as an item of a list of names. */
static void write_template_argument(struct part *p, size_t start, size_t end)
{
    const struct tokens *t = p->t;
    struct output *out = &p->program->out;
    const bool is_type = token_is(t, start, "typename") || token_is(t, start, "class");
    const size_t stop = declared_end(t, start, end);

    if (stop - start < 2 || !is_name(p, stop - 1) || token_is_one_of(t, stop - 1, no_names) ||
        token_is_mark(t, stop - 2, ':') || (token_is(t, start, "template")))
        return;
    say(out, is_type ? "::kops::kops_name_of<" : "::kops::kops_name_of(");
    put(out, text_of(p, stop - 1), t->list[stop - 1].length);
    say(out, is_type ? ">()" : ")");
    say(out, is_pack(t, start, stop) ? "..., " : ", ");
}

/* The text of a specialization's arguments, as a string. */
static void write_quoted(struct part *p, size_t start, size_t end)
{
    struct output *out = &p->program->out;

    say(out, "\"");
    for (size_t i = start; i < end; i++) {
        for (size_t k = 0; k < p->t->list[i].length; k++) {
            const char c = text_of(p, i)[k];

            if (c == '"' || c == '\\')
                say(out, "\\");
            if (c != '\n' && c != '\r')
                put(out, &c, 1);
        }
        if (is_name(p, i) && is_name(p, i + 1))
            say(out, " ");
    }
    say(out, "\"");
}

/* Writes the names of the template arguments of the kernel's instantiation, with a comma behind each. */
static void write_instance(struct part *p, size_t start, const struct function *f)
{
    const struct tokens *t = p->t;
    size_t angle = f->open - 1;
    unsigned depth = 0;

    for (size_t i = start; i < f->open; i++)
        if (token_is(t, i, "template") && token_is_mark(t, i + 1, '<')) {
            const size_t behind = tokens_skip_angles(t, i + 1, f->open);

            for (size_t at = i + 2; at + 1 < behind;) {
                const size_t next = item_end(t, at, behind - 1);

                write_template_argument(p, at, next);
                at = next + 1;
            }
            i = behind - 1;
        }
    if (!token_is_mark(t, angle, '>'))
        return;
    for (; angle > start; angle--) { /* k<float>(…) */
        depth += token_is_mark(t, angle, '>') - token_is_mark(t, angle, '<');
        if (!depth)
            break;
    }
    write_quoted(p, angle + 1, f->open - 1);
}

/* A kernel's body becomes a call that records its arguments. */
static size_t write_kernel(struct part *p, size_t start, const struct function *f)
{
    const size_t behind = tokens_skip_group(p->t, f->end);
    struct output *out = &p->program->out;

    write_parameters(p, f);
    copy(p, end_of(p, f->end));
    say(out, " ::kops::kops_stub(::kops::kops_entry(__PRETTY_FUNCTION__, {");
    write_instance(p, start, f);
    say(out, "})");
    write_arguments(p, f);
    say(out, ");");
    if (token_is_mark(p->t, behind - 1, '}') && behind - 1 > f->end) {
        leave_out(p, f->end + 1, behind - 1);
        copy(p, end_of(p, behind - 1));
    }
    return behind;
}

/* A function, declaration or variable with a mark at token i, of a statement that begins at `start`. Returns the token
 * behind what is written. */
static size_t write_marked(struct part *p, size_t start, size_t i)
{
    const enum mark mark = mark_at(p, i);
    const bool lambda = i > start && token_is_mark(p->t, i - 1, ']');
    struct function f;
    size_t behind;

    if (lambda || !read_function(p, i, &f))
        return i + 1;
    if (mark == MARK_KERNEL)
        return token_is_mark(p->t, f.end, '{') ? write_kernel(p, start, &f) : f.end;
    if (token_is_mark(p->t, f.end, '=') || has_word(p, start, f.end, kept))
        return f.end;
    behind = token_is_mark(p->t, f.end, '{') ? tokens_skip_group(p->t, f.end) : f.end + 1;
    leave_out(p, start, behind);
    return behind;
}

/* ---- launches ---- */

static bool are_three(const struct tokens *t, size_t i, char mark)
{
    return tokens_are_pair(t, i, mark, mark) && tokens_are_pair(t, i + 1, mark, mark);
}

/* The index of the `>>>` that closes a launch's sizes, behind which its arguments begin; 0 without one. */
static size_t sizes_end(struct part *p, size_t i, size_t end)
{
    const struct tokens *t = p->t;

    while (i < end && !token_is_mark(t, i, ';') && !token_is_mark(t, i, '}')) {
        if (are_three(t, i, '>') && token_is_mark(t, i + 3, '('))
            return i;
        i = token_is_mark(t, i, '(') || token_is_mark(t, i, '{') || token_is_mark(t, i, '[') ? tokens_skip_group(t, i)
                                                                                             : i + 1;
    }
    p->no_launch = i;
    return 0;
}

static void write_tokens(struct part *p, size_t from, size_t end);

/* Writes the launch whose `<<<` is at i. Returns the token behind it; i + 1 where it is none. */
static size_t write_launch(struct part *p, size_t i, size_t end)
{
    const struct tokens *t = p->t;
    size_t sizes, behind;

    if (i < p->no_launch || p->depth >= DEPTH_MAX)
        return i + 1;
    sizes = sizes_end(p, i + 3, end);
    if (!sizes)
        return i + 1;
    behind = tokens_skip_group(t, sizes + 3);
    if (behind > end || !token_is_mark(t, behind - 1, ')')) {
        p->no_launch = end;
        return i + 1;
    }
    p->depth++;
    copy(p, t->list[i].start);
    p->copied = end_of(p, sizes + 2);
    write_tokens(p, sizes + 3, behind);
    copy(p, end_of(p, behind - 1));
    say(&p->program->out, ", ::kops::kops_launch(");
    p->copied = end_of(p, i + 2);
    write_tokens(p, i + 3, sizes);
    copy(p, t->list[sizes].start);
    say(&p->program->out, ")");
    p->copied = end_of(p, behind - 1);
    p->depth--;
    return behind;
}

/* ---- programs ---- */

static int write_part(struct program *program, const char *text, size_t length, unsigned depth);

/* The text of a macro is rewritten as a part of its own. */
static void write_define(struct part *p, size_t i)
{
    const size_t start = p->t->list[i].start + 1;

    copy(p, start);
    if (p->depth >= DEPTH_MAX)
        return;
    p->copied = end_of(p, i);
    if (write_part(p->program, p->t->text + start, p->t->list[i].length - 1, p->depth + 1) < 0)
        p->program->out.failed = true;
}

static void write_tokens(struct part *p, size_t from, size_t end)
{
    const struct tokens *t = p->t;
    size_t start = from; /* of the statement */

    for (size_t i = from; i < end;) {
        if (t->list[i].kind == TOKEN_DEFINE)
            write_define(p, i);
        if (token_is_directive(&t->list[i])) {
            start = start == i ? i + 1 : start;
            i++;
        } else if (mark_at(p, i) != MARK_NONE) {
            const size_t behind = write_marked(p, start, i);

            start = behind > i + 1 && token_is_mark(t, behind - 1, '}') ? behind : start;
            i = behind;
        } else if (are_three(t, i, '<')) {
            i = write_launch(p, i, end);
        } else {
            const bool label = token_is_mark(t, i, ':') && i == start + 1 && token_is_one_of(t, start, access);

            i++;
            if (label || token_is_mark(t, i - 1, ';') || token_is_mark(t, i - 1, '{') || token_is_mark(t, i - 1, '}'))
                start = i;
        }
    }
}

/* The token behind the name and the parameters of a macro. */
static size_t macro_text(const struct tokens *t)
{
    const bool function = token_is_mark(t, 2, '(') && t->list[1].start + t->list[1].length == t->list[2].start;

    return function ? tokens_skip_group(t, 2) : t->n < 2 ? t->n : 2;
}

/* Remembers the macro of a #define whose text is a mark and no function. */
static void read_define(struct program *program, const struct tokens *t)
{
    const struct part p = {.program = program, .t = t};
    enum mark mark = MARK_NONE;
    bool host = false;

    for (size_t i = macro_text(t); i < t->n; i++) {
        if (token_is_mark(t, i, '{') || token_is_mark(t, i, ';'))
            return;
        mark = mark == MARK_NONE ? mark_at(&p, i) : mark;
        host = host || token_is(t, i, "__host__");
    }
    if (mark != MARK_NONE && !host && program->n < MARKS_MAX)
        program->words[program->n++] = (struct word){t->text + t->list[1].start, t->list[1].length, mark};
}

static int read_defines(struct program *program, const struct tokens *t)
{
    for (size_t i = 0; i < t->n; i++) {
        struct tokens define;

        if (t->list[i].kind != TOKEN_DEFINE)
            continue;
        if (tokens_cut(&define, t->text + t->list[i].start + 1, t->list[i].length - 1) < 0)
            return -1;
        read_define(program, &define);
        free(define.list);
    }
    return 0;
}

static int write_part(struct program *program, const char *text, size_t length, unsigned depth)
{
    struct tokens t;
    struct part p = {.program = program, .t = &t, .depth = depth};
    int r = -1;

    if (tokens_cut(&t, text, length) < 0)
        return -1;
    if (depth || read_defines(program, &t) == 0) {
        write_tokens(&p, depth ? macro_text(&t) : 0, t.n);
        copy(&p, length);
        r = program->out.failed ? -1 : 0;
    }
    free(t.list);
    return r;
}

char *hostcxx_of(const char *text, size_t length, size_t *ret_length)
{
    struct program *program = calloc(1, sizeof(*program));
    char *made = NULL;

    if (!program)
        return NULL;
    put(&program->out, "", 0);
    if (write_part(program, text, length, 0) == 0) {
        made = program->out.text;
        *ret_length = program->out.length;
    } else {
        free(program->out.text);
    }
    free(program);
    return made;
}
