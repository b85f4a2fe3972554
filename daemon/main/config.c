#include "main/config.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "main/settings.h"
#include "util/log.h"

/* ---- names of settings that are not there ---- */

enum { NAME_MAX_LENGTH = 80 };

/* Settings of older files, and what there is instead. */
static const struct {
    const char *name, *instead;
} gone[] = {
    {"server.group", "the group is that of server.user"},
    {"server.backlog", "up to 4096 connections wait to be accepted, as far as net.core.somaxconn allows"},
    {"limits.stuck_reader_s", "set limits.peer_timeout_s"},
    {"limits.partial_message_s", "set limits.peer_timeout_s"},
    {"limits.buffers", "set quota.buffers, for all connections of a user"},
    {"limits.programs", "a connection has at most 1024"},
    {"limits.kernels", "a connection has at most 4096; set quota.daemon_mib, for all connections of a user"},
    {"limits.source_bytes", "set limits.message_bytes, of which a source may have 95 percent"},
    {"limits.inline_mappings", "a connection keeps 1024; set quota.mappings, for all connections of a user"},
    {"limits.output_bytes", "set quota.daemon_mib, for all connections of a user"},
    {"cuda.workspace_bytes", "a stream has 32 MiB"},
    {"executors.spin_us", "executors poll for 100 microseconds"},
    {"server.default_device", "clients name the device of a request by its `device`"},
    {"host.enabled", "set server.backend"},
    {"cuda.enabled", "set server.backend"},
    {"cuda.nvml", "it is libnvidia-ml.so.1, where the system or LD_LIBRARY_PATH has it"},
    {"cache.memory_mib", "256 MiB are kept in memory"},
    {"kernels.user", "compilers of root's daemon run as nobody"},
    {"kernels.user_kernels_group", "set kernels.user_kernels, and kernels.hand_out, to @GROUP"},
    {"quota.program_mib", "the quota daemon_mib is for that"},
    {"quota.waiting_mib", "the quota daemon_mib is for that"},
    {"quota.kernel_mib", "the quota daemon_mib is for that"},
    {"kernels.sandbox", "set server.sandbox"},
    {"executors.sandbox", "set server.sandbox"},
};

/* Case does not count, and "." is "_", so that names in the environment are compared, too. */
static int plain(char c)
{
    return c == '.' ? '_' : tolower((unsigned char)c);
}

/* How many characters must be put in, left out or replaced to make one name of the other; both have at most
 * NAME_MAX_LENGTH. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[NAME_MAX_LENGTH + 1];
    const size_t length = strlen(b);

    for (size_t j = 0; j <= length; j++)
        row[j] = (unsigned)j;
    for (size_t i = 0; a[i]; i++) {
        unsigned diagonal = row[0];

        row[0]++;
        for (size_t j = 0; j < length; j++) {
            const unsigned replaced = diagonal + (plain(a[i]) != plain(b[j]));
            const unsigned other = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;

            diagonal = row[j + 1];
            row[j + 1] = replaced < other ? replaced : other;
        }
    }
    return row[length];
}

/* Returns what there is instead of the setting "section.key" or SECTION_KEY that older versions had; NULL: there was
 * none. */
