/* Which options, names and texts reach the compiler, and in which form; the key that is made of them. */
#include <stdio.h>

#include "support.h"

#define TOOLKIT "/opt/toolkit/include"

/* Words of `in` are separated by newlines. */
static int normalise(const char *in, struct options *ret, struct error *e)
{
    static char copy[8192];
    const char *texts[OPTIONS_MAX + 8];
    unsigned n = 0;

    snprintf(copy, sizeof(copy), "%s", in);
    for (char *at = copy, *next; at && *in; at = next) {
        next = strchr(at, '\n');
        if (next)
            *next++ = '\0';
        texts[n++] = at;
    }
    return options_normalise(texts, n, "sm_90a", TOOLKIT, ret, e);
}

static void becomes(const char *in, const char *out)
{
    char all[8192] = "";
    struct options o;
    struct error e;
    size_t n = 0;

    if (normalise(in, &o, &e) < 0)
        fail_msg("%s: %s", in, e.message);
    for (unsigned i = 0; i < o.n; i++)
        n += (size_t)snprintf(all + n, sizeof(all) - n, "%s%s", i ? "\n" : "", o.texts[i]);
    assert_string_equal(all, out);
    options_free(&o);
}

static void refused(const char *in, const char *key)
{
    struct error e = {0};
    struct options o;

    if (normalise(in, &o, &e) == 0)
        fail_msg("%s was allowed", in);
    assert_int_equal(e.code, ERROR_INVALID_ARGUMENT);
    assert_string_equal(e.details[0].key, "key");
    assert_string_equal(e.details[0].text, key);
}

TEST(one_spelling)
{
    becomes("", "");
    becomes("-use_fast_math", "--use_fast_math");
    becomes("--std\nc++14", "--std=c++14");
    becomes("-std=c++11\n--std=c++17", "--std=c++17");
    becomes("-maxrregcount=032", "--maxrregcount=32");
    becomes("-lineinfo\n-G\n-w", "--generate-line-info\n--device-debug\n--disable-warnings");
    becomes("-dopt=on\n-default-device\n-restrict\n--minimal\n-extra-device-vectorization",
            "--dopt=on\n--extra-device-vectorization\n--device-as-default-execution-space\n--restrict\n--minimal");
    becomes("-diag-suppress=550,177\n--diag-suppress=177,20", "--diag-suppress=20,177,550");
    /* The order of those that do not depend on each other changes nothing. */
    becomes("-w\n-std=c++20\n-G", "--std=c++20\n--device-debug\n--disable-warnings");
    /* What changes nothing is dropped. */
    becomes("-ftz=false\n-prec-div=true\n-prec-sqrt=true\n-fmad=true\n-rdc=false", "");
    becomes("-ftz=true\n-prec-div=false\n--prec-sqrt=false\n--fmad=false",
            "--ftz=true\n--prec-div=false\n--prec-sqrt=false\n--fmad=false");
    /* With fast math they change something. */
    becomes("--use_fast_math\n-prec-div=true", "--use_fast_math\n--prec-div=true");
}

/* As nvcc and torch's users give them. */
TEST(takes_options_of_nvcc)
{
    struct options o;

    becomes("-O3\n-O\n--optimize=2\n-optimize\n3\n-g\n-m64\n-lcurand\n-L/usr/lib", "");
    becomes("--expt-relaxed-constexpr\n-expt-relaxed-constexpr\n--extended-lambda\n--expt-extended-lambda", "");
    becomes("-Xcompiler\n-fPIC,-Wall\n-Xcompiler=-O3\n--compiler-options\n-DA=1\n-DB=1", "--define-macro=B=1");
    becomes("-ccbin\ng++\n-Xcudafe\n--diag_suppress=1\n-Xlinker=-s\n--threads\n4\n--default-stream=per-thread", "");
    becomes("-std=gnu++17", "--std=c++17");
    becomes("-Xptxas\n-O3,-v", "--ptxas-options=-v");
    becomes("--ptxas-options=-O1,-dlcm=cg\n-Xptxas=--verbose,--warn-on-spills",
            "--ptxas-options=-v\n--ptxas-options=-O1\n--ptxas-options=-dlcm=cg\n--ptxas-options=-warn-spills");
    becomes("-arch=sm_90\n--gpu-architecture\ncompute_90a\n-code=sm_90a,compute_90", "");
    becomes("-arch=native\n-arch=sm_90a\n-arch\nall", "");
    /* Of several, one has to be the one that is compiled for. */
    becomes("-gencode\narch=compute_80,code=sm_80\n-gencode=arch=compute_90,code=[sm_90,compute_90]", "");
    MUST_FAIL(normalise("-w\n-arch=sm_80", &o, &e), ERROR_INVALID_ARGUMENT,
              "asks for sm_80, and the code is for sm_90a");
}

