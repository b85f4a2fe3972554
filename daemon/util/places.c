#include "util/places.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_BYTES = 64, ENTRY_BYTES = 4096 };

/* ---- the sockets to try ---- */

int places_open_private(const char *folder, const char **ret_why)
{
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;

    if (fd < 0)
        *ret_why = errno == ELOOP || errno == ENOTDIR ? "it is no directory" : strerror(errno);
    else if (fstat(fd, &st) < 0)
        *ret_why = strerror(errno);
    else if (st.st_uid != geteuid())
        *ret_why = "it belongs to another user";
    else if (st.st_mode & (S_IWGRP | S_IWOTH))
        *ret_why = "others may write to it";
    else
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool is_private(const char *folder)
{
    const char *why;
    const int fd = places_open_private(folder, &why);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

unsigned places_list(const char *runtime, uid_t uid, places_private *is_private_folder,
                     char paths[PLACES_MAX][PLACE_BYTES])
{
    char folders[PLACES_MAX - 1][PLACE_BYTES];
    unsigned n_folders = 0, n = 0;

    if (runtime && *runtime == '/')
        snprintf(folders[n_folders++], PLACE_BYTES, "%s", runtime);
    snprintf(folders[n_folders++], PLACE_BYTES, "/run/user/%u", (unsigned)uid);
    if (n_folders == 2 && !strcmp(folders[0], folders[1]))
        n_folders--;
    snprintf(folders[n_folders++], PLACE_BYTES, "/tmp/.kopsd-%u", (unsigned)uid);
    for (unsigned i = 0; i < n_folders; i++) {
        snprintf(paths[n++], PLACE_BYTES, "%.*s/kopsd.sock", PLACE_BYTES - 16, folders[i]);
        if (is_private_folder(folders[i]))
            break;
    }
    snprintf(paths[n++], PLACE_BYTES, "%s", PLACES_SYSTEM);
    return n;
}

unsigned places_of_process(char paths[PLACES_MAX][PLACE_BYTES])
{
    return places_list(getenv("XDG_RUNTIME_DIR"), geteuid(), is_private, paths);
}

/* ---- users ---- */

static uid_t user_called(const char *name)
{
    char entry[ENTRY_BYTES];
    struct passwd user, *found = NULL;

    return getpwnam_r(name, &user, entry, sizeof(entry), &found) == 0 && found ? found->pw_uid : PLACES_NOBODY;
}

static const char *describe_user(uid_t uid, char text[NAME_BYTES])
{
    char entry[ENTRY_BYTES];
    struct passwd user, *found = NULL;

    if (getpwuid_r(uid, &user, entry, sizeof(entry), &found) == 0 && found)
        snprintf(text, NAME_BYTES, "%.32s (%u)", user.pw_name, (unsigned)uid);
    else
        snprintf(text, NAME_BYTES, "%u", (unsigned)uid);
    return text;
}

static const char *name_group(gid_t gid, char text[NAME_BYTES])
{
    char entry[ENTRY_BYTES];
    struct group group, *found = NULL;

    if (getgrgid_r(gid, &group, entry, sizeof(entry), &found) == 0 && found)
        snprintf(text, NAME_BYTES, "%.32s", group.gr_name);
    else
        snprintf(text, NAME_BYTES, "%u", (unsigned)gid);
    return text;
}

/* The number that stands for users without one in this user namespace. The first namespace gives every user one, and
 * has none to spare: 65534 is a user like others there. */
static uid_t unmapped_user(void)
{
    unsigned long first = 1, outside = 1, count = 0, number = 65534;
    FILE *f = fopen("/proc/self/uid_map", "re");
    bool known;

    if (!f)
        return PLACES_NOBODY;
    known = fscanf(f, "%lu %lu %lu", &first, &outside, &count) == 3;
    fclose(f);
    if (!known || (first == 0 && outside == 0 && count == UINT32_MAX))
        return PLACES_NOBODY;
    f = fopen("/proc/sys/kernel/overflowuid", "re");
    if (f) {
        known = fscanf(f, "%lu", &number) == 1;
        fclose(f);
    }
    return known ? (uid_t)number : (uid_t)65534;
}

/* KOPS_TRUST_USER: names or numbers, with commas between them. */
static bool is_named(uid_t uid)
{
    const char *list = getenv("KOPS_TRUST_USER");

    for (size_t length; list && *list; list += length + (list[length] == ',')) {
        char name[NAME_BYTES], *end;
        unsigned long number;

        length = strcspn(list, ",");
        if (!length || length >= sizeof(name))
            continue;
        memcpy(name, list, length);
        name[length] = '\0';
        number = strtoul(name, &end, 10);
        if (uid == (*end || *name == '-' || number > UINT32_MAX ? user_called(name) : (uid_t)number))
            return uid != PLACES_NOBODY;
    }
    return false;
}

/* ---- trust ---- */

bool places_trusts(const struct place_server *s)
{
    if (s->named)
        return true;
    if (s->uid == PLACES_NOBODY)
        return false;
    /* The number says nothing. The folder does: the user who made this namespace has put it here, unless a user of the
     * namespace itself could make it. */
    if (s->uid == s->unmapped)
        return (s->folder == 0 || s->folder == s->unmapped) && !s->folder_shared && !s->parent_shared;
    return s->uid == 0 || s->uid == s->self || s->uid == s->kops ||
           (s->system && s->uid == s->folder && !s->folder_shared); /* root has given it the folder */
}

static bool look_at(const char *folder, uid_t *ret_owner)
{
    struct stat st;
    const bool seen = stat(folder, &st) == 0;

    *ret_owner = seen ? st.st_uid : PLACES_NOBODY;
    return !seen || st.st_mode & (S_IWGRP | S_IWOTH);
}

static void look_at_folders(const char *path, struct place_server *s)
{
    const char *slash = strrchr(path, '/');
    const int length = slash ? (int)(slash - path) : 0;
    char folder[PLACE_BYTES + 4];
    uid_t ignored;

    snprintf(folder, sizeof(folder), "%.*s", length ? length : 1, slash ? path : ".");
    s->folder_shared = look_at(folder, &s->folder);
    snprintf(folder, sizeof(folder), "%.*s/..", length ? length : 1, slash ? path : ".");
    s->parent_shared = look_at(folder, &ignored);
}

bool places_check(const char *path, int fd, char *why, size_t size)
{
    struct ucred peer = {.uid = PLACES_NOBODY};
    socklen_t length = sizeof(peer);
    char user[NAME_BYTES], self[NAME_BYTES];
    struct place_server s = {.self = geteuid()};

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0) {
        snprintf(why, size, "the server's user is unknown: %s", strerror(errno));
        return false;
    }
    s.uid = peer.uid;
    s.unmapped = unmapped_user();
    /* The lookup reads files and loads libraries, or asks a directory on the network: only where it decides. */
    s.kops = s.uid == 0 || s.uid == s.self ? PLACES_NOBODY : user_called("kops");
    s.named = is_named(s.uid);
    s.system = !strcmp(path, PLACES_SYSTEM);
    look_at_folders(path, &s);
    if (places_trusts(&s))
        return true;
    if (s.uid == s.unmapped)
        snprintf(why, size,
                 "its server is a user from outside this user namespace, and users of the namespace may have made its "
                 "folder: mount the folder that root made, or trust such users with KOPS_TRUST_USER=%u",
                 (unsigned)s.uid);
    else
        snprintf(why, size, "its server is user %s, expected is %s%sroot or kops: KOPS_TRUST_USER=%u trusts that user",
                 describe_user(s.uid, user), s.self ? describe_user(s.self, self) : "", s.self ? ", " : "",
                 (unsigned)s.uid);
    return false;
}

/* ---- what is in the way ---- */

void places_explain(const char *path, int error, char *why, size_t size)
{
    char self[ENTRY_BYTES], group[NAME_BYTES], owner[NAME_BYTES];
    struct passwd user, *found = NULL;
    struct stat st;
    const bool seen = error == EACCES && stat(path, &st) == 0;

    if (seen && st.st_mode & S_IWGRP) {
        getpwuid_r(geteuid(), &user, self, sizeof(self), &found);
        name_group(st.st_gid, group);
        snprintf(why, size, "%s: the group %s may connect, `sudo usermod -aG %s %s` and a new login join it",
                 strerror(error), group, group, found ? user.pw_name : "USER");
    } else if (seen) {
        snprintf(why, size, "%s: only its owner %s may connect", strerror(error), describe_user(st.st_uid, owner));
    } else {
        snprintf(why, size, "%s", strerror(error));
    }
}
