/* What the daemon and its processes hold though no client is there any more. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "simulator.h"

/* Memory of their own, by the names that they gave it. */
static bool is_own(const char *name)
{
    static const char *const own[] = {"kopsd-executor", "kops-tuning", "kops-modules", "kopsd-pageless",
                                      "standin-pool-memory"};

    for (unsigned i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (!strncmp(name, own[i], strlen(own[i])) && name[strlen(own[i])] == ' ')
            return true;
    return false;
}

static bool find_in(const char *text, char *told, size_t size)
{
    const char *name = strstr(text, "memfd:");

    if (!name || is_own(name + strlen("memfd:")))
        return false;
    snprintf(told, size, "%.40s", name);
    told[strcspn(told, " \n")] = 0;
    return true;
}

static bool find_mapping(pid_t pid, char *told, size_t size)
{
    char path[40], line[512];
    bool found = false;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof(line), f))
        found = find_in(line, told, size);
    if (f)
        fclose(f);
    return found;
}

static bool find_descriptor(pid_t pid, char *told, size_t size)
{
    char path[PATH_MAX], target[256];
    struct dirent *entry;
    bool found = false;
    DIR *folder;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    folder = opendir(path);
    while (folder && !found && (entry = readdir(folder))) {
        ssize_t n;

        snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)pid, entry->d_name);
        n = readlink(path, target, sizeof(target) - 1);
        target[n > 0 ? n : 0] = 0;
        found = find_in(target, told, size);
    }
    if (folder)
        closedir(folder);
    return found;
}

bool holdings_left(char *told, size_t size)
{
    char what[48];

    for (unsigned i = 1; i < w->n_parties; i++) {
        const struct party *p = &w->parties[i];

        if (p->state == PARTY_NONE || p->state == PARTY_ENDED || p->thread || p->group != DAEMON)
            continue;
        if (!find_mapping(p->process, what, sizeof(what)) && !find_descriptor(p->process, what, sizeof(what)))
            continue;
        snprintf(told, size, "no client is left, and %s holds %s", p->name, what);
        return true;
    }
    return false;
}
