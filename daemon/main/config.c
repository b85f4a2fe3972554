#include "main/config.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <ini.h>
#include <limits.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/server.h"
#include "util/log.h"

enum type { TEXT, NUMBER, OCTAL, SWITCH };

/* Numbers have a range; a NULL default of a text means that it is found at start. */
static const struct setting {
    const char *section, *key;
    enum type type;
    size_t offset;
    const char *fallback;
    uint64_t min, max;
    const char *doc;
} settings[] = {
#define AT(field) offsetof(struct config, field)
    {"server", "socket", TEXT, AT(socket), NULL, 0, 0,
     "Path of the socket. Default: /run/kopsd/kopsd.sock for root, else $XDG_RUNTIME_DIR/kopsd.sock."},
    {"server", "socket_mode", OCTAL, AT(socket_mode), "0660", 0, 0777, "Permissions of the socket, octal."},
    {"server", "socket_group", TEXT, AT(socket_group), NULL, 0, 0, "Group of the socket; the daemon's own by default."},
    {"server", "backlog", NUMBER, AT(backlog), "4096", 1, 65535, "Connections that may wait to be accepted."},
    {"server", "log_level", TEXT, AT(log_level), "info", 0, 0, "error, warning, info or debug."},
    {"server", "max_connections", NUMBER, AT(max_connections), "4096", 1, 1000000, "Connections at one time."},
    {"server", "default_device", TEXT, AT(default_device), NULL, 0, 0,
     "UUID or index of the device for requests whose tensors are all shared host memory; the first by default."},
    {"server", "spin_us", NUMBER, AT(spin_us), NULL, 0, 1000000,
     "Microseconds of polling for requests and completions before sleeping; 50 where 4 cores or more may be used, else "
     "0. It shrinks by itself while polling finds nothing."},
    {"server", "shutdown_grace_ms", NUMBER, AT(shutdown_grace_ms), "5000", 1, 3600000,
     "How long running jobs may take after SIGTERM before they are cancelled."},
    {"server", "stall_timeout_ms", NUMBER, AT(stall_timeout_ms), "0", 0, 86400000,
     "How long an ordered op may wait for its client's stream before its connection is closed; 0: for ever, which "
     "costs "
     "nothing but a look now and then."},
    {"server", "job_timeout_s", NUMBER, AT(job_timeout_s), "60", 0, 86400,
     "A GPU that has work and ends none of it for so long is given up: the daemon reports what runs there and ends "
     "with "
     "status 75, which frees the GPU; 0: never."},
    {"limits", "message_bytes", NUMBER, AT(message_bytes), "1048576", 4096, 1U << 30, "Bytes of one request."},
    {"limits", "inflight", NUMBER, AT(inflight), "256", 1, 65536, "Unanswered requests of a connection."},
    {"limits", "buffers", NUMBER, AT(buffers), "8192", 1, 1000000, "Registered buffers of a connection."},
    {"limits", "programs", NUMBER, AT(programs), "1024", 1, 65536, "Programs of a connection."},
    {"limits", "kernels", NUMBER, AT(kernels), "4096", 1, 1000000, "Modules of a connection, and as many kernels."},
    {"limits", "source_bytes", NUMBER, AT(source_bytes), "1000000", 1024, 1U << 26,
     "Bytes of one source with the files that it includes; a request must hold it, too (message_bytes)."},
    {"limits", "inline_mappings", NUMBER, AT(inline_mappings), "1024", 1, 65536,
     "Inline references that a connection keeps."},
    {"limits", "output_bytes", NUMBER, AT(output_bytes), "262144", 4096, 1U << 26,
     "Replies waiting for a client that does not read, in bytes, after which its requests are not read either."},
    {"limits", "stuck_reader_s", NUMBER, AT(stuck_reader_s), "30", 0, 86400,
     "Seconds after which a client that is not read because it takes none of its replies is dropped; 0: never."},
    {"limits", "partial_message_s", NUMBER, AT(partial_message_s), "60", 0, 86400,
     "Seconds after which a client is dropped that has sent a part of a message and not the rest; 0: never."},
    {"limits", "idle_close_s", NUMBER, AT(idle_close_s), "30", 0, 86400,
     "Seconds after which an unused CUDA IPC mapping is closed, so that its owner's free gives memory back; 0: never."},
    {"host", "enabled", SWITCH, AT(host_enabled), "true", 0, 0, "Serve the host as a device."},
    {"host", "threads", NUMBER, AT(host_threads), "0", 0, 4096, "Worker threads; 0: one a usable core."},
    {"host", "blas", TEXT, AT(host_blas), "auto", 0, 0, "auto, none, or the path of a library with cblas_sgemm."},
    {"cuda", "enabled", SWITCH, AT(cuda_enabled), "true", 0, 0, "Serve the GPUs that are visible."},
    {"cuda", "driver", TEXT, AT(cuda_driver), NULL, 0, 0, "Path of the CUDA driver library; libcuda.so.1 by default."},
    {"cuda", "blaslt", TEXT, AT(cuda_blaslt), NULL, 0, 0,
     "Path of cuBLASLt, or none; the usual names by default. Without it gemm uses kopsd's own kernel."},
    {"cuda", "workspace_bytes", NUMBER, AT(cuda_workspace_bytes), "33554432", 0, 1U << 30,
     "Scratch memory for cuBLASLt, for each stream in use."},
    {"kernels", "user_kernels", TEXT, AT(user_kernels), "owner", 0, 0,
     "Who may bring kernels: off, owner (root and the daemon's own user), group (also members of "
     "user_kernels_group), or all. They run in the daemon's context and can read what others share with it."},
    {"kernels", "user_kernels_group", TEXT, AT(user_kernels_group), NULL, 0, 0,
     "A group, by name or number, for user_kernels = group."},
    {"kernels", "nvrtc", TEXT, AT(nvrtc), NULL, 0, 0,
     "Path of NVRTC's library, or none; the usual names and places by default."},
    {"kernels", "include", TEXT, AT(include), NULL, 0, 0,
     "Directory of the CUDA toolkit's headers; beside NVRTC by default."},
    {"kernels", "sandbox", TEXT, AT(sandbox), "required", 0, 0,
     "required: sources are compiled only where Landlock and seccomp confine the compiler; best_effort: with what "
     "there is of them; off: without."},
    {"kernels", "user", TEXT, AT(compile_user), "nobody", 0, 0, "Whom compilers run as when the daemon is root."},
    {"kernels", "helpers", NUMBER, AT(helpers), NULL, 1, 256, "Compiles at one time; one a usable core by default."},
    {"kernels", "memory_mib", NUMBER, AT(compile_memory_mib), "4096", 256, 1U << 20,
     "Memory that one compile may take."},
    {"kernels", "time_s", NUMBER, AT(compile_time_s), "120", 1, 86400, "Seconds that one compile may take."},
    {"kernels", "keep_s", NUMBER, AT(compile_keep_s), "600", 0, 86400,
     "Seconds after which compilers that nobody uses end (they take some 100 MB); 0: never."},
    {"cache", "directory", TEXT, AT(cache_directory), NULL, 0, 0,
     "Where compiled code is kept, or none. Default: $CACHE_DIRECTORY, else /var/cache/kopsd for root, else "
     "$XDG_CACHE_HOME/kopsd or ~/.cache/kopsd."},
    {"cache", "disk_mib", NUMBER, AT(cache_disk_mib), "1024", 0, 1U << 20,
     "Size of the directory; 0: nothing is kept."},
    {"cache", "memory_mib", NUMBER, AT(cache_memory_mib), "256", 0, 1U << 20, "Compiled code that is kept in memory."},
#undef AT
};
enum { N_SETTINGS = sizeof(settings) / sizeof(settings[0]) };

