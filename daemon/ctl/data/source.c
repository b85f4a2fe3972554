#include "source.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/complain.h"
#include "proto/generated/kernels.h"

/* ---- files and options ---- */

char *source_read_file(const char *path, size_t *ret_size)
{
    FILE *file = fopen(path, "re");
    size_t size = 0, room = 0, got = 1;
    char *data = NULL, *grown;

    while (file && got) {
        if (room - size < 2) {
            room = room ? room * 2 : 1 << 16;
            grown = realloc(data, room);
            if (!grown)
                break;
            data = grown;
        }
        got = fread(data + size, 1, room - size - 1, file);
        size += got;
    }
    if (!file || got || ferror(file)) {
        ctl_complain("os_error", "reading %s: %s", path, strerror(errno));
        free(data);
        data = NULL;
    } else {
        data[size] = 0;
        *ret_size = size;
    }
    if (file)
        fclose(file);
    return data;
}

/* A copy of a part of a text that lives as long as the source. */
static const char *keep(struct source *s, const char *text, size_t length)
{
    char *copy = s->n_names < sizeof(s->names) / sizeof(s->names[0]) ? strndup(text, length) : NULL;

    if (copy)
        s->names[s->n_names++] = copy;
    return copy;
}

static const char *read_text(struct source *s, const char *path)
{
    size_t size;
    char *text = source_read_file(path, &size);

    if (text && memchr(text, 0, size)) {
        ctl_complain("bad_argument", "%s: a source has no zero bytes", path);
        free(text);
        return NULL;
    }
    if (text)
        s->texts[s->n_texts++] = text;
    return text;
}

static int add_file(struct source *s, const char *argument)
{
    const char *equals = strchr(argument, '=');
    struct kops_file *file = &s->files[s->s.n_files];

    if (s->s.n_files == SOURCE_MAX)
        return (int)ctl_usage("--include-file may be given %d times", SOURCE_MAX);
    file->name = keep(s, argument, equals ? (size_t)(equals - argument) : strlen(argument));
    file->text = read_text(s, equals ? equals + 1 : argument);
    if (!file->name || !file->text)
        return CTL_FAILED;
    s->s.files = s->files;
    s->s.n_files++;
    return -1;
}

int source_option(struct source *s, int option)
{
    switch (option) {
    case 'o':
        if (s->s.n_options == SOURCE_MAX)
            return (int)ctl_usage("--option may be given %d times", SOURCE_MAX);
        s->options[s->s.n_options++] = optarg;
        s->s.options = s->options;
        return -1;
    case 'a':
        s->s.arch = optarg;
        return -1;
    case 'd':
        s->s.device = optarg;
        return -1;
    default: /* 'i' */
        return add_file(s, optarg);
    }
}

enum ctl_exit source_add_entry(struct source *s, const char *entry)
{
    if (s->s.n_entries == SOURCE_MAX)
        return ctl_usage("at most %d entries of a source can be compiled at once: name them by --entry", SOURCE_MAX);
    s->entries[s->s.n_entries++] = entry;
    s->s.entries = s->entries;
    return CTL_OK;
}

/* A file beside the source that is included as "NAME", unless it was given or is none. */
static enum ctl_exit add_beside(struct source *s, const char *folder, size_t folder_length, const char *name,
                                size_t length)
{
    struct kops_file *file = &s->files[s->s.n_files];
    char path[PATH_MAX];

    for (size_t i = 0; i < s->s.n_files; i++)
        if (strlen(s->files[i].name) == length && !memcmp(s->files[i].name, name, length))
            return CTL_OK;
    snprintf(path, sizeof(path), "%.*s%.*s", (int)folder_length, folder, (int)length, name);
    if (*name == '/' || access(path, R_OK) != 0)
        return CTL_OK; /* the toolkit's, or the compiler will say that it is missing */
    if (s->s.n_files == SOURCE_MAX)
        return ctl_usage("more than %d files are included", SOURCE_MAX);
    file->name = keep(s, name, length);
    file->text = read_text(s, path);
    if (!file->name || !file->text)
        return CTL_FAILED;
    s->s.files = s->files;
    s->s.n_files++;
    return CTL_OK;
}

/* What lines of a text include in quotes. */
static enum ctl_exit add_includes(struct source *s, const char *text, const char *folder, size_t folder_length)
{
    enum ctl_exit status = CTL_OK;

    for (const char *line = text; line && *line && !status; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        const char *at = line + strspn(line, " \t");
        size_t length;

        if (*at != '#')
            continue;
        at += 1 + strspn(at + 1, " \t");
        if (strncmp(at, "include", 7) != 0)
            continue;
        at += 7 + strspn(at + 7, " \t");
        length = *at == '"' ? strcspn(at + 1, "\"\n") : 0;
        if (length)
            status = add_beside(s, folder, folder_length, at + 1, length);
    }
    return status;
}

