#include "compile/options.h"

#include <ctype.h>
#include <endian.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile/helper_wire.h"

#define ALLOWED                                                                                                        \
    "not allowed; these are: -D -U -I -std= --use_fast_math -ftz= -prec-div= -prec-sqrt= -fmad= -maxrregcount= "       \
    "-lineinfo -G -dopt=on -w -diag-suppress= -default-device -restrict -extra-device-vectorization -minimal, "        \
    "nvcc's -arch= -Xptxas="

enum kind {
    FLAG,
    BOOL,
    STANDARD,
    NUMBER,
    ON,
    NUMBERS,
    OFF_ONLY,
    DEFINE,
    UNDEFINE,
    INCLUDE,
    /* nvcc's own, which are not handed on as they are. */
    DROPPED, /* without a value */
    DROPPED_VALUE,
    ARCH, /* sm_90; or arch=compute_90,code=[sm_90,compute_90] */
    ASSEMBLER,
};

/* Names of more than one letter take one or two dashes; names of one letter take one. */
#define X(name) {name, NULL, DROPPED_VALUE, NULL},
static const struct known {
    const char *name, *other; /* the spelling handed on, and another one (NULL: none) */
    enum kind kind;
    const char *dropped; /* a value that changes nothing */
} known[] = {{"std", NULL, STANDARD, NULL},
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
             {"expt-relaxed-constexpr", "relaxed-constexpr", DROPPED, NULL},
             {"expt-extended-lambda", "extended-lambda", DROPPED, NULL},
             {"forward-unknown-to-host-compiler", "m64", DROPPED, NULL},
             {"Wno-deprecated-gpu-targets", NULL, DROPPED, NULL},
             {"debug", "g", DROPPED, NULL}, /* for the host's code */
             {"resource-usage", "res-usage", DROPPED, NULL},
             {"gpu-architecture", "arch", ARCH, NULL},
             {"gpu-code", "code", ARCH, NULL},
             {"generate-code", "gencode", ARCH, NULL},
             {"ptxas-options", "Xptxas", ASSEMBLER, NULL},
             KERNELS_HOST_OPTIONS(X)};
#undef X

enum {
    N_KNOWN = sizeof(known) / sizeof(known[0]),
    FAST_MATH = 1,
    FIRST_PART = 2,
    LAST_PART = 5,
    MAX_NUMBERS = 64,
    N_ASSEMBLER = 4
};

/* Other options of the assembler could write files. Of one kind the last one counts. */
static const struct {
    const char *text, *handed_on; /* NULL: the default */
    unsigned kind;
} assembler[] = {
    {"-v", "-v", 0},
    {"--verbose", "-v", 0},
    {"-O0", "-O0", 1},
    {"-O1", "-O1", 1},
    {"-O2", "-O2", 1},
    {"-O3", NULL, 1},
    {"-dlcm=ca", "-dlcm=ca", 2},
    {"-dlcm=cg", "-dlcm=cg", 2},
    {"-dlcm=cs", "-dlcm=cs", 2},
    {"-dlcm=cv", "-dlcm=cv", 2},
    {"-warn-spills", "-warn-spills", 3},
    {"--warn-on-spills", "-warn-spills", 3},
};

struct macro {
    const char *text; /* borrowed: NAME, NAME=VALUE */
    size_t name;      /* length of the name, with its parameters */
    bool defined;
};

