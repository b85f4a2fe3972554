#include "util/host_memory.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Files of version 1 have about 2^63 where there is no limit. */
static const uint64_t NO_LIMIT_FROM = UINT64_C(1) << 60;

/* The two versions of control groups differ in names only. */
struct version {
    const char *below, *limit, *usage, *reclaimable; /* below the root of all; reclaimable: a line of memory.stat */
};

static const struct version first = {"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                     "total_inactive_file"},
                            second = {"", "memory.max", "memory.current", "inactive_file"},
                            hybrid = {"/unified", "memory.max", "memory.current", "inactive_file"};

static uint64_t read_number(const char *folder, const char *name)
{
    char path[PATH_MAX + 32];
    unsigned long long n;
    FILE *f;
    int found;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    f = fopen(path, "re");
    if (!f)
        return UINT64_MAX;
    found = fscanf(f, "%llu", &n); /* "max" is none */
    fclose(f);
    return found == 1 && n < NO_LIMIT_FROM ? n : UINT64_MAX;
}

/* The number behind `key` in a file of "key number" lines; 0: there is none. */
static uint64_t read_entry(const char *path, const char *key)
{
    char line[160], name[80];
    uint64_t found = 0;
    unsigned long long n;
    FILE *f = fopen(path, "re");

    if (!f)
        return 0;
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "%79s %llu", name, &n) == 2 && !strcmp(name, key)) {
            found = n;
            break;
        }
    fclose(f);
    return found;
}

static void lower(struct host_memory_limits *l, const char *folder, const struct version *v)
{
    const uint64_t limit = read_number(folder, v->limit);
    char stat[PATH_MAX + 32];
    uint64_t used, left;

    if (limit == UINT64_MAX)
        return;
    used = read_number(folder, v->usage);
    snprintf(stat, sizeof(stat), "%s/memory.stat", folder);
    left = used < limit ? limit - used : 0;
    left += read_entry(stat, v->reclaimable);
    left = left < limit ? left : limit;
    l->limit = limit < l->limit ? limit : l->limit;
    l->available = left < l->available ? left : l->available;
}

/* The group and all above it, to the root. */
static void walk(struct host_memory_limits *l, const char *root, const char *group, const struct version *v)
{
    char folder[PATH_MAX];
    const int length = snprintf(folder, sizeof(folder), "%s%s", root, v->below);
    size_t top;

    if (length < 0 || (size_t)length + strlen(group) >= sizeof(folder))
        return;
    top = (size_t)length;
    snprintf(folder + top, sizeof(folder) - top, "%s", strcmp(group, "/") ? group : "");
    for (;;) {
        char *end = strrchr(folder + top, '/');

        lower(l, folder, v);
        if (!end)
            return;
        *end = '\0';
    }
}

struct host_memory_limits host_memory_limits(const char *groups, const char *root)
{
    struct host_memory_limits l = {UINT64_MAX, UINT64_MAX};
    char line[PATH_MAX];
    FILE *f = fopen(groups, "re");

    if (!f)
        return l;
    /* "4:memory:/path" of version 1, "0::/path" of version 2. */
    while (fgets(line, sizeof(line), f)) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;

        if (!path)
            continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (!strcmp(controllers + 1, "memory")) {
            walk(&l, root, path, &first);
        } else if (!controllers[1]) {
            walk(&l, root, path, &second);
            walk(&l, root, path, &hybrid);
        }
    }
    fclose(f);
    return l;
}

static struct host_memory_limits own_limits(void)
{
    return host_memory_limits("/proc/self/cgroup", "/sys/fs/cgroup");
}

uint64_t host_memory_total(void)
{
    const uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t limit = own_limits().limit;

    return limit < machine ? limit : machine;
}

uint64_t host_memory_resident(void)
{
    return read_entry("/proc/self/status", "RssShmem:") * 1024;
}

uint64_t host_memory_available(void)
{
    const uint64_t kib = read_entry("/proc/meminfo", "MemAvailable:"), below = own_limits().available;
    const uint64_t machine = kib ? kib * 1024 : UINT64_MAX;

    return below < machine ? below : machine;
}
