/* Reads images: sections .text.NAME are kernels, .nv.info.NAME has their parameters as records of a kind, a tag and a
 * value. */
#include "cubin.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    EM_CUDA_GPU = 190,
    MAX_BYTES = 64 << 20,
    MAX_SECTIONS = 8192,
    SHARED_RESERVED = 1024, /* for the system, at the start of each block's shared memory */

    /* records of .nv.info */
    FORMAT_SIZED = 4,
    TAG_MAX_THREADS = 0x05,
    TAG_PARAM_BANK_BYTES = 0x19,
    TAG_FRAME_SIZE = 0x11,
    TAG_PARAM = 0x17,
    TAG_REGISTERS = 0x2f,
    /* of .nv.compat */
    TAG_ONE_ARCH = 0x09
};

struct reader {
    unsigned char *data;
    size_t size;
    const Elf64_Ehdr *header;
    const Elf64_Shdr *sections;
    struct cubin *cubin;
};

/* The image's length is not known: the kernel copies, and says when there is nothing. It does so by way of a file,
 * since a sandbox has no process_vm_readv(). */
static bool copy(void *to, const void *from, size_t size)
{
    const int fd = memfd_create("standin-image", MFD_CLOEXEC);
    bool copied;

    if (fd < 0)
        return false;
    copied = pwrite(fd, from, size, 0) == (ssize_t)size && pread(fd, to, size, 0) == (ssize_t)size;
    close(fd);
    return copied;
}

bool cubin_is_elf(const void *image)
{
    char magic[SELFMAG];

    return copy(magic, image, sizeof(magic)) && memcmp(magic, ELFMAG, SELFMAG) == 0;
}

static bool header_is_valid(const Elf64_Ehdr *h)
{
    return h->e_ident[EI_CLASS] == ELFCLASS64 && h->e_ident[EI_DATA] == ELFDATA2LSB && h->e_machine == EM_CUDA_GPU &&
           h->e_shentsize == sizeof(Elf64_Shdr) && h->e_shnum > 0 && h->e_shnum <= MAX_SECTIONS &&
           h->e_shstrndx < h->e_shnum && h->e_shoff <= MAX_BYTES;
}

/* Up to the end of the last section, and of the section table. 0: broken. */
static size_t image_size(const void *image, const Elf64_Ehdr *h)
{
    size_t table = (size_t)h->e_shnum * sizeof(Elf64_Shdr), size = h->e_shoff + table;
    Elf64_Shdr *sections = malloc(table);

    if (!sections || !copy(sections, (const char *)image + h->e_shoff, table))
        size = 0;
    for (unsigned i = 0; size && i < h->e_shnum; i++) {
        const Elf64_Shdr *s = &sections[i];

        if (s->sh_type == SHT_NOBITS || s->sh_type == SHT_NULL)
            continue;
        if (s->sh_offset > MAX_BYTES || s->sh_size > MAX_BYTES)
            size = 0;
        else if (s->sh_offset + s->sh_size > size)
            size = s->sh_offset + s->sh_size;
    }
    free(sections);
    return size;
}

/* A name that ends inside the section of strings, or NULL. */
static const char *string_at(const struct reader *r, unsigned section, uint32_t offset)
{
    const Elf64_Shdr *s = section < r->header->e_shnum ? &r->sections[section] : NULL;
    const char *from;

    if (!s || s->sh_type != SHT_STRTAB || offset >= s->sh_size)
        return NULL;
    from = (const char *)r->data + s->sh_offset + offset;
    return memchr(from, '\0', s->sh_size - offset) ? from : NULL;
}

static const char *section_name(const struct reader *r, const Elf64_Shdr *s)
{
    const char *name = string_at(r, r->header->e_shstrndx, s->sh_name);

    return name ? name : "";
}

/* What follows the prefix, or NULL. */
static const char *after(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);

    return strncmp(name, prefix, length) == 0 && name[length] ? name + length : NULL;
}

static struct cubin_kernel *kernel_named(const struct cubin *c, const char *name)
{
    for (unsigned i = 0; name && i < c->n_kernels; i++)
        if (strcmp(c->kernels[i].name, name) == 0)
            return &c->kernels[i];
    return NULL;
}

static uint32_t word(const unsigned char *p)
{
    uint32_t value;

    memcpy(&value, p, sizeof(value));
    return value;
}

/* Calls `record` for each; false when one leaves the section, or is refused. */
static bool each_record(const struct reader *r, const Elf64_Shdr *s,
                        bool (*record)(const struct reader *r, struct cubin_kernel *k, unsigned tag, uint16_t value,
                                       const unsigned char *bytes, size_t size),
                        struct cubin_kernel *k)
{
    const unsigned char *p = r->data + s->sh_offset, *end = p + s->sh_size;

    while (end - p >= 4) {
        uint16_t value = (uint16_t)(p[2] | p[3] << 8);
        size_t size = p[0] == FORMAT_SIZED ? value : 0;
        const unsigned char *bytes = p + 4;

        if (size > (size_t)(end - bytes) || !record(r, k, p[1], value, bytes, size))
            return false;
        p = bytes + size;
    }
    return true;
}

static bool parameter(struct cubin_kernel *k, const unsigned char *bytes, size_t size)
{
    unsigned index, offset, length;

    if (size < 12)
        return false;
    index = word(bytes + 4) & 0xffff;
    offset = word(bytes + 4) >> 16;
    length = word(bytes + 8) >> 18;
    if (index >= CUBIN_MAX_PARAMS || !length)
        return false;
    if (index >= k->n_params)
        k->n_params = index + 1;
    k->offsets[index] = (uint16_t)offset;
    k->sizes[index] = (uint16_t)length;
    if (offset + length > k->param_bytes)
        k->param_bytes = offset + length;
    return true;
}

