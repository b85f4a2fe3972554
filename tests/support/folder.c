#include "folder.h"

#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    return remove(path);
}

static void folder_remove(void *folder)
{
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    free(folder);
}

const char *folder_new(void)
{
    const char *parent = getenv("TMPDIR");
    char path[64];

    snprintf(path, sizeof(path), "%s/kops-test-XXXXXX", parent && *parent && strlen(parent) < 32 ? parent : "/tmp");
    assert_non_null(mkdtemp(path));
    return opened(strdup(path), folder_remove);
}

const char *folder_path(const char *folder, const char *name)
{
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

const char *folder_put(const char *folder, const char *name, const char *text)
{
    char *path = (char *)folder_path(folder, name);
    FILE *f;

    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(path, 0700);
    }
    f = fopen(path, "we");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    return path;
}