enum ctl_exit source_read(struct source *s, const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t folder = slash ? (size_t)(slash + 1 - path) : 0;
    enum ctl_exit status;

    s->s.name = path + folder;
    s->s.text = read_text(s, path);
    if (!s->s.text)
        return CTL_FAILED;
    status = add_includes(s, s->s.text, path, folder);
    for (size_t i = 0; i < s->s.n_files && !status; i++) /* grows */
        status = add_includes(s, s->files[i].text, path, folder);
    return status;
}

void source_free(struct source *s)
{
    for (size_t i = 0; i < s->n_texts; i++)
        free(s->texts[i]);
    for (size_t i = 0; i < s->n_names; i++)
        free(s->names[i]);
}

/* ---- entries ---- */

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Behind a comment, a quoted text or a preprocessor's line that begins here; `at` where none does. */
static const char *skip(const char *at)
{
    const char *end;

    if (at[0] == '/' && at[1] == '/') {
        return at + strcspn(at, "\n");
    } else if (at[0] == '/' && at[1] == '*') {
        end = strstr(at + 2, "*/");
        return end ? end + 2 : at + strlen(at);
    } else if (*at == '"' || *at == '\'') {
        for (end = at + 1; *end && *end != *at && *end != '\n'; end++)
            end += *end == '\\' && end[1];
        return *end ? end + 1 : end;
    }
    return at;
}

/* The next name or single character; NULL at the end. */
static const char *next_token(const char **at, size_t *ret_length)
{
    const char *token;

    for (;;) {
        const char *behind = skip(*at);

        if (behind == *at && **at && strchr(" \t\r\n\f\v", **at))
            behind++;
        if (behind == *at)
            break;
        *at = behind;
    }
    token = *at;
    if (!*token)
        return NULL;
    do
        (*at)++;
    while (is_name(*token) && is_name(**at));
    *ret_length = (size_t)(*at - token);
    return token;
}

static bool is(const char *token, size_t length, const char *text)
{
    return length == strlen(text) && !memcmp(token, text, length);
}

static bool is_kernel_mark(const char *token, size_t length)
{
#define X(word) is(token, length, word) ||
    return KERNELS_KERNEL_MARKS(X) false;
}

static bool is_attribute(const char *token, size_t length)
{
    return KERNELS_ATTRIBUTES(X) false;
#undef X
}

static void skip_parentheses(const char **at)
{
    unsigned depth = 0;
    const char *token;
    size_t length;

    while ((token = next_token(at, &length))) {
        depth += *token == '(';
        depth -= *token == ')' && depth;
        if (!depth)
            return;
    }
}

/* Behind a kernel's mark: the name in front of the parameters; NULL: there is none. */
static const char *function_name(const char **at, size_t *ret_length)
{
    const char *name = NULL, *token;
    size_t length;

    while ((token = next_token(at, &length)) && *token != ';' && *token != '{') {
        if (*token == '(')
            return name;
        if (is_attribute(token, length)) {
            skip_parentheses(at);
        } else if (is_name(*token)) {
            name = token;
            *ret_length = length;
        }
    }
    return NULL;
}

static bool has_entry(const struct source *s, const char *name)
{
    for (size_t i = 0; i < s->s.n_entries; i++)
        if (!strcmp(s->entries[i], name))
            return true;
    return false;
}

static enum ctl_exit find_entries(struct source *s, const char *text)
{
    const char *at = text, *token;
    bool in_template = false;
    size_t length;

    while ((token = next_token(&at, &length))) {
        const char *name;

        if (is(token, length, "template"))
            in_template = true;
        if (*token == ';' || *token == '}')
            in_template = false;
        if (!is_kernel_mark(token, length))
            continue;
        name = function_name(&at, &length);
        name = name && !in_template ? keep(s, name, length) : NULL;
        in_template = false;
        if (name && !has_entry(s, name) && source_add_entry(s, name))
            return CTL_USAGE;
    }
    return CTL_OK;
}

enum ctl_exit source_find_entries(struct source *s)
{
    enum ctl_exit status = find_entries(s, s->s.text);

    for (size_t i = 0; i < s->s.n_files && !status && !s->s.n_entries; i++)
        status = find_entries(s, s->files[i].text);
    if (!status && !s->s.n_entries)
        return ctl_usage(
            "%s, with the files beside it that it includes, has no __global__ function that is no template: "
            "name kernels by --entry, such as --entry 'scale<float>'",
            s->s.name);
    return status;
}

/* ---- compiling ---- */

enum ctl_exit source_compile(struct ctl *ctl, const struct source *s, kops_module **ret_module)
{
    struct kops_error error;
    char *log;

    if (!kops_compile(ctl->client, &s->s, ret_module, &log, &error))
        return CTL_OK;
    ctl_not_compiled(s->s.name, &error, log);
    kops_log_free(log);
    return CTL_FAILED;
}
