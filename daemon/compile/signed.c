#include "compile/signed.h"

#include <sodium.h>
#include <string.h>

static const unsigned char magic[16] = "KOPS signed 1";

enum {
    AT_SIGNER = sizeof(magic),
    AT_KEY = AT_SIGNER + SIGNING_PUBLIC_BYTES,
    AT_TIME = AT_KEY + KEY_BYTES,
    AT_LENGTH = AT_TIME + 8,
};

int signed_make(const struct compiled *compiled, const struct signing_key *key, uint64_t now_s, struct buffer *into)
{
    unsigned char header[SIGNED_HEADER_BYTES] = {0}, signature[SIGNING_BYTES];
    const size_t before = buffer_length(into);
    unsigned char *start;

    memcpy(header, magic, sizeof(magic));
    memcpy(header + AT_SIGNER, key->public, SIGNING_PUBLIC_BYTES);
    memcpy(header + AT_KEY, compiled->key, KEY_BYTES);
    cache_put64(header + AT_TIME, now_s);
    buffer_append(into, header, sizeof(header));
    compiled_serialize(compiled, into);
    if (into->failed)
        return -1;
    start = into->data + into->start + before;
    cache_put64(start + AT_LENGTH, buffer_length(into) - before - sizeof(header));
    crypto_sign_detached(signature, NULL, start, buffer_length(into) - before, key->secret);
    buffer_append(into, signature, sizeof(signature));
    return into->failed ? -1 : 0;
}

static int refuse(struct error *e, const char *why)
{
    return error_set(e, ERROR_INVALID_ARGUMENT, "%s", why);
}

static bool is_trusted(const struct signed_trust *trust, const unsigned char *signer)
{
    for (unsigned i = 0; i < trust->n; i++)
        if (!memcmp(trust->keys[i], signer, SIGNING_PUBLIC_BYTES))
            return true;
    return false;
}

static int check(const unsigned char *at, size_t size, const struct signed_trust *trust, const unsigned char *key,
                 uint64_t now_s, struct error *e)
{
    char word[SIGNING_WORD_SIZE];
    uint64_t made_s;

    if (size < SIGNED_HEADER_BYTES + SIGNING_BYTES || memcmp(at, magic, sizeof(magic)) != 0)
        return refuse(e, "it is no signed module, or one of another version");
    if (size > SIGNED_MAX || cache_get64(at + AT_LENGTH) != size - SIGNED_HEADER_BYTES - SIGNING_BYTES)
        return refuse(e, "it is cut off, or something stands behind it");
    if (!is_trusted(trust, at + AT_SIGNER)) {
        signing_public_print(at + AT_SIGNER, word);
        return error_set(e, ERROR_INVALID_ARGUMENT, "it is signed by %s, which is not trusted", word);
    }
    if (crypto_sign_verify_detached(at + size - SIGNING_BYTES, at, size - SIGNING_BYTES, at + AT_SIGNER) != 0)
        return refuse(e, "its signature is wrong");
    if (memcmp(at + AT_KEY, key, KEY_BYTES) != 0)
        return refuse(e, "it is another key's module");
    made_s = cache_get64(at + AT_TIME);
    if (trust->max_age_s && made_s < now_s && now_s - made_s > trust->max_age_s)
        return refuse(e, "its signature is too old");
    return 0;
}

int signed_open(const void *bytes, size_t size, const struct signed_trust *trust, const unsigned char key[KEY_BYTES],
                uint64_t now_s, struct compiled **ret_compiled, struct error *e)
{
    const unsigned char *at = bytes;
    struct compiled *compiled;

    if (check(at, size, trust, key, now_s, e) < 0 ||
        compiled_parse(at + SIGNED_HEADER_BYTES, size - SIGNED_HEADER_BYTES - SIGNING_BYTES, &compiled, e) < 0)
        return -1;
    if (memcmp(compiled->key, key, KEY_BYTES) != 0)
        refuse(e, "it is another key's module");
    else if (compiled_verify(compiled, e) == 0) {
        *ret_compiled = compiled;
        return 0;
    }
    compiled_unref(compiled);
    return -1;
}
