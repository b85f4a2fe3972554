/* kopsctl compile: a source with its files, options and entries, and the module that the daemon makes of it; kopsctl
 * cache: the modules that it keeps. */
#include "compile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/output.h"
#include "commands.h"
#include "proto/generated/kernels.h"
#include "source/tokens.h"
#include "view/rows.h"

/* ---- files and options ---- */

char *source_read_file(const char *path, size_t *ret_size)
{
    char *data = NULL, block[4096];
    FILE *file = fopen(path, "re"), *to = open_memstream(&data, ret_size);
    size_t n;
    bool read;

    while (file && to && (n = fread(block, 1, sizeof(block), file)))
        fwrite(block, 1, n, to);
    read = file && to && !ferror(file) && !ferror(to);
    if (!read)
        ctl_complain("os_error", "reading %s: %s", path, strerror(errno));
    if (file)
        fclose(file);
    if (to)
        fclose(to);
    if (read)
        return data;
    free(data);
    return NULL;
}

/* Reads a text, which lives as long as the process, as all texts of a source do. */
static const char *read_text(const char *path)
{
    size_t size;
    char *text = source_read_file(path, &size);

    if (!text || !memchr(text, 0, size))
        return text;
    ctl_complain("bad_argument", "%s: a source has no zero bytes", path);
    free(text);
    return NULL;
}

static enum ctl_exit add_file(struct source *s, const char *name, size_t length, const char *path)
{
    struct kops_file *file = &s->files[s->s.n_files];

    file->text = read_text(path);
    if (!file->text)
        return CTL_FAILED;
    file->name = strndup(name, length);
    if (!file->name)
        return ctl_no_memory(length);
    s->s.files = s->files;
    s->s.n_files++;
    return CTL_OK;
}

enum ctl_exit source_take_file(void *source, const char *value)
{
    const char *equals = strchr(value, '=');
    struct source *s = source;

    if (s->s.n_files == SOURCE_MAX)
        return ctl_usage("--include-file may be given %d times", SOURCE_MAX);
    return add_file(s, value, equals ? (size_t)(equals - value) : strlen(value), equals ? equals + 1 : value);
}

enum ctl_exit source_take_option(void *source, const char *value)
{
    struct source *s = source;

    if (s->s.n_options == SOURCE_MAX)
        return ctl_usage("--option may be given %d times", SOURCE_MAX);
    s->options[s->s.n_options++] = value;
    s->s.options = s->options;
    return CTL_OK;
}

enum ctl_exit source_add_entry(void *source, const char *entry)
{
    struct source *s = source;

    if (s->s.n_entries == SOURCE_MAX)
        return ctl_usage("at most %d entries of a source can be compiled at once: name them by --entry", SOURCE_MAX);
    s->entries[s->s.n_entries++] = entry;
    s->s.entries = s->entries;
    return CTL_OK;
}

/* Adds a file beside the source that is included as "NAME", unless it was given or is not there. */
static enum ctl_exit add_beside(struct source *s, const char *folder, size_t folder_length, const char *name,
                                size_t length)
{
    char path[PATH_MAX];

    for (size_t i = 0; i < s->s.n_files; i++)
        if (strlen(s->files[i].name) == length && !memcmp(s->files[i].name, name, length))
            return CTL_OK;
    snprintf(path, sizeof(path), "%.*s%.*s", (int)folder_length, folder, (int)length, name);
    if (*name == '/' || access(path, R_OK) != 0)
        return CTL_OK; /* the toolkit's, or the compiler will say that it is missing */
    if (s->s.n_files == SOURCE_MAX)
        return ctl_usage("more than %d files are included", SOURCE_MAX);
    return add_file(s, name, length, path);
}

/* Adds the files that a text includes in quotes. */
static enum ctl_exit add_includes(struct source *s, const char *text, const char *folder, size_t folder_length)
{
    enum ctl_exit status = CTL_OK;
    struct tokens t;