static char **text_at(struct config *c, const struct setting *s)
{
    return (char **)(void *)((char *)c + s->offset);
}

static uint64_t *number_at(struct config *c, const struct setting *s)
{
    return (uint64_t *)(void *)((char *)c + s->offset);
}

static bool *switch_at(struct config *c, const struct setting *s)
{
    return (bool *)((char *)c + s->offset);
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

static int set_text(const char *value, char **ret, struct error *e)
{
    char *copy = strdup(value);

    if (!copy)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the configuration");
    free(*ret);
    *ret = copy;
    return 0;
}

static int apply(struct config *c, const struct setting *s, const char *value, struct error *e)
{
    switch (s->type) {
    case TEXT:
        return set_text(value, text_at(c, s), e);
    case NUMBER:
        return set_number(s, value, 10, number_at(c, s), e);
    case OCTAL:
        return set_number(s, value, 8, number_at(c, s), e);
    case SWITCH:
        return set_switch(s, value, switch_at(c, s), e);
    }
    return -1;
}

/* Polling takes a core from those who need it, where there are few. */
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
    c->spin_us = usable_cores() >= 4 ? 50 : 0;
    c->helpers = usable_cores() > 0 ? (uint64_t)usable_cores() : 1;
    for (unsigned i = 0; i < N_SETTINGS; i++)
        if (settings[i].fallback && apply(c, &settings[i], settings[i].fallback, e) < 0)
            return -1;
    return 0;
}

