/* Identities: the peers of a socket of their own ([socket NAME]) count as its name, not as their users. In a container
 * every process may be root, so that a uid says nothing there.
 *
 * An identity has a number among those of users, at their upper end, and so an account, a domain and rows in the
 * statistics as a user has. Users with such numbers are refused. An identity keeps its number, and its memory, for as
 * long as the server lives. Thread: loop; identities_name() any. */
#ifndef KOPS_SERVER_ACCOUNT_IDENTITY_H
#define KOPS_SERVER_ACCOUNT_IDENTITY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/account/limits.h"
#include "util/error.h"

enum { IDENTITY_NAME_MAX = 63, IDENTITIES_MAX = 4096 };
/* "uid=4294967295", or "identity=" and a name, which is quoted nowhere: see identity_name_is_valid(). */
enum { WHO_MAX = IDENTITY_NAME_MAX + 16 };

#define IDENTITY_FIRST UINT32_C(0xffff0000)

static inline bool uid_is_identity(uid_t uid)
{
    return uid >= IDENTITY_FIRST && uid - IDENTITY_FIRST < IDENTITIES_MAX;
}

/* Rights of an identity's connections. Root has no others. */
struct identity_rights {
    unsigned classes;    /* bits by enum access_class */
    unsigned isolation;  /* enum isolation: at least this */
    bool kernels, codes; /* the identity may bring kernels; may have code handed out */
};

struct identity {
    char name[IDENTITY_NAME_MAX + 1];
    uid_t number;
    bool open; /* a socket serves it at present */
    struct identity_rights rights;
    struct quota_limits limits; /* without subordinates */
};

struct identities {
    _Atomic(struct identity *) all[IDENTITIES_MAX];
    unsigned count;
};

/* Letters, digits, ".", "_" and "-", not first, at most IDENTITY_NAME_MAX: what a namespace of Kubernetes, a label of
 * metrics and a word of the log may have. */
bool identity_name_is_valid(const char *name);

/* The identity of that name, which is made where there is none. NULL: there were too many since the start, or there is
 * no memory. */
struct identity *identities_get(struct identities *all, const char *name, struct error *e);
/* NULL: the number is a user's. */
struct identity *identities_find(const struct identities *all, uid_t number);
/* "": the number is a user's. */
const char *identities_name(const struct identities *all, uid_t number);
/* For the log: "uid=1000" or "identity=NAME". Returns `into`. */
const char *identities_who(const struct identities *all, uid_t number, char into[WHO_MAX]);
void identities_free(struct identities *all);

#endif