    if (tokens_cut(&t, text, strlen(text)) < 0)
        return ctl_no_memory(strlen(text));
    for (size_t i = 0; i < t.n && !status; i++) {
        const char *at = text + t.list[i].start + 1;
        size_t length;

        if (!token_is_directive(&t.list[i]))
            continue;
        at += strspn(at, " \t");
        if (strncmp(at, "include", 7) != 0)
            continue;
        at += 7 + strspn(at + 7, " \t");
        length = *at == '"' ? strcspn(at + 1, "\"\n") : 0;
        if (length)
            status = add_beside(s, folder, folder_length, at + 1, length);
    }
    free(t.list);
    return status;
}

enum ctl_exit source_read(struct source *s, const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t folder = slash ? (size_t)(slash + 1 - path) : 0;
    enum ctl_exit status;

    s->s.name = path + folder;
    s->s.text = read_text(path);
    if (!s->s.text)
        return CTL_FAILED;
    status = add_includes(s, s->s.text, path, folder);
    for (size_t i = 0; i < s->s.n_files && !status; i++) /* grows */
        status = add_includes(s, s->files[i].text, path, folder);
    return status;
}

/* ---- entries ---- */

#define X(word) word,
static const char *const kernel_marks[] = {KERNELS_KERNEL_MARKS(X) NULL};
static const char *const attributes[] = {KERNELS_ATTRIBUTES(X) NULL};
#undef X

/* The token of the kernel's name, in front of the parameters; i is behind its mark. 0: there is none. */
static size_t kernel_name(const struct tokens *t, size_t i)
{
    size_t name = 0;

    while (i < t->n && !token_is_mark(t, i, ';') && !token_is_mark(t, i, '{')) {
        if (token_is_mark(t, i, '('))
            return name;
        if (token_is_one_of(t, i, attributes) && token_is_mark(t, i + 1, '(')) {
            i = tokens_skip_group(t, i + 1);
        } else {
            if (t->list[i].kind == TOKEN_NAME)
                name = i;
            i++;
        }
    }
    return 0;
}

/* The namespace that text is in: "a::b::", whose parts end at `ends`, one for each brace that is open. */
struct place {
    char name[1024];
    size_t ends[64];
    unsigned depth;
};

/* Enters a namespace, or the braces behind extern "C", which the statement from `start` to the brace i begins. False:
 * it is neither, or too deep. */
static bool enter(struct place *p, const struct tokens *t, size_t start, size_t i)
{
    const size_t before = p->depth ? p->ends[p->depth - 1] : 0;
    size_t end = before, at = start;

    while (at < i && !token_is(t, at, "namespace") && t->list[at].kind != TOKEN_STRING)
        at++;
    if (at == i || p->depth == sizeof(p->ends) / sizeof(*p->ends) ||
        (t->list[at].kind == TOKEN_STRING && !(at && token_is(t, at - 1, "extern"))))
        return false;
    for (; ++at < i;)
        if (t->list[at].kind == TOKEN_NAME && !token_is(t, at, "inline") &&
            end + t->list[at].length + 3 <= sizeof(p->name))
            end += (size_t)snprintf(p->name + end, sizeof(p->name) - end, "%.*s::", (int)t->list[at].length,
                                    t->text + t->list[at].start);
    p->ends[p->depth++] = end;
    return true;
}

static enum ctl_exit add_found(struct source *s, const struct tokens *t, size_t name, const struct place *p)
{
    const struct token *found = &t->list[name];
    char *entry;

    if (asprintf(&entry, "%.*s%.*s", (int)(p->depth ? p->ends[p->depth - 1] : 0), p->name, (int)found->length,
                 t->text + found->start) < 0)
        return ctl_no_memory(found->length);
    for (size_t i = 0; i < s->s.n_entries; i++)
        if (!strcmp(entry, s->entries[i])) {
            free(entry);
            return CTL_OK;
        }
    return source_add_entry(s, entry);
}

