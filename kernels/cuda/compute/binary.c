/* Reads the headers of a cubin: an ELF file whose flags tell the architecture. Source: the output of nvcc 12 and 13. */
#include "binary.h"

#include <elf.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum {
    MACHINE_CUDA = 190,
    ABI_WIDE_ARCH = 8,      /* from this version on the architecture is in the flags' second byte */
    COMPAT_ONE_ARCH = 0x09, /* in .nv.compat: 1 for code that runs on this architecture alone */
    RECORD_SIZED = 4        /* the only form of record with bytes behind its first four */
};

struct reader {
    const unsigned char *data;
    size_t size;
    Elf64_Ehdr header;
};

static bool is_inside(const struct reader *r, uint64_t offset, uint64_t size)
{
    return offset <= r->size && size <= r->size - offset;
}

static Elf64_Shdr section(const struct reader *r, unsigned index)
{
    Elf64_Shdr s;

    memcpy(&s, r->data + r->header.e_shoff + index * sizeof(s), sizeof(s));
    return s;
}

static bool header_is_sound(const struct reader *r)
{
    const Elf64_Ehdr *h = &r->header;

    return h->e_ident[EI_CLASS] == ELFCLASS64 && h->e_ident[EI_DATA] == ELFDATA2LSB && h->e_machine == MACHINE_CUDA &&
           h->e_shentsize == sizeof(Elf64_Shdr) && h->e_shnum > 0 && h->e_shstrndx < h->e_shnum &&
           is_inside(r, h->e_shoff, (uint64_t)h->e_shnum * sizeof(Elf64_Shdr)) &&
           (h->e_phnum == 0 || (h->e_phentsize == sizeof(Elf64_Phdr) &&
                                is_inside(r, h->e_phoff, (uint64_t)h->e_phnum * sizeof(Elf64_Phdr))));
}

static bool sections_are_inside(const struct reader *r)
{
    for (unsigned i = 0; i < r->header.e_shnum; i++) {
        Elf64_Shdr s = section(r, i);

        if (s.sh_type != SHT_NOBITS && s.sh_type != SHT_NULL && !is_inside(r, s.sh_offset, s.sh_size))
            return false;
    }
    return true;
}

static bool segments_are_inside(const struct reader *r)
{
    for (unsigned i = 0; i < r->header.e_phnum; i++) {
        Elf64_Phdr p;

        memcpy(&p, r->data + r->header.e_phoff + i * sizeof(p), sizeof(p));
        if (!is_inside(r, p.p_offset, p.p_filesz))
            return false;
    }
    return true;
}

static bool is_named(const struct reader *r, const Elf64_Shdr *s, const char *name)
{
    Elf64_Shdr names = section(r, r->header.e_shstrndx);
    size_t length = strlen(name) + 1;

    return names.sh_type == SHT_STRTAB && s->sh_name < names.sh_size && length <= names.sh_size - s->sh_name &&
           memcmp(r->data + names.sh_offset + s->sh_name, name, length) == 0;
}

static bool says_one_arch(const unsigned char *p, size_t size)
{
    while (size >= 4) {
        size_t bytes = p[0] == RECORD_SIZED ? (size_t)(p[2] | p[3] << 8) + 4 : 4;

        if (p[0] != RECORD_SIZED && p[1] == COMPAT_ONE_ARCH)
            return (p[2] | p[3] << 8) == 1;
        if (bytes > size)
            break;
        p += bytes;
        size -= bytes;
    }
    return false;
}

static bool runs_on_one_arch(const struct reader *r)
{
    for (unsigned i = 0; i < r->header.e_shnum; i++) {
        Elf64_Shdr s = section(r, i);

        if (s.sh_type != SHT_NOBITS && is_named(r, &s, ".nv.compat"))
            return says_one_arch(r->data + s.sh_offset, s.sh_size);
    }
    return false;
}

int cuda_binary_read(const void *binary, size_t size, struct cuda_binary *ret_binary, struct error *e)
{
    struct reader r = {.data = binary, .size = size};
    unsigned arch;

    if (size < sizeof(r.header) || memcmp(binary, ELFMAG, SELFMAG) != 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "the image is no cubin: compile the source for this device");
    memcpy(&r.header, binary, sizeof(r.header));
    if (!header_is_sound(&r) || !sections_are_inside(&r) || !segments_are_inside(&r))
        return error_set(e, ERROR_INVALID_ARGUMENT, "the image is a cubin that is cut off or broken: compile it again");
    arch = r.header.e_ident[EI_ABIVERSION] >= ABI_WIDE_ARCH ? r.header.e_flags >> 8 & 0xff : r.header.e_flags & 0xff;
    snprintf(ret_binary->arch, sizeof(ret_binary->arch), "sm_%u%s", arch, runs_on_one_arch(&r) ? "a" : "");
    return 0;
}
