#include "main/sockets.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "main/server_settings.h"
#include "util/log.h"

/* ---- the names ---- */

struct names {
    char (*all)[IDENTITY_NAME_MAX + 1];
    unsigned n, room, first_of_folders; /* those of sections come first */
};

static bool has_name(const struct names *names, const char *name)
{
    for (unsigned i = 0; i < names->n; i++)
        if (!strcmp(names->all[i], name))
            return true;
    return false;
}

static int add_name(struct names *names, const char *name)
{
    if (has_name(names, name))
        return 0;
    if (names->n == names->room) {
        const unsigned room = 2 * names->room + 16;
        void *more = realloc(names->all, room * sizeof(*names->all));

        if (!more)
            return -1;
        names->all = more;
        names->room = room;
    }
    snprintf(names->all[names->n++], sizeof(names->all[0]), "%s", name);
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* The folder of which [socket *] stands for the folders: its path up to the star. False: it has none. */
static bool watched_folder(const struct config *c, char into[SOCKET_PATH_BYTES])
{
    const char *star = c->any_socket.path ? strchr(c->any_socket.path, '*') : NULL;

    if (star)
        snprintf(into, SOCKET_PATH_BYTES, "%.*s", (int)(star - c->any_socket.path), c->any_socket.path);
    return star && c->sockets_max;
}

/* A link is no folder: it may lead to another identity's. */
static bool is_folder(int parent, const char *name)
{
    struct stat st;

    return fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

enum { FOLDER_ENTRIES_MAX = 65536 };

static int add_folders(const struct config *c, struct names *names)
{
    char path[SOCKET_PATH_BYTES];
    struct dirent *entry;
    unsigned looked = 0;
    DIR *folder;
    int r = 0;

    names->first_of_folders = names->n;
    if (!watched_folder(c, path))
        return 0;
    folder = opendir(path);
    if (!folder) {
        const int cause = errno;

        log_error("socket", "folder=%s why=\"%s\"", path, strerror(cause));
        /* Where there was no room to look, all stays as it is: nobody has lost a socket. */
        return cause == EMFILE || cause == ENFILE || cause == ENOMEM ? -1 : 0;
    }
    while (r == 0 && looked++ < FOLDER_ENTRIES_MAX && (entry = readdir(folder)))
        if (*entry->d_name != '.' && identity_name_is_valid(entry->d_name) && is_folder(dirfd(folder), entry->d_name))
            r = add_name(names, entry->d_name);
    closedir(folder);
    if (r == 0 && names->n > names->first_of_folders)
        qsort(names->all[names->first_of_folders], names->n - names->first_of_folders, sizeof(names->all[0]),
              compare_names);
    return r;
}

/* Those of sections, then those that are open already, then the others. */
static int choose_names(const struct sockets *s, const struct config *c, struct names *ret)
{
    struct names wanted = {0}, chosen = {0};
    int r = 0;

    for (unsigned i = 0; r == 0 && i < c->n_sockets; i++)
        r = add_name(&wanted, c->sockets[i].name);
    if (r == 0)
        r = add_folders(c, &wanted);
    for (unsigned i = 0; r == 0 && i < wanted.first_of_folders; i++)
        r = add_name(&chosen, wanted.all[i]);
    for (unsigned i = 0; r == 0 && i < s->n; i++)
        r = has_name(&wanted, s->all[i].name) ? add_name(&chosen, s->all[i].name) : 0;
    for (unsigned i = wanted.first_of_folders; r == 0 && i < wanted.n; i++)
        r = add_name(&chosen, wanted.all[i]);
    chosen.first_of_folders = wanted.first_of_folders;
    free(wanted.all);
    if (r < 0) {
        free(chosen.all);
        return -1;
    }
    if (c->sockets_max && chosen.n > c->sockets_max)
        log_error("socket", "identity=%s left_out=%u why=\"there are %llu sockets, the most (sockets.max)\"",
                  chosen.all[c->sockets_max], chosen.n - (unsigned)c->sockets_max, (unsigned long long)c->sockets_max);
    if (chosen.n > c->sockets_max)
        chosen.n = (unsigned)c->sockets_max;
    *ret = chosen;
    return 0;
}

/* ---- sockets ---- */

static struct open_socket *find(const struct sockets *s, const char *name)
{
    for (unsigned i = 0; i < s->n; i++)
        if (!strcmp(s->all[i].name, name))
            return &s->all[i];
    return NULL;
}

/* What was there is moved to *ret, or closed. */
static int make(struct open_socket *was, const char *name, const struct config *c, const struct privileges *owner,
                struct open_socket *ret, struct error *e)
{
    struct socket_settings settings;
    struct listener_place place;

    snprintf(ret->name, sizeof(ret->name), "%s", name);
    if (config_socket(c, name, &settings, e) < 0)
        return -1;
    place = (struct listener_place){
        .path = settings.path, .group = settings.group, .mode = (mode_t)settings.mode, .backlog = (unsigned)c->backlog};
    if (was && !strcmp(was->listener.path, settings.path) && listener_is_there(&was->listener)) {
        ret->listener = was->listener;
        was->name[0] = '\0';
        return listener_change(&ret->listener, &place, owner, e);
    }
    if (was)
        listener_close(&was->listener); /* with its lock, which may be the same file */
    if (listener_make(&place, owner, &ret->listener, e) < 0)
        return -1;
    log_info("socket_made", "identity=%s path=%s", name, ret->listener.path);
    return 0;
}

static void close_left(struct sockets *old)
{
    for (unsigned i = 0; i < old->n; i++) {
        if (!*old->all[i].name)
            continue;
        listener_close(&old->all[i].listener);
        log_info("socket_gone", "identity=%s", old->all[i].name);
    }
    free(old->all);
}

/* `must`: -1 where a section's socket cannot be made. */
static int look(struct sockets *s, const struct config *c, bool must, struct error *e)
{
    struct sockets new = {.owner = s->owner}, old;
    struct names names;
    int r = 0;

    if (choose_names(s, c, &names) < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the sockets");
    new.all = calloc(names.n + 1, sizeof(*new.all));
    if (!new.all)
        r = error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the sockets");
    for (unsigned i = 0; r == 0 && i < names.n; i++) {
        struct open_socket *was = find(s, names.all[i]);
        struct error why;

        new.all[new.n].listener.fd = -1;
        if (make(was, names.all[i], c, &s->owner, &new.all[new.n], &why) == 0) {
            new.n++;
            continue;
        }
        if (was && !*was->name) /* moved: it goes on with its old mode */
            new.n++;
        if (must && i < names.first_of_folders) {
            r = -1;
            *e = why;
            error_prefix(e, "a socket of an identity: ");
        } else {
            log_error("socket", "identity=%s why=\"%s\"", names.all[i], why.message);
        }
    }
    free(names.all);
    if (!new.all)
        return -1;
    old = *s;
    *s = new;
    close_left(&old);
    return r;
}

int sockets_begin(struct sockets *s, const struct config *c, const struct privileges *owner, struct error *e)
{
    *s = (struct sockets){.owner = *owner};
    if (look(s, c, true, e) < 0) {
        sockets_close(s);
        return -1;
    }
    /* From now on the process is that user. */
    s->owner.name = s->owner.home = NULL;
    s->owner.drop = false;
    return 0;
}

void sockets_look(struct sockets *s, const struct config *c)
{
    struct error e;

    if (look(s, c, false, &e) < 0)
        log_error("socket", "why=\"%s\"", e.message);
}

void sockets_serve(struct sockets *s, const struct config *c, struct server *server)
{
    struct server_socket *list = calloc(s->n + 1, sizeof(*list));
    struct socket_settings settings;
    struct config quotas;
    char folder[SOCKET_PATH_BYTES];
    struct error e;
    unsigned n = 0;

    if (!list) {
        log_error("socket", "why=\"no memory for the sockets\"");
        return;
    }
    for (unsigned i = 0; i < s->n; i++) {
        struct open_socket *socket = &s->all[i];

        if (config_socket(c, socket->name, &settings, &e) < 0) {
            log_error("socket", "identity=%s why=\"%s\"", socket->name, e.message);
            listener_close(&socket->listener); /* the server lets go of it: the next look makes it anew */
            continue;
        }
        config_with_quotas(c, socket->name, &quotas);
        list[n++] = (struct server_socket){.identity = socket->name,
                                           .fd = socket->listener.fd,
                                           .rights = settings.rights,
                                           .limits = quota_limits_of(&quotas)};
        list[n - 1].limits.subordinates = (struct subordinates){0};
        socket->listener.fd = -1;
    }
    server_serve_sockets(server, list, n, watched_folder(c, folder) ? folder : NULL);
    free(list);
}

void sockets_close(struct sockets *s)
{
    for (unsigned i = 0; i < s->n; i++)
        listener_close(&s->all[i].listener);
    free(s->all);
    s->all = NULL;
    s->n = 0;
}
