/* The sockets of identities among the settings: [socket NAME] and [socket *]. */
#include <stdlib.h>
#include <string.h>

#include "main/config.h"
#include "main/settings.h"
#include "server/base/config.h"

static const char prefix[] = "socket ", of_all[] = "socket *";

/* ---- sections ---- */

bool config_is_socket(const char *name, size_t length)
{
    char identity[IDENTITY_NAME_MAX + 1];
    const size_t before = strlen(prefix);

    if (length <= before || length - before > IDENTITY_NAME_MAX || strncmp(name, prefix, before) != 0)
        return false;
    memcpy(identity, name + before, length - before);
    identity[length - before] = '\0';
    return identity_name_is_valid(identity);
}

static struct socket_section *find(const struct config *c, const char *name)
{
    for (unsigned i = 0; i < c->n_sockets; i++)
        if (!strcmp(c->sockets[i].name, name))
            return &c->sockets[i];
    return NULL;
}

static struct socket_section *find_or_add(struct config *c, const char *name, struct error *e)
{
    struct socket_section *section = find(c, name), *more;

    if (section)
        return section;
    if (c->n_sockets == SOCKET_SECTIONS_MAX) {
        error_set(e, ERROR_LIMIT_EXCEEDED, "[%s%s]: %d such sections are the most", prefix, name, SOCKET_SECTIONS_MAX);
        return NULL;
    }
    more = realloc(c->sockets, (c->n_sockets + 1) * sizeof(*more));
    if (more)
        c->sockets = more;
    section = more ? &more[c->n_sockets] : NULL;
    if (section)
        config_init_socket(section, strdup(name));
    if (!section || !section->name) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the configuration");
        return NULL;
    }
    c->n_sockets++;
    return section;
}

void config_init_socket(struct socket_section *s, char *name)
{
    *s = (struct socket_section){.name = name, .mode = CONFIG_UNSAID};
    memset(&s->quota, 0xff, sizeof(s->quota)); /* CONFIG_UNSAID each */
}

int config_add_socket(struct config *c, const char *section, struct error *e)
{
    return find_or_add(c, section + strlen(prefix), e) ? 0 : -1;
}

static bool is_row(const struct setting *s)
{
    return !strcmp(s->section, of_all);
}

/* The row of [socket *], for a section of its own. */
static struct setting row_of(const struct setting *s, const char *section)
{
    struct setting own = *s;

    own.section = section;
    own.offset -= offsetof(struct config, any_socket);
    return own;
}

int config_set_socket(struct config *c, const char *name, const char *value, struct error *e)
{
    const char *key = strrchr(name, '.');
    char full[sizeof(prefix) + IDENTITY_NAME_MAX];
    struct socket_section *section;

    snprintf(full, sizeof(full), "%.*s", (int)(key++ - name), name);
    for (unsigned i = 0; i < n_settings; i++) {
        struct setting row;

        if (!is_row(&settings[i]) || strcmp(settings[i].key, key) != 0)
            continue;
        row = row_of(&settings[i], full);
        section = find_or_add(c, full + strlen(prefix), e);
        return section ? config_apply(section, &row, value, e) : -1;
    }
    return error_set(e, ERROR_UNKNOWN_KEY,
                     "no setting \"%.40s\" of a socket; kopsd --print-config lists them in [socket *]", key);
}

void config_free_sockets(struct config *c)
{
    for (unsigned i = 0; i < c->n_sockets; i++) {
        struct socket_section *s = &c->sockets[i];
        char *const texts[] = {s->name, s->path, s->group, s->classes, s->isolate, s->user_kernels, s->hand_out};

        for (unsigned j = 0; j < sizeof(texts) / sizeof(texts[0]); j++)
            free(texts[j]);
    }
    free(c->sockets);
    c->sockets = NULL;
    c->n_sockets = 0;
}

static void print_value(const struct socket_section *section, const struct setting *row, FILE *to)
{
    const char *const at = (const char *)section + row->offset;
    const char *text;
    uint64_t number;

    if (row->type == TEXT) {
        memcpy(&text, at, sizeof(text));
        if (text)
            fprintf(to, *text ? "%s = %s\n" : "%s =%s\n", row->key, text);
        return;
    }
    memcpy(&number, at, sizeof(number));
    if (number != CONFIG_UNSAID)
        fprintf(to, row->type == OCTAL ? "%s = %04llo\n" : "%s = %llu\n", row->key, (unsigned long long)number);
}