struct work {
    const char *arch, *include;
    struct {
        bool given;
        const char *value; /* borrowed; of NUMBER and NUMBERS: */
        unsigned n;
        long numbers[MAX_NUMBERS];
    } given[N_KNOWN];
    const char *assembler[N_ASSEMBLER];
    bool arch_matches; /* some given architecture is the compile's */
    const char *other; /* a given architecture that is not the compile's; borrowed */
    unsigned other_at; /* the option that names it */
    int other_length;
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

static int no_memory(struct error *e)
{
    return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for options");
}

static bool text_valid(const char *text, size_t length)
{
    for (size_t i = 0, n; i < length; i += n) {
        n = text_character(text + i, length - i);
        if (!n || text[i] == '\n')
            return false;
    }
    return true;
}

static bool named(const char *option, const char *name, bool of_nvcc, const char **ret_value)
{
    size_t n = name ? strlen(name) : 0;
    const char *at = option + 1;

    if (*option != '-' || n == 0)
        return false;
    if ((n > 1 || of_nvcc) && *at == '-')
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
    for (const struct known *k = known; k < known + N_KNOWN; k++)
        if (named(option, k->name, k->kind >= DROPPED, ret_value) ||
            named(option, k->other, k->kind >= DROPPED, ret_value))
            return k;
    return NULL;
}

static bool starts_name(char c)
{
    return isalpha((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

/* NAME, NAME=VALUE, NAME(a, b)=VALUE. Of two of one name the last one counts. */
static int take_macro(struct work *w, unsigned i, const char *text, bool defined, struct error *e)
{
    size_t name = 0, end;
    unsigned at;

    while (starts_name(text[name]) || (name && isdigit((unsigned char)text[name])))
        name++;
    if (!name)
        return refuse(e, i, "needs the name of a macro");
    end = name;
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
    w->n_macros += at == w->n_macros;
    return 0;
}

static bool append_parts(char into[OPTIONS_MAX_LENGTH], const char *path)
{
    size_t n = strlen(into);

    for (size_t length; path += strspn(path, "/"), length = strcspn(path, "/"); path += length) {
        if (length == 2 && path[0] == '.' && path[1] == '.')
            return false;
        if (length == 1 && path[0] == '.')
            continue;
        if (n + 1 + length + 1 > OPTIONS_MAX_LENGTH)
            return false;
        n += (size_t)snprintf(into + n, OPTIONS_MAX_LENGTH - n, "/%.*s", (int)length, path);
    }
    return true;
}

/* The path's text alone counts: the sandbox decides about links in the toolkit. */
static int take_path(struct work *w, unsigned i, const char *value, struct error *e)
{
    char base[OPTIONS_MAX_LENGTH] = "", path[OPTIONS_MAX_LENGTH] = "", why[ERROR_MESSAGE_MAX];
    size_t n;

    if (!*value)
        return refuse(e, i, "needs a directory");
    if (!w->include || !append_parts(base, w->include))
        return refuse(e, i, "there are no headers of a toolkit");
    if ((*value != '/' && !append_parts(path, w->include)) || !append_parts(path, value))
        return refuse(e, i, "must be a directory of the toolkit's headers, without \"..\", like -I cccl");
    n = strlen(base);
    if (strncmp(path, base, n) != 0 || (path[n] && path[n] != '/')) {
        snprintf(why, sizeof(why), "lies outside the toolkit's headers, %.100s; send files of your own in `files`",
                 base);
        return refuse(e, i, why);
    }
    for (unsigned k = 0; k < w->n_paths; k++)
        if (!strcmp(w->paths[k], path))
            return 0;
    w->paths[w->n_paths] = strdup(path);
    return w->paths[w->n_paths++] ? 0 : no_memory(e);
}

static bool take_number(const char *text, long *ret_number, const char **ret_end)
{
    size_t n = strspn(text, "0123456789");

    if (n < 1 || n > 6)
        return false;
    *ret_number = strtol(text, NULL, 10);
    *ret_end = text + n;
    return true;
}

static int take_numbers(struct work *w, size_t which, unsigned i, const char *value, struct error *e)
{
    long number, *numbers = w->given[which].numbers;

    for (const char *at = value;; at++) {
        unsigned k = 0, n = w->given[which].n;

        if (!take_number(at, &number, &at) || (*at && *at != ',') || n == MAX_NUMBERS)
            return refuse(e, i, "must be numbers of messages, like 177,550");
        while (k < n && numbers[k] < number)
            k++;
        if (k == n || numbers[k] != number) { /* sorted, each once */
            memmove(&numbers[k + 1], &numbers[k], (n - k) * sizeof(long));
            numbers[k] = number;
            w->given[which].n++;
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

static bool is(const char *text, size_t length, const char *word)
{
    return strlen(word) == length && !memcmp(text, word, length);
}

/* sm_90, compute_90a, 90, native, all: whether code for `arch` does what is asked for. */
static bool is_arch(const char *text, size_t length, const char *arch)
{
    size_t prefix = length > 3 && !memcmp(text, "sm_", 3) ? 3 : length > 8 && !memcmp(text, "compute_", 8) ? 8 : 0;

    if (is(text, length, "native") || is(text, length, "all") || is(text, length, "all-major"))
        return true;
    text += prefix;
    length -= prefix;
    arch += 3;
    return length >= strspn(arch, "0123456789") && length <= strlen(arch) && !memcmp(text, arch, length);
}

/* Each word of a list is an architecture, apart from "arch=" and the like. */
static int take_archs(struct work *w, unsigned i, const char *list, struct error *e)
{
    static const char between[] = ",[]\"' ";

    if (*list == '-')
        return refuse(e, i, "needs the name of an architecture, such as sm_90");
    for (const char *at = list + strspn(list, between); *at; at += strspn(at, between)) {
        const char *end = at + strcspn(at, between), *equals = memchr(at, '=', (size_t)(end - at));

        at = equals ? equals + 1 : at;
        if (end > at && is_arch(at, (size_t)(end - at), w->arch)) {
            w->arch_matches = true;
        } else if (end > at) {
            w->other = at;
            w->other_length = end - at < 40 ? (int)(end - at) : 40;
            w->other_at = i;
        }
        at = end;
    }
    return 0;
}

static int take_assembler(struct work *w, unsigned i, const char *list, struct error *e)
{
    const size_t n = sizeof(assembler) / sizeof(assembler[0]);

    for (const char *at = list; *at; at += strspn(at, ", ")) {
        size_t length = strcspn(at, ", "), k = 0;

        while (k < n && !is(at, length, assembler[k].text))
            k++;
        if (k == n)
            return refuse(e, i,
                          "of the assembler's options there are -v, -O0 to -O3, -dlcm=ca|cg|cs|cv and -warn-spills");
        w->assembler[assembler[k].kind] = assembler[k].handed_on;
        at += length;
    }
    return 0;
}

static int take_value(struct work *w, const struct known *k, unsigned i, unsigned at, const char *value,
                      struct error *e)
{
    const size_t which = (size_t)(k - known);
    const char *end;
    long number;

    switch (k->kind) {
    case BOOL:
        if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
            return refuse(e, at, "must be true or false");
        break;
    case STANDARD:
        value = standard(value);
        if (!value)
            return refuse(e, at, "must be c++11, c++14, c++17 or c++20");
        break;
    case NUMBER:
        if (!take_number(value, &number, &end) || *end || number < 1 || number > 255)
            return refuse(e, at, "must be a number of registers from 1 to 255");
        w->given[which].numbers[0] = number;
        w->given[which].n = 1;
        break;
    case ON:
        if (strcmp(value, "on") != 0)
            return refuse(e, at, "must be on");
        break;
    case OFF_ONLY:
        if (strcmp(value, "false") != 0)
            return refuse(e, at, "must be false: a module is complete in itself");
        break;
    case NUMBERS:
        if (take_numbers(w, which, at, value, e) < 0)
            return -1;
        break;
    case DEFINE:
    case UNDEFINE:
        return take_macro(w, at, value, k->kind == DEFINE, e);
    case INCLUDE:
        return take_path(w, at, value, e);
    case FLAG:
        return refuse(e, at, "takes no value");
    case ARCH:
        return take_archs(w, i, value, e);
    case ASSEMBLER:
        return take_assembler(w, i, value, e);
    case DROPPED:
        return refuse(e, i, ALLOWED);
    case DROPPED_VALUE:
        return 0;
    }
    w->given[which].given = true;
    w->given[which].value = value;
    return 0;
}

/* -O3, -lcurand, -L/lib: a letter of the host's compiler, and what belongs to it. */
static bool is_letter(const char *option)
{
    return option[0] == '-' && ((option[1] == 'O' && (!option[2] || (strchr("0123", option[2]) && !option[3]))) ||
                                ((option[1] == 'l' || option[1] == 'L') && option[2]));
}

static int take_all(struct work *w, const char *const *options, unsigned n, struct error *e)
{
    for (unsigned i = 0; i < n; i++) {
        const unsigned given = i;
        const char *value = NULL;
        const struct known *k;

        if (strlen(options[i]) > OPTIONS_MAX_LENGTH)
            return refuse(e, i, "is longer than 4096 bytes");
        if (!text_valid(options[i], strlen(options[i])))
            return refuse(e, i, "must be UTF-8 without control characters");
        k = find(options[i], &value);
        if (!k) {
            if (!is_letter(options[i]))
                return refuse(e, i, ALLOWED);
            continue;
        }
        if (!value && (k->kind == FLAG || k->kind == DROPPED)) {
            w->given[k - known].given = true;
            continue;
        }
        if (!value && k->kind == ON)
            value = "on";
        if (!value) {
            if (i + 1 == n)
                return refuse(e, i, "needs a value");
            value = options[++i];
            if (strlen(value) > OPTIONS_MAX_LENGTH || !text_valid(value, strlen(value)))
                return refuse(e, i, "must be at most 4096 bytes of UTF-8 without control characters");
        }
        if (take_value(w, k, given, i, value, e) < 0)
            return -1;
    }
    return 0;
}

/* nvcc would compile for several architectures, one of which has to be the compile's. */
static int check_arch(const struct work *w, struct error *e)
{
    char why[ERROR_MESSAGE_MAX];

    if (!w->other || w->arch_matches)
        return 0;
    snprintf(why, sizeof(why),
             "asks for %.*s, and the code is for %.16s: leave it out, or compile for that one by `arch`",
             w->other_length, w->other, w->arch);
    return refuse(e, w->other_at, why);
}

static int emit(struct options *o, struct error *e, const char *name, const char *value)
{
    if (asprintf(&o->texts[o->n], "--%s%s%s", name, value ? "=" : "", value ? value : "") < 0)
        return no_memory(e);
    o->n++;
    return 0;
}

static int emit_given(struct options *o, const struct work *w, unsigned i, struct error *e)
{
    const char *value = w->given[i].value;
    char text[MAX_NUMBERS * 8] = "";
    size_t n = 0;

    /* Fast math changes the defaults of its parts. */
    if (known[i].kind >= DROPPED || (known[i].dropped && !strcmp(value, known[i].dropped) &&
                                     !(i >= FIRST_PART && i <= LAST_PART && w->given[FAST_MATH].given)))
        return 0;
    for (unsigned k = 0; k < w->given[i].n; k++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%ld", k ? "," : "", w->given[i].numbers[k]);
    return emit(o, e, known[i].name, n ? text : value);
}

static int by_name(const void *a, const void *b)
{
    const struct macro *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->name < y->name ? x->name : y->name);

    return order ? order : (x->name > y->name) - (x->name < y->name);
}

static int emit_all(struct options *o, struct work *w, struct error *e)
{
    int r = 0;

    for (unsigned i = 0; !r && i < N_KNOWN; i++)
        if (w->given[i].given)
            r = emit_given(o, w, i, e);
    for (unsigned i = 0; !r && i < N_ASSEMBLER; i++)
        if (w->assembler[i])
            r = emit(o, e, "ptxas-options", w->assembler[i]);
    /* Macros mean the same in every order, directories do not. */
    qsort(w->macros, w->n_macros, sizeof(w->macros[0]), by_name);
    for (unsigned i = 0; !r && i < w->n_macros; i++)
        r = emit(o, e, w->macros[i].defined ? "define-macro" : "undefine-macro", w->macros[i].text);
    for (unsigned i = 0; !r && i < w->n_paths; i++)
        r = emit(o, e, "include-path", w->paths[i]);
    return r;
}

static int too_many(struct error *e, const char *key, const char *why, uint64_t limit, uint64_t value)
{
    error_at(e, ERROR_LIMIT_EXCEEDED, "", key, why);
    error_detail_number(e, "limit", (int64_t)limit);
    return error_detail_number(e, "value", (int64_t)value);
}

int options_normalise(const char *const *options, unsigned n, const char *arch, const char *include,
                      struct options *ret_options, struct error *e)
{
    struct options o = {.n = 0};
    struct work *w;
    int r;

    if (n > OPTIONS_MAX)
        return too_many(e, "options", "too many", OPTIONS_MAX, n);
    w = calloc(1, sizeof(*w));
    if (!w)
        return no_memory(e);
    w->arch = arch;
    w->include = include;
    r = take_all(w, options, n, e) < 0 || check_arch(w, e) < 0 || emit_all(&o, w, e) < 0 ? -1 : 0;
    for (unsigned i = 0; i < w->n_paths; i++)
        free(w->paths[i]);
    free(w);
    if (r < 0)
        options_free(&o);
    else
        *ret_options = o;
    return r;
}

void options_free(struct options *options)
{
    while (options->n)
        free(options->texts[--options->n]);
}

/* ---- an input without its options ---- */

static const char more[] = "more than this daemon takes";

/* C++ names and the operators that template arguments need; no quote, no backslash, nothing that ends a statement. */
static bool entry_valid(const char *entry)
{
    size_t n = strlen(entry);

    if (!n || n > OPTIONS_MAX_ENTRY || !text_valid(entry, n))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)entry[i]) && (unsigned char)entry[i] < 0x80 &&
            !strchr("_$ <>(),:&*+-/%!~^|=?.'[]{}", entry[i]))
            return false;
    return true;
}

static int check_entries(const struct compile_input *input, struct error *e)
{
    char key[32];

    if (!input->n_entries)
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "entries", "name at least one kernel of the source");
    if (input->n_entries > COMPILED_MAX_ENTRIES)
        return too_many(e, "entries", more, COMPILED_MAX_ENTRIES, input->n_entries);
    for (unsigned i = 0; i < input->n_entries; i++) {
        snprintf(key, sizeof(key), "entries[%u]", i);
        if (!entry_valid(input->entries[i]))
            return error_at(e, ERROR_INVALID_ARGUMENT, "", key,
                            "must be the name of a kernel, or an instantiation like scale<float, 4>");
        for (unsigned k = 0; k < i; k++)
            if (!strcmp(input->entries[i], input->entries[k]))
                return error_at(e, ERROR_INVALID_ARGUMENT, "", key, "is there twice");
    }
    return 0;
}

static bool file_name_valid(const char *name)
{
    size_t n = strlen(name);

    return n && n <= OPTIONS_MAX_NAME && text_valid(name, n);
}

static int check_files(const struct compile_input *input, uint64_t source_bytes, struct error *e)
{
    uint64_t bytes = input->length;
    char key[32];

    if (input->n_files > OPTIONS_MAX_FILES)
        return too_many(e, "files", more, OPTIONS_MAX_FILES, input->n_files);
    if (memchr(input->source, 0, input->length))
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "source", "holds a zero byte");
    for (unsigned i = 0; i < input->n_files; i++) {
        const struct compile_file *f = &input->files[i];

        snprintf(key, sizeof(key), "files[%u]", i);
        if (!file_name_valid(f->name))
            return error_at(e, ERROR_INVALID_ARGUMENT, "", key,
                            "its name must be 1 to 255 bytes of UTF-8 without control characters");
        if (memchr(f->text, 0, f->length))
            return error_at(e, ERROR_INVALID_ARGUMENT, "", key, "holds a zero byte");
        for (unsigned k = 0; k < i; k++)
            if (!strcmp(f->name, input->files[k].name))
                return error_at(e, ERROR_INVALID_ARGUMENT, "", key, "its name is there twice");
        bytes += f->length; /* each is shorter than a message, so the sum cannot overflow */
    }
    return bytes > source_bytes ? too_many(e, "source", more, source_bytes, bytes) : 0;
}

/* sm_90, sm_90a, sm_103f: a real architecture, since the result is machine code for one device. */
static bool arch_valid(const char *arch)
{
    size_t n;

    if (strncmp(arch, "sm_", 3) != 0)
        return false;
    n = strspn(arch + 3, "0123456789");
    arch += 3 + n;
    return n >= 2 && n <= 3 && (!*arch || ((*arch == 'a' || *arch == 'f') && !arch[1]));
}

int options_check_input(const struct compile_input *input, uint64_t source_bytes, struct error *e)
{
    if (!arch_valid(input->arch))
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "arch", "must be an architecture like sm_90a");
    if (!file_name_valid(input->name))
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "name",
                        "must be 1 to 255 bytes of UTF-8 without control characters");
    if (input->name[0] == '-') /* the compiler would take it for an option */
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "name", "must not begin with -");
    if (input->length > source_bytes)
        return too_many(e, "source", more, source_bytes, input->length);
    if (check_files(input, source_bytes, e) < 0)
        return -1;
    return check_entries(input, e);
}