static bool kernel_record(const struct reader *r, struct cubin_kernel *k, unsigned tag, uint16_t value,
                          const unsigned char *bytes, size_t size)
{
    if (tag == TAG_PARAM)
        return parameter(k, bytes, size);
    if (tag == TAG_MAX_THREADS && size >= 12)
        k->max_threads = word(bytes) * word(bytes + 4) * word(bytes + 8);
    return true;
}

static const char *symbol_name(const struct reader *r, uint32_t index)
{
    for (unsigned i = 0; i < r->header->e_shnum; i++) {
        const Elf64_Shdr *s = &r->sections[i];
        Elf64_Sym symbol;

        if (s->sh_type != SHT_SYMTAB)
            continue;
        if (index >= s->sh_size / sizeof(symbol) || s->sh_link >= r->header->e_shnum)
            return NULL;
        memcpy(&symbol, r->data + s->sh_offset + index * sizeof(symbol), sizeof(symbol));
        return string_at(r, s->sh_link, symbol.st_name);
    }
    return NULL;
}

/* The image's own records name a kernel by its symbol. */
static bool image_record(const struct reader *r, struct cubin_kernel *unused, unsigned tag, uint16_t value,
                         const unsigned char *bytes, size_t size)
{
    struct cubin_kernel *k;

    if ((tag != TAG_REGISTERS && tag != TAG_FRAME_SIZE) || size < 8)
        return true;
    k = kernel_named(r->cubin, symbol_name(r, word(bytes)));
    if (k && tag == TAG_REGISTERS)
        k->registers = word(bytes + 4);
    else if (k)
        k->local_bytes = word(bytes + 4);
    return true;
}

static bool compat_record(const struct reader *r, struct cubin_kernel *unused, unsigned tag, uint16_t value,
                          const unsigned char *bytes, size_t size)
{
    if (tag == TAG_ONE_ARCH)
        r->cubin->accelerated = value != 0;
    return true;
}

static enum cubin_result add_kernels(const struct reader *r)
{
    struct cubin *c = r->cubin;

    c->kernels = calloc(CUBIN_MAX_KERNELS, sizeof(*c->kernels));
    if (!c->kernels)
        return CUBIN_NO_MEMORY;
    for (unsigned i = 0; i < r->header->e_shnum; i++) {
        const char *name = after(section_name(r, &r->sections[i]), ".text.");

        if (!name || r->sections[i].sh_type != SHT_PROGBITS)
            continue;
        if (c->n_kernels == CUBIN_MAX_KERNELS)
            return CUBIN_BROKEN;
        c->kernels[c->n_kernels].name = strdup(name);
        if (!c->kernels[c->n_kernels].name)
            return CUBIN_NO_MEMORY;
        c->n_kernels++;
    }
    return CUBIN_OK;
}

static bool describe(const struct reader *r, const Elf64_Shdr *s)
{
    const char *name = section_name(r, s);
    struct cubin_kernel *k;

    if (strcmp(name, ".nv.info") == 0)
        return each_record(r, s, image_record, NULL);
    if (strcmp(name, ".nv.compat") == 0)
        return each_record(r, s, compat_record, NULL);
    if ((k = kernel_named(r->cubin, after(name, ".nv.info."))))
        return each_record(r, s, kernel_record, k);
    if ((k = kernel_named(r->cubin, after(name, ".nv.shared."))))
        k->static_shared = s->sh_size < SHARED_RESERVED ? (unsigned)s->sh_size : (unsigned)s->sh_size - SHARED_RESERVED;
    if ((k = kernel_named(r->cubin, after(name, ".nv.constant2."))))
        k->const_bytes = (unsigned)s->sh_size;
    return true;
}

static enum cubin_result read_all(struct reader *r)
{
    enum cubin_result result = add_kernels(r);

    for (unsigned i = 0; result == CUBIN_OK && i < r->header->e_shnum; i++)
        if (!describe(r, &r->sections[i]))
            result = CUBIN_BROKEN;
    return result;
}

enum cubin_result cubin_read(const void *image, struct cubin *ret)
{
    enum cubin_result result = CUBIN_BROKEN;
    struct cubin cubin = {0};
    struct reader r = {.cubin = &cubin};
    Elf64_Ehdr header;

    if (!copy(&header, image, sizeof(header)) || !header_is_valid(&header))
        return CUBIN_BROKEN;
    r.size = image_size(image, &header);
    if (!r.size)
        return CUBIN_BROKEN;
    r.data = malloc(r.size);
    if (!r.data)
        return CUBIN_NO_MEMORY;
    if (!copy(r.data, image, r.size) || header.e_shoff % _Alignof(Elf64_Shdr))
        goto free_data;
    r.header = &header;
    r.sections = (const Elf64_Shdr *)(const void *)(r.data + header.e_shoff);
    cubin.arch = header.e_ident[EI_ABIVERSION] >= 8 ? header.e_flags >> 8 & 0xff : header.e_flags & 0xff;
    result = read_all(&r);
    if (result == CUBIN_OK)
        *ret = cubin;
    else
        cubin_free(&cubin);
free_data:
    free(r.data);
    return result;
}

void cubin_free(struct cubin *cubin)
{
    for (unsigned i = 0; i < cubin->n_kernels; i++)
        free(cubin->kernels[i].name);
    free(cubin->kernels);
    *cubin = (struct cubin){0};
}