static const char *instead_of(const char *name)
{
    const char *quota = strstr(name, ".quota_"); /* a socket's */
    char own[NAME_MAX_LENGTH + 1];

    if (quota) {
        snprintf(own, sizeof(own), "quota.%s", quota + strlen(".quota_"));
        name = own;
    }
    for (unsigned i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
        if (strlen(name) == strlen(gone[i].name) && !distance(name, gone[i].name))
            return gone[i].instead;
    return NULL;
}

/* Returns the setting that a misspelt name, "section.key" or SECTION_KEY, may mean; NULL: none. */
static const struct setting *nearest_to(const char *name)
{
    const struct setting *nearest = NULL;
    unsigned least = (unsigned)strlen(name) / 3 + 1;

    if (strlen(name) > NAME_MAX_LENGTH)
        return NULL;
    for (unsigned i = 0; i < n_settings; i++) {
        char full[NAME_MAX_LENGTH + 1];
        unsigned d;

        snprintf(full, sizeof(full), "%s.%s", settings[i].section, settings[i].key);
        d = distance(name, full);
        if (d < least) {
            least = d;
            nearest = &settings[i];
        }
    }
    return nearest;
}

enum { LISTS_MAX = 16 };

static char **text_at(void *base, const struct setting *s)
{
    return (char **)(void *)((char *)base + s->offset);
}

static bool holds_text(const struct setting *s)
{
    return s->type == TEXT || s->type == LIST;
}

static uint64_t *number_at(void *base, const struct setting *s)
{
    return (uint64_t *)(void *)((char *)base + s->offset);
}

static bool *switch_at(void *base, const struct setting *s)
{
    return (bool *)((char *)base + s->offset);
}

static int set_number(const struct setting *s, const char *value, int base, uint64_t *ret, struct error *e)
{
    unsigned long long v;
    char *end;

    errno = 0;
    v = strtoull(value, &end, base);
    if (!isdigit((unsigned char)*value) || *end || errno || v < s->min || v > s->max)
        return error_set(e, ERROR_OUT_OF_RANGE,
                         base == 8 ? "%s.%s: \"%.40s\" is no octal number from %llo to %llo"
                                   : "%s.%s: \"%.40s\" is no number from %llu to %llu",
                         s->section, s->key, value, (unsigned long long)s->min, (unsigned long long)s->max);
    *ret = v;
    return 0;
}

static int set_switch(const struct setting *s, const char *value, bool *ret, struct error *e)
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};

    for (unsigned i = 0; i < 4; i++) {
        if (!strcmp(value, yes[i]) || !strcmp(value, no[i])) {
            *ret = !strcmp(value, yes[i]);
            return 0;
        }
    }
    return error_set(e, ERROR_INVALID_ARGUMENT, "%s.%s: \"%.40s\" is neither true nor false", s->section, s->key,
                     value);
}

int config_set_text(char **text, const char *value, struct error *e)
{
    char *copy = strdup(value);

    if (!copy)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the configuration");
    free(*text);
    *text = copy;
    return 0;
}

/* Values that a file could not hold are refused from every source, so that printed settings can be read again. */
static int set_text(const struct setting *s, const char *value, char **text, struct error *e)
{
    for (const char *p = value; *p; p++)
        if (iscntrl((unsigned char)*p) || (*p == ';' && (p == value || isspace((unsigned char)p[-1]))))
            return error_set(e, ERROR_INVALID_ARGUMENT,
                             "%s.%s: \"%.40s\" has a control character, or what begins a comment in a file", s->section,
                             s->key, value);
    return config_set_text(text, value, e);
}

/* Unprintable characters in words are refused here; the list's user knows its words. */
static int set_list(const struct setting *s, const char *value, char **list, struct error *e)
{
    for (const char *p = value; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr(" \t,_.@*$:-", *p))
            return error_set(e, ERROR_INVALID_ARGUMENT, "%s.%s: \"%.40s\" is no list of names between commas",
                             s->section, s->key, value);
    return config_set_text(list, value, e);
}

int config_apply(void *base, const struct setting *s, const char *value, struct error *e)
{
    switch (s->type) {
    case TEXT:
        return set_text(s, value, text_at(base, s), e);
    case LIST:
        return set_list(s, value, text_at(base, s), e);
    case NUMBER:
        return set_number(s, value, 10, number_at(base, s), e);
    case OCTAL:
        return set_number(s, value, 8, number_at(base, s), e);
    case SWITCH:
        return set_switch(s, value, switch_at(base, s), e);
    }
    return -1;
}

/* Polling takes a core from others on a machine with few. */
static long usable_cores(void)
{
    cpu_set_t cores;

    if (sched_getaffinity(0, sizeof(cores), &cores) < 0)
        return sysconf(_SC_NPROCESSORS_ONLN); /* more cores than the set has room for */
    return CPU_COUNT(&cores);
}

int config_init(struct config *c, struct error *e)
{
    memset(c, 0, sizeof(*c));
    c->spin_us = usable_cores() >= 4 ? 100 : 0;
    /* Half of the processors, of which the loop and an executor have two. */
    c->polling_clients = usable_cores() >= 6 ? usable_cores() / 2 - 2 : 1;
    c->helpers = usable_cores() > 0 ? (uint64_t)usable_cores() : 1;
    config_init_shares(c);
    config_init_socket(&c->any_socket, NULL);
    for (unsigned i = 0; i < n_settings; i++)
        if (settings[i].fallback && config_apply(c, &settings[i], settings[i].fallback, e) < 0)
            return -1;
    return 0;
}

