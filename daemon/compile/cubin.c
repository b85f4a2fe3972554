#include "compile/cubin.h"

#include <elf.h>
#include <string.h>

enum {
    MACHINE_CUDA = 190,
    SYMBOL_IS_KERNEL = 0x10, /* in st_other */
    MAX_SECTIONS = 65280,    /* the most that an ELF header can count without extensions */
    MAX_SYMBOLS = 1 << 17,   /* a bound on the time that reading takes */
    RESERVED_SHARED = 1024,  /* bytes of every block from architecture 9.0 on, counted in the section's size */
    SM_RESERVES_SHARED = 90,
};

enum {
    INFO_MAX_THREADS = 0x05,
    INFO_REQUIRED_THREADS = 0x10,
    INFO_FRAME_SIZE = 0x11,
    INFO_MIN_STACK_SIZE = 0x12,
    INFO_PARAM = 0x17,
    INFO_MAX_STACK_SIZE = 0x23,
    INFO_REGISTERS = 0x2f,
    INFO_PARAM_LARGE = 0x45, /* INFO_PARAM where sizes need more than 14 bits */
};
enum { FORMAT_SIZED = 4 }; /* the value's size and then the value; all others hold their value in two bytes */

static int bad(struct error *e, const char *why)
{
    return error_set(e, ERROR_INVALID_ARGUMENT, "the binary cannot be read: %s", why);
}

static bool inside(const struct cubin *c, uint64_t offset, uint64_t size)
{
    return offset <= c->size && size <= c->size - offset;
}

static uint32_t read32(const unsigned char *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint32_t read16(const unsigned char *at)
{
    return at[0] | (uint32_t)at[1] << 8;
}

/* The text at `offset` of a section of texts, NULL when it does not end inside, or is too long for a name. */
static const char *text_at(const struct cubin_section *texts, uint64_t offset)
{
    uint64_t left;

    if (!texts->bytes || offset >= texts->size)
        return NULL;
    left = texts->size - offset;
    if (!memchr(texts->bytes + offset, 0, left < COMPILED_MAX_NAME ? left : COMPILED_MAX_NAME))
        return NULL;
    return (const char *)texts->bytes + offset;
}

static bool section_header(const struct cubin *c, unsigned index, Elf64_Shdr *ret_header,
                           struct cubin_section *ret_section)
{
    if (index >= c->n_sections)
        return false;
    memcpy(ret_header, c->bytes + c->sections_at + (uint64_t)index * sizeof(*ret_header), sizeof(*ret_header));
    *ret_section = (struct cubin_section){.type = ret_header->sh_type,
                                          .link = ret_header->sh_link,
                                          .info = ret_header->sh_info,
                                          .size = ret_header->sh_size};
    if (ret_header->sh_type == SHT_NOBITS || ret_header->sh_type == SHT_NULL)
        return true;
    if (!inside(c, ret_header->sh_offset, ret_header->sh_size))
        return false;
    ret_section->bytes = c->bytes + ret_header->sh_offset;
    return true;
}

static bool section_at(const struct cubin *c, unsigned index, struct cubin_section *ret_section)
{
    struct cubin_section names;
    Elf64_Shdr header;

    if (!section_header(c, c->names, &header, &names) || !section_header(c, index, &header, ret_section))
        return false;
    ret_section->name = text_at(&names, header.sh_name);
    return ret_section->name != NULL;
}

static bool find_section(const struct cubin *c, const char *prefix, const char *name, struct cubin_section *ret_section)
{
    size_t n = strlen(prefix);

    for (unsigned i = 1; i < c->n_sections; i++) {
        struct cubin_section s;

        if (section_at(c, i, &s) && !strncmp(s.name, prefix, n) && !strcmp(s.name + n, name)) {
            *ret_section = s;
            return true;
        }
    }
    return false;
}

int cubin_open(struct cubin *c, const void *bytes, size_t size, struct error *e)
{
    Elf64_Ehdr h;

    *c = (struct cubin){.bytes = bytes, .size = size};
    if (size < sizeof(h))
        return bad(e, "it is too short");
    memcpy(&h, bytes, sizeof(h));
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64 ||
        h.e_ident[EI_DATA] != ELFDATA2LSB || h.e_machine != MACHINE_CUDA)
        return bad(e, "it is no GPU's");
    if (h.e_shentsize != sizeof(Elf64_Shdr) || h.e_shnum > MAX_SECTIONS || h.e_shstrndx >= h.e_shnum ||
        !inside(c, h.e_shoff, (uint64_t)h.e_shnum * sizeof(Elf64_Shdr)))
        return bad(e, "its table of sections is not in it");
    c->n_sections = h.e_shnum;
    c->names = h.e_shstrndx;
    c->sections_at = h.e_shoff;
    /* The architecture stands in the flags; where depends on the version of the format. */
    c->sm = h.e_ident[EI_ABIVERSION] >= 8 ? h.e_flags >> 8 & 0xff : h.e_flags & 0xff;
    if (!find_section(c, ".symtab", "", &c->symbols) || !c->symbols.bytes ||
        !section_at(c, c->symbols.link, &c->symbol_names) || !c->symbol_names.bytes)
        return bad(e, "it has no table of symbols");
    if (c->symbols.size / sizeof(Elf64_Sym) > MAX_SYMBOLS)
        return bad(e, "it has too many symbols");
    if (!find_section(c, ".nv.info", "", &c->info))
        c->info = (struct cubin_section){0};
    return 0;
}