void config_free(struct config *c)
{
    for (unsigned i = 0; i < N_SETTINGS; i++)
        if (settings[i].type == TEXT)
            free(*text_at(c, &settings[i]));
}

static const struct setting *find(const char *section, size_t length, const char *key)
{
    for (unsigned i = 0; i < N_SETTINGS; i++)
        if (strlen(settings[i].section) == length && !strncmp(settings[i].section, section, length) &&
            !strcmp(settings[i].key, key))
            return &settings[i];
    return NULL;
}

int config_set(struct config *c, const char *name, const char *value, struct error *e)
{
    const char *dot = strchr(name, '.');
    const struct setting *s = dot ? find(name, (size_t)(dot - name), dot + 1) : NULL;

    if (!s)
        return error_set(e, ERROR_UNKNOWN_KEY, "no setting \"%.80s\"; kopsd --print-config lists them", name);
    return apply(c, s, value, e);
}

struct file_context {
    struct config *config;
    struct error *error;
    bool failed;
};

static int on_entry(void *context, const char *section, const char *name, const char *value)
{
    struct file_context *f = context;
    char full[128];

    if (f->failed)
        return 1; /* the first error counts */
    snprintf(full, sizeof(full), "%s.%s", section, name);
    f->failed = config_set(f->config, full, value, f->error) < 0;
    return !f->failed;
}

/* inih cuts longer lines in two without a word. */
enum { LINE_MAX_LENGTH = 198 };

static int check_line_lengths(const char *path, struct error *e)
{
    FILE *file = fopen(path, "re");
    unsigned line = 1, length = 0;
    int c;

    if (!file)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s", path, strerror(errno));
    while ((c = getc(file)) != EOF && length <= LINE_MAX_LENGTH) {
        length = c == '\n' ? 0 : length + 1;
        line += c == '\n';
    }
    fclose(file);
    if (length > LINE_MAX_LENGTH)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s:%u: a line has at most %d characters", path, line,
                         LINE_MAX_LENGTH);
    return 0;
}

int config_read_file(struct config *c, const char *path, struct error *e)
{
    struct error entry = {0};
    struct file_context context = {.config = c, .error = &entry};
    int line;

    if (check_line_lengths(path, e) < 0)
        return -1;
    line = ini_parse(path, on_entry, &context);

    if (line == 0)
        return 0;
    if (line < 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s", path, line == -1 ? strerror(errno) : "no memory");
    if (context.failed)
        return error_set(e, entry.code, "%s:%d: %s", path, line, entry.message);
    return error_set(e, ERROR_INVALID_ARGUMENT, "%s:%d: neither [section], key = value nor a comment", path, line);
}

int config_read_environment(struct config *c, struct error *e)
{
    const char *value = getenv("KOPS_SOCKET");

    if (value && *value && config_set(c, "server.socket", value, e) < 0)
        return -1;
    for (unsigned i = 0; i < N_SETTINGS; i++) {
        char name[64];

        snprintf(name, sizeof(name), "KOPSD_%s_%s", settings[i].section, settings[i].key);
        for (char *p = name; *p; p++)
            *p = (char)toupper((unsigned char)*p);
        value = getenv(name);
        if (!value || apply(c, &settings[i], value, e) == 0)
            continue;
        return -1;
    }
    return 0;
}

static int choose_socket(struct config *c, struct error *e)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)] = "/run/kopsd/kopsd.sock";

    if (c->socket)
        return 0;
    if (geteuid() != 0) {
        if (!runtime || !*runtime)
            return error_set(e, ERROR_INVALID_ARGUMENT,
                             "XDG_RUNTIME_DIR is not set: say where to listen with --socket or KOPS_SOCKET");
        snprintf(path, sizeof(path), "%s/kopsd.sock", runtime);
    }
    return set_text(path, &c->socket, e);
}

