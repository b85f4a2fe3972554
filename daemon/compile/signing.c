#include "compile/signing.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "compile/key.h"
#include "compile/secret_file.h"

static const char public_prefix[] = "ed25519:", private_prefix[] = "ed25519-private:";

enum { FILE_BYTES = 1024 };

int signing_public_parse(const char *word, unsigned char ret_public[SIGNING_PUBLIC_BYTES], struct error *e)
{
    const size_t n = sizeof(public_prefix) - 1;

    if (!strncmp(word, private_prefix, sizeof(private_prefix) - 1))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "this is a private key, which is now to be replaced: here belongs its public key");
    if (strncmp(word, public_prefix, n) != 0 || !key_from_hex(word + n, ret_public))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "\"%.90s\" is no public key: it must be ed25519: and 64 hexadecimal digits in lower case",
                         word);
    return 0;
}

void signing_public_print(const unsigned char public[SIGNING_PUBLIC_BYTES], char ret_word[SIGNING_WORD_SIZE])
{
    memcpy(ret_word, public_prefix, sizeof(public_prefix) - 1);
    key_to_hex(public, ret_word + sizeof(public_prefix) - 1);
}

/* Lines of comments may be before the word. */
static int parse_private(const char *text, struct signing_key *ret_key)
{
    unsigned char seed[crypto_sign_SEEDBYTES];
    const char *at = text;
    char hex[KEY_HEX + 1];
    int r = -1;

    while (*at == '#') {
        at += strcspn(at, "\n");
        at += strspn(at, "\n");
    }
    if (strncmp(at, private_prefix, sizeof(private_prefix) - 1) != 0)
        return -1;
    at += sizeof(private_prefix) - 1;
    if (strlen(at) < KEY_HEX || at[KEY_HEX + strspn(at + KEY_HEX, " \t\r\n")])
        return -1;
    memcpy(hex, at, KEY_HEX);
    hex[KEY_HEX] = '\0';
    if (key_from_hex(hex, seed)) {
        crypto_sign_seed_keypair(ret_key->public, ret_key->secret, seed);
        r = 0;
    }
    sodium_memzero(seed, sizeof(seed));
    sodium_memzero(hex, sizeof(hex));
    return r;
}

int signing_key_read(const char *path, struct signing_key *ret_key, struct error *e)
{
    char text[FILE_BYTES];
    int r;

    if (sodium_init() < 0)
        return error_set(e, ERROR_INTERNAL, "libsodium cannot be set up");
    if (secret_file_read(path, text, sizeof(text), e) < 0)
        return -1;
    r = parse_private(text, ret_key);
    sodium_memzero(text, sizeof(text));
    return r < 0 ? error_set(e, ERROR_INVALID_ARGUMENT,
                             "%.200s is no private key: make one with kopsd --cache-keygen FILE", path)
                 : 0;
}

static int write_key(int fd, const unsigned char *seed, const struct signing_key *key)
{
    char word[SIGNING_WORD_SIZE], hex[KEY_HEX + 1], text[FILE_BYTES];
    int n, r;

    signing_public_print(key->public, word);
    key_to_hex(seed, hex);
    n = snprintf(text, sizeof(text),
                 "# Signs compiled code for a remote cache (cache.remote_key). Keep it secret.\n"
                 "# Its public key, for cache.remote_trust: %s\n%s%s\n",
                 word, private_prefix, hex);
    r = write(fd, text, (size_t)n) == n && fsync(fd) == 0 ? 0 : -1;
    sodium_memzero(text, sizeof(text));
    sodium_memzero(hex, sizeof(hex));
    return r;
}

int signing_key_make(const char *path, struct signing_key *ret_key, struct error *e)
{
    unsigned char seed[crypto_sign_SEEDBYTES];
    int fd, r = -1;

    if (sodium_init() < 0)
        return error_set(e, ERROR_INTERNAL, "libsodium cannot be set up");
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%.200s cannot be made: %s", path, strerror(errno));
    randombytes_buf(seed, sizeof(seed));
    crypto_sign_seed_keypair(ret_key->public, ret_key->secret, seed);
    if (write_key(fd, seed, ret_key) < 0) {
        error_set(e, ERROR_INVALID_ARGUMENT, "%.200s cannot be written: %s", path, strerror(errno));
        unlink(path);
    } else {
        r = 0;
    }
    sodium_memzero(seed, sizeof(seed));
    close(fd);
    return r;
}

void signing_key_forget(struct signing_key *key)
{
    sodium_memzero(key, sizeof(*key));
}
