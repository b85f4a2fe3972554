#include "server/account/identity.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool identity_name_is_valid(const char *name)
{
    const size_t length = strlen(name);

    if (!length || length > IDENTITY_NAME_MAX || !isalnum((unsigned char)*name))
        return false;
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p >= 0x80 || (!isalnum((unsigned char)*p) && !strchr("._-", *p)))
            return false;
    return true;
}

static struct identity *at(const struct identities *all, unsigned i)
{
    return atomic_load_explicit(&all->all[i], memory_order_acquire);
}

struct identity *identities_get(struct identities *all, const char *name, struct error *e)
{
    struct identity *new;

    for (unsigned i = 0; i < all->count; i++)
        if (!strcmp(at(all, i)->name, name))
            return at(all, i);
    if (all->count == IDENTITIES_MAX) {
        error_set(e, ERROR_LIMIT_EXCEEDED,
                  "identity \"%s\": there were %d others since the daemon's start, the most that there may be; restart "
                  "it",
                  name, IDENTITIES_MAX);
        return NULL;
    }
    new = calloc(1, sizeof(*new));
    if (!new) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the identity \"%s\"", name);
        return NULL;
    }
    snprintf(new->name, sizeof(new->name), "%s", name);
    new->number = IDENTITY_FIRST + all->count;
    atomic_store_explicit(&all->all[all->count++], new, memory_order_release);
    return new;
}

struct identity *identities_find(const struct identities *all, uid_t number)
{
    return uid_is_identity(number) ? at(all, number - IDENTITY_FIRST) : NULL;
}

const char *identities_name(const struct identities *all, uid_t number)
{
    const struct identity *identity = identities_find(all, number);

    return identity ? identity->name : "";
}

const char *identities_who(const struct identities *all, uid_t number, char into[WHO_MAX])
{
    const struct identity *identity = identities_find(all, number);

    if (identity)
        snprintf(into, WHO_MAX, "identity=%s", identity->name);
    else
        snprintf(into, WHO_MAX, "uid=%u", (unsigned)number);
    return into;
}

void identities_free(struct identities *all)
{
    while (all->count)
        free(at(all, --all->count));
}
