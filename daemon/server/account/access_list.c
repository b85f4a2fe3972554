#include "server/account/access_list.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char separators[] = ", \t";

/* 2^32 - 1 is no valid id: system calls read it as "unchanged". */
static bool parse_id(const char *word, uint32_t *ret)
{
    unsigned long long v;
    char *end;

    if (!isdigit((unsigned char)*word))
        return false;
    errno = 0;
    v = strtoull(word, &end, 10);
    if (*end || errno || v >= UINT32_MAX)
        return false;
    *ret = (uint32_t)v;
    return true;
}

static bool find_user(const char *word, uid_t *ret)
{
    const struct passwd *user = getpwnam(word);

    if (user)
        *ret = user->pw_uid;
    return user || parse_id(word, ret);
}

static bool find_group(const char *word, gid_t *ret)
{
    const struct group *group = getgrnam(word);

    if (group)
        *ret = group->gr_gid;
    return group || parse_id(word, ret);
}

static int add(const char *name, const char *word, struct access_list *list, struct error *e)
{
    if (!strcmp(word, "owner"))
        return 0;
    if (!strcmp(word, "*")) {
        list->everybody = true;
        return 0;
    }
    if (list->n_users == ACCESS_LIST_MAX || list->n_groups == ACCESS_LIST_MAX)
        return error_set(e, ERROR_LIMIT_EXCEEDED, "%s: at most %d users and as many groups; name a group of them", name,
                         ACCESS_LIST_MAX);
    if (*word == '@') {
        if (!find_group(word + 1, &list->groups[list->n_groups]))
            return error_set(e, ERROR_INVALID_ARGUMENT, "%s: there is no group \"%.40s\"", name, word + 1);
        list->n_groups++;
        return 0;
    }
    if (!find_user(word, &list->users[list->n_users]))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s: there is no user \"%.40s\"; groups are written @group, everybody *", name, word);
    list->n_users++;
    return 0;
}

int access_list_parse(const char *name, const char *text, struct access_list *ret, struct error *e)
{
    struct access_list list = {0};
    char *copy = strdup(text), *rest = NULL;
    int result = 0;

    if (!copy)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the configuration");
    for (char *word = strtok_r(copy, separators, &rest); word && result == 0; word = strtok_r(NULL, separators, &rest))
        result = add(name, word, &list, e);
    free(copy);
    if (result == 0)
        *ret = list;
    return result;
}

bool access_list_has(const struct access_list *list, uid_t uid, gid_t gid, const gid_t *groups, unsigned n_groups)
{
    if (list->everybody)
        return true;
    for (unsigned i = 0; i < list->n_users; i++)
        if (list->users[i] == uid)
            return true;
    for (unsigned i = 0; i < list->n_groups; i++) {
        if (list->groups[i] == gid)
            return true;
        for (unsigned j = 0; j < n_groups; j++)
            if (list->groups[i] == groups[j])
                return true;
    }
    return false;
}
