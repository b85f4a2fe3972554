/* Checks of a configuration file's writers: they decide over the daemon. */
#include <libgen.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "main/config.h"
#include "util/log.h"

enum { PATH_SHOWN = 120 };

/* A group with the owner's own number has no other members, where users have groups of their own. */
static bool group_may_write(const struct stat *st)
{
    return (st->st_mode & S_IWGRP) && st->st_gid != 0 && st->st_gid != getegid() && st->st_gid != st->st_uid;
}

/* NULL: no untrusted writer. */
static const char *who_may_write(const struct stat *file, const struct stat *directory)
{
    if (file->st_mode & S_IWOTH)
        return "everybody may write to it";
    if (group_may_write(file))
        return "its group may write to it";
    if ((directory->st_mode & S_IWOTH) && !(directory->st_mode & S_ISVTX))
        return "everybody may put another file in its place, since its directory is open to all";
    return NULL;
}

int config_check_trust(int fd, const char *path, bool root, struct error *e)
{
    struct stat file, directory = {0};
    char copy[4096], quoted[2 * PATH_SHOWN];
    const char *who;

    if (fstat(fd, &file) < 0 || !S_ISREG(file.st_mode) || !file.st_nlink)
        return 0; /* a pipe, or memory: made by the process that started the daemon */
    snprintf(copy, sizeof(copy), "%s", path);
    if (stat(dirname(copy), &directory) < 0)
        directory.st_mode = 0;
    who = who_may_write(&file, &directory);
    if (who && root && (directory.st_mode & (S_IXGRP | S_IXOTH))) /* others cannot reach a file in a private folder */
        return error_set(e, ERROR_PERMISSION_DENIED,
                         "%.*s: %s, and would so say what root's daemon does; take that right away (chmod go-w)",
                         PATH_SHOWN, path, who);
    if (who)
        log_warning("config", "path=%s why=\"%s\"", log_quote(quoted, sizeof(quoted), path, strlen(path)), who);
    else if (file.st_uid != 0 && file.st_uid != geteuid())
        log_warning("config", "path=%s why=\"uid %u owns it and may change it\"",
                    log_quote(quoted, sizeof(quoted), path, strlen(path)), (unsigned)file.st_uid);
    return 0;
}
