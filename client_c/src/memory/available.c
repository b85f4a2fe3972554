#include "available.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fail.h"

enum { UNCHECKED = 1 << 20, PART_KEPT_BACK = 16, MOST_KEPT_BACK = 1 << 30, PATH_ROOM = 4096, AMOUNT_ROOM = 40 };

/* ---- reading ---- */

static FILE *open_at(const char *format, ...) __attribute__((format(printf, 1, 2)));

static FILE *open_at(const char *format, ...)
{
    char path[PATH_ROOM];
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(path, sizeof(path), format, args);
    va_end(args);
    return length > 0 && (size_t)length < sizeof(path) ? fopen(path, "re") : NULL;
}

static bool parse(const char *text, uint64_t *ret)
{
    char *end;

    if (*text < '0' || *text > '9')
        return false;
    *ret = strtoull(text, &end, 10);
    return !*end || *end == '\n' || *end == ' ';
}

static bool read_number(const char *folder, const char *name, uint64_t *ret)
{
    FILE *file = open_at("%s/%s", folder, name);
    char line[64];
    bool found = file && fgets(line, sizeof(line), file) && parse(line, ret);

    if (file)
        fclose(file);
    return found;
}

/* Adds up the lines of the form `name value` or `name: value` whose names end the list with NULL. */
static bool add_fields(FILE *file, const char *const *names, uint64_t *ret)
{
    char line[256], name[128], value[32];
    bool found = false;
    uint64_t number;

    *ret = 0;
    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%127[^ :\t]%*[: \t]%31s", name, value) != 2 || !parse(value, &number))
            continue;
        for (unsigned i = 0; names[i]; i++)
            if (!strcmp(name, names[i])) {
                *ret += number;
                found = true;
            }
    }
    if (file)
        fclose(file);
    return found;
}

/* ---- bounds ---- */

static void take_least(struct memory_bound *least, uint64_t size, const char *of, const char *path)
{
    if (size >= least->size)
        return;
    least->size = size;
    snprintf(least->of, sizeof(least->of), "%s%.200s", of, path);
}

/* Returns the part of a bound that one process should take. */
static uint64_t shared(uint64_t size)
{
    const uint64_t part = size / PART_KEPT_BACK;

    return size - (part < MOST_KEPT_BACK ? part : MOST_KEPT_BACK);
}

static void bound_by_machine(const char *root, struct memory_bound *least)
{
    static const char *const names[] = {"MemAvailable", NULL};
    uint64_t kib;

    if (add_fields(open_at("%s/proc/meminfo", root), names, &kib))
        take_least(least, shared(kib * 1024), "this machine (MemAvailable)", "");
}

/* The two versions of control groups. */
struct group_files {
    const char *folder, *limit, *usage;
    const char *files[3]; /* fields of memory.stat: pages of files */
};

static void bound_by_group(const char *root, const struct group_files *f, const char *path, uint64_t enough,
                           struct memory_bound *least)
{
    char folder[PATH_ROOM];
    uint64_t limit, usage, files = 0, used;

    if (snprintf(folder, sizeof(folder), "%s%s%s", root, f->folder, path) >= (int)sizeof(folder) ||
        !read_number(folder, f->limit, &limit) || !read_number(folder, f->usage, &usage))
        return;
    if (limit < usage || shared(limit - usage) < enough) /* the slowest file to read */
        add_fields(open_at("%s/memory.stat", folder), f->files, &files);
    used = usage > files ? usage - files : 0;
    take_least(least, shared(limit > used ? limit - used : 0), "the memory control group ", *path ? path : "/");
}

/* Returns the files for a line of /proc/self/cgroup, `number:controllers:path`; NULL where the line is not about
 * memory. */
