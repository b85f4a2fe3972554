/* Runs a fuzz target over files and folders, for builds without libFuzzer: `replay PATH…`. */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

static unsigned replayed;

static int replay_file(const char *path)
{
    static uint8_t data[1 << 20];
    FILE *file = fopen(path, "rb");
    size_t size;

    if (!file) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    size = fread(data, 1, sizeof(data), file);
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
    replayed++;
    return 0;
}

static int replay_folder(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    char name[4096];
    int r = 0;

    if (!folder) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    while (!r && (entry = readdir(folder))) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        r = replay_file(name);
    }
    closedir(folder);
    return r;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct stat st;

        if (stat(argv[i], &st) < 0 || (S_ISDIR(st.st_mode) ? replay_folder(argv[i]) : replay_file(argv[i])) < 0) {
            fprintf(stderr, "cannot replay %s\n", argv[i]);
            return 1;
        }
    }
    printf("%u inputs replayed\n", replayed);
    return replayed ? 0 : 1;
}
