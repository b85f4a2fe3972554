/* The settings of the cache that several machines share: their checks, and the files that they name. */
#include <ctype.h>
#include <string.h>

#include "compile/service.h"
#include "main/config.h"
#include "util/log.h"

enum { DAY_S = 24 * 60 * 60 };

static bool is_none(const char *text)
{
    return !text || !*text || !strcmp(text, "none");
}

/* Allows only plain URLs, since libcurl may read others in its own way. */
static int check_url(const char *url, struct error *e)
{
    const char *host = !strncmp(url, "https://", 8) ? url + 8 : !strncmp(url, "http://", 7) ? url + 7 : NULL;

    if (!host || !*host || *host == '/')
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "cache.remote: \"%.100s\" is no URL as https://cache.example.org/kops, and not none", url);
    if (memchr(host, '@', strcspn(host, "/")))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "cache.remote: a URL must not hold a password; name a file with cache.remote_credentials");
    for (const char *c = url; *c; c++)
        if (!isgraph((unsigned char)*c) || strchr("?#\\\"<>^`{|}", *c))
            return error_set(
                e, ERROR_INVALID_ARGUMENT,
                "cache.remote: the URL holds a character that it must not (0x%02x): the path of a folder is "
                "wanted",
                (unsigned)(unsigned char)*c);
    if (strlen(url) >= REMOTE_URL_SIZE)
        return error_set(e, ERROR_INVALID_ARGUMENT, "cache.remote: the URL has more than %d bytes",
                         REMOTE_URL_SIZE - 1);
    return 0;
}

static int add_trusted(struct signed_trust *t, const unsigned char *public, struct error *e)
{
    for (unsigned i = 0; i < t->n; i++)
        if (!memcmp(t->keys[i], public, SIGNING_PUBLIC_BYTES))
            return 0;
    if (t->n == SIGNED_MAX_TRUSTED)
        return error_set(e, ERROR_INVALID_ARGUMENT, "cache.remote_trust: there are more than %d keys",
                         SIGNED_MAX_TRUSTED);
    memcpy(t->keys[t->n++], public, SIGNING_PUBLIC_BYTES);
    return 0;
}

static int read_trusted(struct config *c, struct error *e)
{
    static const char between[] = ", \t\n";
    const char *at = c->cache_remote_trust;
    unsigned char public[SIGNING_PUBLIC_BYTES];
    char word[160];

    while (*(at += strspn(at, between))) {
        const size_t n = strcspn(at, between);

        snprintf(word, sizeof(word), "%.*s", (int)n, at);
        if (signing_public_parse(word, public, e) < 0)
            return error_prefix(e, "cache.remote_trust: ");
        if (add_trusted(&c->remote_trust, public, e) < 0)
            return -1;
        at += n;
    }
    return 0;
}

int config_finish_remote(struct config *c, struct error *e)
{
    signing_key_forget(&c->remote_key);
    c->remote_trust = (struct signed_trust){.max_age_s = c->cache_remote_max_days * DAY_S};
    *c->remote_authorization = '\0';
    c->remote_signs = false;
    if (is_none(c->cache_remote))
        return 0;
    if (check_url(c->cache_remote, e) < 0 || read_trusted(c, e) < 0)
        return -1;
    if (!is_none(c->cache_remote_key)) {
        c->remote_signs = signing_key_read(c->cache_remote_key, &c->remote_key, e) == 0;
        if (!c->remote_signs && e->code != ERROR_PERMISSION_DENIED)
            return error_prefix(e, "cache.remote_key: ");
        /* Several daemons read one file of settings. One whose user may not have the key only takes code from there. */
        if (!c->remote_signs)
            log_warning("remote_cache", "publishes=false why=\"%s\"", e->message);
        /* A machine trusts the binaries that it has published. */
        else if (add_trusted(&c->remote_trust, c->remote_key.public, e) < 0)
            return -1;
    }
    if (!c->remote_trust.n && is_none(c->cache_remote_key))
        return error_set(
            e, ERROR_INVALID_ARGUMENT,
            "cache.remote needs cache.remote_trust, the public keys of those who may put code there (kopsd "
            "--cache-keygen FILE makes a pair), or cache.remote_key");
    if (is_none(c->cache_remote_credentials) ||
        secret_file_authorization(c->cache_remote_credentials, c->remote_authorization, e) == 0)
        return 0;
    if (e->code != ERROR_PERMISSION_DENIED)
        return error_prefix(e, "cache.remote_credentials: ");
    log_warning("remote_cache", "credentials=false why=\"%s\"", e->message);
    *c->remote_authorization = '\0';
    return 0;
}

/* A daemon that has given root up cannot read root's files again: with the same name it goes on with what it has. */
void config_take_remote(struct config *c, const struct config *fresh)
{
    const bool keeps_key = c->remote_signs && !fresh->remote_signs && !is_none(fresh->cache_remote_key) &&
                           !strcmp(c->cache_remote_key, fresh->cache_remote_key);
    const bool keeps_credentials = *c->remote_authorization && !*fresh->remote_authorization &&
                                   !is_none(fresh->cache_remote_credentials) &&
                                   !strcmp(c->cache_remote_credentials, fresh->cache_remote_credentials);
    struct error e;

    c->remote_trust = fresh->remote_trust;
    if (keeps_key) {
        if (add_trusted(&c->remote_trust, c->remote_key.public, &e) < 0)
            log_warning("remote_cache", "why=\"%s\"", e.message);
    } else {
        c->remote_key = fresh->remote_key;
        c->remote_signs = fresh->remote_signs;
    }
    if (!keeps_credentials)
        memcpy(c->remote_authorization, fresh->remote_authorization, sizeof(c->remote_authorization));
}

void config_remote(const struct config *c, struct code_remote_config *ret)
{
    *ret = (struct code_remote_config){
        .server = {.url = is_none(c->cache_remote) || !c->remote_trust.n ? NULL : c->cache_remote,
                   .authorization = *c->remote_authorization ? c->remote_authorization : NULL,
                   .ca = is_none(c->cache_remote_ca) ? NULL : c->cache_remote_ca,
                   .helper = is_none(c->cache_remote_helper) ? NULL : c->cache_remote_helper,
                   .timeout_ms = (unsigned)c->cache_remote_timeout_ms,
                   .max_bytes = SIGNED_MAX},
        .trust = c->remote_trust,
        .publishes = c->remote_signs,
        .key = c->remote_key,
        .wait_ms = (unsigned)c->cache_remote_wait_ms};
}
