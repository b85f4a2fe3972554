#include "main/sockets.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "main/serve.h"
#include "util/log.h"

/* ---- the names ---- */

struct names {
    char (*all)[IDENTITY_NAME_MAX + 1];
    unsigned n, room, first_of_folders; /* names of sections come first */
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

static int no_memory(struct error *e)
{
    return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the sockets");
}

/* Names what it has found of the folders. */
static int read_folders(DIR *folder, struct names *names, const char *path, struct error *e)
{
    unsigned looked = 0;
    struct dirent *entry;

    for (errno = 0; looked < FOLDER_ENTRIES_MAX && (entry = readdir(folder)); errno = 0) {
        looked++;
        if (*entry->d_name == '.' || !identity_name_is_valid(entry->d_name) || !is_folder(dirfd(folder), entry->d_name))
            continue;
        if (add_name(names, entry->d_name) < 0)
            return no_memory(e);
    }
    if (errno)
        return error_set(e, ERROR_INTERNAL, "reading the folder %s: %s", path, strerror(errno));
    return 0;
}

/* -1: there was no looking, or not at all of them: nobody may lose a socket by that. */
static int add_folders(const struct config *c, struct names *names, struct error *e)
{
    char path[SOCKET_PATH_BYTES];
    DIR *folder;
    int r;

    names->first_of_folders = names->n;
    if (!watched_folder(c, path))
        return 0;
    folder = opendir(path);
    if (!folder) {
        const int cause = errno;

        if (cause != ENOENT && cause != ENOTDIR && cause != EACCES)
            return error_set(e, ERROR_INTERNAL, "opening the folder %s: %s", path, strerror(cause));
        log_error("socket", "folder=%s why=\"%s\"", path, strerror(cause));
        return 0;
    }
    r = read_folders(folder, names, path, e);
    closedir(folder);
    if (r == 0 && names->n > names->first_of_folders)
        qsort(names->all[names->first_of_folders], names->n - names->first_of_folders, sizeof(names->all[0]),
              compare_names);
    return r;
}

/* Chooses the names: those of sections first, then those that are open already, then the others. */
static int choose_names(const struct sockets *s, const struct config *c, struct names *ret, struct error *e)
{
    struct names wanted = {0}, chosen = {0};
    int r = 0;

    no_memory(e);
    for (unsigned i = 0; r == 0 && i < c->n_sockets; i++)
        r = add_name(&wanted, c->sockets[i].name);
    if (r == 0)
        r = add_folders(c, &wanted, e);
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

/* A socket that should be open. `error`: the reason why it cannot be. */
struct due {
    struct socket_settings settings;
    struct listener_place place;
    bool kept; /* open already, at the right path */
    struct error error;
};

static void settle(struct due *d, const char *name, const struct config *c)
{
    if (config_socket(c, name, &d->settings, &d->error) < 0)
        return;
    d->error.code = ERROR_NONE;
    d->place =
        (struct listener_place){.path = d->settings.path, .group = d->settings.group, .mode = (mode_t)d->settings.mode};
}

/* Moves what goes on as it is into `new`. Its mode may change. */
static void keep(struct sockets *old, const struct names *names, struct due *due, struct sockets *new)
{
    for (unsigned i = 0; i < names->n; i++) {
        struct open_socket *was = find(old, names->all[i]);
        struct due *d = &due[i];

        snprintf(new->all[i].name, sizeof(new->all[i].name), "%s", names->all[i]);
        new->all[i].listener.fd = -1;
        if (d->error.code || !was || strcmp(was->listener.path, d->settings.path) != 0 ||
            !listener_is_there(&was->listener))
            continue;
        d->kept = true;
        new->all[i].listener = was->listener;
        was->name[0] = '\0';
        if (listener_change(&new->all[i].listener, &d->place, &old->owner, &d->error) == 0)
            d->error.code = ERROR_NONE;
    }
}

/* Closed before others are made: another identity may get the path, and with it the lock. */
static void close_left(struct sockets *old, const struct names *names)
{
    for (unsigned i = 0; i < old->n; i++) {
        if (!*old->all[i].name)
            continue;
        listener_close(&old->all[i].listener);
        if (!has_name(names, old->all[i].name))
            log_info("socket_gone", "identity=%s", old->all[i].name);
    }
    free(old->all);
}

static void make(struct due *d, struct open_socket *into, const struct privileges *owner)
{
    if (d->kept || d->error.code)
        return;
    if (listener_make(&d->place, owner, &into->listener, &d->error) < 0)
        return;
    d->kept = true;
    d->error.code = ERROR_NONE;
    log_info("socket_made", "identity=%s path=%s", into->name, into->listener.path);
}

/* `must`: -1 where a section's socket cannot be made. */
static int look(struct sockets *s, const struct config *c, bool must, struct error *e)
{
    struct sockets new = {.owner = s->owner};
    struct due *due = NULL;
    struct names names;
    int r = 0;

    if (choose_names(s, c, &names, e) < 0)
        return -1;
    new.all = calloc(names.n + 1, sizeof(*new.all));
    due = calloc(names.n + 1, sizeof(*due));
    if (!new.all || !due) {
        free(new.all);
        r = no_memory(e);
        goto free_names;
    }
    for (unsigned i = 0; i < names.n; i++)
        settle(&due[i], names.all[i], c);
    keep(s, &names, due, &new);
    close_left(s, &names);
    for (unsigned i = 0; i < names.n; i++) {
        make(&due[i], &new.all[i], &s->owner);
        if (due[i].kept)
            new.all[new.n++] = new.all[i];
        if (!due[i].error.code)
            continue;
        if (must && i < names.first_of_folders) {
            r = -1;
            *e = due[i].error;
            error_prefix(e, "a socket of an identity: ");
        } else {
            log_error("socket", "identity=%s why=\"%s\"", names.all[i], due[i].error.message);
        }
    }
    *s = new;

free_names:
    free(due);
    free(names.all);
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