static const struct group_files *group_files(const char *number, char *controllers)
{
    static const struct group_files version_1 = {"/sys/fs/cgroup/memory",
                                                 "memory.limit_in_bytes",
                                                 "memory.usage_in_bytes",
                                                 {"total_inactive_file", "total_active_file"}},
                                    version_2 = {"/sys/fs/cgroup",
                                                 "memory.max",
                                                 "memory.current",
                                                 {"inactive_file", "active_file"}};
    char *rest = NULL;

    if (!strcmp(number, "0") && !*controllers)
        return &version_2;
    for (char *one = strtok_r(controllers, ",", &rest); one; one = strtok_r(NULL, ",", &rest))
        if (!strcmp(one, "memory"))
            return &version_1;
    return NULL;
}

static void bound_by_groups(const char *root, uint64_t enough, struct memory_bound *least)
{
    FILE *file = open_at("%s/proc/self/cgroup", root);
    char line[PATH_ROOM];

    while (file && fgets(line, sizeof(line), file)) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL, *slash;
        const struct group_files *f;

        if (!path)
            continue;
        *controllers++ = *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        f = group_files(line, controllers);
        if (!f)
            continue;
        if (!strcmp(path, "/"))
            *path = 0;
        for (;;) {
            bound_by_group(root, f, path, enough, least);
            slash = strrchr(path, '/');
            if (!slash)
                break;
            *slash = 0;
        }
    }
    if (file)
        fclose(file);
}

static void bound_by_limits(const char *root, uint64_t address_space, uint64_t file_size, struct memory_bound *least)
{
    uint64_t pages = 0, taken;
    char folder[PATH_ROOM];

    if (address_space != UINT64_MAX) {
        if (snprintf(folder, sizeof(folder), "%s/proc/self", root) < (int)sizeof(folder))
            read_number(folder, "statm", &pages);
        taken = pages * (uint64_t)sysconf(_SC_PAGESIZE);
        take_least(least, address_space > taken ? address_space - taken : 0, "RLIMIT_AS", "");
    }
    if (file_size != UINT64_MAX)
        take_least(least, file_size, "RLIMIT_FSIZE", "");
}

void memory_bound(const char *root, uint64_t enough, uint64_t address_space, uint64_t file_size,
                  struct memory_bound *ret)
{
    *ret = (struct memory_bound){.size = UINT64_MAX};
    bound_by_machine(root, ret);
    bound_by_groups(root, enough, ret);
    bound_by_limits(root, address_space, file_size, ret);
}

/* ---- the check ---- */

static uint64_t soft_limit(__rlimit_resource_t resource)
{
    struct rlimit limit;

    return getrlimit(resource, &limit) || limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

/* "3.7 GiB" */
static const char *amount(uint64_t size, char text[AMOUNT_ROOM])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;

    if (size < 1024) {
        snprintf(text, AMOUNT_ROOM, "%" PRIu64 " bytes", size);
        return text;
    }
    for (; size >= 1U << 20; size >>= 10)
        unit++;
    snprintf(text, AMOUNT_ROOM, "%" PRIu64 ".%" PRIu64 " %s", (size * 10 >> 10) / 10, (size * 10 >> 10) % 10,
             units[unit]);
    return text;
}

enum kops_code memory_check(uint64_t size, struct kops_error *e)
{
    char asked[AMOUNT_ROOM], left[AMOUNT_ROOM];
    struct memory_bound bound;

    if (size < UNCHECKED)
        return KOPS_OK;
    memory_bound("", size, soft_limit(RLIMIT_AS), soft_limit(RLIMIT_FSIZE), &bound);
    if (size <= bound.size && size <= INT64_MAX)
        return KOPS_OK;
    fail(e, KOPS_ERR_OUT_OF_MEMORY,
         "%s of shared memory were asked for, and %s has %s left for this process: ask for less, or free some first",
         amount(size, asked), *bound.of ? bound.of : "a file", amount(bound.size, left));
    fail_number(e, KOPS_ERR_OUT_OF_MEMORY, "asked", size < INT64_MAX ? (int64_t)size : INT64_MAX);
    fail_number(e, KOPS_ERR_OUT_OF_MEMORY, "available", bound.size < INT64_MAX ? (int64_t)bound.size : INT64_MAX);
    return fail_text(e, KOPS_ERR_OUT_OF_MEMORY, "limit", bound.of, strlen(bound.of));
}
