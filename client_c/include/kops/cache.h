/**
 * @file cache.h
 * @brief The daemon's cache of compiled kernels, for its administrator: root, or the user that the daemon runs as.
 * Everybody else gets permission_denied. <kops/kops.h> includes it.
 */
#ifndef KOPS_CACHE_H
#define KOPS_CACHE_H

#include <kops/kops.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A binary in the cache. */
struct kops_cache_entry {
    const char *key, *arch, *compiler; /**< As in kops_module_info. */
    const char *const *names;          /**< Names of its entries, NULL-terminated. */
    uint64_t bytes;
    double age_s;            /**< Time since its last use. */
    bool in_memory, on_disk; /**< In the daemon's memory; in its cache directory. */
    const char *from;        /**< Origin: "compiler", "import", "remote"; "": the daemon is older than this member. */
};

/** Free it with kops_cache_free(). */
struct kops_cache {
    const struct kops_cache_entry *const *entries; /**< NULL-terminated. */
    uint64_t bytes, limit;                         /**< Size on disk, and its limit. */
};

KOPS_API enum kops_code kops_cache_list(kops_client *client, struct kops_cache **ret_cache,
                                        struct kops_error *ret_error);

/** NULL is allowed. Returns NULL. */
KOPS_API struct kops_cache *kops_cache_free(struct kops_cache *cache);

/** Forgets one entry, or all for NULL. Modules in use stay usable. `ret_removed` may be NULL. */
KOPS_API enum kops_code kops_cache_clear(kops_client *client, const char *key, uint64_t *ret_removed,
                                         struct kops_error *ret_error);

/** An archive of one entry, or of all for NULL: a file descriptor of `*ret_bytes` bytes, which the caller closes. */
KOPS_API enum kops_code kops_cache_export(kops_client *client, const char *key, int *ret_fd, uint64_t *ret_bytes,
                                          struct kops_error *ret_error);

/** Takes in an archive, which stays the caller's to close. Its code will run for every client that asks for these keys:
 * import only archives that you trust. `ret_imported` and `ret_skipped` (known already) may be NULL. */
KOPS_API enum kops_code kops_cache_import(kops_client *client, int fd, uint64_t *ret_imported, uint64_t *ret_skipped,
                                          struct kops_error *ret_error);

#ifdef __cplusplus
}
#endif

#endif
