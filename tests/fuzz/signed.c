/* What comes from a cache that several machines share, and files of keys.
 *
 * The first byte says what the rest is: 0 a whole signed module from an untrusted place, 1 a module's payload, which
 * the target signs with a trusted key: what a trusted signer may have gone wrong with, and what no input would ever hit
 * otherwise; 2 a header and a payload that are signed as they are, 3 a public key's word.
 *
 * Beyond memory errors it checks: nothing that no trusted key has signed is taken, whatever is taken says the same when
 * it is signed again, and whatever is refused says why. */
#include <sodium.h>
#include <string.h>

#include "compile/signed.h"
#include "tests/fuzz/fuzz.h"

enum { LIMIT = 1 << 16, NOW = 2000000000, AT_KEY = 16 + SIGNING_PUBLIC_BYTES, AT_LENGTH = AT_KEY + KEY_BYTES + 8 };

static struct signing_key signer;
static struct signed_trust trust = {.n = 1, .max_age_s = 1000};

static void set_up(void)
{
    static const unsigned char seed[crypto_sign_SEEDBYTES] = "the seed of a fuzz target's key";

    if (trust.keys[0][0] || sodium_init() < 0)
        return;
    crypto_sign_seed_keypair(signer.public, signer.secret, seed);
    memcpy(trust.keys[0], signer.public, SIGNING_PUBLIC_BYTES);
}

static int take(const uint8_t *data, size_t size, const unsigned char *key)
{
    struct compiled *compiled;
    struct error e = {0};
    struct buffer again;

    if (signed_open(data, size, &trust, key, NOW, &compiled, &e) < 0) {
        FUZZ_CHECK(e.code != ERROR_NONE && e.message[0]);
        return -1;
    }
    FUZZ_CHECK(!memcmp(compiled->key, key, KEY_BYTES));
    buffer_init(&again, SIGNED_MAX);
    FUZZ_CHECK(signed_make(compiled, &signer, cache_get64(data + AT_LENGTH - 8), &again) == 0);
    FUZZ_CHECK(buffer_length(&again) == size && !memcmp(again.data + again.start, data, size)); /* Ed25519 is exact */
    buffer_free(&again);
    compiled_unref(compiled);
    return 0;
}

/* Of a header and a payload; `whole` has room for a signature. */
static size_t sign(unsigned char *whole, size_t size)
{
    crypto_sign_detached(whole + size, NULL, whole, size, signer.secret);
    return size + SIGNING_BYTES;
}

static void take_payload(unsigned char *whole, const uint8_t *payload, size_t size)
{
    static const unsigned char no_key[KEY_BYTES];
    const unsigned char *key = size > 8 + KEY_BYTES ? payload + 8 : no_key; /* behind its magic number */

    memset(whole, 0, SIGNED_HEADER_BYTES);
    memcpy(whole, "KOPS signed 1", 13);
    memcpy(whole + 16, signer.public, SIGNING_PUBLIC_BYTES);
    memcpy(whole + AT_KEY, key, KEY_BYTES);
    cache_put64(whole + AT_LENGTH - 8, NOW);
    cache_put64(whole + AT_LENGTH, size);
    memcpy(whole + SIGNED_HEADER_BYTES, payload, size);
    take(whole, sign(whole, SIGNED_HEADER_BYTES + size), key);
}

static void take_word(const uint8_t *data, size_t size)
{
    char word[256], again[SIGNING_WORD_SIZE];
    unsigned char public[SIGNING_PUBLIC_BYTES];
    struct error e = {0};

    if (size >= sizeof(word))
        return;
    memcpy(word, data, size);
    word[size] = '\0';
    if (signing_public_parse(word, public, &e) < 0) {
        FUZZ_CHECK(e.code != ERROR_NONE && e.message[0]);
        return;
    }
    signing_public_print(public, again);
    FUZZ_CHECK(!strcmp(word, again));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char whole[LIMIT + 512];
    static const unsigned char no_key[KEY_BYTES];
    const unsigned char *key = no_key;

    set_up();
    if (size < 1 || size > LIMIT)
        return 0;
    size--;
    if (size >= AT_KEY + KEY_BYTES)
        key = data + 1 + AT_KEY;
    switch (*data++) {
    case 0:
        FUZZ_CHECK(take(data, size, key) < 0); /* nobody guesses a signature */
        break;
    case 1:
        take_payload(whole, data, size);
        break;
    case 2:
        memcpy(whole, data, size);
        if (size >= AT_KEY)
            memcpy(whole + 16, signer.public, SIGNING_PUBLIC_BYTES);
        take(whole, sign(whole, size), key);
        break;
    case 3:
        take_word(data, size);
        break;
    default:
        break;
    }
    return 0;
}