void config_free(struct config *c)
{
    for (unsigned i = 0; i < n_settings; i++)
        if (holds_text(&settings[i]))
            free(*text_at(c, &settings[i]));
    subordinates_free(&c->subordinates);
    signing_key_forget(&c->remote_key);
    explicit_bzero(c->remote_authorization, sizeof(c->remote_authorization));
    config_free_sockets(c);
}

static const struct setting *find(const char *section, size_t length, const char *key)
{
    for (unsigned i = 0; i < n_settings; i++)
        if (strlen(settings[i].section) == length && !strncmp(settings[i].section, section, length) &&
            !strcmp(settings[i].key, key))
            return &settings[i];
    return NULL;
}

int config_set(struct config *c, const char *name, const char *value, struct error *e)
{
    const char *dot = strchr(name, '.');
    const struct setting *s = dot ? find(name, (size_t)(dot - name), dot + 1) : NULL, *nearest;
    const char *instead = instead_of(name);

    if (s)
        return config_apply(c, s, value, e);
    if (instead)
        return error_set(e, ERROR_UNKNOWN_KEY, "%s is no setting any more: take it out; %s", name, instead);
    if (dot && config_is_socket(name, (size_t)(strrchr(name, '.') - name)))
        return config_set_socket(c, name, value, e);
    nearest = nearest_to(name);
    if (nearest)
        return error_set(e, ERROR_UNKNOWN_KEY,
                         "no setting \"%.80s\"; did you mean %s.%s? kopsd --print-config lists them", name,
                         nearest->section, nearest->key);
    return error_set(e, ERROR_UNKNOWN_KEY, "no setting \"%.80s\"; kopsd --print-config lists them", name);
}

/* Reading a file: inih asks for a line, and reports the setting in it. */
struct file_context {
    struct config *config;
    FILE *file;
    struct error error;                     /* the first one */
    unsigned line, failed;                  /* the line that was read last; that of the error, 0: none */
    char section[80];                       /* "socket NAME", which inih cuts; "": another one */
    bool entries;                           /* the section has entries, so an indented line continues the last one */
    const struct setting *lists[LISTS_MAX]; /* lists that this file has set: further values are added */
    unsigned n_lists;
};

/* A list may be longer than a line. */
static int add_to_list(struct file_context *f, const struct setting *s, const char *value)
{
    char **list = text_at(f->config, s), *longer;
    int r;

    for (unsigned i = 0; i < f->n_lists; i++) {
        if (f->lists[i] != s)
            continue;
        if (asprintf(&longer, "%s,%s", *list, value) < 0)
            return error_set(&f->error, ERROR_OUT_OF_MEMORY, "no memory for the configuration");
        r = config_apply(f->config, s, longer, &f->error);
        free(longer);
        return r;
    }
    if (f->n_lists < LISTS_MAX)
        f->lists[f->n_lists++] = s;
    return config_apply(f->config, s, value, &f->error);
}

static int on_entry(void *context, const char *section, const char *name, const char *value)
{
    struct file_context *f = context;
    const struct setting *s = find(section, strlen(section), name);
    char full[160];
    int r;

    if (f->failed)
        return 1; /* the first error counts */
    snprintf(full, sizeof(full), "%s.%s", *f->section ? f->section : section, name);
    r = s && s->type == LIST ? add_to_list(f, s, value) : config_set(f->config, full, value, &f->error);
    if (r < 0)
        f->failed = f->line;
    return r == 0;
}

/* inih says nothing of a section without entries. */
static int check_section(struct file_context *f, const char *text)
{
    const bool indented = isspace((unsigned char)*text);
    size_t length;

    text += strspn(text, " \t\v\f\r");
    if (*text != '[' || (indented && f->entries)) {
        f->entries = f->entries || (*text && !strchr(";#", *text));
        return 0;
    }
    f->entries = false;
    length = strcspn(++text, "]");
    if (text[length] != ']') /* inih reports that */
        return 0;
    *f->section = '\0';
    if (config_is_socket(text, length)) {
        snprintf(f->section, sizeof(f->section), "%.*s", (int)length, text);
        return config_add_socket(f->config, f->section, &f->error); /* also where it has no entry */
    }
    for (unsigned i = 0; i < n_settings; i++)
        if (strlen(settings[i].section) == length && !strncmp(settings[i].section, text, length))
            return 0;
    return error_set(&f->error, ERROR_UNKNOWN_KEY, "no section [%.*s]; kopsd --print-config lists them",
                     (int)(length < 40 ? length : 40), text);
}

