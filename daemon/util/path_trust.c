#include "util/path_trust.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LINKS_MAX = 40, SHOWN = 70 /* characters of a path in a message */ };

struct walk {
    const char *path;    /* the path that is asked about */
    char at[PATH_MAX];   /* place of the walk: a path without links */
    char rest[PATH_MAX]; /* the rest of the path, after `at` */
    struct stat st;      /* status of `at` */
    uid_t also, root;
    enum path_hands hands;
    unsigned links;
    bool closed, missing;
};

static bool is_trusted(const struct walk *w, uid_t uid)
{
    return uid == 0 || uid == geteuid() || uid == w->also || uid == w->root;
}

/* A group with the owner's own number has no other members, where users have groups of their own. */
static bool group_may_write(const struct stat *st)
{
    return (st->st_mode & S_IWGRP) && st->st_gid != 0 && st->st_gid != getegid() && st->st_gid != st->st_uid;
}

static int cannot_look(const struct walk *w, int error, struct error *e)
{
    return error_set(e, ERROR_PERMISSION_DENIED, "%.*s: %.*s: %s", SHOWN, w->path, SHOWN, w->at, strerror(error));
}

/* The file itself. */
static int check_file(const struct walk *w, struct error *e)
{
    if (!is_trusted(w, w->st.st_uid))
        return error_set(e, ERROR_PERMISSION_DENIED,
                         "%.*s: it belongs to user %u, who may change it: `chown root` it if it is to be used", SHOWN,
                         w->at, (unsigned)w->st.st_uid);
    if (w->hands == PATH_OWNERS)
        return 0;
    if (w->st.st_mode & S_IWOTH)
        return error_set(e, ERROR_PERMISSION_DENIED, "%.*s of user %u: everybody may write to it: `chmod o-w` it",
                         SHOWN, w->at, (unsigned)w->st.st_uid);
    if (group_may_write(&w->st))
        return error_set(e, ERROR_PERMISSION_DENIED,
                         "%.*s of user %u: its group may write to it (group %u): `chmod g-w` it", SHOWN, w->at,
                         (unsigned)w->st.st_uid, (unsigned)w->st.st_gid);
    return 0;
}

/* A folder or a link on the way. */
static int check_way(struct walk *w, struct error *e)
{
    const bool link = S_ISLNK(w->st.st_mode), sticky = w->st.st_mode & S_ISVTX;

    if (!is_trusted(w, w->st.st_uid))
        return error_set(e, ERROR_PERMISSION_DENIED,
                         "%.*s: user %u may put another file in its place, as the owner of %.*s: `chown%s root` that, "
                         "or use a path in folders of root's",
                         SHOWN, w->path, (unsigned)w->st.st_uid, SHOWN, w->at, link ? " -h" : "");
    if (link)
        return 0;
    if (w->hands == PATH_WRITERS && !sticky && ((w->st.st_mode & S_IWOTH) || group_may_write(&w->st)))
        return error_set(e, ERROR_PERMISSION_DENIED,
                         "%.*s: %s may put another file in its place, in %.*s of user %u: `chmod go-w` that folder",
                         SHOWN, w->path, w->st.st_mode & S_IWOTH ? "everybody" : "a group", SHOWN, w->at,
                         (unsigned)w->st.st_uid);
    w->closed |= !(w->st.st_mode & (S_IXGRP | S_IXOTH));
    return 0;
}

/* Puts `first` before what is left of the path. */
static int go_on_with(struct walk *w, const char *first)
{
    char rest[PATH_MAX];
    const int n = snprintf(rest, sizeof(rest), "%s/%s", first, w->rest);

    if (n >= (int)sizeof(rest))
        return -1;
    memcpy(w->rest, rest, (size_t)n + 1);
    if (*first == '/')
        w->at[1] = '\0'; /* "/" */
    return 0;
}

static void go_up(char *at)
{
    char *slash = strrchr(at, '/');

    slash[slash == at] = '\0';
}