static enum ctl_exit find_entries(struct source *s, const char *text)
{
    struct place place = {.depth = 0};
    enum ctl_exit status = CTL_OK;
    bool in_template = false;
    struct tokens t;
    size_t start = 0; /* of the statement */

    if (tokens_cut(&t, text, strlen(text)) < 0)
        return ctl_no_memory(strlen(text));
    for (size_t i = 0; i < t.n && !status;) {
        const size_t name = token_is_one_of(&t, i, kernel_marks) ? kernel_name(&t, i + 1) : 0;

        if (name && !in_template)
            status = add_found(s, &t, name, &place);
        in_template = in_template || token_is(&t, i, "template");
        if (token_is_mark(&t, i, '{') && enter(&place, &t, start, i)) {
            start = ++i;
            in_template = false;
        } else if (token_is_mark(&t, i, '(') || token_is_mark(&t, i, '{')) {
            const bool body = token_is_mark(&t, i, '{');

            i = tokens_skip_group(&t, i);
            if (body && !token_is_mark(&t, i, '>')) { /* not that of a lambda, a template's argument */
                start = i;
                in_template = false;
            }
        } else {
            if (token_is_mark(&t, i, '}') && place.depth)
                place.depth--;
            if (token_is_mark(&t, i, '}') || token_is_mark(&t, i, ';') || token_is_directive(&t.list[i])) {
                start = i + 1;
                in_template = in_template && token_is_directive(&t.list[i]);
            }
            i++;
        }
    }
    free(t.list);
    return status;
}

/* Adds the `__global__` functions of the source that are no templates; of the first file that has any where the source
 * has none. */
static enum ctl_exit source_find_entries(struct source *s)
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
    char *log;

    if (!kops_compile(ctl->client, &s->s, ret_module, &log, &ctl->error))
        return CTL_OK;
    ctl_not_compiled(s->s.name, &ctl->error, log);
    kops_log_free(log);
    return CTL_FAILED;
}

/* A line on the module, a table of its entries, and the compiler's warnings. */
static void print_module(const struct kops_module_info *info, const char *name)
{
    struct table t;

    printf("%s: %s for %s, %llu bytes, %s (%.1f ms)\nkey %s\n\n", name, info->compiler, info->arch,
           (unsigned long long)info->image_bytes,
           strcmp(info->cached, "no") == 0       ? "compiled now"
           : strcmp(info->cached, "disk") == 0   ? "found on disk"
           : strcmp(info->cached, "memory") == 0 ? "found in memory"
           : strcmp(info->cached, "remote") == 0 ? "found in the remote cache"
                                                 : info->cached,
           info->compile_us * 1e-3, info->key);
    table_init(&t, "entry\t>registers\t>shared\t>local\t>const\t>threads\t>params\tbytes");
    for (const struct kops_entry *const *p = info->entries; *p; p++) {
        const struct kops_entry *e = *p;
        const char *sizes = "";

        for (size_t i = 0; i < e->n_params; i++)
            sizes = text_format("%s%s%u", sizes, i ? " " : "", e->params[i]);
        table_row(&t, "%s\t%u\t%u\t%u\t%u\t%u\t%zu\t%s", e->name, e->registers, e->shared_bytes, e->local_bytes,
                  e->const_bytes, e->max_threads, e->n_params, sizes);
    }
    table_print(&t);
    printf(
        "(threads: of a block at most; bytes: of each parameter; local: spilled registers and arrays of a thread)\n");
    if (*info->log)
        printf("\n%s%s", info->log, info->log[strlen(info->log) - 1] == '\n' ? "" : "\n");
}

#define F(member) JSON_FIELD(struct kops_module_info, member)
static const struct json_field module_fields[] = {F(key),        F(arch), F(compiler),    F(cached),
                                                  F(compile_us), F(log),  F(image_bytes), JSON_END};
#undef F

#define F(member) JSON_FIELD(struct kops_entry, member)
static const struct json_field entry_fields[] = {F(name),        F(lowered),     F(registers),   F(shared_bytes),
                                                 F(local_bytes), F(const_bytes), F(max_threads), JSON_END};
