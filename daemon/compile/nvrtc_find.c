#include "compile/nvrtc_find.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compile/include_tree.h"
#include "util/packages.h"

static const char *const libraries[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
static const char *const directories[] = {
    "/usr/local/cuda/lib64",      "/usr/local/cuda/lib", "/opt/cuda/lib64", "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu", "/usr/lib64",          "/usr/lib"};
/* From the library's directory, in a toolkit and in the packages of Python. */
static const char *const headers[] = {"../include", "../../include", "../../cuda_runtime/include",
                                      "/usr/local/cuda/include"};

static bool join(char *into, size_t size, const char *directory, const char *name)
{
    int n = *name == '/' ? snprintf(into, size, "%s", name) : snprintf(into, size, "%s/%s", directory, name);

    return n > 0 && (size_t)n < size;
}

static bool library_in(const char *directory, struct nvrtc_place *p)
{
    char full[PATH_MAX];

    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++)
        if (join(full, sizeof(full), directory, libraries[i]) && realpath(full, p->path))
            return true;
    p->path[0] = '\0';
    return false;
}

/* Every /usr/local/cuda-X.Y that is there without a link called cuda. */
static bool library_in_versions(struct nvrtc_place *p)
{
    struct dirent **names;
    int n = scandir("/usr/local", &names, NULL, versionsort);
    bool found = false;

    for (int i = n - 1; i >= 0; i--) {
        char directory[PATH_MAX];

        if (!found && !strncmp(names[i]->d_name, "cuda-", 5)) {
            snprintf(directory, sizeof(directory), "/usr/local/%s/lib64", names[i]->d_name);
            found = library_in(directory, p);
        }
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    return found;
}

static bool library_in_path(const char *path, struct nvrtc_place *p)
{
    char directory[PATH_MAX];

    for (const char *at = path; at && *at; at += strcspn(at, ":"), at += *at == ':') {
        snprintf(directory, sizeof(directory), "%.*s", (int)strcspn(at, ":"), at);
        if (*directory == '/' && library_in(directory, p))
            return true;
    }
    return false;
}

static bool find_library(const char *nvrtc, struct nvrtc_place *p)
{
    char found[PATH_MAX];

    if (nvrtc && *nvrtc)
        return realpath(nvrtc, p->path) || (p->path[0] = '\0');
    if (packages_find_library(libraries, sizeof(libraries) / sizeof(libraries[0]), found) && realpath(found, p->path))
        return true;
    if (library_in_path(getenv("LD_LIBRARY_PATH"), p))
        return true;
    for (size_t i = 0; i < sizeof(directories) / sizeof(directories[0]); i++)
        if (library_in(directories[i], p))
            return true;
    return library_in_versions(p);
}

/* What is made of a folder's names is part of the keys of compiled code: half a list would be another compiler, or the
 * same as another. Calls see() for each. A folder that this user may not list has none. */
static int list_folder(const char *directory, void (*see)(DIR *d, const char *name, void *context), void *context,
                       struct error *e)
{
    DIR *d = opendir(directory);
    const struct dirent *entry;
    int cause;

    if (!d && errno == EACCES)
        return 0;
    if (d)
        for (errno = 0; (entry = readdir(d)); errno = 0)
            see(d, entry->d_name, context);
    cause = errno;
    if (d)
        closedir(d);
    if (cause)
        return error_set(e, ERROR_UNSUPPORTED, "the compiler's folder %.150s cannot be read: %s", directory,
                         strerror(cause));
    return 0;
}

struct version {
    struct nvrtc_place *place;
    unsigned major; /* 0: not known */
};

static void see_version(DIR *d, const char *name, void *context)
{
    const struct version *v = context;
    unsigned x, y, end = 0;

    (void)d;
    if (sscanf(name, "libnvrtc-builtins.so.%u.%u%n", &x, &y, &end) == 2 && !name[end] && (x == v->major || !v->major) &&
        x < 1000 && y < 1000)
        snprintf(v->place->name, sizeof(v->place->name), "NVRTC %u.%u", x, y);
}

/* libnvrtc-builtins.so.X.Y beside the library tells its version; X stands in the library's own name, mostly. */
static int read_version(struct nvrtc_place *p, struct error *e)
{
    const char *suffix = strstr(p->path, ".so.");
    struct version v = {p, suffix ? (unsigned)strtoul(suffix + 4, NULL, 10) : 0};
    char directory[PATH_MAX];

    snprintf(p->name, sizeof(p->name), "NVRTC");
    snprintf(directory, sizeof(directory), "%s", p->path);
    *strrchr(directory, '/') = '\0';
    return list_folder(directory, see_version, &v, e);
}

static bool add_include(struct nvrtc_place *p, const char *directory)
{
    struct stat s;

    if (p->n_includes == HELPER_MAX_INCLUDES || !realpath(directory, p->includes[p->n_includes]) ||
        stat(p->includes[p->n_includes], &s) < 0 || !S_ISDIR(s.st_mode))
        return false;
    p->n_includes++;
    return true;
}

static void find_headers(const char *include, struct nvrtc_place *p)
{
    char directory[PATH_MAX], full[PATH_MAX], file[PATH_MAX];
    unsigned n;

    for (const char *at = include; at && *at; at += strcspn(at, ":"), at += *at == ':') {
        snprintf(full, sizeof(full), "%.*s", (int)strcspn(at, ":"), at);
        add_include(p, full);
    }
    snprintf(directory, sizeof(directory), "%s", p->path);
    *strrchr(directory, '/') = '\0';
    for (size_t i = 0; !include && !p->n_includes && i < sizeof(headers) / sizeof(headers[0]); i++)
        if (join(full, sizeof(full), directory, headers[i]) && join(file, sizeof(file), full, "cuda_fp16.h") &&
            access(file, R_OK) == 0)
            add_include(p, full);
    n = p->n_includes;
    for (unsigned i = 0; i < n; i++)
        if (join(full, sizeof(full), p->includes[i], "cccl"))
            add_include(p, full);
}

static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *at = data;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * 0x100000001b3U;
    return hash;
}