const char *cubin_next_kernel(const struct cubin *c, uint32_t *at)
{
    while (*at < c->symbols.size / sizeof(Elf64_Sym)) {
        const char *name = NULL;
        Elf64_Sym symbol;

        memcpy(&symbol, c->symbols.bytes + (uint64_t)(*at)++ * sizeof(symbol), sizeof(symbol));
        if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_other & SYMBOL_IS_KERNEL &&
            symbol.st_shndx != SHN_UNDEF)
            name = text_at(&c->symbol_names, symbol.st_name);
        if (name && *name)
            return name;
    }
    return NULL;
}

struct attribute {
    unsigned kind;
    const unsigned char *value;
    size_t size;
};

static bool next_attribute(const struct cubin_section *info, uint64_t *at, struct attribute *ret)
{
    const unsigned char *raw;
    uint64_t left = info->bytes && *at <= info->size ? info->size - *at : 0;

    if (left < 4)
        return false;
    raw = info->bytes + *at;
    *at += 4;
    *ret = (struct attribute){.kind = raw[1], .value = raw + 2, .size = 2};
    if (raw[0] == FORMAT_SIZED) {
        *ret = (struct attribute){.kind = raw[1], .value = raw + 4, .size = read16(raw + 2)};
        if (ret->size > left - 4)
            return false;
        *at += ret->size;
    }
    return true;
}

static void read_common(const struct cubin *c, uint32_t index, struct compiled_entry *entry)
{
    struct attribute a;
    uint64_t at = 0;

    while (next_attribute(&c->info, &at, &a)) {
        uint32_t value;

        if (a.size != 8 || read32(a.value) != index)
            continue;
        value = read32(a.value + 4);
        if (a.kind == INFO_REGISTERS)
            entry->registers = value;
        else if ((a.kind == INFO_FRAME_SIZE || a.kind == INFO_MIN_STACK_SIZE || a.kind == INFO_MAX_STACK_SIZE) &&
                 value > entry->local_bytes && value < UINT32_MAX / 2)
            entry->local_bytes = value;
    }
}

static int read_param(const struct attribute *a, struct compiled_entry *entry, uint64_t *seen, struct error *e)
{
    uint32_t ordinal, offset, size;

    if (a->size < 12)
        return bad(e, "a parameter is cut off");
    ordinal = read16(a->value + 4);
    offset = read16(a->value + 6);
    size = read32(a->value + 8);
    size = a->kind == INFO_PARAM ? size >> 18 : size & 0xffffff; /* flags share the number */
    if (ordinal >= COMPILED_MAX_PARAMS)
        return error_set(e, ERROR_LIMIT_EXCEEDED, "the kernel has more than %d parameters", COMPILED_MAX_PARAMS);
    if (size > COMPILED_MAX_PARAM_BYTES || offset > COMPILED_MAX_PARAM_BYTES - size || *seen >> ordinal & 1)
        return bad(e, "a parameter cannot be there");
    *seen |= (uint64_t)1 << ordinal;
    entry->param_sizes[ordinal] = size;
    entry->param_offsets[ordinal] = offset;
    if (ordinal >= entry->n_params)
        entry->n_params = ordinal + 1;
    return 0;
}