/* No place at all is no error: there is no cache on disk then. */
static int choose_cache(struct config *c, struct error *e)
{
    const char *system = getenv("CACHE_DIRECTORY"), *user = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char path[PATH_MAX];

    if (c->cache_directory)
        return strcmp(c->cache_directory, "none") == 0 ? set_text("", &c->cache_directory, e) : 0;
    if (system && *system)
        snprintf(path, sizeof(path), "%.*s", (int)strcspn(system, ":"), system);
    else if (geteuid() == 0)
        snprintf(path, sizeof(path), "/var/cache/kopsd");
    else if (user && *user)
        snprintf(path, sizeof(path), "%s/kopsd", user);
    else if (home && *home)
        snprintf(path, sizeof(path), "%s/.cache/kopsd", home);
    else
        *path = '\0';
    return set_text(path, &c->cache_directory, e);
}

static int find_choice(const char *setting, const char *value, const char *const *names, unsigned n, unsigned *ret,
                       struct error *e)
{
    char all[80] = "";
    size_t length = 0;

    for (unsigned i = 0; i < n; i++) {
        if (!strcmp(value, names[i])) {
            *ret = i;
            return 0;
        }
        length += (size_t)snprintf(all + length, sizeof(all) - length, "%s%s", i ? ", " : "", names[i]);
    }
    return error_set(e, ERROR_INVALID_ARGUMENT, "%s: \"%.40s\" is none of %s", setting, value, all);
}

/* By name or number. */
static int find_group(const char *name, gid_t *ret)
{
    const struct group *group = getgrnam(name);
    unsigned long number;
    char *end;

    if (group) {
        *ret = group->gr_gid;
        return 0;
    }
    number = strtoul(name, &end, 10);
    if (!isdigit((unsigned char)*name) || *end || number > UINT32_MAX)
        return -1;
    *ret = (gid_t)number;
    return 0;
}

static int check_kernels(struct config *c, struct error *e)
{
    static const char *const sandboxes[] = {[COMPILER_SANDBOX_REQUIRED] = "required",
                                            [COMPILER_SANDBOX_BEST_EFFORT] = "best_effort",
                                            [COMPILER_SANDBOX_OFF] = "off"};
    const char *group = c->user_kernels_group;

    if (find_choice("kernels.user_kernels", c->user_kernels, user_kernels_names, USER_KERNELS_COUNT, &c->policy, e) <
            0 ||
        find_choice("kernels.sandbox", c->sandbox, sandboxes, 3, &c->sandbox_mode, e) < 0)
        return -1;
    if (group && find_group(group, &c->kernels_gid) < 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "kernels.user_kernels_group: there is no group \"%.40s\"", group);
    if (c->policy == USER_KERNELS_GROUP && !group)
        return error_set(e, ERROR_INVALID_ARGUMENT, "kernels.user_kernels = group needs kernels.user_kernels_group");
    return 0;
}

int config_finish(struct config *c, struct error *e)
{
    enum log_level level;

    if (choose_socket(c, e) < 0 || choose_cache(c, e) < 0 || check_kernels(c, e) < 0)
        return -1;
    if (strlen(c->socket) >= sizeof(((struct sockaddr_un *)0)->sun_path))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "server.socket: the path is too long, a socket's has at most %zu bytes",
                         sizeof(((struct sockaddr_un *)0)->sun_path) - 1);
    if (log_level_parse(c->log_level, &level) < 0)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "server.log_level: \"%.40s\" is none of error, warning, info, debug", c->log_level);
    log_set_level(level);
    return 0;
}

void config_print(const struct config *config, FILE *to)
{
    struct config *c = (struct config *)(uintptr_t)config; /* text_at() and its kin serve writers too */
    const char *section = "";

    for (unsigned i = 0; i < N_SETTINGS; i++) {
        const struct setting *s = &settings[i];

        if (strcmp(section, s->section) != 0)
            fprintf(to, "%s[%s]\n", *section ? "\n" : "", s->section);
        section = s->section;
        fprintf(to, "; %s\n", s->doc);
        switch (s->type) {
        case TEXT:
            fprintf(to, *text_at(c, s) ? "%s = %s\n" : ";%s =%s\n", s->key, *text_at(c, s) ? *text_at(c, s) : "");
            break;
        case NUMBER:
            fprintf(to, "%s = %llu\n", s->key, (unsigned long long)*number_at(c, s));
            break;
        case OCTAL:
            fprintf(to, "%s = %04llo\n", s->key, (unsigned long long)*number_at(c, s));
            break;
        case SWITCH:
            fprintf(to, "%s = %s\n", s->key, *switch_at(c, s) ? "true" : "false");
            break;
        }
    }
}
