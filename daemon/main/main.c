/* kopsd: which of its lives a process is to have. Together with its neighbours the only place that prints and exits. */
#include <stdio.h>

#include "compile/helper.h"
#include "compile/signed.h"
#include "executor/executor.h"
#include "main/autostart.h"
#include "main/config.h"
#include "main/flags.h"
#include "main/serve.h"
#include "main/supervise.h"
#include "remote/remote.h"

/* Prints the setting of machines that are to trust the key. */
static int make_key(const char *path)
{
    char word[SIGNING_WORD_SIZE];
    struct signing_key key;
    struct error e;

    if (signing_key_make(path, &key, &e) < 0) {
        fprintf(stderr, "kopsd: %s\n", e.message);
        return EXIT_USAGE;
    }
    signing_public_print(key.public, word);
    signing_key_forget(&key);
    printf("remote_trust = %s\n", word);
    return 0;
}

int main(int argc, char **argv)
{
    struct flags flags;
    struct config config = {0};
    struct error e;
    int status;

    /* Compilers, executors, tuners and the one that speaks HTTP are this program, too: so they are there wherever it
     * is, and of the same version. */
    if (remote_helper_wanted(argc, argv))
        return remote_helper_main(argc, argv);
    if (compile_helper_wanted(argc, argv))
        return compile_helper_main(argc, argv);
#ifdef KOPS_HAVE_CUDA
    if (executor_wanted(argc, argv))
        return executor_main(argc, argv, &cuda_backend);
    if (tuner_wanted(argc, argv))
        return tuner_main(argc, argv, &cuda_backend);
#endif
    status = flags_parse(argc, argv, &flags);
    if (status >= 0)
        return status;
    if (flags.keygen)
        return make_key(flags.keygen);
    if (flags_load(&flags, &config, &e) < 0) {
        fprintf(stderr, "kopsd: %s\n", e.message);
        config_free(&config);
        return EXIT_USAGE;
    }
    status = 0;
    config_apply_log(&config);
    if (flags.print)
        config_print(&config, stdout);
    else if (flags.autostart)
        status = autostart(&flags, &config);
    else if (!flags.check)
        status = flags.supervise ? supervise(&flags, &config) : serve(&flags, &config);
    config_free(&config);
    return status;
}