#undef F

static void entry_json(const void *entry)
{
    const struct kops_entry *e = entry;

    json_fields(entry_fields, e);
    json_begin("params", '[');
    for (size_t i = 0; i < e->n_params; i++)
        json_uint(NULL, e->params[i]);
    json_end(']');
}

void module_json(const char *key, const struct kops_module_info *info)
{
    JSON_MAP(key, json_fields(module_fields, info), json_each("entries", info->entries, entry_json));
}

static const char compile_usage[] =
    "Usage: kopsctl compile FILE [--entry NAME]... [OPTION]...\n\n"
    "Makes the daemon compile CUDA C++, and prints the resulting kernels. A source that was compiled before, for any\n"
    "client, is not compiled again. Files beside FILE that it includes in quotes are sent along.\n\n"
    "  -e, --entry NAME       a __global__ function, or an instantiation such as 'scale<float, 4>'; may be repeated.\n"
    "                         Default: all functions of the file that are no templates, or, where it has\n"
    "                         none, those of a file that it includes\n" SOURCE_USAGE
    "      --json             print JSON\n\n"
    "Exit status 1: it was not compiled; the compiler's output is on stderr.\n";

enum ctl_exit ctl_compile(struct ctl *ctl, int argc, char **argv)
{
    static struct source s; /* too large for a stack */
    const struct ctl_option options[] = {
        {"--entry", 'e', OPTION_TAKE, &s, .take = source_add_entry}, SOURCE_OPTIONS(&s), {0}};
    enum ctl_exit status;
    kops_module *module;

    if (!ctl_parse(ctl, argc, argv, compile_usage, options, argc, &status))
        return status;
    if (optind + 1 != argc)
        return ctl_usage("compile takes one file");
    status = source_read(&s, argv[optind]);
    if (!status && !s.s.n_entries)
        status = source_find_entries(&s);
    if (!status)
        status = ctl_connect(ctl);
    if (!status)
        status = source_compile(ctl, &s, &module);
    if (status)
        return status;
    if (ctl->json)
        module_json(NULL, kops_module_info(module));
    else
        print_module(kops_module_info(module), s.s.name);
    kops_module_free(module);
    return CTL_OK;
}

/* ---- kopsctl cache ---- */

static const char cache_usage[] =
    "Usage: kopsctl cache list [--json]\n"
    "       kopsctl cache clear [--key KEY] [--json]\n"
    "       kopsctl cache export FILE [--key KEY] [--json]\n"
    "       kopsctl cache import FILE [--json]\n\n"
    "The daemon's cache of compiled kernels; for root and for the user that the daemon runs as. `kopsctl compile` and\n"
    "`list` print the keys. An imported kernel runs for every client that asks for it: import only archives that you\n"
    "trust.\n";

static void list_text(const struct kops_cache *cache)
{
    struct table t;
    size_t n = 0;

    table_init(&t, "key\tarch\t>bytes\t>unused s\tmemory\tdisk\tfrom\tentries");
    for (; cache->entries[n]; n++) {
        const struct kops_cache_entry *e = cache->entries[n];

        table_row(&t, "%s\t%s\t%" PRIu64 "\t%.0f\t%s\t%s\t%s\t%s", e->key, e->arch, e->bytes, e->age_s,
                  e->in_memory ? "yes" : "no", e->on_disk ? "yes" : "no", e->from, text_list(e->names));
    }
    table_print(&t);
    printf("%zu kept, %" PRIu64 " of %" PRIu64 " bytes on disk\n", n, cache->bytes, cache->limit);
}

#define F(member) JSON_FIELD(struct kops_cache_entry, member)
static const struct json_field cached_fields[] = {F(key),   F(arch),      F(compiler), F(names), F(bytes),
                                                  F(age_s), F(in_memory), F(on_disk),  F(from),  JSON_END};

static enum ctl_exit list(struct ctl *ctl)
{
    struct kops_cache *cache;

