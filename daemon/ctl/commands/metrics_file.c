/* A file that is replaced as a whole. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "metrics.h"

static int write_all(int file, const char *text, size_t left)
{
    while (left) {
        ssize_t n = write(file, text, left);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        text += n;
        left -= (size_t)n;
    }
    return 0;
}

/* A power cut may undo the change, not tear it, where the file system can be asked for that. */
static void sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

int metrics_replace_file(const char *path, const char *text)
{
    char *folder_of = strdup(path), *name_of = strdup(path), *temporary = NULL;
    int file = -1, r = -ENOMEM;
    const char *folder;

    if (!folder_of || !name_of)
        goto free_names;
    folder = dirname(folder_of);
    /* A name that cannot be foreseen, hidden, and of no kind that a collector reads; made anew, never through a link.
     */
    if (asprintf(&temporary, "%s/.%s.XXXXXX", folder, basename(name_of)) < 0) {
        temporary = NULL;
        goto free_names;
    }
    file = mkostemp(temporary, O_CLOEXEC);
    if (file < 0) {
        r = -errno;
        goto free_names;
    }
    r = write_all(file, text, strlen(text));
    if (!r && (fchmod(file, S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH) || fsync(file)))
        r = -errno;
    if (close(file) && !r)
        r = -errno;
    if (!r && rename(temporary, path))
        r = -errno;
    if (r)
        unlink(temporary);
    else
        sync_folder(folder);
free_names:
    free(temporary);
    free(folder_of);
    free(name_of);
    return r;
}
