/* kopsctl cache */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/table.h"
#include "commands.h"

static const char usage[] =
    "Usage: kopsctl cache list [--json]\n"
    "       kopsctl cache clear [--key KEY] [--json]\n"
    "       kopsctl cache export FILE [--key KEY] [--json]\n"
    "       kopsctl cache import FILE [--json]\n\n"
    "The daemon's cache of compiled kernels; for root and for the user that the daemon runs as. `kopsctl compile` and\n"
    "`list` print the keys. An imported kernel runs for every client that asks for it: import only archives that you\n"
    "trust.\n";

static void list_text(const struct kops_cache *cache)
{
    struct table t;
    size_t n = 0;

    table_init(&t, "key\tarch\t>bytes\t>unused s\tmemory\tdisk\tfrom\tentries");
    for (; cache->entries[n]; n++) {
        const struct kops_cache_entry *e = cache->entries[n];

        table_row(&t, "%s\t%s\t%" PRIu64 "\t%.0f\t%s\t%s\t%s\t%s", e->key, e->arch, e->bytes, e->age_s,
                  e->in_memory ? "yes" : "no", e->on_disk ? "yes" : "no", e->from, text_list(e->names));
    }
    table_print(&t);
    printf("%zu kept, %" PRIu64 " of %" PRIu64 " bytes on disk\n", n, cache->bytes, cache->limit);
}

#define F(member) JSON_FIELD(struct kops_cache_entry, member)
static const struct json_field entry_fields[] = {F(key),   F(arch),      F(compiler), F(names), F(bytes),
                                                 F(age_s), F(in_memory), F(on_disk),  F(from),  JSON_END};

static enum ctl_exit list(struct ctl *ctl)
{
    struct kops_cache *cache;

    if (kops_cache_list(ctl->client, &cache, &ctl->error))
        return ctl_failed("cache list", &ctl->error);
    if (ctl->json)
        JSON_MAP(NULL, json_list("entries", entry_fields, cache->entries), json_uint("bytes", cache->bytes),
                 json_uint("limit", cache->limit));
    else
        list_text(cache);
    kops_cache_free(cache);
    return CTL_OK;
}

static enum ctl_exit clear(struct ctl *ctl, const char *key)
{
    uint64_t removed;

    if (kops_cache_clear(ctl->client, key, &removed, &ctl->error))
        return ctl_failed("cache clear", &ctl->error);
    if (ctl->json)
        JSON_MAP(NULL, json_uint("removed", removed));
    else
        printf("%" PRIu64 " removed\n", removed);
    return CTL_OK;
}

static enum ctl_exit failed_file(const char *what, const char *path)
{
    return ctl_complain("os_error", "%s %s: %s", what, path, strerror(errno));
}

static enum ctl_exit write_archive(int archive, uint64_t bytes, const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR);
    off_t at = 0;
    bool written = file >= 0;

    while (written && (uint64_t)at < bytes)
        written = sendfile(file, archive, &at, bytes - (uint64_t)at) > 0;
    if (file >= 0 && close(file))
        written = false;
    return written ? CTL_OK : failed_file("writing", path);
}

static enum ctl_exit export_to(struct ctl *ctl, const char *path, const char *key)
{
    enum ctl_exit status;
    uint64_t bytes;
    int archive;

    if (kops_cache_export(ctl->client, key, &archive, &bytes, &ctl->error))
        return ctl_failed("cache export", &ctl->error);
    status = write_archive(archive, bytes, path);
    close(archive);
    if (status)
        return status;
    if (ctl->json)
        JSON_MAP(NULL, json_text("file", path), json_uint("bytes", bytes));
    else
        printf("%" PRIu64 " bytes written to %s\n", bytes, path);
    return CTL_OK;
}

static enum ctl_exit import(struct ctl *ctl, const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    enum ctl_exit status = CTL_OK;
    uint64_t imported, skipped;

    if (file < 0)
        return failed_file("reading", path);
    if (kops_cache_import(ctl->client, file, &imported, &skipped, &ctl->error))
        status = ctl_failed("cache import", &ctl->error);
    else if (ctl->json)
        JSON_MAP(NULL, json_uint("imported", imported), json_uint("known", skipped));
    else
        printf("%" PRIu64 " imported, %" PRIu64 " known already\n", imported, skipped);
    close(file);
    return status;
}

enum ctl_exit ctl_cache(struct ctl *ctl, int argc, char **argv)
{
    const char *key = NULL, *action;
    const struct ctl_option options[] = {{"--key", 'k', OPTION_TEXT, &key}, {0}};
    enum ctl_exit status;
    bool takes_file;

    if (!ctl_parse(ctl, argc, argv, usage, options, argc, &status))
        return status;
    action = optind < argc ? argv[optind] : "";
    takes_file = !strcmp(action, "export") || !strcmp(action, "import");
    if (!takes_file && strcmp(action, "list") != 0 && strcmp(action, "clear") != 0)
        return ctl_usage("cache takes `list`, `clear`, `export` or `import`, not `%s`", action);
    if (argc - optind != (takes_file ? 2 : 1))
        return ctl_usage("cache %s takes %s", action, takes_file ? "one file" : "no more");
    if (key && strcmp(action, "clear") != 0 && strcmp(action, "export") != 0)
        return ctl_usage("cache %s takes no --key", action);
    status = ctl_connect(ctl);
    if (status)
        return status;
    if (!strcmp(action, "list"))
        return list(ctl);
    if (!strcmp(action, "clear"))
        return clear(ctl, key);
    return !strcmp(action, "export") ? export_to(ctl, argv[optind + 1], key) : import(ctl, argv[optind + 1]);
}