void config_print_sockets(const struct config *c, FILE *to)
{
    for (unsigned i = 0; i < c->n_sockets; i++) {
        fprintf(to, "\n[%s%s]\n", prefix, c->sockets[i].name);
        for (unsigned j = 0; j < n_settings; j++) {
            const struct setting row = row_of(&settings[j], of_all);

            if (is_row(&settings[j]))
                print_value(&c->sockets[i], &row, to);
        }
    }
}

/* ---- values ---- */

#define EITHER(own, all) ((own) ? (own) : (all))

/* The path of [socket *] with the name in the place of its star. */
static int fill_in(const char *pattern, const char *name, char *into, size_t size, struct error *e)
{
    const char *star = strchr(pattern, '*');

    if (snprintf(into, size, "%.*s%s%s", (int)(star - pattern), pattern, name, star + 1) >= (int)size)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "socket %s.path: the path is too long, a socket's has at most %zu bytes", name, size - 1);
    return 0;
}

/* A folder's place: between two slashes. */
static int check_pattern(const char *path, struct error *e)
{
    const char *star = strchr(path, '*');

    if (strlen(path) < SOCKET_PATH_BYTES && *path == '/' && star && star[-1] == '/' && star[1] == '/' && star[2] &&
        !strchr(star + 1, '*') && path[strlen(path) - 1] != '/')
        return 0;
    return error_set(e, ERROR_INVALID_ARGUMENT,
                     "socket *.path: \"%.80s\" has no * in the place of one folder, as in "
                     "/run/kopsd/namespaces/*/kopsd.sock",
                     path);
}

static int parse_classes(const char *name, const char *text, unsigned *ret, struct error *e)
{
    static const char *const names[] = {
        [ACCESS_USE] = "use", [ACCESS_TUNE] = "tune", [ACCESS_ADMINISTER] = "administer"};
    static const char separators[] = ", \t";

    for (*ret = 1U << ACCESS_USE; *text; text += strspn(text, separators)) {
        const size_t length = strcspn(text, separators);
        unsigned i = 0;

        while (i < 3 && (strlen(names[i]) != length || strncmp(names[i], text, length) != 0))
            i++;
        if (length && i == 3)
            return error_set(e, ERROR_INVALID_ARGUMENT, "socket %s.classes: \"%.*s\" is none of use, tune, administer",
                             name, (int)(length < 40 ? length : 40), text);
        if (length)
            *ret |= 1U << i;
        text += length;
    }
    return 0;
}

static int parse_switch(const char *name, const char *key, const char *text, bool automatic, bool *ret, struct error *e)
{
    if (text && strcmp(text, "on") != 0 && strcmp(text, "off") != 0 && strcmp(text, "auto") != 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "socket %s.%s: \"%.40s\" is none of on, off, auto", name, key,
                         text);
    *ret = text && strcmp(text, "auto") != 0 ? !strcmp(text, "on") : automatic;
    return 0;
}

static int parse_isolation(const char *name, const char *text, unsigned all, unsigned *ret, struct error *e)
{
    const bool there = all != ISOLATE_NONE;

    *ret = there ? ISOLATE_CONNECTION : all;
    if (!text)
        return 0;
    if (!strcmp(text, isolation_names[ISOLATE_CONNECTION]))
        *ret = ISOLATE_CONNECTION;
    else if (!strcmp(text, isolation_names[ISOLATE_USER]))
        *ret = ISOLATE_USER;
    else
        return error_set(e, ERROR_INVALID_ARGUMENT, "socket %s.isolate: \"%.40s\" is none of user, connection", name,
                         text);
    if (!there)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "socket %s.isolate: there are no executors for that, executors.isolate is %s", name,
                         isolation_names[all]);
    return 0;
}

static int find_rights(const struct config *c, const char *name, const struct socket_section *own,
                       struct identity_rights *ret, struct error *e)
{
    const struct socket_section *all = &c->any_socket;
    const bool apart = c->isolate != ISOLATE_NONE;
    const char *classes = EITHER(own->classes, all->classes);