TEST(macros)
{
    becomes("-D\nN=4", "--define-macro=N=4");
    becomes("--define-macro=N=4", "--define-macro=N=4");
    becomes("-DB=2\n-DA=1\n-DB=3", "--define-macro=A=1\n--define-macro=B=3");
    becomes("-DB=2\n-UB", "--undefine-macro=B");
    becomes("-DAB=1\n-DA=1", "--define-macro=A=1\n--define-macro=AB=1");
    becomes("-DSQUARE(x)=x*x\n-DTEXT=\"a b\"", "--define-macro=SQUARE(x)=x*x\n--define-macro=TEXT=\"a b\"");
    refused("-w\n-D\n=4", "options[2]");
    refused("-DA B", "options[0]");
    refused("-DA=\x01", "options[0]");
}

TEST(include_paths)
{
    struct options o;
    const char *cccl[] = {"-Icccl"};

    becomes("-I cccl\n-Icrt//\n-I./cccl/.", "--include-path=" TOOLKIT "/cccl\n--include-path=" TOOLKIT "/crt");
    becomes("-Icrt\n-Icccl", "--include-path=" TOOLKIT "/crt\n--include-path=" TOOLKIT "/cccl");
    becomes("-I\n/opt//toolkit/include/cccl", "--include-path=" TOOLKIT "/cccl");
    becomes("--include-path=" TOOLKIT, "--include-path=" TOOLKIT);
    refused("-I\n", "options[1]");
    MUST_FAIL(normalise("-I/etc", &o, &e), ERROR_INVALID_ARGUMENT, TOOLKIT); /* says where they are */
    MUST_FAIL(options_normalise(cccl, 1, "sm_90a", NULL, &o, &e), ERROR_INVALID_ARGUMENT, "");
}

TEST(everything_else_is_refused)
{
    static const char options[] =
        "-D -D4=4 -DA=\xff -DF(x=1 -UA=1 -I/etc -I/opt/toolkit/include2 -Icccl/../../.. -I" TOOLKIT "/../../../etc "
        "-arch=sm_80 --gpu-architecture=compute_100 -arch=sm_90f -gencode=arch=compute_80,code=sm_80 "
        "-code=sm_9 --pch --create-pch=/tmp/x --use-pch=/tmp/x --pch-dir=/tmp -include=/etc/passwd "
        "--pre-include=/etc/passwd --time=/tmp/x --fdevice-time-trace=/tmp/x --dlink-time-opt -dlto "
        "--ptxas-options=--output-file -Xptxas -Xptxas=-v,--output-file -Xptxas=-o -Xcompiler "
        "--expt-relaxed-constexpr=x -O4 -Ofast -l -o -rdc=true -dc --relocatable-device-code=true "
        "-std=c++03 -std=gnu++03 -std=gnuc++17 -maxrregcount=0 -maxrregcount=256 -maxrregcount=-1 "
        "-maxrregcount=1x -ftz=yes -ftz= -w=1 -dopt=off -diag-suppress=1, -diag-suppress=a "
        "--use_fast_mathx ---use_fast_math kernel.cu - -- --D=1 --G -std @/etc/passwd";
    char two[128], option[64];
    const char *at = options;
    struct options o;

    for (int length; sscanf(at, "%63s%n", option, &length) == 1; at += length) {
        snprintf(two, sizeof(two), "-w\n%s", option);
        refused(two, "options[1]");
    }
    refused("\n-w", "options[0]");
    MUST_FAIL(normalise("-dlto", &o, &e), ERROR_INVALID_ARGUMENT, "--use_fast_math"); /* it says what is allowed */
    MUST_FAIL(normalise("-dlto", &o, &e), ERROR_INVALID_ARGUMENT, "-Xptxas=");        /* all of it */
}

TEST(too_many_or_too_long)
{
    static char text[OPTIONS_MAX_LENGTH + 2], macros[OPTIONS_MAX][8];
    const char *texts[OPTIONS_MAX + 1];
    struct options o;

    for (unsigned i = 0; i < OPTIONS_MAX; i++) { /* as many different ones as there may be */
        snprintf(macros[i], sizeof(macros[i]), "-DA%02u", i);
        texts[i] = macros[i];
    }
    MUST(options_normalise(texts, OPTIONS_MAX, "sm_90a", NULL, &o, &e));
    assert_int_equal(o.n, OPTIONS_MAX);
    options_free(&o);
    texts[OPTIONS_MAX] = "-w";
    MUST_FAIL(options_normalise(texts, OPTIONS_MAX + 1, "sm_90a", NULL, &o, &e), ERROR_LIMIT_EXCEEDED, "");
    memset(text, 'a', OPTIONS_MAX_LENGTH + 1);
    memcpy(text, "-DA=", 4);
    texts[0] = text;
    MUST_FAIL(options_normalise(texts, 1, "sm_90a", NULL, &o, &e), ERROR_INVALID_ARGUMENT, "longer");
    text[OPTIONS_MAX_LENGTH] = '\0';
    MUST(options_normalise(texts, 1, "sm_90a", NULL, &o, &e));
    options_free(&o);
}

