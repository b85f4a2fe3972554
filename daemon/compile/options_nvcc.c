#include "compile/options_nvcc.h"

#include <string.h>

#include "proto/generated/kernels.h"

enum kind {
    DROPPED,       /* says nothing; with a value only where the option itself has "=" */
    DROPPED_VALUE, /* has a value */
    ARCH,          /* sm_90; or arch=compute_90,code=[sm_90,compute_90] */
    ASSEMBLER,
};

#define X(name) {name, DROPPED_VALUE},
static const struct {
    const char *name;
    enum kind kind;
} known[] = {{"expt-relaxed-constexpr", DROPPED},
             {"relaxed-constexpr", DROPPED},
             {"expt-extended-lambda", DROPPED},
             {"extended-lambda", DROPPED},
             {"forward-unknown-to-host-compiler", DROPPED},
             {"Wno-deprecated-gpu-targets", DROPPED},
             {"m64", DROPPED},
             {"g", DROPPED}, /* of the host's code */
             {"debug", DROPPED},
             {"resource-usage", DROPPED},
             {"res-usage", DROPPED},
             {"arch", ARCH},
             {"gpu-architecture", ARCH},
             {"code", ARCH},
             {"gpu-code", ARCH},
             {"gencode", ARCH},
             {"generate-code", ARCH},
             {"Xptxas", ASSEMBLER},
             {"ptxas-options", ASSEMBLER},
             KERNELS_HOST_OPTIONS(X)};
#undef X

/* Others could write files. Of one kind the last one counts. */
static const struct {
    const char *text, *handed_on; /* NULL: done anyhow */
    unsigned kind;
} assembler[] = {
    {"-v", "-v", 0},
    {"--verbose", "-v", 0},
    {"-O0", "-O0", 1},
    {"-O1", "-O1", 1},
    {"-O2", "-O2", 1},
    {"-O3", NULL, 1},
    {"-dlcm=ca", "-dlcm=ca", 2},
    {"-dlcm=cg", "-dlcm=cg", 2},
    {"-dlcm=cs", "-dlcm=cs", 2},
    {"-dlcm=cv", "-dlcm=cv", 2},
    {"-warn-spills", "-warn-spills", 3},
    {"--warn-on-spills", "-warn-spills", 3},
};

/* Whether the text of that length is `word`. */
static bool is(const char *text, size_t length, const char *word)
{
    return strlen(word) == length && !memcmp(text, word, length);
}

/* sm_90, compute_90a, 90, native, all: whether code for `arch` does what is asked for. */
static bool is_arch(const char *text, size_t length, const char *arch)
{
    size_t digits;

    if (is(text, length, "native") || is(text, length, "all") || is(text, length, "all-major"))
        return true;
    if (length > 3 && !memcmp(text, "sm_", 3))
        text += 3, length -= 3;
    else if (length > 8 && !memcmp(text, "compute_", 8))
        text += 8, length -= 8;
    arch += 3;
    digits = strspn(arch, "0123456789");
    return length >= digits && length <= strlen(arch) && !memcmp(text, arch, length);
}

static void take_arch(struct options_nvcc *o, unsigned i, const char *text, size_t length, const char *arch)
{
    if (is_arch(text, length, arch)) {
        o->matches = true;
    } else {
        o->other = text;
        o->other_length = (unsigned)length;
        o->other_index = i;
    }
}

/* Each word of a list is an architecture, apart from "arch=" and the like. */
static void take_archs(struct options_nvcc *o, unsigned i, const char *list, const char *arch)
{
    static const char between[] = ",[]\"' ";

    for (const char *at = list + strspn(list, between); *at; at += strspn(at, between)) {
        size_t length = strcspn(at, between);
        const char *equals = memchr(at, '=', length), *word = equals ? equals + 1 : at;

        if (at + length > word)
            take_arch(o, i, word, (size_t)(at + length - word), arch);
        at += length;
    }
}

static int take_assembler(struct options_nvcc *o, const char *list, const char **ret_why)
{
    for (const char *at = list; *at;) {
        size_t length = strcspn(at, ", "), i = 0, n = sizeof(assembler) / sizeof(assembler[0]);

        while (i < n && !is(at, length, assembler[i].text))
            i++;
        if (i == n) {
            *ret_why = "of the assembler's options there are -v, -O0 to -O3, -dlcm=ca|cg|cs|cv and -warn-spills";
            return -1;
        }
        o->assembler[assembler[i].kind] = assembler[i].handed_on;
        at += length;
        at += strspn(at, ", ");
    }
    return 1;
}

/* -O3, -lcurand, -L/lib, -Wall: a letter, and what belongs to it. */
static bool is_letter(const char *option)
{
    return option[0] == '-' && ((option[1] == 'O' && (!option[2] || (strchr("0123", option[2]) && !option[3]))) ||
                                (option[1] == 'l' && option[2]) || (option[1] == 'L' && option[2]));
}

int options_nvcc_take(struct options_nvcc *o, const char *const *texts, unsigned n, unsigned *i, const char *arch,
                      const char **ret_why)
{
    const char *option = texts[*i], *name = option + (option[0] == '-') + (option[0] == '-' && option[1] == '-');
    size_t length = strcspn(name, "="), k = 0, n_known = sizeof(known) / sizeof(known[0]);
    const char *value = name[length] ? name + length + 1 : NULL;
    const unsigned given = *i;

    while (k < n_known && (name == option || !is(name, length, known[k].name)))
        k++;
    if (k == n_known)
        return is_letter(option) ? 1 : 0;
    if (known[k].kind == DROPPED)
        return value ? 0 : 1;
    if (!value && *i + 1 == n) {
        *ret_why = "needs a value";
        return -1;
    }
    if (!value)
        value = texts[++*i];
    if (known[k].kind == ARCH && *value == '-') {
        *ret_why = "needs the name of an architecture, such as sm_90";
        return -1;
    }
    if (known[k].kind == ARCH)
        take_archs(o, given, value, arch);
    return known[k].kind == ASSEMBLER ? take_assembler(o, value, ret_why) : 1;
}