    if (parse_classes(name, EITHER(classes, ""), &ret->classes, e) < 0 ||
        parse_isolation(name, EITHER(own->isolate, all->isolate), c->isolate, &ret->isolation, e) < 0 ||
        parse_switch(name, "user_kernels", EITHER(own->user_kernels, all->user_kernels), apart, &ret->kernels, e) < 0 ||
        parse_switch(name, "hand_out", EITHER(own->hand_out, all->hand_out), c->hand_out_policy == USER_KERNELS_ALL,
                     &ret->codes, e) < 0)
        return -1;
    return 0;
}

int config_socket(const struct config *c, const char *name, struct socket_settings *ret, struct error *e)
{
    static const struct socket_section none = {.mode = CONFIG_UNSAID};
    const struct socket_section *own = find(c, name), *all = &c->any_socket;

    if (!own)
        own = &none;
    *ret = (struct socket_settings){.group = EITHER(own->group, all->group), .mode = 0660};
    if (own->mode != CONFIG_UNSAID)
        ret->mode = own->mode;
    else if (all->mode != CONFIG_UNSAID)
        ret->mode = all->mode;
    if (!own->path && !all->path)
        return error_set(e, ERROR_INVALID_ARGUMENT, "socket %s.path is missing: say where the socket is to be", name);
    if (!own->path && fill_in(all->path, name, ret->path, sizeof(ret->path), e) < 0)
        return -1;
    if (own->path && (*own->path != '/' || strlen(own->path) >= sizeof(ret->path)))
        return error_set(e, ERROR_INVALID_ARGUMENT, "socket %s.path: a path from / on of at most %zu bytes is needed",
                         name, sizeof(ret->path) - 1);
    if (own->path)
        snprintf(ret->path, sizeof(ret->path), "%s", own->path);
    return find_rights(c, name, own, &ret->rights, e);
}

/* Takes over the quotas that are said. */
static void take_quotas(struct quota_settings *into, const struct quota_settings *said)
{
    uint64_t from[sizeof(*said) / sizeof(uint64_t)], to[sizeof(*said) / sizeof(uint64_t)];

    memcpy(from, said, sizeof(from));
    memcpy(to, into, sizeof(to));
    for (unsigned i = 0; i < sizeof(from) / sizeof(from[0]); i++)
        if (from[i] != CONFIG_UNSAID)
            to[i] = from[i];
    memcpy(into, to, sizeof(to));
}

void config_with_quotas(const struct config *c, const char *name, struct config *ret)
{
    const struct socket_section *own = find(c, name);

    *ret = *c;
    take_quotas(&ret->quota, &c->any_socket.quota);
    if (own)
        take_quotas(&ret->quota, &own->quota);
}

/* `paths`: those of the sections before number `i`; its own is added. */
static int check_section(const struct config *c, unsigned i, char (*paths)[SOCKET_PATH_BYTES], struct error *e)
{
    const char *name = c->sockets[i].name;
    struct socket_settings own;
    gid_t gid;

    if (config_socket(c, name, &own, e) < 0)
        return -1;
    if (!strcmp(own.path, c->socket))
        return error_set(e, ERROR_INVALID_ARGUMENT, "socket %s.path is that of server.socket", name);
    if (own.group && *own.group && config_find_group(own.group, &gid) < 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "socket %s.group: no group \"%.40s\"", name, own.group);
    for (unsigned j = 0; j < i; j++)
        if (!strcmp(paths[j], own.path))
            return error_set(e, ERROR_INVALID_ARGUMENT, "socket %s.path is that of [socket %s]", name,
                             c->sockets[j].name);
    memcpy(paths[i], own.path, sizeof(paths[i]));
    return 0;
}

int config_finish_sockets(const struct config *c, struct error *e)
{
    char(*paths)[SOCKET_PATH_BYTES];
    struct identity_rights rights;
    int r = 0;

    if (c->any_socket.path && check_pattern(c->any_socket.path, e) < 0)
        return -1;
    if (find_rights(c, "*", &c->any_socket, &rights, e) < 0)
        return -1;
    paths = calloc(c->n_sockets + 1, sizeof(*paths));
    if (!paths)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the configuration");
    for (unsigned i = 0; r == 0 && i < c->n_sockets; i++)
        r = check_section(c, i, paths, e);
    free(paths);
    return r;
}
