/* What is left of a source when its host code is blanked: everything that a kernel may need, in its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compile/hostcode.h"

#include "hostcode_vectors.h"

#define KERNEL "__global__ void k(float *a) { a[0] = 1; }\n"

/* `kept` and `gone` are lists of pieces of the source, which end with NULL. */
static void check(const char *source, const char *const *kept, const char *const *gone)
{
    struct hostcode_text text = {.text = source, .length = strlen(source)};

    assert_int_equal(hostcode_blank(&text, 1), 0);
    assert_int_equal(strlen(text.blanked), text.length);
    for (size_t i = 0; i < text.length; i++) { /* nothing moves */
        if (source[i] == '\n' || text.blanked[i] != ' ')
            assert_int_equal(text.blanked[i], source[i]);
    }
    for (; *kept; kept++)
        if (!strstr(text.blanked, *kept))
            fail_msg("`%s` is not kept in:\n%s", *kept, text.blanked);
    for (; *gone; gone++)
        if (strstr(text.blanked, *gone))
            fail_msg("`%s` is kept in:\n%s", *gone, text.blanked);
    free(text.blanked);
}

#define CHECK(source, kept, gone)                                                                                      \
    check(source, (const char *const[]){KERNEL, kept, NULL}, (const char *const[]){gone, NULL})
#define ALL(...) __VA_ARGS__

static void host_functions_go(void **state)
{
    (void)state;
    CHECK(KERNEL "int main() { k<<<1, 2>>>(0); return 0; }\n", NULL, ALL("main", "<<<"));
    CHECK(KERNEL "__host__ static void f(std::vector<int> a = {1, 2}) { puts(\"}\"); }\n", NULL, ALL("puts"));
    CHECK(KERNEL "template <class T, int N = (3 > 2)> auto g(T *p) -> std::vector<T> { return {}; }\n", NULL,
          ALL("return {}", "template"));
    CHECK(KERNEL "void prototype(FILE *f);\nPYBIND11_MODULE(x, m) { m.def(0); }\n", NULL, ALL("FILE", "m.def"));
    CHECK("namespace a { namespace b { int h() { return puts(0); } " KERNEL
          " } }\nextern \"C\" { void q() { r(); } }\n",
          ALL("namespace a { namespace b {", "extern \"C\" {"), ALL("puts", "r()"));
}

static void device_code_stays(void **state)
{
    (void)state;
    CHECK(KERNEL "__device__ int f(int a) { return a; }\n__host__ __device__ int g() { return 1; }\n",
          ALL("return a;", "return 1;"), NULL);
    CHECK(KERNEL
          "template <int N> __global__ __launch_bounds__(N) void t(int *p) { p[0] = N; }\ntemplate __global__ void "
          "t<3>(int *);\n",
          ALL("p[0] = N;", "t<3>"), NULL);
    CHECK(KERNEL "constexpr int c(int a) { return a + 1; }\n", ALL("a + 1"), NULL);
    CHECK(KERNEL
          "#define HD __host__ \\\n  __device__\nHD inline int m() { return 7; }\nC10_DEVICE int n() { return 8; }\n",
          ALL("return 7;", "return 8;"), NULL);
    CHECK(KERNEL "__device__ int later(int a);\nint later(int a) { return a * 9; }\n", ALL("a * 9"), NULL);
}

static void variables_of_the_host_go(void **state)
{
    (void)state;
    CHECK(KERNEL "static FILE *f;\ncublasHandle_t h; void *p = malloc(3);\nfloat *r[] = {0, 0};\n", NULL,
          ALL("FILE", "cublas", "malloc", "float *r"));
    CHECK(KERNEL "const int n = 4; constexpr int m = 5; __constant__ int c[2] = {1, 2}; __device__ int d;\n",
          ALL("n = 4", "m = 5", "c[2] = {1, 2}", "int d"), NULL);
    CHECK(KERNEL "using A = int; typedef struct { int x; } B; enum E { ONE }; struct F; static_assert(1, \"\");\n",
          ALL("using A", "int x;", "ONE", "struct F", "static_assert"), NULL);
}