/* Takes the next name off the rest of the path. False: there is none. */
static bool next_name(struct walk *w, char name[NAME_MAX + 1], bool *ret_too_long)
{
    const size_t skip = strspn(w->rest, "/"), n = strcspn(w->rest + skip, "/");

    *ret_too_long = n > NAME_MAX;
    if (!n || *ret_too_long)
        return false;
    memcpy(name, w->rest + skip, n);
    name[n] = '\0';
    memmove(w->rest, w->rest + skip + n, strlen(w->rest + skip + n) + 1);
    return true;
}

static bool is_last(const struct walk *w)
{
    return w->rest[strspn(w->rest, "/")] == '\0';
}

static int follow(struct walk *w, struct error *e)
{
    char target[PATH_MAX];
    const ssize_t n = readlink(w->at, target, sizeof(target) - 1);

    if (n < 0 || ++w->links > LINKS_MAX)
        return cannot_look(w, n < 0 ? errno : ELOOP, e);
    target[n] = '\0';
    go_up(w->at);
    return go_on_with(w, target) < 0 ? cannot_look(w, ENAMETOOLONG, e) : 0;
}

/* Goes to `name` in the folder where the walk is. */
static int step(struct walk *w, const char *name, struct error *e)
{
    const size_t n = strlen(w->at);

    if (!strcmp(name, "."))
        return 0;
    if (!strcmp(name, "..")) {
        go_up(w->at);
        return 0;
    }
    if (snprintf(w->at + n, sizeof(w->at) - n, "%s%s", n > 1 ? "/" : "", name) >= (int)(sizeof(w->at) - n))
        return cannot_look(w, ENAMETOOLONG, e);
    if (lstat(w->at, &w->st) < 0) {
        w->missing = errno == ENOENT || errno == ENOTDIR;
        return cannot_look(w, errno, e);
    }
    if (S_ISLNK(w->st.st_mode))
        return check_way(w, e) < 0 ? -1 : follow(w, e);
    return is_last(w) ? 0 : check_way(w, e);
}

static int begin(struct walk *w, const char *path, struct error *e)
{
    char here[PATH_MAX] = "";

    snprintf(w->at, sizeof(w->at), "/");
    w->missing = !*path;
    if (w->missing)
        return cannot_look(w, ENOENT, e);
    if (*path != '/' && !getcwd(here, sizeof(here)))
        return cannot_look(w, errno, e);
    if (snprintf(w->rest, sizeof(w->rest), "%s/%s", here, path) >= (int)sizeof(w->rest))
        return cannot_look(w, ENAMETOOLONG, e);
    if (lstat("/", &w->st) < 0)
        return cannot_look(w, errno, e);
    w->root = w->st.st_uid;
    return check_way(w, e);
}

static int look(struct walk *w, const char *path, const struct stat *opened, struct error *e)
{
    char name[NAME_MAX + 1];
    bool too_long = false;

    if (begin(w, path, e) < 0)
        return -1;
    while (next_name(w, name, &too_long))
        if (step(w, name, e) < 0)
            return -1;
    if (too_long)
        return cannot_look(w, ENAMETOOLONG, e);
    if (lstat(w->at, &w->st) < 0)
        return cannot_look(w, errno, e);
    if (!opened)
        return 0;
    if (w->st.st_dev != opened->st_dev || w->st.st_ino != opened->st_ino)
        return error_set(e, ERROR_PERMISSION_DENIED, "%.*s: another file is in its place now", SHOWN, path);
    return check_file(w, e);
}

int path_trust(const char *path, const struct stat *opened, uid_t also, enum path_hands hands, bool *ret_closed,
               struct error *e)
{
    struct walk w = {.path = path, .also = also, .hands = hands};
    const int r = look(&w, path, opened, e);

    if (ret_closed)
        *ret_closed = w.closed;
    return w.missing && !opened ? 0 : r;
}