static struct compile_input input(void)
{
    static const char *const entries[] = {"scale<float, 4>", "ns::f<(int*)0>"};
    static const struct compile_file files[] = {{"a.h", "int a;", 6}, {"dir/b.h", "", 0}};

    return (struct compile_input){.name = "kernel.cu",
                                  .source = "text",
                                  .length = 4,
                                  .files = files,
                                  .n_files = 2,
                                  .entries = entries,
                                  .n_entries = 2,
                                  .arch = "sm_90a"};
}

static void bad_input(const struct compile_input *in, enum error_code code, const char *key)
{
    struct error e = {0};

    assert_int_equal(options_check_input(in, 1000, &e), -1);
    assert_int_equal(e.code, code);
    assert_string_equal(e.details[0].text, key);
}

TEST(checks_entries)
{
    static const char *const names[] = {
        "f",  "_f$1", "f<int, 'a'>", "&ns::f<sizeof(int) * 2>", "größe", "f<S{1}>", "", "f;", "f\"", "f\\", "f#", "f\n",
        "f`", "f@",   "\xc3",        "f\xed\xa0\x80",           "f0"};
    static char text[OPTIONS_MAX_ENTRY + 2], numbered[COMPILED_MAX_ENTRIES + 1][8];
    const char *entries[COMPILED_MAX_ENTRIES + 1];
    struct compile_input in = input();

    MUST(options_check_input(&in, 1000, &e));
    in.entries = entries;
    for (unsigned i = 0; i <= COMPILED_MAX_ENTRIES; i++) {
        snprintf(numbered[i], sizeof(numbered[i]), "f%u", i);
        entries[i] = numbered[i];
    }
    in.n_entries = COMPILED_MAX_ENTRIES + 1;
    bad_input(&in, ERROR_LIMIT_EXCEEDED, "entries");
    in.n_entries = COMPILED_MAX_ENTRIES;
    MUST(options_check_input(&in, 1000, &e));
    in.n_entries = 0;
    bad_input(&in, ERROR_INVALID_ARGUMENT, "entries");
    in.n_entries = 2;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        entries[1] = names[i];
        if (i < 6)
            MUST(options_check_input(&in, 1000, &e));
        else
            bad_input(&in, ERROR_INVALID_ARGUMENT, "entries[1]");
    }
    memset(text, 'f', OPTIONS_MAX_ENTRY + 1);
    entries[1] = text;
    bad_input(&in, ERROR_INVALID_ARGUMENT, "entries[1]");
}

TEST(checks_sources)
{
    struct compile_file files[OPTIONS_MAX_FILES + 1] = {{"a.h", "x", 1}, {"a.h", "y", 1}};
    static char big[2000];
    struct compile_input in = input();

    in.files = files;
    bad_input(&in, ERROR_INVALID_ARGUMENT, "files[1]");
    files[1].name = "";
    bad_input(&in, ERROR_INVALID_ARGUMENT, "files[1]");
    files[1] = (struct compile_file){"b.h", "\0", 1};
    bad_input(&in, ERROR_INVALID_ARGUMENT, "files[1]");
    memset(big, 'x', sizeof(big));
    files[1] = (struct compile_file){"b.h", big, 995};
    MUST(options_check_input(&in, 1000, &e)); /* 4 + 1 + 995 */
    files[1].length++;
    bad_input(&in, ERROR_LIMIT_EXCEEDED, "source");
    in.n_files = OPTIONS_MAX_FILES + 1;
    bad_input(&in, ERROR_LIMIT_EXCEEDED, "files");
    in.n_files = 0;
    in.source = big;
    in.length = 1001;
    bad_input(&in, ERROR_LIMIT_EXCEEDED, "source");
    in.source = "a\0b";
    in.length = 3;
    bad_input(&in, ERROR_INVALID_ARGUMENT, "source");
    in = input();
    in.name = "--pch"; /* the compiler would take it for an option */
    bad_input(&in, ERROR_INVALID_ARGUMENT, "name");
    in.name = "a\nb";
    bad_input(&in, ERROR_INVALID_ARGUMENT, "name");
}

TEST(checks_architectures)
{
    static const char *const archs[] = {"sm_75", "sm_90",   "sm_90a",     "sm_103f", "sm_120",  "",       "sm_",
                                        "sm_9",  "sm_1000", "compute_90", "sm_90b",  "sm_90ax", "sm_90 ", "SM_90"};
    struct compile_input in = input();

    for (unsigned i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
        in.arch = archs[i];
        if (i < 5)
            MUST(options_check_input(&in, 1000, &e));
        else
            bad_input(&in, ERROR_INVALID_ARGUMENT, "arch");
    }
}

