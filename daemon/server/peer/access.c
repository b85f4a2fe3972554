#include "server/peer/access.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/peer/connection.h"
#include "server/peer/room.h"
#include "util/log.h"

static const char *const class_names[] = {
    [ACCESS_USE] = "use", [ACCESS_TUNE] = "tune", [ACCESS_ADMINISTER] = "administer"};

/* ---- the peer and its groups ---- */

/* Asks the kernel for the peer's groups. A kernel that does not know them leaves the first group alone. Without memory
 * the peer is refused: a list that denies a group must hold then, too. */
static int ask_groups(struct connection *c, struct error *e)
{
    gid_t few[32], *groups = few;
    socklen_t size = sizeof(few);

    if (getsockopt(c->fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) < 0) {
        if (errno != ERANGE)
            return 0;
        groups = NULL; /* `size` is the room they need */
    }
    if (!size)
        return 0;
    c->groups = malloc(size);
    if (!c->groups)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for another connection");
    if (groups)
        for (unsigned i = 0; i < size / sizeof(gid_t); i++)
            c->groups[i] = groups[i];
    else if (getsockopt(c->fd, SOL_SOCKET, SO_PEERGROUPS, c->groups, &size) < 0)
        return error_set(e, ERROR_INTERNAL, "asking for your groups: %s", strerror(errno));
    c->n_groups = (unsigned)(size / sizeof(gid_t));
    return 0;
}

bool access_is_owner(const struct connection *c)
{
    return !c->identity && (c->uid == 0 || c->uid == geteuid());
}

bool access_in_group(const struct connection *c, gid_t group)
{
    if (c->identity) /* groups of another machine */
        return false;
    for (unsigned i = 0; i < c->n_groups; i++)
        if (c->groups[i] == group)
            return true;
    return c->gid == group;
}

enum isolation access_isolation(const struct connection *c)
{
    const enum isolation all = c->server->config.isolation;

    /* Without executors for users there is nothing to choose from. */
    return c->identity && all >= ISOLATE_USER && c->identity->rights.isolation > all
               ? (enum isolation)c->identity->rights.isolation
               : all;
}

/* ---- access classes ---- */

static bool is_in(const struct connection *c, const struct access_list *list)
{
    return access_list_has(list, c->uid, c->gid, c->groups, c->n_groups);
}

static unsigned classes_of(const struct connection *c)
{
    const struct access_policy *p = &c->server->config.access;

    if (c->identity)
        return c->identity->open ? c->identity->rights.classes : 0;
    if (access_is_owner(c))
        return 1U << ACCESS_USE | 1U << ACCESS_TUNE | 1U << ACCESS_ADMINISTER;
    if (is_in(c, &p->deny) || !is_in(c, &p->allow))
        return 0;
    return 1U << ACCESS_USE | (unsigned)is_in(c, &p->tune) << ACCESS_TUNE |
           (unsigned)is_in(c, &p->administer) << ACCESS_ADMINISTER;
}

static int not_allowed(const struct connection *c, struct error *e)
{
    account_refused(c->account, c->pid, REFUSED_CONNECT, 0, 0);
    if (c->identity) {
        error_set(e, ERROR_PERMISSION_DENIED, "the socket of \"%s\" is not served any more: ask its administrator",
                  c->identity->name);
        return error_detail_text(e, "identity", c->identity->name);
    }
    error_set(e, ERROR_PERMISSION_DENIED,
              "user %u may not use this daemon: ask its administrator (access.allow, access.deny)", (unsigned)c->uid);
    return error_detail_number(e, "uid", c->uid);
}

int access_enter(struct connection *c, struct error *e)
{
    if (!c->identity && uid_is_identity(c->uid))
        return error_set(e, ERROR_PERMISSION_DENIED, "users from number %u on are not served: identities have these",
                         IDENTITY_FIRST);
    c->account = account_get(&c->server->accounts, c->uid);
    if (!c->account)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for another connection");
    if (ask_groups(c, e) < 0)
        return -1;
    c->access = classes_of(c);
    if (!access_allows(c, ACCESS_USE))
        return not_allowed(c, e);
    return 0;
}

void access_leave(struct connection *c)
{
    c->account = account_unref(c->account);
    free(c->groups);
    c->groups = NULL;
    c->n_groups = 0;
}

int access_refuse(struct connection *c, const char *method, enum access_class class, struct error *e)
{
    account_refused(c->account, c->pid, REFUSED_METHOD, 0, 0);
    if (c->identity)
        error_set(e, ERROR_PERMISSION_DENIED,
                  "identity \"%s\" may not do this, and root has no more rights here: ask the daemon's administrator "
                  "(classes of [socket %s])",
                  c->identity->name, c->identity->name);
    else
        error_set(e, ERROR_PERMISSION_DENIED, "user %u may not do this: ask the daemon's administrator (access.%s)",
                  (unsigned)c->uid, class_names[class]);
    error_detail_text(e, "method", method);
    error_detail_text(e, "class", class_names[class]);
    if (c->identity)
        return error_detail_text(e, "identity", c->identity->name);
    return error_detail_number(e, "uid", c->uid);
}

int access_renew(struct connection *c, struct error *e)
{
    c->access = classes_of(c);
    return access_allows(c, ACCESS_USE) ? 0 : not_allowed(c, e);
}

/* ---- visibility ---- */

bool may_see(const struct connection *viewer, uid_t uid)
{
    return viewer->uid == uid || access_allows(viewer, ACCESS_ADMINISTER);
}

bool may_see_account(const struct connection *viewer, const struct account *a)
{
    return viewer->account == a || may_see(viewer, a->uid);
}

const char *identity_of(const struct server *s, uid_t number)
{
    return uid_is_identity(number) ? identities_name(&s->accounts.identities, number) : NULL;
}
