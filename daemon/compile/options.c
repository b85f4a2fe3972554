#include "compile/options.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile/options_nvcc.h"

#define ALLOWED                                                                                                        \
    "not allowed; these are: -D -U -I -std= --use_fast_math -ftz= -prec-div= -prec-sqrt= -fmad= -maxrregcount= "       \
    "-lineinfo -G -dopt=on -w -diag-suppress= -default-device -restrict -extra-device-vectorization -minimal, "        \
    "nvcc's -arch= -Xptxas="

enum kind { FLAG, BOOL, STANDARD, NUMBER, ON, NUMBERS, OFF_ONLY, DEFINE, UNDEFINE, INCLUDE };

/* One or two dashes are the same before a name of more than one letter; one letter takes one dash. */
static const struct known {
    const char *name, *other; /* the spelling handed on, and another one (NULL: none) */
    enum kind kind;
    const char *dropped; /* a value that changes nothing */
} known[] = {
    {"std", NULL, STANDARD, NULL},
    {"use_fast_math", NULL, FLAG, NULL},
    {"ftz", NULL, BOOL, "false"},
    {"prec-div", NULL, BOOL, "true"},
    {"prec-sqrt", NULL, BOOL, "true"},
    {"fmad", NULL, BOOL, "true"},
    {"maxrregcount", NULL, NUMBER, NULL},
    {"generate-line-info", "lineinfo", FLAG, NULL},
    {"device-debug", "G", FLAG, NULL},
    {"dopt", NULL, ON, NULL},
    {"extra-device-vectorization", NULL, FLAG, NULL},
    {"device-as-default-execution-space", "default-device", FLAG, NULL},
    {"device-int128", NULL, FLAG, NULL},
    {"restrict", NULL, FLAG, NULL},
    {"disable-warnings", "w", FLAG, NULL},
    {"diag-error", NULL, NUMBERS, NULL},
    {"diag-suppress", NULL, NUMBERS, NULL},
    {"diag-warn", NULL, NUMBERS, NULL},
    {"minimal", NULL, FLAG, NULL},
    {"relocatable-device-code", "rdc", OFF_ONLY, "false"},
    {"define-macro", "D", DEFINE, NULL},
    {"undefine-macro", "U", UNDEFINE, NULL},
    {"include-path", "I", INCLUDE, NULL},
};

enum { N_KNOWN = sizeof(known) / sizeof(known[0]), FAST_MATH = 1, FIRST_PART = 2, LAST_PART = 5, MAX_NUMBERS = 64 };

struct macro {
    const char *text; /* borrowed: NAME, NAME=VALUE */
    size_t name;      /* length of the name, with its parameters */
    bool defined;
};

struct work {
    const char *arch, *include;
    struct options_nvcc nvcc;
    struct {
        bool given;
        const char *value; /* borrowed */
        long number;
    } flags[N_KNOWN];
    struct {
        unsigned n;
        long numbers[MAX_NUMBERS];
    } lists[N_KNOWN];
    struct macro macros[OPTIONS_MAX];
    char *paths[OPTIONS_MAX]; /* owned */
    unsigned n_macros, n_paths;
};

static int refuse(struct error *e, unsigned i, const char *why)
{
    char key[32];

    snprintf(key, sizeof(key), "options[%u]", i);
    return error_at(e, ERROR_INVALID_ARGUMENT, "", key, why);
}

/* Whether `option` is that name; *ret_value is its value, NULL without one. */
static bool named(const char *option, const char *name, const char **ret_value)
{
    size_t n = strlen(name);
    const char *at = option + 1;

    if (*option != '-' || n == 0)
        return false;
    if (n > 1 && *at == '-')
        at++;
    if (strncmp(at, name, n) != 0)
        return false;
    at += n;
    if (n == 1 && strchr("DUI", *name) && *at) { /* -DNAME, -D NAME */
        *ret_value = at + strspn(at, " ");
        return true;
    }
    if (*at && *at != '=')
        return false;
    *ret_value = *at ? at + 1 : NULL;
    return true;
}