/* Of the names and sizes of the files in a directory, in no order: a sum of each. */
static void add_hash(DIR *d, const char *name, void *context)
{
    uint64_t *sum = context;
    struct stat s;

    if (fstatat(dirfd(d), name, &s, 0) == 0 && S_ISREG(s.st_mode)) {
        uint64_t size = (uint64_t)s.st_size;

        *sum += mix(mix(0xcbf29ce484222325U, name, strlen(name)), &size, sizeof(size));
    }
}

/* The linker's identification of a library, from its notes. Returns whether there is one. */
static bool build_id(int fd, char *into, size_t size)
{
    unsigned char notes[4096];
    Elf64_Ehdr h;
    Elf64_Phdr segment;

    if (pread(fd, &h, sizeof(h), 0) != sizeof(h) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 ||
        h.e_phentsize != sizeof(segment))
        return false;
    for (unsigned i = 0; i < h.e_phnum; i++) {
        ssize_t n;

        if (pread(fd, &segment, sizeof(segment), (off_t)(h.e_phoff + i * sizeof(segment))) != sizeof(segment) ||
            segment.p_type != PT_NOTE)
            continue;
        n = pread(fd, notes, segment.p_filesz < sizeof(notes) ? segment.p_filesz : sizeof(notes),
                  (off_t)segment.p_offset);
        for (size_t at = 0; n > 0 && at + sizeof(Elf64_Nhdr) <= (size_t)n;) {
            Elf64_Nhdr note;
            size_t value = at + sizeof(note);

            memcpy(&note, notes + at, sizeof(note));
            value += (note.n_namesz + 3U) & ~(size_t)3;
            if (note.n_descsz > 64 || value + note.n_descsz > (size_t)n)
                break;
            if (note.n_type == NT_GNU_BUILD_ID && note.n_descsz) {
                for (unsigned k = 0; k < note.n_descsz && 2 * k + 3 < size; k++)
                    snprintf(into + 2 * k, size - 2 * k, "%02x", notes[value + k]);
                return true;
            }
            at = value + ((note.n_descsz + 3U) & ~(size_t)3);
        }
    }
    return false;
}

