#include "main/privileges.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/log.h"
#include "util/path_trust.h"

static bool is_number(const char *text, unsigned long *ret)
{
    char *end;

    errno = 0;
    *ret = strtoul(text, &end, 10);
    return isdigit((unsigned char)*text) && !*end && !errno && *ret < UINT32_MAX;
}

static int find_user(const char *name, struct privileges *p, struct error *e)
{
    unsigned long number;
    const struct passwd *user = getpwnam(name);

    if (!user && is_number(name, &number)) {
        user = getpwuid((uid_t)number);
        p->uid = (uid_t)number;
        p->gid = (gid_t)number; /* where it has no entry */
    } else if (!user) {
        return error_set(e, ERROR_INVALID_ARGUMENT, "server.user: there is no user \"%.40s\"", name);
    }
    if (!user)
        return 0;
    p->uid = user->pw_uid;
    p->gid = user->pw_gid;
    p->name = strdup(user->pw_name);
    p->home = strdup(user->pw_dir);
    return p->name && p->home ? 0 : error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start");
}

int privileges_find(const struct config *config, struct privileges *ret, struct error *e)
{
    struct privileges p = {.uid = geteuid(), .gid = getegid()};
    const bool user = config->user && *config->user;

    if (user && find_user(config->user, &p, e) < 0) {
        privileges_free(&p);
        return -1;
    }
    p.drop = user && p.uid != 0 && geteuid() == 0;
    if (user && geteuid() != 0 && p.uid != geteuid())
        log_warning("privileges", "why=\"server.user is ignored: only root can become somebody else\"");
    if (!p.drop) {
        p.uid = geteuid();
        p.gid = getegid();
    }
    *ret = p;
    return 0;
}

void privileges_free(struct privileges *p)
{
    free(p->name);
    free(p->home);
    p->name = p->home = NULL;
}

/* Only where root alone could have put something is everything that is there root's own. */
static bool is_roots(const struct stat *st)
{
    return st->st_uid == 0 && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

/* As compile/cache.h names its files: a key in hex, one that is being written, the secret. */
static bool is_of_a_cache(const char *name)
{
    return !strcmp(name, "secret") || !strncmp(name, ".new-", 5) || strspn(name, "0123456789abcdef") == 64;
}

static bool is_dot(const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..");
}

/* NULL: all is a cache's, and given. Else why not. */
static const char *give_files(const struct privileges *p, DIR *directory, bool look_only)
{
    const struct dirent *entry;
    struct stat st;

    rewinddir(directory);
    for (errno = 0; (entry = readdir(directory)); errno = 0) {
        if (is_dot(entry->d_name))
            continue;
        if (fstatat(dirfd(directory), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            return strerror(errno);
        if (!S_ISREG(st.st_mode) || st.st_nlink != 1 || !is_of_a_cache(entry->d_name))
            return "it holds something else";
        if (!look_only && fchownat(dirfd(directory), entry->d_name, p->uid, p->gid, AT_SYMLINK_NOFOLLOW) < 0)
            return strerror(errno);
    }
    return errno ? strerror(errno) : NULL;
}

/* Whether root and the daemon's user alone say what the path leads to: before it is made, and once it is there. */
static bool may_use_cache(const struct privileges *p, const char *path)
{
    char shown[300], quoted[2 * ERROR_MESSAGE_MAX];
    struct stat st;
    struct error e;

    if (path_trust(path, NULL, p->uid, PATH_OWNERS, NULL, &e) == 0) {
        mkdir(path, 0700); /* also when it is there */
        if (stat(path, &st) < 0 || path_trust(path, &st, p->uid, PATH_OWNERS, NULL, &e) == 0)
            return true;
    }
    log_warning("cache_directory_unusable", "path=%s reason=%s", log_quote(shown, sizeof(shown), path, strlen(path)),
                log_quote(quoted, sizeof(quoted), e.message, strlen(e.message)));
    return false;
}

bool privileges_give_cache(const struct privileges *p, const char *path)
{
    const char *why = NULL;
    struct stat st;
    DIR *directory;
    int fd;

    if (!p->drop || !*path)
        return true;
    if (!may_use_cache(p, path))
        return false;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || !is_roots(&st)) {
        if (fd >= 0)
            close(fd);
        return true;
    }
    directory = fdopendir(fd);
    if (!directory) {
        why = strerror(errno);
        close(fd);
    } else {
        why = give_files(p, directory, true);
        if (!why)
            why = give_files(p, directory, false);
        if (!why && fchown(fd, p->uid, p->gid) < 0)
            why = strerror(errno);
        closedir(directory);
    }
    if (why)
        log_warning("privileges", "why=\"the cache's directory is not given to user %u: %s\"", (unsigned)p->uid, why);
    return true;
}

static int check_dropped(const struct privileges *p, struct error *e)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
    uid_t uid[3];
    gid_t gid[3];

    if (getresuid(&uid[0], &uid[1], &uid[2]) < 0 || getresgid(&gid[0], &gid[1], &gid[2]) < 0 ||
        syscall(SYS_capget, &header, data) < 0)
        return error_set(e, ERROR_INTERNAL, "looking at the own rights: %s", strerror(errno));
    for (unsigned i = 0; i < 3; i++)
        if (uid[i] != p->uid || gid[i] != p->gid)
            return error_set(e, ERROR_INTERNAL, "root's rights could not be given up");
    for (unsigned i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
        if (data[i].permitted || data[i].effective)
            return error_set(e, ERROR_INTERNAL, "capabilities are left after root's rights were given up");
    if (setresuid((uid_t)-1, 0, (uid_t)-1) == 0)
        return error_set(e, ERROR_INTERNAL, "root's rights could be had again");
    return 0;
}

/* As the service manager would have set it up for the user. */
static void set_environment(const struct privileges *p)
{
    if (!p->name)
        return;
    setenv("HOME", p->home, 1);
    setenv("USER", p->name, 1);
    setenv("LOGNAME", p->name, 1);
}

int privileges_drop(const struct privileges *p, struct error *e)
{
    const struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    const pid_t parent = getppid();
    int death_signal = 0;

    if (!p->drop)
        return 0;
    prctl(PR_GET_PDEATHSIG, &death_signal);
    /* Root may pin any memory, also memory that clients share. */
    setrlimit(RLIMIT_MEMLOCK, &unlimited);
    if ((p->name ? initgroups(p->name, p->gid) : setgroups(0, NULL)) < 0 || setresgid(p->gid, p->gid, p->gid) < 0 ||
        setresuid(p->uid, p->uid, p->uid) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return error_set(e, ERROR_PERMISSION_DENIED, "becoming user %u and group %u: %s", (unsigned)p->uid,
                         (unsigned)p->gid, strerror(errno));
    if (check_dropped(p, e) < 0)
        return -1;
    set_environment(p);
    /* A change of user takes both away: being looked at by one's own user's processes, as drivers do between those that
     * share memory, and ending with the parent. */
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    if (death_signal) {
        prctl(PR_SET_PDEATHSIG, death_signal);
        if (getppid() != parent)
            raise(death_signal);
    }
    log_info("privileges", "uid=%u gid=%u", (unsigned)p->uid, (unsigned)p->gid);
    return 0;
}