static void classes_keep_what_is_for_the_device(void **state)
{
    (void)state;
    CHECK(KERNEL
          "struct S { float x; void h() { puts(0); } __device__ int d() { return 3; } S(int n) : x(n), y{3} { q(); } "
          "int y; S() = default; };\n",
          ALL("float x;", "return 3;", "int y;", "S() = default;"), ALL("puts", "q()"));
    CHECK(KERNEL "template <> struct T<void (*)(int)> { int z; };\nstruct __align__(16) U { float w; };\n",
          ALL("int z;", "float w;"), NULL);
    CHECK(KERNEL "bool operator<(const S &a, const S &b) { return less(a, b); }\n", NULL, ALL("less"));
}

static void literals_and_conditionals_do_not_mislead(void **state)
{
    (void)state;
    CHECK("const char *s = R\"x( } ) \" {)x\";\nvoid f() { char c = '}'; int n = 1'000; auto q = R\"(})\"; }\n" KERNEL,
          ALL("R\"x( } ) \" {)x\""), ALL("1'000"));
    CHECK("#ifdef X\nvoid f(int a) {\n#else\nvoid f(float a) {\n#endif\n  puts(0); }\n" KERNEL,
          ALL("#ifdef X", "#else", "#endif"), ALL("puts"));
    CHECK("#if 0\ndon't { look\n#endif\n" KERNEL, ALL("#if 0"), NULL);
    CHECK("int main() {\n#define INSIDE 3\n#pragma unroll\n  return 0; }\n" KERNEL, ALL("#define INSIDE 3"),
          ALL("#pragma", "return"));
    CHECK("// int x; {\n/* { */ void f() { /* } */ puts(0); }\n" KERNEL, ALL("// int x; {"), ALL("puts"));
}

static void macros_of_one_text_count_in_the_others(void **state)
{
    const char *source = "#include \"h.h\"\nDEV int f() { return 3; }\nint main() { go(); }\n";
    const char *header = "#define DEV __device__\nvoid go() { puts(0); }\n";
    struct hostcode_text texts[] = {{.text = source, .length = strlen(source)},
                                    {.text = header, .length = strlen(header)}};

    (void)state;
    assert_int_equal(hostcode_blank(texts, 2), 0);
    assert_true(texts[0].changed && texts[1].changed);
    assert_non_null(strstr(texts[0].blanked, "return 3;"));
    assert_null(strstr(texts[0].blanked, "go()"));
    assert_null(strstr(texts[1].blanked, "puts"));
    free(texts[0].blanked);
    free(texts[1].blanked);
}

static void what_is_all_for_the_device_is_unchanged(void **state)
{
    struct hostcode_text text = {.text = KERNEL, .length = strlen(KERNEL)};

    (void)state;
    assert_int_equal(hostcode_blank(&text, 1), 0);
    assert_false(text.changed);
    assert_string_equal(text.blanked, KERNEL);
    free(text.blanked);
}

/* No text makes it read beyond its end: the sanitizers watch. */
static void broken_texts_are_survived(void **state)
{
    static const char *const texts[] = {
        "",        "{",       "}}}",  "((([{",       "template <",      "#",          "R\"x(",
        "\"",      "'",       "/*",   "operator",    "#define",         "#define e",  "a = {",
        "void f(", "\\",      "void", "#if\n{#else", "template <class", "operator()", "f() {",
        "x::",     "struct {"};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        size_t length = strlen(texts[i]);
        char *exact = malloc(length ? length : 1);
        struct hostcode_text text = {.text = exact, .length = length};

        assert_non_null(exact);
        memcpy(exact, texts[i], length);
        assert_int_equal(hostcode_blank(&text, 1), 0);
        free(text.blanked);
        free(exact);
    }
}

