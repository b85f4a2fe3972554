#include "util/packages.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *named; /* NULL: beside the program */

void packages_lie_at(const char *path)
{
    named = path;
}

static bool beside_program(char path[PATH_MAX])
{
    static const char within[] = "/kops/bin/kopsd", packages[] = "/nvidia";
    const ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    const size_t length = n > 0 ? (size_t)n : 0, site = length - (sizeof(within) - 1);
    struct stat st;

    if (length < sizeof(within) || strncmp(path + site, within, sizeof(within) - 1) != 0)
        return false;
    memcpy(path + site, packages, sizeof(packages)); /* shorter than what it takes the place of */
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool packages_folder(char path[PATH_MAX])
{
    if (named)
        return snprintf(path, PATH_MAX, "%s", named) < PATH_MAX;
    return beside_program(path);
}

/* The packages of CUDA 13 share one folder, cu13; older ones have one each. */
bool packages_find_library(const char *const *names, size_t n, char path[PATH_MAX])
{
    char folder[PATH_MAX], pattern[PATH_MAX + 64];
    bool found = false;

    if (!packages_folder(folder) || strpbrk(folder, "*?[\\"))
        return false;
    for (size_t i = 0; i < n && !found; i++) {
        glob_t hits;

        snprintf(pattern, sizeof(pattern), "%s/*/lib/%s", folder, names[i]);
        if (glob(pattern, 0, NULL, &hits) != 0)
            continue;
        found = snprintf(path, PATH_MAX, "%s", hits.gl_pathv[hits.gl_pathc - 1]) < PATH_MAX;
        globfree(&hits);
    }
    return found;
}