static const struct known *find(const char *option, const char **ret_value)
{
    for (unsigned i = 0; i < N_KNOWN; i++)
        if (named(option, known[i].name, ret_value) || (known[i].other && named(option, known[i].other, ret_value)))
            return &known[i];
    return NULL;
}

static bool starts_name(char c)
{
    return isalpha((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

static size_t name_length(const char *text)
{
    size_t n = 0;

    if (starts_name(*text))
        while (starts_name(text[n]) || isdigit((unsigned char)text[n]))
            n++;
    return n;
}

/* NAME, NAME=VALUE, NAME(a, b)=VALUE. Of two of one name the last one counts. */
static int take_macro(struct work *w, unsigned i, const char *text, bool defined, struct error *e)
{
    size_t name = name_length(text), end = name;
    unsigned at;

    if (!name)
        return refuse(e, i, "needs the name of a macro");
    if (defined && text[end] == '(') {
        end += strcspn(text + end, ")=");
        if (text[end++] != ')')
            return refuse(e, i, "the macro's parameters have no end");
    }
    if (text[end] && (!defined || text[end] != '='))
        return refuse(e, i, "the macro's name must be an identifier, with = behind it");
    for (at = 0; at < w->n_macros; at++)
        if (w->macros[at].name == name && !memcmp(w->macros[at].text, text, name))
            break;
    w->macros[at] = (struct macro){text, name, defined};
    if (at == w->n_macros)
        w->n_macros++;
    return 0;
}

/* Appends the parts of a path to `into`, one slash between them; false for "..". */
static bool append_parts(char *into, size_t size, const char *path)
{
    size_t n = strlen(into);

    for (;;) {
        size_t length;

        path += strspn(path, "/");
        length = strcspn(path, "/");
        if (!length)
            return true;
        if (length == 2 && path[0] == '.' && path[1] == '.')
            return false;
        if (length != 1 || path[0] != '.') {
            if (n + 1 + length + 1 > size)
                return false;
            into[n++] = '/';
            memcpy(into + n, path, length);
            n += length;
            into[n] = '\0';
        }
        path += length;
    }
}

/* By its text alone: the sandbox decides about links in the toolkit. */
static int take_path(struct work *w, unsigned i, const char *value, struct error *e)
{
    char base[OPTIONS_MAX_LENGTH] = "", path[OPTIONS_MAX_LENGTH] = "";
    size_t n;

    if (!*value)
        return refuse(e, i, "needs a directory");
    if (!w->include || !append_parts(base, sizeof(base), w->include))
        return refuse(e, i, "there are no headers of a toolkit");
    if ((*value != '/' && !append_parts(path, sizeof(path), w->include)) || !append_parts(path, sizeof(path), value))
        return refuse(e, i, "must be a directory of the toolkit's headers, without \"..\", like -I cccl");
    n = strlen(base);
    if (strncmp(path, base, n) != 0 || (path[n] && path[n] != '/')) {
        char why[ERROR_MESSAGE_MAX];

        snprintf(why, sizeof(why), "lies outside the toolkit's headers, %.100s; send files of your own in `files`",
                 base);
        return refuse(e, i, why);
    }
    for (unsigned k = 0; k < w->n_paths; k++)
        if (!strcmp(w->paths[k], path))
            return 0;
    w->paths[w->n_paths] = strdup(path);
    if (!w->paths[w->n_paths])
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for options");
    w->n_paths++;
    return 0;
}

/* A decimal number of at most 6 digits; *ret_end is behind it. */
static bool take_number(const char *text, long *ret_number, const char **ret_end)
{
    size_t n = strspn(text, "0123456789");

    if (n < 1 || n > 6)
        return false;
    *ret_number = strtol(text, NULL, 10);
    *ret_end = text + n;
    return true;
}

static int take_numbers(struct work *w, unsigned which, unsigned i, const char *value, struct error *e)
{
    long number;

    for (const char *at = value;; at++) {
        unsigned k = 0, n = w->lists[which].n;

        if (!take_number(at, &number, &at) || (*at && *at != ',') || n == MAX_NUMBERS)
            return refuse(e, i, "must be numbers of messages, like 177,550");
        while (k < n && w->lists[which].numbers[k] < number)
            k++;
        if (k == n || w->lists[which].numbers[k] != number) { /* sorted, each once */
            memmove(&w->lists[which].numbers[k + 1], &w->lists[which].numbers[k], (n - k) * sizeof(long));
            w->lists[which].numbers[k] = number;
            w->lists[which].n++;
        }
        if (!*at)
            return 0;
    }
}

/* The standard's own name, also for that with GNU's extensions, which device code does without; NULL: there is none. */
static const char *standard(const char *value)
{
#define X(word) word,
    static const char *const values[] = {KERNELS_STANDARDS(X)};
#undef X

    for (unsigned i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        if (!strcmp(value, values[i]) || (!strncmp(value, "gnu", 3) && !strcmp(value + 3, values[i] + 1)))
            return values[i];
    return NULL;
}

static int take_value(struct work *w, const struct known *k, unsigned i, const char *value, struct error *e)
{
    unsigned which = (unsigned)(k - known);
    const char *end;

    switch (k->kind) {
    case BOOL:
        if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
            return refuse(e, i, "must be true or false");
        break;
    case STANDARD:
        value = standard(value);
        if (!value)
            return refuse(e, i, "must be c++11, c++14, c++17 or c++20");
        break;
    case NUMBER:
        if (!take_number(value, &w->flags[which].number, &end) || *end || w->flags[which].number < 1 ||
            w->flags[which].number > 255)
            return refuse(e, i, "must be a number of registers from 1 to 255");
        break;
    case ON:
        if (strcmp(value, "on") != 0)
            return refuse(e, i, "must be on");
        break;
    case OFF_ONLY:
        if (strcmp(value, "false") != 0)
            return refuse(e, i, "must be false: a module is complete in itself");
        break;
    case NUMBERS:
        return take_numbers(w, which, i, value, e);
    case DEFINE:
    case UNDEFINE:
        return take_macro(w, i, value, k->kind == DEFINE, e);
    case INCLUDE:
        return take_path(w, i, value, e);
    case FLAG:
        return refuse(e, i, "takes no value");
    }
    w->flags[which].given = true;
    w->flags[which].value = value;
    return 0;
}

static int take_nvcc(struct work *w, const char *const *options, unsigned n, unsigned *i, struct error *e)
{
    const char *why = ALLOWED;
    const unsigned given = *i;

    return options_nvcc_take(&w->nvcc, options, n, i, w->arch, &why) > 0 ? 0 : refuse(e, given, why);
}

/* nvcc would compile for several, one of which has to be this one. */
static int check_arch(const struct work *w, struct error *e)
{
    char why[ERROR_MESSAGE_MAX];

    if (!w->nvcc.other || w->nvcc.matches)
        return 0;
    snprintf(why, sizeof(why),
             "asks for %.*s, and the code is for %.16s: leave it out, or compile for that one by `arch`",
             (int)(w->nvcc.other_length < 40 ? w->nvcc.other_length : 40), w->nvcc.other, w->arch);
    return refuse(e, w->nvcc.other_index, why);
}

static int take_all(struct work *w, const char *const *options, unsigned n, struct error *e)
{
    for (unsigned i = 0; i < n; i++) {
        const char *value = NULL;
        const struct known *k;
        size_t length = strlen(options[i]);

        if (length > OPTIONS_MAX_LENGTH)
            return refuse(e, i, "is longer than 4096 bytes");
        if (!options_text_valid(options[i], length))
            return refuse(e, i, "must be UTF-8 without control characters");
        k = find(options[i], &value);
        if (!k) {
            if (take_nvcc(w, options, n, &i, e) < 0)
                return -1;
            continue;
        }
        if (k->kind == FLAG && !value) {
            w->flags[k - known].given = true;
            continue;
        }
        if (!value && k->kind == ON)
            value = "on";
        if (!value) {
            if (i + 1 == n)
                return refuse(e, i, "needs a value");
            value = options[++i];
            if (strlen(value) > OPTIONS_MAX_LENGTH || !options_text_valid(value, strlen(value)))
                return refuse(e, i, "must be at most 4096 bytes of UTF-8 without control characters");
        }
        if (take_value(w, k, i, value, e) < 0)
            return -1;
    }
    return 0;
}

/* Room for the longest of them: a name, a dash or two, a value, a list. */
static int emit(struct options *o, struct error *e, const char *name, const char *equals, const char *value)
{
    size_t size = 2 + strlen(name) + 1 + strlen(value) + 1;
    char *text = malloc(size);

    if (!text)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for options");
    snprintf(text, size, "--%s%s%s", name, equals, value);
    o->texts[o->n++] = text;
    return 0;
}

static int emit_flag(struct options *o, const struct work *w, unsigned i, struct error *e)
{
    char number[16];
    const char *value = w->flags[i].value;

    if (known[i].kind == FLAG)
        return emit(o, e, known[i].name, "", "");
    /* Fast math changes the defaults of its parts. */
    if (known[i].dropped && !strcmp(value, known[i].dropped) &&
        !(i >= FIRST_PART && i <= LAST_PART && w->flags[FAST_MATH].given))
        return 0;
    if (known[i].kind == NUMBER) {
        snprintf(number, sizeof(number), "%ld", w->flags[i].number);
        value = number;
    }
    return emit(o, e, known[i].name, "=", value);
}

static int emit_list(struct options *o, const struct work *w, unsigned i, struct error *e)
{
    char text[MAX_NUMBERS * 8] = "";
    size_t n = 0;

    for (unsigned k = 0; k < w->lists[i].n; k++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%ld", k ? "," : "", w->lists[i].numbers[k]);
    return emit(o, e, known[i].name, "=", text);
}

static int by_name(const void *a, const void *b)
{
    const struct macro *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->name < y->name ? x->name : y->name);

    return order ? order : (x->name > y->name) - (x->name < y->name);
}

static int emit_all(struct options *o, struct work *w, struct error *e)
{
    for (unsigned i = 0; i < N_KNOWN; i++) {
        if (w->flags[i].given && emit_flag(o, w, i, e) < 0)
            return -1;
        if (w->lists[i].n && emit_list(o, w, i, e) < 0)
            return -1;
    }
    for (unsigned i = 0; i < OPTIONS_NVCC_ASSEMBLER; i++)
        if (w->nvcc.assembler[i] && emit(o, e, "ptxas-options", "=", w->nvcc.assembler[i]) < 0)
            return -1;
    /* Macros mean the same in every order, directories do not. */
    qsort(w->macros, w->n_macros, sizeof(w->macros[0]), by_name);
    for (unsigned i = 0; i < w->n_macros; i++)
        if (emit(o, e, w->macros[i].defined ? "define-macro" : "undefine-macro", "=", w->macros[i].text) < 0)
            return -1;
    for (unsigned i = 0; i < w->n_paths; i++)
        if (emit(o, e, "include-path", "=", w->paths[i]) < 0)
            return -1;
    return 0;
}

int options_normalise(const char *const *options, unsigned n, const char *arch, const char *include,
                      struct options *ret_options, struct error *e)
{
    struct options o = {.n = 0};
    struct work *w;
    int r;

    if (n > OPTIONS_MAX) {
        error_at(e, ERROR_LIMIT_EXCEEDED, "", "options", "too many");
        error_detail_number(e, "limit", OPTIONS_MAX);
        return error_detail_number(e, "value", n);
    }
    w = calloc(1, sizeof(*w));
    if (!w)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for options");
    w->arch = arch;
    w->include = include;
    r = take_all(w, options, n, e);
    if (!r)
        r = check_arch(w, e);
    if (!r)
        r = emit_all(&o, w, e);
    for (unsigned i = 0; i < w->n_paths; i++)
        free(w->paths[i]);
    free(w);
    if (r < 0) {
        options_free(&o);
        return -1;
    }
    *ret_options = o;
    return 0;
}

void options_free(struct options *options)
{
    for (unsigned i = 0; i < options->n; i++)
        free(options->texts[i]);
    options->n = 0;
}
