/* What is left of a source when its host code is blanked: everything that a kernel may need, in its place. */
#include "source/hostcode.h"
#include "tests/support/unit.h"

#include "hostcode_vectors.h"

#define KERNEL "__global__ void k(float *a) { a[0] = 1; }\n"

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

TEST(test_faults)
{
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

/* What stays and what goes, and broken texts. The interpreter, in Python, has the same rules; both run
 * tests/vectors/hostcode.json. */
TEST(what_is_left_is_what_the_interpreter_leaves)
{
    for (size_t i = 0; i < sizeof(hostcode) / sizeof(hostcode[0]); i++) {
        struct hostcode_text texts[HOSTCODE_TEXTS];
        char *exact[HOSTCODE_TEXTS]; /* without an end, so that sanitizers see what is read beyond it */

        for (unsigned j = 0; j < hostcode[i].n; j++) {
            const size_t length = strlen(hostcode[i].texts[j]);

            exact[j] = malloc(length + !length);
            assert_non_null(exact[j]);
            memcpy(exact[j], hostcode[i].texts[j], length);
            texts[j] = (struct hostcode_text){.text = exact[j], .length = length};
        }
        assert_int_equal(hostcode_blank(texts, hostcode[i].n), 0);
        for (unsigned j = 0; j < hostcode[i].n; j++) {
            assert_string_equal(texts[j].blanked, hostcode[i].blanked[j]);
            assert_int_equal(texts[j].changed, strcmp(hostcode[i].texts[j], hostcode[i].blanked[j]) != 0);
            free(texts[j].blanked);
            free(exact[j]);
        }
    }
}