/* ---- the key ---- */

/* To be changed with the encoding, or when the same input gets another meaning. */
static const char format[] = "kops code 1";

/* A length before each text keeps neighbours apart. */
static void add(crypto_generichash_state *h, const void *bytes, size_t n)
{
    const uint64_t length = htole64(n);

    crypto_generichash_update(h, (const unsigned char *)&length, sizeof(length));
    if (n)
        crypto_generichash_update(h, bytes, n);
}

static void add_text(crypto_generichash_state *h, const char *text)
{
    add(h, text, strlen(text));
}

static void add_count(crypto_generichash_state *h, unsigned n)
{
    const uint32_t count = htole32(n);

    add(h, &count, sizeof(count));
}

/* By name: the next one behind `last`, NULL: the first. Quadratic in a number that is small. */
static const struct compile_file *next_file(const struct compile_input *input, const struct compile_file *last)
{
    const struct compile_file *next = NULL;

    for (unsigned i = 0; i < input->n_files; i++) {
        const struct compile_file *f = &input->files[i];

        if ((!last || strcmp(f->name, last->name) > 0) && (!next || strcmp(f->name, next->name) < 0))
            next = f;
    }
    return next;
}

void key_make(const struct compile_input *input, const char *identity, unsigned char ret_key[KEY_BYTES])
{
    crypto_generichash_state h;

    crypto_generichash_init(&h, NULL, 0, KEY_BYTES);
    add_text(&h, format);
    add_text(&h, identity);
    add_text(&h, input->arch);
    add_count(&h, input->n_options);
    for (unsigned i = 0; i < input->n_options; i++)
        add_text(&h, input->options[i]);
    add_text(&h, input->name);
    add(&h, input->source, input->length);
    add_count(&h, input->n_files);
    for (const struct compile_file *f = next_file(input, NULL); f; f = next_file(input, f)) {
        add_text(&h, f->name);
        add(&h, f->text, f->length);
    }
    add_count(&h, input->n_entries);
    for (unsigned i = 0; i < input->n_entries; i++)
        add_text(&h, input->entries[i]);
    crypto_generichash_final(&h, ret_key, KEY_BYTES);
}