/* Declarations on lines of which a compiler complains; `faulty` has a '!' at the beginning of each such line. */
static void drops_faulty(const char *marked, const char *expected)
{
    char source[1024], faults[1024] = {0};
    struct hostcode_text text = {.text = source, .faults = (unsigned char *)faults};
    bool faulty = false;

    for (const char *at = marked; *at; at++) {
        if (at == marked || at[-1] == '\n')
            faulty = *at == '!';
        if (*at == '!')
            continue;
        faults[text.length] = faulty;
        source[text.length++] = *at;
    }
    source[text.length] = '\0';
    assert_int_equal(hostcode_blank(&text, 1), 0);
    assert_int_equal(strlen(text.blanked), text.length);
    for (char *from = text.blanked, *to = from;; from++) /* without blanks at the ends of lines */
        if (!(*to = *from)) {
            break;
        } else if (*from == '\n') {
            while (to > text.blanked && to[-1] == ' ')
                to--;
            *to++ = '\n';
        } else {
            to++;
        }
    assert_string_equal(text.blanked, expected);
    free(text.blanked);
}

static void test_faults(void **state)
{
    (void)state;
    drops_faulty("!using std::cout;\nusing T = float;\n" KERNEL, "\nusing T = float;\n" KERNEL);
    drops_faulty("const int a = 1;\n!const std::string s =\n  \"x\";\nconstexpr int b = 2;\n" KERNEL,
                 "const int a = 1;\n\n\nconstexpr int b = 2;\n" KERNEL);
    drops_faulty("!constexpr int f() { return std::rand(); }\n!namespace fs = std::filesystem;\n" KERNEL,
                 "\n\n" KERNEL);
    /* Of a class that the device uses only what is for the host. */
    drops_faulty("struct V {\n  float x;\n!  std::string name() const;\n!  friend std::istream "
                 "&operator>>(std::istream &, V &);\n"
                 "  __device__ float f();\n};\n" KERNEL,
                 "struct V {\n  float x;\n\n\n  __device__ float f();\n};\n" KERNEL);
    /* Without a variable or its base a class would have another layout. */
    drops_faulty("struct C {\n  int n;\n!  std::map<int, int> m;\n};\nstruct D { int n; };\n" KERNEL,
                 "\n\n\n\nstruct D { int n; };\n" KERNEL);
    drops_faulty("!struct E : std::exception {\n  int code;\n} const e;\n" KERNEL, "\n\n\n" KERNEL);
    drops_faulty("struct C {\n!  std::map<int, int> m;\n  __device__ int f();\n};\n",
                 "struct C {\n  std::map<int, int> m;\n  __device__ int f();\n};\n");
    /* What is marked for the device is the source's own fault. */
    drops_faulty("!__device__ int f() { return g(); }\n!__constant__ int c = h;\n!" KERNEL,
                 "__device__ int f() { return g(); }\n__constant__ int c = h;\n" KERNEL);
}

/* The interpreter, in Python, has the same rules; both run tests/vectors/hostcode.json. */
static void what_is_left_is_what_the_interpreter_leaves(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(hostcode) / sizeof(hostcode[0]); i++) {
        struct hostcode_text texts[HOSTCODE_TEXTS];

        for (unsigned j = 0; j < hostcode[i].n; j++)
            texts[j] = (struct hostcode_text){.text = hostcode[i].texts[j], .length = strlen(hostcode[i].texts[j])};
        assert_int_equal(hostcode_blank(texts, hostcode[i].n), 0);
        for (unsigned j = 0; j < hostcode[i].n; j++) {
            assert_string_equal(texts[j].blanked, hostcode[i].blanked[j]);
            free(texts[j].blanked);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults),
        cmocka_unit_test(host_functions_go),
        cmocka_unit_test(device_code_stays),
        cmocka_unit_test(variables_of_the_host_go),
        cmocka_unit_test(classes_keep_what_is_for_the_device),
        cmocka_unit_test(literals_and_conditionals_do_not_mislead),
        cmocka_unit_test(macros_of_one_text_count_in_the_others),
        cmocka_unit_test(what_is_all_for_the_device_is_unchanged),
        cmocka_unit_test(broken_texts_are_survived),
        cmocka_unit_test(what_is_left_is_what_the_interpreter_leaves),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