/* Reads one line of at most `size` bytes with its end, as fgets() does. inih silently cuts longer lines in two, and
 * hides the rest of a line after a zero byte, so both are refused. */
static char *read_line(char *text, int size, void *context)
{
    struct file_context *f = context;
    static const char mark[] = "\xef\xbb\xbf"; /* the mark of UTF-8, which inih skips */
    bool zero = false;
    int length = 0, c;

    while ((c = getc(f->file)) != EOF && c != '\n' && length < size - 1) {
        zero = zero || !c;
        text[length++] = (char)c;
    }
    if (c == EOF && !length)
        return NULL;
    text[length] = '\0';
    f->line++;
    if (f->failed)
        return NULL;
    if (zero)
        error_set(&f->error, ERROR_INVALID_ARGUMENT, "a zero byte hides the rest of the line; take it out");
    else if (length > size - 2)
        error_set(&f->error, ERROR_INVALID_ARGUMENT, "a line has at most %d characters", size - 2);
    else if (check_section(f, f->line == 1 && !strncmp(text, mark, strlen(mark)) ? text + strlen(mark) : text) == 0)
        return text;
    f->failed = f->line;
    return NULL;
}

int config_read_file(struct config *c, const char *path, struct error *e)
{
    struct file_context f = {.config = c, .file = fopen(path, "re")};
    int line, r = 0;

    if (!f.file)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s", path, strerror(errno));
    if (config_check_trust(fileno(f.file), path, c->root, e) < 0) {
        r = -1;
        goto close_file;
    }
    line = ini_parse_stream(read_line, &f, on_entry, &f);
    if (line < 0)
        r = error_set(e, ERROR_INVALID_ARGUMENT, "%s: no memory", path);
    else if (f.failed && (!line || f.failed <= (unsigned)line))
        r = error_set(e, f.error.code, "%s:%u: %s", path, f.failed, f.error.message);
    else if (line)
        r = error_set(e, ERROR_INVALID_ARGUMENT, "%s:%d: neither [section], key = value nor a comment", path, line);
    else if (ferror(f.file))
        r = error_set(e, ERROR_INVALID_ARGUMENT, "%s: it cannot be read", path);
close_file:
    fclose(f.file);
    return r;
}

/* ---- reading again ---- */

static bool is_equal(struct config *a, struct config *b, const struct setting *s)
{
    const char *one, *other;

    switch (s->type) {
    case TEXT:
    case LIST:
        one = *text_at(a, s);
        other = *text_at(b, s);
        return one && other ? !strcmp(one, other) : one == other;
    case NUMBER:
    case OCTAL:
        return *number_at(a, s) == *number_at(b, s);
    case SWITCH:
        return *switch_at(a, s) == *switch_at(b, s);
    }
    return true;
}

static void exchange(struct config *a, struct config *b, const struct setting *s)
{
    const size_t size = holds_text(s) ? sizeof(char *) : s->type == SWITCH ? sizeof(bool) : sizeof(uint64_t);
    unsigned char kept[sizeof(uint64_t)], *one = (unsigned char *)a + s->offset,
                                          *other = (unsigned char *)b + s->offset;

    memcpy(kept, one, size);
    memcpy(one, other, size);
    memcpy(other, kept, size);
}

static void swap_sockets(struct config *a, struct config *b)
{
    struct socket_section *const sections = a->sockets;
    const unsigned n = a->n_sockets;

    a->sockets = b->sockets;
    a->n_sockets = b->n_sockets;
    b->sockets = sections;
    b->n_sockets = n;
}

void config_take_live(struct config *c, struct config *fresh)
{
    struct subordinates old;

    config_take_remote(c, fresh);
    for (unsigned i = 0; i < n_settings; i++)
        if (settings[i].live)
            exchange(c, fresh, &settings[i]);
    old = c->subordinates;
    c->subordinates = fresh->subordinates;
    fresh->subordinates = old;
    swap_sockets(c, fresh);
    c->access = fresh->access; /* made of lists by config_finish(); these settings are live */
    for (unsigned i = 0; i < n_settings; i++) {
        const struct setting *s = &settings[i];

        if (is_equal(c, fresh, s))
            continue;
        if (s->live)
            log_info("reload_setting", "setting=%s.%s", s->section, s->key);
        else
            log_warning("reload_ignored", "setting=%s.%s why=\"needs a restart\"", s->section, s->key);
    }
}

