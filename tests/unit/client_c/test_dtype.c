/* Types of C and CUDA as dtypes: the vectors that the Python client runs, too. */
#include "test.h"

#include "c_types_vectors.h"

static void types_of_c_are_dtypes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(c_types) / sizeof(c_types[0]); i++) {
        enum kops_dtype dtype;
        const char *name = kops_dtype_parse(c_types[i].type, &dtype) ? kops_dtype_name(dtype) : NULL;

        if (!name != !c_types[i].dtype || (name && strcmp(name, c_types[i].dtype) != 0))
            fail_msg("`%s` is %s, not %s", c_types[i].type, name ? name : "no type",
                     c_types[i].dtype ? c_types[i].dtype : "no type");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(types_of_c_are_dtypes)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