/* Every parameter up to the last is there, each behind the one before it. */
static int check_params(const struct compiled_entry *entry, uint64_t seen, struct error *e)
{
    uint32_t end = 0;

    for (unsigned i = 0; i < entry->n_params; i++) {
        if (!(seen >> i & 1) || entry->param_offsets[i] < end)
            return bad(e, "parameters are missing or overlap");
        end = entry->param_offsets[i] + entry->param_sizes[i];
    }
    return 0;
}

/* Parameters, and the bound of threads that the source sets (0: none). */
static int read_own(const struct cubin_section *info, struct compiled_entry *entry, struct error *e)
{
    struct attribute a;
    uint64_t at = 0, seen = 0;

    while (next_attribute(info, &at, &a)) {
        if ((a.kind == INFO_PARAM || a.kind == INFO_PARAM_LARGE) && read_param(&a, entry, &seen, e) < 0)
            return -1;
        if ((a.kind == INFO_MAX_THREADS || a.kind == INFO_REQUIRED_THREADS) && a.size >= 12) {
            uint64_t x = read32(a.value), y = read32(a.value + 4), z = read32(a.value + 8);

            if (x && y && z && x <= 1024 && y <= 1024 && z <= 1024 && x * y * z <= 1024)
                entry->max_threads = (uint32_t)(x * y * z);
        }
    }
    return check_params(entry, seen, e);
}

/* Threads of a block whose registers a multiprocessor has: registers are given out to warps in units of 256, and a
 * quarter of the file of 65536 serves a quarter of the warps. */
static uint32_t threads_by_registers(uint32_t registers)
{
    uint32_t of_warp = (registers * 32 + 255) / 256 * 256, threads;

    if (!registers || registers > 255)
        return 1024;
    threads = 65536 / 4 / of_warp * 4 * 32;
    return threads < 1024 ? threads : 1024;
}

static uint32_t section_size(const struct cubin *c, const char *prefix, const char *name)
{
    struct cubin_section s;

    return find_section(c, prefix, name, &s) && s.size <= UINT32_MAX ? (uint32_t)s.size : 0;
}

int cubin_describe(const struct cubin *c, struct compiled_entry *entry, struct error *e)
{
    struct compiled_entry found = {.name = entry->name, .lowered = entry->lowered};
    struct cubin_section info;
    uint32_t next = 0, threads;
    const char *name;

    while ((name = cubin_next_kernel(c, &next)) && strcmp(name, entry->lowered) != 0)
        ;
    if (!name)
        return error_set(e, ERROR_INVALID_ARGUMENT, "the binary has no kernel \"%.100s\"", entry->lowered);
    read_common(c, next - 1, &found);
    if (find_section(c, ".nv.info.", entry->lowered, &info) && read_own(&info, &found, e) < 0)
        return -1;
    found.shared_bytes = section_size(c, ".nv.shared.", entry->lowered);
    if (c->sm >= SM_RESERVES_SHARED && found.shared_bytes >= RESERVED_SHARED)
        found.shared_bytes -= RESERVED_SHARED;
    found.const_bytes = section_size(c, ".nv.constant3", "");
    threads = threads_by_registers(found.registers);
    if (!found.max_threads || found.max_threads > threads)
        found.max_threads = threads;
    *entry = found;
    return 0;
}

uint64_t compiled_device_bytes(const struct compiled *c)
{
    struct cubin_section variables;
    struct cubin cubin;
    struct error ignored;
    uint64_t bytes = c->image_size;

    if (cubin_open(&cubin, c->image, c->image_size, &ignored) < 0)
        return bytes;
    /* Variables with values of their own are in the binary. */
    if (find_section(&cubin, ".nv.global", "", &variables) && variables.size < UINT64_MAX / 2)
        bytes += variables.size;
    return bytes;
}

int compiled_verify(const struct compiled *c, struct error *e)
{
    struct cubin cubin;

    if (cubin_open(&cubin, c->image, c->image_size, e) < 0)
        return -1;
    for (unsigned i = 0; i < c->n_entries; i++) {
        const struct compiled_entry *said = &c->entries[i];
        struct compiled_entry found = {.name = said->name, .lowered = said->lowered};

        if (cubin_describe(&cubin, &found, e) < 0)
            return -1;
        if (memcmp(&found, said, sizeof(found)) != 0)
            return error_set(e, ERROR_INVALID_ARGUMENT, "what is said of kernel \"%.100s\" is not what its binary says",
                             said->name);
    }
    return 0;
}