    if (kops_cache_list(ctl->client, &cache, &ctl->error))
        return ctl_failed("cache list", &ctl->error);
    if (ctl->json)
        JSON_MAP(NULL, json_list("entries", cached_fields, cache->entries), json_uint("bytes", cache->bytes),
                 json_uint("limit", cache->limit));
    else
        list_text(cache);
    kops_cache_free(cache);
    return CTL_OK;
}

static enum ctl_exit clear(struct ctl *ctl, const char *key)
{
    uint64_t removed;

    if (kops_cache_clear(ctl->client, key, &removed, &ctl->error))
        return ctl_failed("cache clear", &ctl->error);
    if (ctl->json)
        JSON_MAP(NULL, json_uint("removed", removed));
    else
        printf("%" PRIu64 " removed\n", removed);
    return CTL_OK;
}

static enum ctl_exit failed_file(const char *what, const char *path)
{
    return ctl_complain("os_error", "%s %s: %s", what, path, strerror(errno));
}

static enum ctl_exit write_archive(int archive, uint64_t bytes, const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR);
    off_t at = 0;
    bool written = file >= 0;

    while (written && (uint64_t)at < bytes)
        written = sendfile(file, archive, &at, bytes - (uint64_t)at) > 0;
    if (file >= 0 && close(file))
        written = false;
    return written ? CTL_OK : failed_file("writing", path);
}

static enum ctl_exit export_to(struct ctl *ctl, const char *path, const char *key)
{
    enum ctl_exit status;
    uint64_t bytes;
    int archive;

    if (kops_cache_export(ctl->client, key, &archive, &bytes, &ctl->error))
        return ctl_failed("cache export", &ctl->error);
    status = write_archive(archive, bytes, path);
    close(archive);
    if (status)
        return status;
    if (ctl->json)
        JSON_MAP(NULL, json_text("file", path), json_uint("bytes", bytes));
    else
        printf("%" PRIu64 " bytes written to %s\n", bytes, path);
    return CTL_OK;
}

static enum ctl_exit import(struct ctl *ctl, const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    enum ctl_exit status = CTL_OK;
    uint64_t imported, skipped;

    if (file < 0)
        return failed_file("reading", path);
    if (kops_cache_import(ctl->client, file, &imported, &skipped, &ctl->error))
        status = ctl_failed("cache import", &ctl->error);
    else if (ctl->json)
        JSON_MAP(NULL, json_uint("imported", imported), json_uint("known", skipped));
    else
        printf("%" PRIu64 " imported, %" PRIu64 " known already\n", imported, skipped);
    close(file);
    return status;
}

enum ctl_exit ctl_cache(struct ctl *ctl, int argc, char **argv)
{
    const char *key = NULL, *action;
    const struct ctl_option options[] = {{"--key", 'k', OPTION_TEXT, &key}, {0}};
    enum ctl_exit status;
    bool takes_file;

    if (!ctl_parse(ctl, argc, argv, cache_usage, options, argc, &status))
        return status;
    action = optind < argc ? argv[optind] : "";
    takes_file = !strcmp(action, "export") || !strcmp(action, "import");
    if (!takes_file && strcmp(action, "list") != 0 && strcmp(action, "clear") != 0)
        return ctl_usage("cache takes `list`, `clear`, `export` or `import`, not `%s`", action);
    if (argc - optind != (takes_file ? 2 : 1))
        return ctl_usage("cache %s takes %s", action, takes_file ? "one file" : "no more");
    if (key && strcmp(action, "clear") != 0 && strcmp(action, "export") != 0)
        return ctl_usage("cache %s takes no --key", action);
    status = ctl_connect(ctl);
    if (status)
        return status;
    if (!strcmp(action, "list"))
        return list(ctl);
    if (!strcmp(action, "clear"))
        return clear(ctl, key);
    return !strcmp(action, "export") ? export_to(ctl, argv[optind + 1], key) : import(ctl, argv[optind + 1]);
}