static int identify(struct nvrtc_place *p, struct error *e)
{
    int fd = open(p->path, O_RDONLY | O_CLOEXEC);
    uint64_t hash = 0;
    char id[130] = "";
    struct stat s = {0};

    if (fd >= 0 && fstat(fd, &s) == 0 && !build_id(fd, id, sizeof(id)))
        snprintf(id, sizeof(id), "%lld bytes", (long long)s.st_size);
    if (fd >= 0)
        close(fd);
    for (unsigned i = 0; i < p->n_includes; i++) {
        uint64_t sum = 0;

        if (list_folder(p->includes[i], add_hash, &sum, e) < 0)
            return -1;
        hash += (i + 1) * sum;
    }
    snprintf(p->identity, sizeof(p->identity), "%s %.90s %016llx", p->name, id, (unsigned long long)hash);
    return 0;
}

int nvrtc_find(const char *nvrtc, const char *include, struct nvrtc_place *ret_place, struct error *e)
{
    struct nvrtc_place *p = ret_place;

    *p = (struct nvrtc_place){0};
    if (nvrtc && !strcmp(nvrtc, "none"))
        return error_set(e, ERROR_UNSUPPORTED, "compiling is switched off (kernels.nvrtc is none)");
    if (!find_library(nvrtc, p))
        return error_set(e, ERROR_UNSUPPORTED,
                         nvrtc && *nvrtc ? "there is no compiler: %.150s (kernels.nvrtc) is not there"
                                         : "there is no compiler: NVRTC was not found%s; install the CUDA toolkit's "
                                           "libnvrtc (with pip: './kops-....whl[nvrtc]'), or name it in kernels.nvrtc",
                         nvrtc && *nvrtc ? nvrtc : "");
    if (read_version(p, e) < 0)
        return -1;
    find_headers(include && *include ? include : NULL, p);
    return identify(p, e);
}

static int add_tree(const char *path, struct nvrtc_place *p, uint64_t *digest, struct error *e)
{
    uint64_t own;

    if (p->n_trees == INCLUDE_TREES_MAX || p->n_includes == HELPER_MAX_INCLUDES)
        return error_set(e, ERROR_INVALID_ARGUMENT, "kernels.include_extra: more than %d folders", INCLUDE_TREES_MAX);
    if (include_tree_check(path, p->includes[p->n_includes], e) < 0)
        return -1;
    /* The stamp first: what changes while the digest is made then differs from it. */
    own = include_tree_stamp(p->includes[p->n_includes]);
    p->stamp = include_tree_mix(p->stamp, own);
    if (include_tree_digest(p->includes[p->n_includes], &own, e) < 0)
        return -1;
    *digest = include_tree_mix(*digest, own);
    p->n_includes++;
    p->n_trees++;
    return 0;
}

int nvrtc_add_trees(const char *extra, struct nvrtc_place *p, struct error *e)
{
    const size_t length = strlen(p->identity);
    uint64_t digest = 0;
    char path[PATH_MAX];

    for (const char *at = extra; at && *at; at += strcspn(at, ":"), at += *at == ':') {
        const size_t n = strcspn(at, ":");

        if (!n)
            continue;
        snprintf(path, sizeof(path), "%.*s", (int)(n < sizeof(path) ? n : sizeof(path) - 1), at);
        if (add_tree(path, p, &digest, e) < 0)
            return -1;
    }
    if (p->n_trees)
        snprintf(p->identity + length, sizeof(p->identity) - length, " %016llx", (unsigned long long)digest);
    return 0;
}
