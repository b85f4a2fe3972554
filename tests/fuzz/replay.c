/* Runs a fuzz target over files and folders, for builds without libFuzzer: `replay PATH…`. */
#include <ftw.h>

#include "tests/fuzz/fuzz.h"

enum { FOLDERS = 8 }; /* that are open at one time */

static unsigned replayed;

static int replay(const char *path, const struct stat *st, int type, struct FTW *at)
{
    static uint8_t data[1 << 20];
    FILE *file;
    size_t size;

    (void)st, (void)at;
    if (type != FTW_F)
        return type == FTW_D ? 0 : -1;
    file = fopen(path, "rb");
    if (!file)
        return -1;
    size = fread(data, 1, sizeof(data), file);
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
    replayed++;
    return 0;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (nftw(argv[i], replay, FOLDERS, 0)) {
            perror(argv[i]);
            return 1;
        }
    printf("%u inputs replayed\n", replayed);
    return replayed ? 0 : 1;
}