/* As comments whose lines a configuration file may have. */
static void print_comment(const char *text, FILE *to)
{
    enum { COLUMNS = 118 };

    while (*text) {
        size_t length = strlen(text);

        if (length > COLUMNS)
            for (length = COLUMNS; length && text[length] != ' ';)
                length--;
        if (!length) /* a single word is longer than the line */
            length = strcspn(text, " ");
        fprintf(to, "; %.*s\n", (int)length, text);
        text += length + strspn(text + length, " ");
    }
}

void config_print(const struct config *config, FILE *to)
{
    struct config *c = (struct config *)(uintptr_t)config; /* text_at() and its kin serve writers too */
    const char *section = "";

    for (unsigned i = 0; i < n_settings; i++) {
        const struct setting *s = &settings[i];

        if (strcmp(section, s->section) != 0)
            fprintf(to, "%s[%s]\n", *section ? "\n" : "", s->section);
        section = s->section;
        if (!s->doc && *number_at(c, s) == CONFIG_UNSAID)
            continue;
        if (s->doc)
            print_comment(s->doc, to);
        switch (s->type) {
        case TEXT:
        case LIST:
            if (!*text_at(c, s))
                fprintf(to, ";%s =\n", s->key);
            else
                fprintf(to, **text_at(c, s) ? "%s = %s\n" : "%s =%s\n", s->key, *text_at(c, s));
            break;
        case NUMBER:
            if (*number_at(c, s) == CONFIG_UNSAID)
                fprintf(to, ";%s =\n", s->key);
            else
                fprintf(to, "%s = %llu\n", s->key, (unsigned long long)*number_at(c, s));
            break;
        case OCTAL:
            if (*number_at(c, s) == CONFIG_UNSAID)
                fprintf(to, ";%s =\n", s->key);
            else
                fprintf(to, "%s = %04llo\n", s->key, (unsigned long long)*number_at(c, s));
            break;
        case SWITCH:
            fprintf(to, "%s = %s\n", s->key, *switch_at(c, s) ? "true" : "false");
            break;
        }
    }
    config_print_sockets(c, to);
}

/* ---- settings from the environment ---- */

static const char prefix[] = "KOPSD_";

/* KOPSD_<SECTION>_<KEY> */
static void variable_of(const struct setting *s, char name[64])
{
    snprintf(name, 64, "%s%s_%s", prefix, s->section, s->key);
    for (char *p = name; *p; p++)
        *p = (char)toupper((unsigned char)*p);
}

static bool is_setting(const char *variable, size_t length)
{
    char name[64];

    for (unsigned i = 0; i < n_settings; i++) {
        variable_of(&settings[i], name);
        if (strlen(name) == length && !strncmp(name, variable, length))
            return true;
    }
    return false;
}

static int unknown(const char *variable, size_t length, struct error *e)
{
    const struct setting *nearest;
    const char *instead;
    char given[128], name[64];

    snprintf(given, sizeof(given), "%.*s", (int)(length < 100 ? length : 100), variable);
    instead = instead_of(given + strlen(prefix));
    if (instead)
        return error_set(e, ERROR_UNKNOWN_KEY, "the environment has %s, which is no setting any more: unset it; %s",
                         given, instead);
    nearest = nearest_to(given + strlen(prefix));
    if (nearest && strchr(nearest->section, '*')) /* no variable names such a section */
        nearest = NULL;
    if (nearest)
        variable_of(nearest, name);
    return error_set(e, ERROR_UNKNOWN_KEY,
                     "the environment has %s, which is no setting; %s%s%sunset it, or see kopsd --print-config", given,
                     nearest ? "did you mean " : "", nearest ? name : "", nearest ? "? Otherwise " : "");
}

int config_read_environment(struct config *c, struct error *e)
{
    const char *value = getenv("KOPS_SOCKET");

    if (value && *value && config_set(c, "server.socket", value, e) < 0)
        return -1;
    for (char **at = environ; at && *at; at++) {
        const size_t length = strcspn(*at, "=");

        if (!strncmp(*at, prefix, strlen(prefix)) && !is_setting(*at, length))
            return unknown(*at, length, e);
    }
    for (unsigned i = 0; i < n_settings; i++) {
        char variable[64], name[64];

        variable_of(&settings[i], variable);
        snprintf(name, sizeof(name), "%s.%s", settings[i].section, settings[i].key);
        value = getenv(variable);
        if (value && config_set(c, name, value, e) < 0)
            return -1;
    }
    return 0;
}