/* ---- the name of a module: what decides what the compiler makes changes it, and nothing else does ---- */

TEST(everything_counts_but_the_order_of_files)
{
    static const char *const options[] = {"--ftz=true", "--fmad=false", "--ftz=true--fmad=false"};
    static const char *const entries[] = {"f", "g", "fg"}, *const turned[] = {"g", "f"};
    static const struct compile_file files[] = {{"a.h", "1", 1}, {"b.h", "22", 2}},
                                     reordered[] = {{"b.h", "22", 2}, {"a.h", "1", 1}},
                                     shifted[] = {{"a.h", "12", 2}, {"b.h", "2", 1}},
                                     renamed[] = {{"a.h", "1", 1}, {"c.h", "22", 2}},
                                     swapped[] = {{"a.h", "22", 2}, {"b.h", "1", 1}};
    const struct compile_input variants[] = {
        {"k.cu", "source", 6, files, 2, options, 2, entries, 2, "sm_90a"}, /* with another compiler */
        {"k.cu", "source", 6, files, 2, options, 2, entries, 2, "sm_90a"},
        {"l.cu", "source", 6, files, 2, options, 2, entries, 2, "sm_90a"},
        {"k.cu", "sourcf", 6, files, 2, options, 2, entries, 2, "sm_90a"},
        {"k.cu", "source", 5, files, 2, options, 2, entries, 2, "sm_90a"},
        {"k.cu", "source", 6, shifted, 2, options, 2, entries, 2, "sm_90a"},
        {"k.cu", "source", 6, renamed, 2, options, 2, entries, 2, "sm_90a"},
        {"k.cu", "source", 6, swapped, 2, options, 2, entries, 2, "sm_90a"},
        {"k.cu", "source", 6, files, 1, options, 2, entries, 2, "sm_90a"},
        {"k.cu", "source", 6, files, 0, options, 2, entries, 2, "sm_90a"},
        {"k.cu", "source", 6, files, 2, options, 1, entries, 2, "sm_90a"},
        {"k.cu", "source", 6, files, 2, options, 0, entries, 2, "sm_90a"},
        {"k.cu", "source", 6, files, 2, options + 1, 2, entries, 2, "sm_90a"},
        {"k.cu", "source", 6, files, 2, options + 2, 1, entries, 2, "sm_90a"},
        {"k.cu", "source", 6, files, 2, options, 2, entries, 1, "sm_90a"},
        {"k.cu", "source", 6, files, 2, options, 2, turned, 2, "sm_90a"},
        {"k.cu", "source", 6, files, 2, options, 2, entries + 2, 1, "sm_90a"},
        {"k.cu", "source", 6, files, 2, options, 2, entries, 2, "sm_90"},
    };
    enum { VARIANTS = sizeof(variants) / sizeof(variants[0]) };
    struct compile_input in = variants[1];
    unsigned char keys[VARIANTS + 1][KEY_BYTES];
    char hex[KEY_HEX + 1];

    for (unsigned i = 0; i < VARIANTS; i++) {
        key_make(&variants[i], i ? "NVRTC 13.0" : "NVRTC 13.0 build 2", keys[i]);
        for (unsigned k = 0; k < i; k++)
            if (!memcmp(keys[i], keys[k], KEY_BYTES))
                fail_msg("variants %u and %u have the same key", i, k);
    }
    in.files = reordered;
    key_make(&in, "NVRTC 13.0", keys[VARIANTS]);
    assert_memory_equal(keys[VARIANTS], keys[1], KEY_BYTES);
    /* Another value here makes every file in every cache useless: then the format's number must change, too. */
    key_to_hex(keys[1], hex);
    assert_string_equal(hex, "f7615b810168d082b1ed155c2296ca63c5e4ac24203f53299c6cb986170bb7ca");
}

TEST(reads_hexadecimal)
{
    static const struct {
        unsigned at;
        char character;
    } faults[] = {{0, '\0'}, {7, 'g'}, {7, 'A'}, {KEY_HEX - 1, '\0'}, {KEY_HEX, '0'}};
    unsigned char key[KEY_BYTES], back[KEY_BYTES];
    char hex[KEY_HEX + 2] = "";

    module_key(3, key);
    key_to_hex(key, hex);
    assert_true(key_from_hex(hex, back));
    assert_memory_equal(key, back, KEY_BYTES);
    for (unsigned i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        memset(hex, 0, sizeof(hex));
        key_to_hex(key, hex);
        hex[faults[i].at] = faults[i].character;
        assert_false(key_from_hex(hex, back));
    }
}
